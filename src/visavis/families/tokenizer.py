"""`HFTokenizer`: a model folder's tokenizer over the `tokenizers` library, safe against forged control tokens.

*Control tokens* are the added tokens marked special (`<|im_start|>`), and those not marked so that still steer the
model: written `<|…|>`, or used by the chat template (`<think>`, `<tool_call>`). Other added tokens (Gemma's runs of
newlines, HTML tags) are ordinary text. `encode` treats spellings of control tokens as text unless told otherwise; the
library can do that for special tokens only, so all control tokens are registered as special with it, and their ids
are put between the pieces by `encode_pieces`. `special_ids` holds what the folder itself marks special.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, TypeAlias

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from visavis.errors import ModelError, shorten
from visavis.families.folder import ModelFolder
from visavis.weight_files import instead_of_data

__all__ = ["HFTokenizer", "Piece"]

Piece: TypeAlias = str | int
"""A stretch of plain text, or the id of a control token."""

# The split of Qwen2's byte-level BPE, as its published tokenizer.json has it.
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class HFTokenizer:
    """See `visavis.families.base.TextTokenizer` for the contract."""

    def __init__(self, folder: ModelFolder) -> None:
        """Reads `tokenizer.json`, or builds Qwen2's BPE from `vocab.json` and `merges.txt`. Raises ModelError."""
        tokenizer, self._pieces_need_anchor = _load(folder)
        added: dict[int, AddedToken] = dict(sorted(tokenizer.get_added_tokens_decoder().items()))
        self.control: dict[int, AddedToken] = {i: t for i, t in added.items() if _is_control(t, folder)}
        self._name = folder.name
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        self._ids = {token.content: i for i, token in self.control.items()}
        named = named_special_tokens(folder)
        special = {i for i, token in added.items() if token.special}
        special |= {i for content in named.values() if (i := tokenizer.token_to_id(content)) is not None}
        self.special_ids: frozenset[int] = frozenset(special)
        self.special_tokens: dict[str, str] = named
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.add_special_tokens(
            [AddedToken(t.content, special=True, normalized=False, lstrip=t.lstrip, rstrip=t.rstrip)
             for t in self.control.values()]
        )  # fmt: skip
        tokenizer.encode_special_tokens = True  # spellings of special tokens are text from here on
        self._tokenizer = tokenizer

    # ---- encoding --------------------------------------------------------------------------------------------------

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Ids of `text`, no BOS or EOS added. Spellings of control tokens are plain text unless `allow_special`."""
        return self.encode_pieces(self.split(text)) if allow_special else self._encode_plain(text)

    def split(self, text: str) -> list[Piece]:
        """`text` cut at the control tokens it spells, the longest first, as the library would cut it."""
        pieces: list[Piece] = []
        end = 0
        for match in self.control_pattern.finditer(text):
            token_id = self._ids[match.group()]
            token = self.control[token_id]
            before = text[end : match.start()]
            pieces += [before.rstrip() if token.lstrip else before, token_id]
            end = match.end()
            if token.rstrip:
                end += len(text) - end - len(text[end:].lstrip())
        pieces.append(text[end:])
        return [piece for piece in pieces if piece != ""]

    def encode_pieces(self, pieces: Iterable[Piece]) -> list[int]:
        """Ids of plain stretches and control ids in a row. Stretches are text whatever they spell."""
        ids: list[int] = []
        for i, piece in enumerate(pieces):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids += self._encode_plain(piece, first=i == 0)
        return ids

    def _encode_plain(self, text: str, *, first: bool = True) -> list[int]:
        if not text:
            return []
        if not first and self._pieces_need_anchor:
            # This tokenizer puts a space before the first word of the whole text only: encode the stretch behind a
            # newline, so that it is not the first, and take the newline away again.
            anchor = self._run("\n")
            ids = self._run("\n" + text)
            if ids[: len(anchor)] == anchor:
                return self._without_control(ids[len(anchor) :], text)
        return self._without_control(self._run(text), text)

    def _run(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _without_control(self, ids: list[int], text: str) -> list[int]:
        """The ids, sure to hold no control token. A vocabulary may hold the spelling of one as an ordinary entry."""
        if self._control_ids.isdisjoint(ids):
            return ids
        broken: list[int] = []
        end = 0
        for match in self.control_pattern.finditer(text):
            broken += self._run(text[end : match.start() + 1])
            end = match.start() + 1
        broken += self._run(text[end:])
        forged = self._control_ids.intersection(broken)
        if forged:
            token = self.control[min(forged)].content
            raise ModelError(f"{self._name}: the tokenizer makes the control token {token} out of plain text")
        return broken

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        return frozenset(self.control)

    @cached_property
    def control_pattern(self) -> re.Pattern[str]:
        """Matches any control token's spelling, the longest first; never matches when there is none."""
        longest_first = sorted(self._ids, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def control_spellings(self, *, special: bool | None = None) -> tuple[str, ...]:
        """Spellings of the control tokens: all, only those marked special, or only the others."""
        return tuple(
            t.content for i, t in self.control.items() if special is None or (i in self.special_ids) == special
        )

    # ---- decoding --------------------------------------------------------------------------------------------------

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens spelled out; broken UTF-8 shows as U+FFFD, unknown ids as nothing."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def id_to_token(self, token_id: int) -> str | None:
        """The vocabulary's entry (byte-level spelling), None for ids the tokenizer does not have."""
        return self._tokenizer.id_to_token(token_id) if token_id >= 0 else None

    def token_to_id(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    @property
    def backend(self) -> Tokenizer:
        """The `tokenizers.Tokenizer` behind, for incremental decoding. Do not change its settings."""
        return self._tokenizer


def _is_control(token: AddedToken, folder: ModelFolder) -> bool:
    if token.special:
        return True
    if re.fullmatch(r"<\|.+\|>", token.content):
        return True
    letters = any(c.isalpha() for c in token.content)
    return letters and any(token.content in source for source in folder.template_sources)


def named_special_tokens(folder: ModelFolder) -> dict[str, str]:
    """bos_token, eos_token, pad_token and the like → spelling, as the folder's files name them; templates read them."""
    found: dict[str, str] = {}
    for source in (folder.read_json("special_tokens_map.json", optional=True), folder.tokenizer_config):
        extra = source.get("extra_special_tokens")
        for key, value in {**(extra if isinstance(extra, dict) else {}), **source}.items():
            if not key.endswith("_token") or key.startswith(("add_", "use_")):
                continue
            content = value.get("content") if isinstance(value, dict) else value
            if isinstance(content, str):
                found[key] = content
    return found


def _load(folder: ModelFolder) -> tuple[Tokenizer, bool]:
    """The tokenizer, and whether it treats the first stretch of a text differently from later ones."""
    if folder.has("tokenizer.json"):
        try:
            text = (folder.path / "tokenizer.json").read_text(encoding="utf-8")
            return Tokenizer.from_str(text), '"prepend_scheme":"first"' in _tail(text)
        except Exception as error:  # the library raises plain Exception for everything
            reason = instead_of_data(folder.path / "tokenizer.json") or _cut(error)
            raise ModelError(f"{folder.name}: tokenizer.json in {folder.path} cannot be read: {reason}") from None
    if folder.has("vocab.json") and folder.has("merges.txt"):
        return _qwen2_from_vocab(folder), False
    raise ModelError(
        f"{folder.name}: no tokenizer in {folder.path}: tokenizer.json is missing, and so are vocab.json and merges.txt"
        + ("; a sentencepiece tokenizer.model must be converted first" if folder.has("tokenizer.model") else "")
    )


def _tail(text: str) -> str:
    """The part of tokenizer.json before the vocabulary, without spaces: where the pre-tokenizer stands."""
    cut = text.find('"vocab"')
    return re.sub(r"\s", "", text[: cut if cut > 0 else None])


def _qwen2_from_vocab(folder: ModelFolder) -> Tokenizer:
    """Qwen2's byte-level BPE out of `vocab.json`, `merges.txt` and the added tokens of `tokenizer_config.json`."""
    vocab: dict[str, Any] = folder.read_json("vocab.json")
    try:
        lines = (folder.path / "merges.txt").read_text(encoding="utf-8").split("\n")
        merges = [tuple(line.split()) for line in lines if line.strip() and not line.startswith("#version")]
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=False, byte_fallback=False))  # type: ignore[arg-type]
    except Exception as error:  # the library raises plain Exception for bad merges
        raise ModelError(
            f"{folder.name}: vocab.json and merges.txt in {folder.path} do not fit: {_cut(error)}"
        ) from None
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN2_SPLIT), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    declared = _declared_tokens(folder)
    for token_id, fields in sorted(declared.items()):
        flags = {k: bool(fields.get(k, False)) for k in ("lstrip", "rstrip", "single_word", "normalized")}
        token = AddedToken(fields["content"], special=bool(fields.get("special", False)), **flags)
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        if tokenizer.token_to_id(token.content) != token_id:
            raise ModelError(
                f"{folder.name}: vocab.json in {folder.path} ends before the added token {token.content} ({token_id})"
            )
    return tokenizer


def _declared_tokens(folder: ModelFolder) -> dict[int, dict[str, Any]]:
    """Id → fields of the tokens that `tokenizer_config.json` and `added_tokens.json` add."""
    declared: dict[int, dict[str, Any]] = {}
    try:
        for token_id, token in (folder.tokenizer_config.get("added_tokens_decoder") or {}).items():
            declared[int(token_id)] = {**token, "content": str(token["content"])}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ModelError(
            f"{folder.name}: tokenizer_config.json in {folder.path}: added_tokens_decoder is no map from ids to tokens"
        ) from None
    for content, token_id in folder.read_json("added_tokens.json", optional=True).items():
        if not isinstance(token_id, int):
            raise ModelError(
                f"{folder.name}: added_tokens.json in {folder.path} gives {shorten(content)} the id {shorten(token_id)}"
            )
        declared.setdefault(token_id, {"content": content, "special": content.startswith("<|")})
    return declared


def _cut(error: BaseException) -> str:
    return shorten(str(error), 160)
