"""Ids to text: every tokenizer's decoder, UTF-8 cut anywhere, stop strings cut exactly, special-token policies.

The references are `tokenizers`' own whole-text decoding and Python's UTF-8 decoder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from visavis.detokenize import FRAME_TOKENS, TextStream, Vocabulary, detokenize, dropped_ids

WORDS = "hello world, the cat sat. Привет мир 你好吗 日本語 😀👍🏽 naïve <|fake|> a  b\n\tc 'quoted'"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|box_start|>", "<|box_end|>", "<|vision_start|>")
BROKEN = "\N{REPLACEMENT CHARACTER}"


class Plain:
    """A `TextTokenizer` over a `tokenizers.Tokenizer`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = tokenizer.get_vocab_size()
        self.special_ids = frozenset(i for i, t in tokenizer.get_added_tokens_decoder().items() if t.special)
        self.decoded: list[int] = []  # how many ids each call of `decode` got

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        self.decoded.append(len(ids))
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def id_to_token(self, token_id: int) -> str | None:
        return self.tokenizer.id_to_token(token_id)

    def token_to_id(self, token: str) -> int | None:
        return self.tokenizer.token_to_id(token)


@cache
def byte_level() -> Plain:
    """GPT-2's, Qwen's and Llama 3's kind; merges cross the borders of characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    # Words, and characters that share bytes, so that merges also end inside characters.
    several = [" ".join(WORDS.split(" ")[i::3]) for i in range(3)]
    tokenizer.train_from_iterator([*several, WORDS, "你好你好吗吗你吗好", "😀😃😄👍👍🏽", "ЀЁЂЃЄЅ", "éèêë"], trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return Plain(tokenizer)


def sentencepiece(decoder: decoders.Decoder, prepend: bool) -> Plain:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    pieces += [
        "▁",
        "▁hello",
        "▁world",
        "hello",
        "wor",
        "ld",
        ",",
        "▁▁",
        "▁the",
        "cat",
        "s",
        "a",
        "é",
        "你",
        "▁你好",
        ".",
    ]
    merges: list[tuple[str, str]] = []
    tokenizer = Tokenizer(
        models.BPE({p: i for i, p in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    steps = [normalizers.Prepend("▁")] if prepend else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.add_special_tokens([AddedToken("<box>", special=True, normalized=False)])
    return Plain(tokenizer)


@cache
def llama2() -> Plain:
    """Llama 2's decoder: a leading space of the whole text is stripped, bytes fall back."""
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return sentencepiece(decoders.Sequence(steps), prepend=True)


@cache
def gemma() -> Plain:
    """Gemma's decoder: bytes fall back, nothing is stripped."""
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return sentencepiece(decoders.Sequence(steps), prepend=False)


@cache
def metaspace() -> Plain:
    """T5's kind: `Metaspace` strips the first token's space; no byte fallback."""
    return sentencepiece(decoders.Metaspace(), prepend=True)


KINDS = {"byte_level": byte_level, "llama2": llama2, "gemma": gemma, "metaspace": metaspace}


@pytest.fixture(params=list(KINDS))
def tokenizer(request: pytest.FixtureRequest) -> Plain:
    return KINDS[request.param]()


def cut(ids: Sequence[int], sizes: Sequence[int]) -> Iterator[Sequence[int]]:
    """`ids` in pieces of the given sizes, over and over."""
    start, turn = 0, 0
    while start < len(ids):
        size = sizes[turn % len(sizes)] if sizes else len(ids)
        yield ids[start : start + size]
        start, turn = start + size, turn + 1


def streamed(tokenizer: Plain, ids: Sequence[int], sizes: Sequence[int] = (1,), **options: object) -> list[str]:
    stream = TextStream(Vocabulary(tokenizer), **options)  # type: ignore[arg-type]
    return [*(stream.add(piece).text for piece in cut(ids, sizes)), stream.finish().text]


ids_of = st.lists(st.integers(0, 10_000), max_size=40)
sizes_of = st.lists(st.integers(1, 5), max_size=4)


# ---- text ----------------------------------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None)
@given(raw=ids_of, sizes=sizes_of)
def test_any_ids_of_a_byte_level_tokenizer_give_the_librarys_text(raw: list[int], sizes: list[int]) -> None:
    tokenizer = byte_level()
    ids = [i % tokenizer.vocab_size for i in raw]
    expected = tokenizer.decode(ids)
    assert detokenize(tokenizer, ids, special_tokens="all") == expected
    assert "".join(streamed(tokenizer, ids, sizes)) == expected


@settings(max_examples=80, deadline=None)
@given(text=st.text(max_size=30), sizes=sizes_of)
@pytest.mark.parametrize("kind", ["byte_level", "llama2", "gemma"])
def test_encoded_text_comes_back_however_it_is_cut(kind: str, text: str, sizes: list[int]) -> None:
    tokenizer = KINDS[kind]()
    ids = tokenizer.encode(text)
    pieces = streamed(tokenizer, ids, sizes)
    assert "".join(pieces) == tokenizer.decode(ids) == detokenize(tokenizer, ids, special_tokens="all")
    if BROKEN not in text:
        assert all(BROKEN not in piece for piece in pieces)


@settings(max_examples=80, deadline=None)
@given(raw=ids_of, sizes=sizes_of)
@pytest.mark.parametrize("kind", ["llama2", "gemma", "metaspace"])
def test_any_whole_pieces_of_sentencepiece_kinds_give_the_librarys_text(
    kind: str, raw: list[int], sizes: list[int]
) -> None:
    tokenizer = KINDS[kind]()
    whole = [i for i in range(tokenizer.vocab_size) if not 3 <= i < 259]  # without the byte tokens
    ids = [whole[i % len(whole)] for i in raw]
    assert "".join(streamed(tokenizer, ids, sizes)) == tokenizer.decode(ids)


@settings(max_examples=120, deadline=None)
@given(data=st.binary(max_size=24), sizes=sizes_of)
@pytest.mark.parametrize("kind", ["byte_level", "llama2", "gemma"])
def test_any_bytes_decode_as_pythons_utf8(kind: str, data: bytes, sizes: list[int]) -> None:
    """Broken bytes become U+FFFD one per maximal subpart, and complete characters beside them stay."""
    tokenizer = KINDS[kind]()
    if kind == "byte_level":
        shown = dict(zip(range(256), _byte_characters(), strict=True))
        ids = [tokenizer.token_to_id(shown[b]) for b in data]
    else:
        ids = [tokenizer.token_to_id(f"<0x{b:02X}>") for b in data]
    assert None not in ids
    expected = data.decode("utf-8", "replace")
    if kind == "llama2" and data.startswith(b" "):
        expected = expected[1:]
    assert "".join(streamed(tokenizer, ids, sizes)) == expected  # type: ignore[arg-type]


def _byte_characters() -> list[str]:
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def test_a_character_split_over_tokens_appears_when_it_is_complete() -> None:
    tokenizer = llama2()
    ids = [tokenizer.token_to_id(f"<0x{b:02X}>") for b in "é😀".encode()]
    assert streamed(tokenizer, ids) == ["", "é", "", "", "", "😀", ""]  # type: ignore[arg-type]
    tokenizer = byte_level()
    shown = _byte_characters()
    ids = [tokenizer.token_to_id(shown[b]) for b in "é😀".encode()]
    assert streamed(tokenizer, ids) == ["", "é", "", "", "", "😀", ""]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["byte_level", "llama2", "gemma"])
def test_a_character_never_completed_shows_as_broken_only_at_the_end(kind: str) -> None:
    tokenizer = KINDS[kind]()
    spelled = ["<0xF0>", "<0x9F>"] if kind != "byte_level" else [_byte_characters()[b] for b in (0xF0, 0x9F)]
    ids = [tokenizer.token_to_id(s) for s in spelled]
    assert streamed(tokenizer, ids) == ["", "", BROKEN]  # type: ignore[arg-type]


def test_broken_bytes_appear_at_once_when_nothing_can_mend_them() -> None:
    tokenizer = byte_level()
    shown = _byte_characters()
    ids = [tokenizer.token_to_id(shown[b]) for b in b"\xe4\xe4\xffa"]
    assert streamed(tokenizer, ids) == ["", BROKEN, BROKEN, BROKEN + "a", ""]  # type: ignore[arg-type]


def test_a_leading_space_is_stripped_only_at_the_start() -> None:
    tokenizer = llama2()
    hello, world = tokenizer.token_to_id("▁hello"), tokenizer.token_to_id("▁world")
    assert streamed(tokenizer, [hello, world]) == ["hello", " world", ""]  # type: ignore[list-item]
    assert streamed(gemma(), [hello, world]) == [" hello", " world", ""]  # type: ignore[list-item]


def test_ids_outside_the_vocabulary_add_nothing(tokenizer: Plain) -> None:
    ids = tokenizer.encode("hello")
    beyond = tokenizer.vocab_size + 5
    assert detokenize(tokenizer, [*ids, beyond, *ids], special_tokens="all") == tokenizer.decode([*ids, beyond, *ids])


def test_the_work_for_a_token_does_not_grow() -> None:
    """Not by the clock: by how many ids are ever decoded in one call, also in endless broken bytes."""
    tokenizer = byte_level()
    shown = _byte_characters()
    text = tokenizer.encode(WORDS) * 30
    broken = [tokenizer.token_to_id(shown[b]) for b in (0x80, 0xF0)] * 400
    merged = [i for i in range(tokenizer.vocab_size) if len(tokenizer.id_to_token(i) or "") > 1]
    crossing = [i for i in merged if BROKEN in tokenizer.decode([i])] * 40
    for ids in (text, broken, crossing):
        tokenizer.decoded.clear()
        streamed(tokenizer, ids)  # type: ignore[arg-type]
        assert len(ids) > 200
        assert max(tokenizer.decoded) <= 24
        assert len(tokenizer.decoded) <= 3 * len(ids) + 10


# ---- special tokens ------------------------------------------------------------------------------------------------


def ids_for(tokenizer: Plain, text: str) -> list[int]:
    return list(tokenizer.tokenizer.encode(text, add_special_tokens=False).ids)


MARKED = "<|im_start|>hi <|box_start|>(1,2)<|box_end|><think>x<|vision_start|><|im_end|><|endoftext|>"


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("all", MARKED),
        ("structural", "hi <|box_start|>(1,2)<|box_end|><think>x<|vision_start|>"),
        ("none", "hi (1,2)<think>x"),
    ],
)
def test_what_each_policy_keeps(policy: str, expected: str) -> None:
    tokenizer = byte_level()
    assert detokenize(tokenizer, ids_for(tokenizer, MARKED), special_tokens=policy) == expected  # type: ignore[arg-type]


def test_eos_and_pad_of_any_spelling_are_dropped_and_other_ids_stay() -> None:
    tokenizer = byte_level()
    a, b, box = (tokenizer.token_to_id(t) for t in ("a", "b", "<|box_start|>"))
    assert a is not None
    assert b is not None
    assert box is not None
    ids = [a, box, b, a]
    assert detokenize(tokenizer, ids, end_ids=(box,), pad_id=b) == "aa"
    assert detokenize(tokenizer, ids, special_tokens="all", end_ids=(box,), pad_id=b) == "a<|box_start|>ba"
    assert detokenize(tokenizer, ids, special_tokens="none", end_ids=(b,)) == "aa"


def test_a_frame_tokens_spelling_that_is_no_special_token_is_text() -> None:
    tokenizer = byte_level()
    spelled = [i for ch in "<s>" for i in tokenizer.encode(ch)]
    assert "<s>" in FRAME_TOKENS
    assert detokenize(tokenizer, spelled) == "<s>"


@settings(max_examples=80, deadline=None)
@given(raw=ids_of, sizes=sizes_of, policy=st.sampled_from(["structural", "all", "none"]))
@pytest.mark.parametrize("kind", ["byte_level", "metaspace"])
def test_every_policy_is_the_librarys_text_of_the_ids_it_keeps(
    kind: str, raw: list[int], sizes: list[int], policy: str
) -> None:
    tokenizer = KINDS[kind]()
    ids = [i % tokenizer.vocab_size for i in raw]
    dropped = dropped_ids(tokenizer, policy, end_ids=(7,))  # type: ignore[arg-type]
    kept = [i for i in ids if i not in dropped]
    assert "".join(streamed(tokenizer, ids, sizes, dropped=dropped)) == tokenizer.decode(kept)
    assert detokenize(tokenizer, ids, special_tokens=policy, end_ids=(7,)) == tokenizer.decode(kept)  # type: ignore[arg-type]


# ---- stop strings --------------------------------------------------------------------------------------------------


def earliest(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """By the definition: the stop string complete first, the longest of those; where it begins."""
    for end in range(1, len(text) + 1):
        hits = [s for s in stops if text[:end].endswith(s)]
        if hits:
            stop = max(hits, key=len)
            return end - len(stop), stop
    return None


@settings(max_examples=250, deadline=None)
@given(
    text=st.text(alphabet="ab<|>é", max_size=25),
    stops=st.lists(st.text(alphabet="ab<|>é", min_size=1, max_size=4), min_size=1, max_size=3),
    sizes=sizes_of,
)
def test_stop_strings_cut_exactly_and_nothing_of_one_is_shown_early(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    tokenizer = byte_level()
    ids = [i for ch in text for i in tokenizer.encode(ch)]
    stream = TextStream(Vocabulary(tokenizer), stop=stops)
    expected = earliest(text, stops)
    shown = ""
    for piece in cut(ids, sizes):
        got = stream.add(piece)
        shown += got.text
        assert text.startswith(shown)
        if expected is not None:
            assert len(shown) <= expected[0]
    shown += stream.finish().text
    if expected is None:
        assert (shown, stream.stop_hit) == (text, None)
    else:
        assert (shown, stream.stop_hit) == (text[: expected[0]], expected[1])


def test_ids_behind_the_one_that_completes_a_stop_string_are_not_used() -> None:
    tokenizer = byte_level()
    ids = [i for ch in "one STOP two" for i in tokenizer.encode(ch)]
    got = TextStream(Vocabulary(tokenizer), stop=["STOP"]).add(ids)
    assert (got.text, got.stop, got.consumed) == ("one ", "STOP", len("one STOP"))


def test_nothing_comes_after_a_stop_string() -> None:
    tokenizer = byte_level()
    stream = TextStream(Vocabulary(tokenizer), stop=["x"])
    assert stream.add(tokenizer.encode("x")).stop == "x"
    assert stream.add(tokenizer.encode("more")).text == ""
    assert stream.add(tokenizer.encode("more")).consumed == 0
    assert stream.finish().text == ""


def test_a_held_beginning_is_shown_when_the_answer_ends() -> None:
    tokenizer = byte_level()
    stream = TextStream(Vocabulary(tokenizer), stop=["</answer>"])
    assert stream.add([i for ch in "yes</ans" for i in tokenizer.encode(ch)]).text == "yes"
    assert stream.finish().text == "</ans"


def test_a_stop_string_of_a_kept_marker_cuts_before_it() -> None:
    tokenizer = byte_level()
    ids = ids_for(tokenizer, "a<|box_end|>b")
    assert "".join(streamed(tokenizer, ids, stop=["<|box_end|>"])) == "a"


@pytest.mark.parametrize("policy", ["structural", "all", "none"])
def test_a_stop_string_that_spells_a_dropped_token_works_all_the_same(policy: str) -> None:
    tokenizer = byte_level()
    stream = TextStream(
        Vocabulary(tokenizer),
        dropped=dropped_ids(tokenizer, policy),  # type: ignore[arg-type]
        stop=["<|im_end|>", "later"],
    )
    got = stream.add(ids_for(tokenizer, "hel la<|im_end|>ter"))
    assert (got.text, got.stop) == ("hel la", "<|im_end|>")


def test_stop_strings_in_the_first_min_tokens_do_not_count() -> None:
    tokenizer = byte_level()
    ids = [i for ch in "axaxa" for i in tokenizer.encode(ch)]
    stream = TextStream(Vocabulary(tokenizer), stop=["x"], min_tokens=2)
    texts = [stream.add([i]).text for i in ids]
    assert texts == ["a", "x", "a", "", ""]
    assert stream.stop_hit == "x"


def test_one_begun_within_the_first_min_tokens_counts_when_it_ends_later() -> None:
    tokenizer = byte_level()
    ids = [i for ch in "aENDEND" for i in tokenizer.encode(ch)]
    stream = TextStream(Vocabulary(tokenizer), stop=["END"], min_tokens=2)
    assert "".join(stream.add([i]).text for i in ids) == "a"


def test_a_hit_passed_over_is_not_found_again_inside_held_text() -> None:
    """ "ab" is complete within min_tokens and lies inside "xab", the held beginning of "xabz"."""
    tokenizer = byte_level()
    ids = [i for ch in "xabq" for i in tokenizer.encode(ch)]
    stream = TextStream(Vocabulary(tokenizer), stop=["ab", "xabz"], min_tokens=3)
    assert "".join(stream.add([i]).text for i in ids) + stream.finish().text == "xabq"
    assert stream.stop_hit is None


def test_text_from_servers_without_ids_is_cut_in_the_same_way() -> None:
    stream = TextStream(Vocabulary(byte_level()), stop=["STOP"])
    assert [stream.add_text(t).text for t in ("one S", "TO", "P two", "three")] == ["one ", "", "", ""]
    assert stream.stop_hit == "STOP"
