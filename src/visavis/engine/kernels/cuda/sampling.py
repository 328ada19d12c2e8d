"""`SampleStep`: logits to tokens on the device, with what each request asks for kept there between steps."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import MISSING, fields
from typing import NamedTuple

import torch

from visavis.engine.kernels.triton import sampling
from visavis.engine.kernels.triton.launch import Launcher
from visavis.engine.kernels.triton.tiles import pad
from visavis.engine.random_numbers import mixed_seed
from visavis.engine.sequence import Sequence
from visavis.sampling import ResolvedSampling

__all__ = ["GREEDY", "Mode", "SampleStep", "mode_of", "samples_here"]

CHUNK = 2048
"""Logits a program."""


HERE = frozenset(
    [
        "max_tokens",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "seed",
        "stop",
        "stop_token_ids",
        "eos_token_ids",
        "ignore_eos",
        "special_tokens",
        "origins",
        "notes",
    ]
)
"""What is honoured here or above the engine."""
ELSEWHERE = tuple(
    (f.name, f.default) for f in fields(ResolvedSampling) if f.name not in HERE and f.default is not MISSING
)
"""What `engine/sampler.py` must do, step by step, unless it has its neutral value."""


class Mode(NamedTuple):
    """What a batch needs of sampling; a graph is captured for each one that occurs."""

    draws: bool = False
    penalties: bool = False
    top_k: bool = False
    top_p: bool = False


GREEDY = Mode()


def mode_of(batch: Seq[ResolvedSampling]) -> Mode:
    drawn = [p for p in batch if not p.greedy]
    return Mode(
        draws=bool(drawn),
        penalties=any(_penalised(p) for p in batch),
        top_k=any(p.top_k > 0 for p in drawn),
        top_p=any(p.top_p < 1 for p in drawn),
    )


def samples_here(seq: Sequence) -> bool:
    """Whether the device can choose this request's next tokens by itself."""
    p = seq.sampling
    return seq.num_output_tokens >= p.min_tokens and all(getattr(p, name) == neutral for name, neutral in ELSEWHERE)


class SampleStep:
    def __init__(self, vocab_size: int, seats: int, launcher: Launcher) -> None:
        self.launcher = launcher
        self.vocab_size = vocab_size
        self.chunk = min(CHUNK, pad(vocab_size, 16))
        self.chunks = -(-vocab_size // self.chunk)
        device = launcher.device
        # Rows of `parameters`, one column a seat; the last seat is nobody's.
        self.parameters = torch.zeros((7, seats + 1), device=device)
        (self.warmth, self.repetition, self.presence, self.frequency, self.top_k, self.top_p, self.log_min_p) = (
            self.parameters.unbind(0)
        )
        self.repetition.fill_(1.0)
        self.seeds = torch.zeros(seats + 1, dtype=torch.int64, device=device)
        self.counts: torch.Tensor | None = None  # (seats + 1, vocab) int32, made when a penalty is first asked for
        self.tops = torch.empty((seats, self.chunks), device=device)
        self.places = torch.empty((seats, self.chunks), dtype=torch.int32, device=device)
        self.broken = torch.empty((seats, self.chunks), dtype=torch.int32, device=device)
        self.sums = torch.empty((2, seats, self.chunks, sampling.DIGITS), device=device)
        self.states = torch.empty((2, seats, 3), dtype=torch.int32, device=device)

    # ---- what is kept of a request -----------------------------------------------------------------------------

    def enter(self, seats: Seq[int], seqs: Seq[Sequence]) -> None:
        """Told when requests begin, or come back, to be sampled here."""
        params = [seq.sampling for seq in seqs]
        where = torch.tensor(seats, device=self.launcher.device)
        rows = [
            [1 / p.temperature if p.temperature else 0.0 for p in params],
            [p.repetition_penalty for p in params],
            [p.presence_penalty for p in params],
            [p.frequency_penalty for p in params],
            [float(p.top_k) for p in params],
            [p.top_p for p in params],
            [math.log(p.min_p) if p.min_p else -math.inf for p in params],
        ]
        self.parameters.index_copy_(1, where, torch.tensor(rows, device=self.launcher.device))
        seeds = [s - (1 << 64) if (s := mixed_seed(p.seed)) >= 1 << 63 else s for p in params]
        self.seeds.index_copy_(0, where, torch.tensor(seeds, dtype=torch.int64, device=self.launcher.device))
        for seat, seq in zip(seats, seqs, strict=True):
            if _penalised(seq.sampling):
                self._count(seat, seq)

    def _count(self, seat: int, seq: Sequence) -> None:
        device = self.launcher.device
        if self.counts is None:
            self.counts = torch.zeros((self.seeds.shape[0], self.vocab_size), dtype=torch.int32, device=device)
        row = self.counts[seat]
        row.zero_()
        answer = torch.tensor(seq.token_ids[seq.num_prompt_tokens :], dtype=torch.int64, device=device)
        row.index_add_(0, answer, torch.ones_like(answer, dtype=torch.int32))
        prompt = torch.tensor(sorted(set(seq.token_ids[: seq.num_prompt_tokens])), device=device)
        row.index_add_(0, prompt, torch.full_like(prompt, sampling.IN_PROMPT, dtype=torch.int32))

    # ---- the launches ------------------------------------------------------------------------------------------

    def __call__(
        self, logits: torch.Tensor, sampled: torch.Tensor, seats: torch.Tensor, indices: torch.Tensor, mode: Mode
    ) -> None:
        """logits (rows, vocab) float32, overwritten → sampled (rows,) int32, -1 where they were not finite."""
        rows = logits.shape[0]
        pdl = {"PDL": self.launcher.overlap, **self.launcher.options}
        sizes = {"CHUNK": self.chunk, "num_warps": 8}
        chunks_pad = pad(self.chunks, 16)
        counts = self.counts if mode.penalties and self.counts is not None else self.places
        sampling.adjust_kernel[(rows, self.chunks)](
            logits, self.tops, self.places, self.broken, seats, self.warmth, self.repetition, self.presence,
            self.frequency, counts, self.vocab_size,
            SAMPLED=mode.draws or mode.penalties, PENALTIES=mode.penalties, **sizes, **pdl,
        )  # fmt: skip
        if not mode.draws and not mode.penalties:
            sampling.greedy_kernel[(rows,)](
                self.tops, self.places, self.broken, sampled, self.chunks, self.vocab_size,
                CHUNKS_PAD=chunks_pad, num_warps=1, **pdl,
            )  # fmt: skip
            return
        digits = range(28, -1, -4)
        # Without a limit on probability one pass sums the chunks.
        passes = [(True, shift) for shift in digits if mode.top_k]
        passes += [(False, shift) for shift in digits if mode.top_p or shift == 28]
        now = 0
        for number, (count, shift) in enumerate(passes):
            before, now = number % 2, (number + 1) % 2
            sampling.select_kernel[(rows, self.chunks)](
                logits, self.tops, self.sums[before], self.sums[now], self.states[before], self.states[now], seats,
                self.top_k if count else self.top_p, self.log_min_p, self.vocab_size, self.chunks, shift,
                CHUNKS_PAD=chunks_pad, FIRST=shift == 28, COUNT=count, CHAINED=number == 8, **sizes, **pdl,
            )  # fmt: skip
        sampling.draw_kernel[(rows,)](
            logits, self.tops, self.places, self.broken, self.sums[now], self.states[now], seats, self.warmth,
            self.seeds, indices, counts, sampled, self.vocab_size, self.chunks, passes[-1][1],
            CHUNKS_PAD=chunks_pad, PENALTIES=mode.penalties, **sizes, **pdl,
        )  # fmt: skip


def _penalised(p: ResolvedSampling) -> bool:
    return p.repetition_penalty != 1.0 or p.presence_penalty != 0.0 or p.frequency_penalty != 0.0
