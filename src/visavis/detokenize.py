"""Token ids → text, for every engine: special-token policy, UTF-8 split over tokens, stop strings.

Which ids survive, by policy (nothing else decides it; how an answer ended does not):

- `all`: every id.
- `structural` (default): every id but the ones that only frame a turn: the model's EOS and pad ids, and special
  tokens spelled as in `FRAME_TOKENS` (begin and end of text or turn, roles). Markers inside the answer, such as
  `<|box_start|>`, `<|vision_start|>` or `<think>`, stay.
- `none`: every special id (`tokenizer.special_ids`), EOS and pad ids are dropped.

Stop strings are looked for in the text that survives. A dropped special token ends the answer too when its whole
spelling is one of the stop strings (`stop=["<|im_end|>"]`). The string that is complete first wins, then the longest;
the text ends before it.

Broken UTF-8 becomes U+FFFD as Unicode recommends (one per maximal subpart, as Python and Rust do), and a complete
character beside it stays. The text is what `tokenizer.decode(kept ids)` gives, except that sentencepiece byte-fallback
decoders turn a whole run of byte tokens into U+FFFD when one of them is broken: that would take back streamed text.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from visavis.sampling import SpecialTokens

if TYPE_CHECKING:
    from visavis.families.base import TextTokenizer

__all__ = ["FRAME_TOKENS", "Piece", "TextStream", "Vocabulary", "detokenize", "dropped_ids"]

FRAME_TOKENS = frozenset(
    {
        "<s>",
        "</s>",
        "<bos>",
        "<eos>",
        "<pad>",
        "[PAD]",
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|finetune_right_pad_id|>",
        "<|end|>",
        "<|user|>",
        "<|assistant|>",
        "<|system|>",
        "<start_of_turn>",
        "<end_of_turn>",
        "<end_of_utterance>",
    }
)
"""Special tokens that frame a text or a turn in the chat templates of the families we know."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_SPLIT_IDS = 8  # ids kept to finish a character; each has a byte or more, and 3 + 3 bytes decide
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def dropped_ids(
    tokenizer: TextTokenizer, policy: SpecialTokens, end_ids: Iterable[int] = (), pad_id: int | None = None
) -> frozenset[int]:
    """The ids that `policy` leaves out of the text. `end_ids` are the model's EOS ids."""
    if policy == "all":
        return frozenset()
    framing = {*end_ids} if pad_id is None else {*end_ids, pad_id}
    if policy == "none":
        return frozenset(framing | tokenizer.special_ids)
    return frozenset(framing | {i for i in tokenizer.special_ids if tokenizer.id_to_token(i) in FRAME_TOKENS})


class Vocabulary:
    """The text of single tokens of one tokenizer, remembered. Shared by all streams of a model.

    The decoders of the families we know (byte-level, Metaspace and sentencepiece with byte fallback) treat the first
    token of a text apart (a leading space is stripped) and join the others; so a token's text inside an answer is
    what it adds behind an anchor.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer
        self._anchor = list(tokenizer.encode("a"))
        self._anchor_text = tokenizer.decode(self._anchor)
        self._pieces: dict[int, str | bytes | None] = {}

    def inner(self, ids: Sequence[int]) -> str:
        """Text of `ids` inside an answer."""
        return self.tokenizer.decode([*self._anchor, *ids])[len(self._anchor_text) :]

    def piece(self, token_id: int) -> str | bytes | None:
        """Text of one token inside an answer; bytes for a byte-fallback token; None when it is no whole text alone."""
        try:
            return self._pieces[token_id]
        except KeyError:
            piece = self._pieces[token_id] = self._look_up(token_id)
            return piece

    def _look_up(self, token_id: int) -> str | bytes | None:
        spelling = self.tokenizer.id_to_token(token_id) or ""
        text = self.inner([token_id])
        byte = _BYTE_TOKEN.fullmatch(spelling)
        if byte and text != spelling:  # a decoder without byte fallback spells it out
            return bytes.fromhex(byte[1])
        return None if _REPLACEMENT in text else text


@dataclass(frozen=True, slots=True)
class Piece:
    """What some token ids added."""

    text: str  # may now be shown: it will never change
    stop: str | None = None  # the stop string that was met; nothing comes after
    consumed: int = 0  # how many of the ids were used: those up to the one that completed the stop string


class TextStream:
    """The text of one answer, as its token ids come. Constant work per token.

    Joined pieces equal `detokenize` of all ids, byte for byte, however the ids were cut into calls.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        dropped: frozenset[int] = frozenset(),
        stop: Sequence[str] = (),
        min_tokens: int = 0,
    ) -> None:
        """`dropped` comes from `dropped_ids`. Stop strings that one of the first `min_tokens` tokens completes do not
        count, as EOS does not before `min_tokens` tokens are there."""
        self._vocabulary = vocabulary
        self._dropped = dropped
        self._stop = tuple(stop)
        self._prefixes = {text[:length] for text in self._stop for length in range(1, len(text))}
        self._prefix_ends = {prefix[-1] for prefix in self._prefixes}
        self._longest_prefix = max(map(len, self._prefixes), default=0)
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._started = False  # some id has survived: leading-space rules no longer apply
        self._split: list[int] = []  # ids whose text ends inside a character
        self._split_shown = 0  # characters of their text already returned
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")  # of a run of byte-fallback tokens
        self._in_bytes = False
        self._held = ""  # text that may be the beginning of a stop string
        self.stop_hit: str | None = None

    def add(self, token_ids: Iterable[int]) -> Piece:
        """The text these ids make showable. After a stop string everything more is left unused."""
        shown: list[str] = []
        consumed = 0
        for token_id in token_ids:
            if self.stop_hit is not None:
                break
            consumed += 1
            self._num_tokens += 1
            if token_id in self._dropped:
                shown.append(self._drop(token_id))
            else:
                shown.append(self._show(self._decode(token_id)))
        return Piece("".join(shown), self.stop_hit, consumed)

    def add_text(self, text: str) -> Piece:
        """As `add`, for servers that give text and no ids: only stop strings are left to do."""
        if self.stop_hit is not None:
            return Piece("", self.stop_hit)
        self._num_tokens += 1  # a piece of text is taken as one token, which is all that is known
        return Piece(self._show(text), self.stop_hit)

    def finish(self) -> Piece:
        """The rest at the end of the answer: held text, and U+FFFD for a character that was never completed."""
        if self.stop_hit is not None:
            return Piece("", self.stop_hit)
        text = self._show(self._flush())
        if self.stop_hit is None:
            text, self._held = text + self._held, ""
        return Piece(text, self.stop_hit)

    # ---- ids to characters -------------------------------------------------------------------------------------

    def _decode(self, token_id: int) -> str:
        """Characters that are certain once this id is known."""
        piece = self._vocabulary.piece(token_id)
        first, self._started = not self._started, True
        if isinstance(piece, bytes):
            # At the very start the decoder may strip a space, which then is this one byte.
            if first and piece == b" ":
                return self._vocabulary.tokenizer.decode([token_id])
            self._in_bytes = True
            return self._utf8.decode(piece)
        before = self._end_bytes() if self._in_bytes else ""  # a run of byte tokens ends at any other token
        if piece is not None and not self._split:
            return before + (self._vocabulary.tokenizer.decode([token_id]) if first else piece)
        if not piece and piece is not None:
            return before
        self._split.append(token_id)
        return before + self._certain(self._vocabulary.inner(self._split))

    def _end_bytes(self) -> str:
        """U+FFFD for what is incomplete in the run of byte tokens."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        self._in_bytes = False
        return rest

    def _certain(self, text: str) -> str:
        """What is new and certain in `text`, the text of the split ids.

        Only the last character can still change, when it is U+FFFD: it stands for at most 3 bytes at the end that may
        be the beginning of a character. Older ids are let go, so that endless broken bytes cost no more: UTF-8 finds
        its place again after 3 bytes.
        """
        if not text.endswith(_REPLACEMENT):
            new, self._split_shown = text[self._split_shown :], 0
            self._split.clear()
            return new
        new, self._split_shown = text[self._split_shown : -1], len(text) - 1
        if len(self._split) > 2 * _SPLIT_IDS:
            del self._split[:-_SPLIT_IDS]
            self._split_shown = len(self._vocabulary.inner(self._split)) - 1
        return new

    def _flush(self) -> str:
        text = self._end_bytes()
        if self._split:
            text += self._vocabulary.inner(self._split)[self._split_shown :]
            self._split.clear()
            self._split_shown = 0
        return text

    # ---- stop strings ------------------------------------------------------------------------------------------

    def _drop(self, token_id: int) -> str:
        """A dropped id adds no text, but its spelling may be a stop string."""
        if not self._stop or self._num_tokens <= self._min_tokens:
            return ""
        spelling = self._vocabulary.tokenizer.id_to_token(token_id)
        if spelling not in self._stop:
            return ""
        text = self._show(self._flush())
        if self.stop_hit is None:
            self.stop_hit = spelling
            text, self._held = text + self._held, ""
        return text

    def _show(self, new: str) -> str:
        """`new` joined to the held text, less what a stop string cuts or may still cut."""
        if not new or not self._stop:
            return new
        old_length = len(self._held)
        text = self._held + new
        if self._num_tokens > self._min_tokens:
            hit = self._first_hit(text, old_length)
            if hit is not None:
                start, self.stop_hit = hit
                self._held = ""
                return text[:start]
        keep = self._possible_prefix(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _first_hit(self, text: str, old_length: int) -> tuple[int, str] | None:
        """(start, stop string) of the one that is complete first, the longest of those; only ends in new text count."""
        best: tuple[int, int, str] | None = None
        for stop in self._stop:
            start = text.find(stop, max(0, old_length - len(stop) + 1))
            if start >= 0:
                candidate = (start + len(stop), start, stop)
                best = candidate if best is None else min(best, candidate)
        return (best[1], best[2]) if best else None

    def _possible_prefix(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        if text[-1] not in self._prefix_ends:
            return 0
        for length in range(min(len(text), self._longest_prefix), 0, -1):
            if text[-length:] in self._prefixes:
                return length
        return 0


def detokenize(
    tokenizer: TextTokenizer | Vocabulary,
    token_ids: Sequence[int],
    *,
    special_tokens: SpecialTokens = "structural",
    end_ids: Iterable[int] = (),
    pad_id: int | None = None,
) -> str:
    """The text of a whole answer; what `TextStream` gives piece by piece."""
    vocabulary = tokenizer if isinstance(tokenizer, Vocabulary) else Vocabulary(tokenizer)
    stream = TextStream(vocabulary, dropped=dropped_ids(vocabulary.tokenizer, special_tokens, end_ids, pad_id))
    return stream.add(token_ids).text + stream.finish().text
