"""Answers that must match a JSON schema, an expression, one of some texts or a grammar.

llguidance (see `visavis.sampling.grammar`) says for each step which tokens may follow, as bits over the vocabulary.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from visavis.errors import OptionError, shorten
from visavis.sampling import ResolvedSampling
from visavis.sampling.grammar import compile_grammar, first_line, library
from visavis.sampling.structured import StructuredOutput

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["GrammarState", "Grammars", "allowed_bias", "completes"]

KEPT = 64  # compiled grammars, the latest used


class GrammarState:
    """How far one answer has come in its grammar. It follows the answer's tokens, so it survives a preemption."""

    __slots__ = ("_ends", "_known_ends", "_matcher", "error")

    def __init__(self, matcher: LLMatcher, ends: Sequence[int], known_ends: Sequence[int]) -> None:
        """`ends`: tokens that may end the answer where the grammar allows an end; `known_ends`: those the library takes
        for ends, whatever the request says."""
        self._matcher = matcher
        self._ends = np.array(sorted(set(ends)), np.int64)
        self._known_ends = np.array(sorted(set(known_ends)), np.int64)
        self.error: str | None = None

    def take(self, token_id: int) -> None:
        """Moves on by a token of the answer that is not its end."""
        if self.error is None and not self._matcher.consume_token(token_id):
            self._fail()

    @property
    def complete(self) -> bool:
        """Whether the answer matches and nothing may follow but its end."""
        return self.error is None and self._matcher.is_stopped() and self._matcher.is_accepting()

    @property
    def accepting(self) -> bool:
        """Whether the answer matches as it is."""
        return self.error is None and self._matcher.is_accepting()

    def finish(self, bits: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        """Puts the request's own ends into what `_fill` wrote; nothing is allowed once the library has given up."""
        if self._matcher.is_error():
            self._fail()
        if self.error is not None:
            bits[:] = 0
            return
        words = bits.view(np.uint32)
        _clear(words, self._known_ends)
        if self._matcher.is_accepting():
            _set(words, self._ends)

    def _fail(self) -> None:
        self.error = f"structured: {first_line(self._matcher.get_error()) or 'the answer left its grammar'}"


class Grammars:
    """Compiles what requests of one model ask for. Any thread may call `start`."""

    def __init__(self, vocab_size: int, tokenizer_json: Callable[[], str]) -> None:
        """`tokenizer_json`: the text of the model's tokenizer.json, asked for with the first structured request."""
        self.vocab_size = vocab_size
        self._tokenizer_json = tokenizer_json
        self._tokenizers: dict[tuple[int, ...], LLTokenizer] = {}  # by the model's end ids
        self._compiled: OrderedDict[tuple[Any, ...], LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def start(self, structured: StructuredOutput, sampling: ResolvedSampling) -> GrammarState:
        """The beginning of one answer. Raises OptionError for a schema, expression or grammar that makes no sense, and
        MissingExtraError."""
        ends = tuple(sorted({i for i in sampling.eos_token_ids if i < self.vocab_size}))
        with self._lock:
            tokenizer = self._tokenizer(ends)
            key = (structured, ends)
            matcher = self._compiled.get(key)
            if matcher is None:
                matcher = self._compiled[key] = compile_grammar(structured, tokenizer)
                if len(self._compiled) > KEPT:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(key)
            own = matcher.deep_copy()
        return GrammarState(own, () if sampling.ignore_eos else ends, tokenizer.eos_tokens)

    def _tokenizer(self, ends: tuple[int, ...]) -> LLTokenizer:
        if ends not in self._tokenizers:
            make = library().LLTokenizer
            try:
                self._tokenizers[ends] = make(
                    self._tokenizer_json(), n_vocab=self.vocab_size, eos_token=list(ends) or None
                )
            except (OSError, ValueError) as error:
                raise OptionError(
                    f"structured: this model's tokenizer cannot be used: {shorten(str(error), 200)}"
                ) from None
        return self._tokenizers[ends]


def completes(grammar: GrammarState | None, token_id: int) -> bool:
    """Takes a token of an answer into its grammar; whether nothing may follow it."""
    if grammar is None:
        return False
    grammar.take(token_id)
    return grammar.complete


def allowed_bias(states: Sequence[GrammarState], vocab_size: int, device: torch.device) -> torch.Tensor:
    """(states, vocab) float32: 0 for the tokens that may come next, -inf for the others."""
    from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par

    bits = np.zeros((len(states), -(-vocab_size // 32)), np.int32)
    if len(states) == 1:
        fill_next_token_bitmask(states[0]._matcher, bits)
    else:
        fill_next_token_bitmask_par(_executor(), [(state._matcher, i) for i, state in enumerate(states)], bits)
    for state, row in zip(states, bits, strict=True):
        state.finish(row)
    table = _bias_of_bytes(device)
    chosen = torch.from_numpy(bits.view(np.uint8)).to(device).view(-1).int()
    return table.index_select(0, chosen).view(len(states), -1)[:, :vocab_size]


@cache
def _executor() -> Any:
    return library().LLExecutor()


@cache
def _bias_of_bytes(device: torch.device) -> torch.Tensor:
    """(256, 8) float32: the bits of each byte, the lowest first, as 0 for 1 and -inf for 0."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return torch.from_numpy(np.where(bits == 1, 0.0, -np.inf).astype(np.float32)).to(device)


def _set(words: np.ndarray[Any, np.dtype[np.uint32]], token_ids: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    np.bitwise_or.at(words, token_ids >> 5, (1 << (token_ids & 31)).astype(np.uint32))


def _clear(words: np.ndarray[Any, np.dtype[np.uint32]], token_ids: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    np.bitwise_and.at(words, token_ids >> 5, ~(1 << (token_ids & 31)).astype(np.uint32))
