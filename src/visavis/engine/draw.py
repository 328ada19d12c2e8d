"""One token from each row's distribution: greedy, or drawn after temperature, min_p, top_k and top_p.

Filters are thresholds on *weights*, exp((logit - best) / temperature), so that the best token weighs 1:

- min_p: weights under min_p are dropped;
- top_k: weights under the k-th largest one are dropped;
- top_p: of what is left, weights under that of the last token needed to reach the share p are dropped.

Tokens that weigh the same as the last one kept stay, whichever filter it was: nobody decides between equals. The
draw then is the inverse of the cumulated weights in order of token ids, so it does not depend on how they were
filtered or on other rows. Nothing here waits for the device, except on a CPU, where there is nothing to wait for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

__all__ = ["DrawRules", "Drawer", "greedy", "greedy_and_totals"]

BLOCK = 256
"""Weights are summed in blocks of this many, then one block is searched: nothing is cumulated over a vocabulary."""

MANY_TOKENS = 32768
"""From this vocabulary on, on a CPU, the largest logit is found by blocks: torch's own argmax does not use vector
registers and takes 3 to 4 times as long."""

FEW = 256  # the largest weights looked at first for top_p on a CPU; all of them when these do not reach p
NEVER = 1e-30  # a weight that no draw of 53 random bits can meet
_JUST_UNDER_ONE = 1.0 - 2.0**-24  # the largest float32 under 1
_LAST_DRAW = 1.0 - 2.0**-53


@dataclass(frozen=True, slots=True)
class DrawRules:
    """Columns (rows, 1), on the device, of the rows that are sampled; None where no row asks."""

    temperature: torch.Tensor  # float32
    min_p: torch.Tensor | None
    top_k: torch.Tensor | None  # int64; the vocabulary's size where a row has none
    top_p: torch.Tensor | None  # float64; 2 where a row has none
    max_top_k: int  # the largest one asked for
    only_within_top_k: bool  # every row with a top_p has a top_k, so no more weights than max_top_k matter


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """(rows, vocab) → (rows,) int64, the first of the largest of each row; NaN counts as the largest."""
    vocab = logits.shape[1]
    if logits.device.type != "cpu" or vocab < MANY_TOKENS:
        return logits.argmax(-1)
    whole = vocab - vocab % BLOCK
    best = logits[:, :whole].unflatten(1, (-1, BLOCK)).amax(-1)
    if whole < vocab:
        best = torch.cat([best, logits[:, whole:].amax(-1, keepdim=True)], 1)
    start = best.argmax(-1, keepdim=True) * BLOCK
    inside = (start + torch.arange(BLOCK)).clamp_(max=vocab - 1)  # the end repeats the last token, which comes first
    return start.squeeze(1) + logits.gather(1, inside).argmax(-1)


def greedy_and_totals(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`greedy`, and the sums of the rows: finite only where all logits are, whose own sums stay far below float32's
    range. Where they are not, the token means nothing."""
    return greedy(logits), logits.sum(-1)


class Drawer:
    """Keeps the space for the weights from step to step."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self._space = torch.zeros((0, -(-vocab_size // BLOCK) * BLOCK), device=device)

    def __call__(self, logits: torch.Tensor, rules: DrawRules, numbers: torch.Tensor) -> torch.Tensor:
        """(rows, vocab) float32 and numbers (rows,) float64 in [0, 1) → (rows,) int64 token ids."""
        weights = self.weights(logits, rules)
        blocks = weights.unflatten(1, (-1, BLOCK))
        sums = blocks.sum(-1).double()
        reached = sums.cumsum(-1)
        wanted = numbers[:, None] * reached[:, -1:]
        block = torch.searchsorted(reached, wanted, right=True).clamp_(max=sums.shape[1] - 1)
        before = reached.gather(1, block) - sums.gather(1, block)
        # A share of the block and not an amount: block sums are rounded to float32, and a draw must not run over.
        share = ((wanted - before) / sums.gather(1, block)).clamp_(0.0, _LAST_DRAW)
        inner = blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK)).squeeze(1).cumsum(-1, dtype=torch.float64)
        inside = torch.searchsorted(inner, share * inner[:, -1:], right=True).clamp_(max=BLOCK - 1)
        return (block * BLOCK + inside).squeeze(1).clamp_(max=self.vocab_size - 1)

    def weights(self, logits: torch.Tensor, rules: DrawRules) -> torch.Tensor:
        """(rows, vocab rounded up to whole blocks) float32, in proportion to the probabilities after all filters.

        Valid until the next call.
        """
        rows, vocab = logits.shape
        if len(self._space) < rows:
            self._space = self._space.new_zeros((rows, self._space.shape[1]))
        padded = self._space[:rows]
        weights = padded[:, :vocab]
        torch.sub(logits, logits.amax(-1, keepdim=True), out=weights)
        weights.div_(rules.temperature).exp_()
        largest = self._largest(weights, rules, FEW) if rules.top_k is not None or rules.top_p is not None else None
        floor = rules.min_p
        if rules.top_k is not None:
            assert largest is not None
            at = (rules.top_k - 1).clamp(max=largest.shape[1] - 1)
            kth = largest.gather(1, at).masked_fill_(rules.top_k >= vocab, 0.0)
            floor = kth if floor is None else torch.maximum(floor, kth)
        if floor is not None:
            _drop_under(weights, floor)
        if rules.top_p is not None:
            assert largest is not None
            if floor is not None:
                _drop_under(largest, floor)
            # Where top_p asks for nothing: what is left weighs at least 1 once it was divided by a floor.
            _drop_under(weights, self._share(padded, largest, rules, neutral=NEVER if floor is None else 1.0))
        return padded

    def _share(self, padded: torch.Tensor, largest: torch.Tensor, rules: DrawRules, *, neutral: float) -> torch.Tensor:
        """(rows, 1): the weight of the last token that is needed to reach top_p. `largest` come in falling order."""
        assert rules.top_p is not None
        wanted = rules.top_p * padded.unflatten(1, (-1, BLOCK)).sum(-1).sum(-1, keepdim=True, dtype=torch.float64)
        reached = largest.cumsum(-1, dtype=torch.float64)
        while largest.device.type == "cpu" and largest.shape[1] < self.vocab_size and not rules.only_within_top_k:
            short = (reached[:, -1:] < wanted) & (largest[:, -1:] > 0) & (rules.top_p < 1)
            if rules.top_k is not None:
                short &= rules.top_k > largest.shape[1]
            if not bool(short.any()):
                break
            largest = self._largest(padded[:, : self.vocab_size], rules, 16 * largest.shape[1])
            reached = largest.cumsum(-1, dtype=torch.float64)
        ahead = reached.sub_(largest.double())  # of one type: torch is 40 times slower at a difference of two
        ahead[:, 0] = -1.0  # the best one stays, whatever p is
        needed = (ahead < wanted) & (largest > 0)
        last = largest.masked_fill(~needed, torch.inf).amin(-1, keepdim=True)
        return last.masked_fill_(rules.top_p >= 1, neutral)

    def _largest(self, weights: torch.Tensor, rules: DrawRules, few: int) -> torch.Tensor:
        """(rows, n) the largest weights, falling; n is enough for every top_k, and `few` or all for top_p."""
        vocab = weights.shape[1]
        count = min(rules.max_top_k if rules.only_within_top_k else max(rules.max_top_k, few), vocab)
        if weights.device.type != "cpu":
            if rules.only_within_top_k:
                return weights.topk(count, dim=-1).values
            return weights.sort(dim=-1, descending=True).values
        # numpy selects and sorts with vector registers; torch takes 2 to 40 times as long.
        values = weights.numpy()
        if count < vocab // 4:
            values = np.partition(values, vocab - count, axis=-1)[:, vocab - count :]
        return torch.from_numpy(np.ascontiguousarray(np.sort(values, axis=-1)[:, ::-1]))


def _drop_under(weights: torch.Tensor, floor: torch.Tensor) -> None:
    """Zeroes, in place, what is under the row's floor (rows, 1); the rest is divided by it, which changes no share.

    Divided, because then one threshold holds for all rows, and the quotient rounds to 1 or more only if it is.
    """
    weights.div_(floor.clamp(min=NEVER))
    torch.threshold_(weights, _JUST_UNDER_ONE, 0.0)
