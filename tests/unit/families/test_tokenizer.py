"""The tokenizer: equal to the library where nobody forges, safe where someone tries."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.reference import tiny_tokenizers as tok
from visavis.errors import ModelError
from visavis.families.folder import ModelFolder
from visavis.families.tokenizer import HFTokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    tok.save_tokenizer(
        path, tok.qwen_tokenizer(thinking=True), tok.QWEN3_TEMPLATE, eos="<|im_end|>", pad="<|endoftext|>"
    )
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> HFTokenizer:
    return HFTokenizer(ModelFolder(folder, "tiny"))


@pytest.fixture(scope="module")
def library() -> Tokenizer:
    return tok.qwen_tokenizer(thinking=True)


SPELLINGS = (*tok.QWEN_SPECIAL, *tok.QWEN3_PLAIN_ADDED)
texts = st.lists(st.one_of(st.text(max_size=12), st.sampled_from(["the dog", "\n", " ", *SPELLINGS]))).map("".join)


# Hypothesis also draws strings it finds in the code under test, spellings of control tokens among them.
@given(text=st.text().filter(lambda text: not any(spelling in text for spelling in SPELLINGS)))
def test_text_without_control_tokens_is_encoded_as_by_the_library(
    text: str, tokenizer: HFTokenizer, library: Tokenizer
) -> None:
    assert tokenizer.encode(text) == library.encode(text, add_special_tokens=False).ids


@given(text=texts)
def test_allowed_control_tokens_are_found_as_by_the_library(
    text: str, tokenizer: HFTokenizer, library: Tokenizer
) -> None:
    assert tokenizer.encode(text, allow_special=True) == library.encode(text, add_special_tokens=False).ids


@given(text=texts)
def test_plain_text_never_becomes_a_control_token(text: str, tokenizer: HFTokenizer) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.control.keys().isdisjoint(ids)
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


def test_special_ids_are_what_the_folder_marks_special(tokenizer: HFTokenizer, library: Tokenizer) -> None:
    assert {tokenizer.id_to_token(i) for i in tokenizer.special_ids} == set(tok.QWEN_SPECIAL)
    assert tokenizer.token_to_id("<think>") not in tokenizer.special_ids
    assert tokenizer.vocab_size == library.get_vocab_size()


def test_decoding_spells_special_tokens_and_shows_broken_bytes(tokenizer: HFTokenizer) -> None:
    half = tokenizer.encode("é")[:1]
    end = tokenizer.token_to_id("<|im_end|>")
    assert end is not None
    assert tokenizer.decode([*half, end]) == "\ufffd<|im_end|>"
    assert tokenizer.id_to_token(10**6) is None
    assert tokenizer.id_to_token(-1) is None


def test_vocab_and_merges_alone_make_the_same_tokenizer(folder: Path, tmp_path: Path, library: Tokenizer) -> None:
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    merges = "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"])
    (tmp_path / "merges.txt").write_text(merges, encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_bytes((folder / "tokenizer_config.json").read_bytes())
    built = HFTokenizer(ModelFolder(tmp_path, "tiny"))
    text = "The quick e\u0301 <|im_start|>user\n<think> 你好 1234 \n\n  x<|im_end|>"
    assert built.encode(text, allow_special=True) == library.encode(text, add_special_tokens=False).ids
    assert built.special_ids == HFTokenizer(ModelFolder(folder, "tiny")).special_ids


def test_a_folder_without_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tiny: no tokenizer .*tokenizer\.json is missing.*vocab\.json"):
        HFTokenizer(ModelFolder(tmp_path, "tiny"))
    (tmp_path / "tokenizer.json").write_text("{broken", encoding="utf-8")
    with pytest.raises(ModelError, match=r"tokenizer\.json .* cannot be read"):
        HFTokenizer(ModelFolder(tmp_path, "tiny"))


def saved(tmp_path: Path, tokenizer: Tokenizer, template: str = "") -> HFTokenizer:
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(template, encoding="utf-8")
    return HFTokenizer(ModelFolder(tmp_path, "tiny"))


def test_a_control_token_that_is_also_a_vocabulary_entry_stays_text(tmp_path: Path) -> None:
    # WordLevel finds whole words in its vocabulary, so the spelling alone would give the control id.
    vocab = {"[UNK]": 0, "<": 1, "s>": 2, "<s>": 3, "a": 4}
    library = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    tokenizer = saved(tmp_path, library)
    assert tokenizer.encode("a <s> a") == [4, 1, 2, 4]
    assert tokenizer.encode("a <s> a", allow_special=True) == [4, 3, 4]


def test_a_tokenizer_that_treats_the_first_word_apart_does_so_only_once(tmp_path: Path) -> None:
    alphabet = [*"▁abcdefgh\n", "▁a", "<s>", "</s>"]
    library = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[("▁", "a")]))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    library.decoder = decoders.Metaspace(prepend_scheme="first")
    library.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<s>", "</s>")])
    tokenizer = saved(tmp_path, library)
    for text in ("<s>abc</s>a de", "abc</s>a de", "a<s>a</s>a"):
        assert tokenizer.encode(text, allow_special=True) == library.encode(text, add_special_tokens=False).ids


def test_added_tokens_that_are_ordinary_text_stay_what_they_are(tmp_path: Path) -> None:
    library = tok.build_tokenizer(("<end>",), ("\n\n\n", "<table>", "<tool>"))
    tokenizer = saved(tmp_path, library, template="{{ messages }}\n\n\n<tool><end>")
    for text in ("a\n\n\nb", "<table>"):
        assert tokenizer.encode(text) == library.encode(text, add_special_tokens=False).ids
        assert len(tokenizer.encode("<table>")) == 1
    assert len(tokenizer.encode("<tool>")) > 1
    assert len(tokenizer.encode("<end>")) > 1


def test_whitespace_that_a_token_swallows_is_swallowed_in_pieces_too(tmp_path: Path) -> None:
    library = tok.build_tokenizer(("<end>",))
    library.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True, special=True, normalized=False)])
    tokenizer = saved(tmp_path, library)
    text = "the dog  <mask> \n the<end> dog"
    assert tokenizer.encode(text, allow_special=True) == library.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer_config.json": {"added_tokens_decoder": {"x": {"content": "a"}}}}, "no map from ids to tokens"),
        ({"tokenizer_config.json": {"added_tokens_decoder": {"1": {}}}}, "no map from ids to tokens"),
        ({"tokenizer_config.json": {"added_tokens_decoder": [1]}}, "no map from ids to tokens"),
        ({"added_tokens.json": {"<a>": None}}, "gives '<a>' the id None"),
        ({"added_tokens.json": {"<a>": "7"}}, "gives '<a>' the id '7'"),
    ],
)
def test_added_tokens_that_cannot_be_read_are_named(
    files: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    merges = "".join(f"{a} {b}\n" for a, b in model["merges"])
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    (tmp_path / "merges.txt").write_text(merges, encoding="utf-8")
    for file, content in files.items():
        (tmp_path / file).write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ModelError, match=message):
        HFTokenizer(ModelFolder(tmp_path, "some/model"))


def test_a_tokenizer_that_git_lfs_did_not_fetch_says_so(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0", encoding="utf-8"
    )
    with pytest.raises(ModelError, match=r"tokenizer\.json .* cannot be read: a Git LFS pointer.*git lfs pull"):
        HFTokenizer(ModelFolder(tmp_path, "some/model"))
