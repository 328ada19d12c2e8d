"""What is asked of the model: the answers, and helpers that are thrown away after training.

Helpers supervise what each step must know anyway: what lies under a cell (``cell``), where a cell's element is on the
screen (``place``), where the answer's box is (``box``), and which cells two attention heads look at: one finds the
element, one follows the text while it is spelled.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.config import Shape
from training.data import Batch
from training.model import Layout, Model, Trace
from training.packing import CHAR_COLUMNS, CHAR_ROWS, LONGEST, RING, SKIP
from training.parts import Linear

CHAR_CLASSES = 96
# Layer and query head of supervised attention: one finds the element, the others follow its text (both groups of keys).
FIND, FOLLOW = (2, 0), ((3, 2), (4, 0), (4, 2))
COUNT_LAYER, PLACE_LAYER, BOX_LAYER = 1, 1, 3
COUNTED = 26  # letters of a caption that are counted: at most 24
LETTERS = 2.0  # weight of a letter in the answer's loss beside a digit
Z_LOSS = 2e-3
WEIGHTS = {"answer": 1.0, "z": 1.0, "chars": 0.7, "ring": 0.5, "first": 0.2, "edges": 0.5, "on": 0.2, "place": 0.5}
WEIGHTS |= {"box": 1.0, "find": 0.15, "follow": 0.3, "count": 0.1}


class Helpers(nn.Module):
    """Heads used in training only."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.chars = Linear(s.hidden, CHAR_ROWS * CHAR_COLUMNS * CHAR_CLASSES)
        self.cell = Linear(s.hidden, 5)
        self.place = Linear(s.hidden, 4)
        self.box = Linear(s.hidden, 4)
        self.first = Linear(s.hidden, CHAR_ROWS * (LONGEST + 1))
        self.ring = Linear(s.hidden, CHAR_ROWS * RING * CHAR_CLASSES)
        self.count = Linear(s.hidden, COUNTED)


class Taught(nn.Module):
    """The model with its helpers; a call gives ``losses``."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.model, self.helpers = Model(s), Helpers(s)

    def forward(self, *args: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return losses(self.model, self.helpers, *args)


def answer_positions(batch: Batch) -> tuple[Tensor, Tensor]:
    """Flat indices (M,) into (B·K·L) of the positions that predict an answer token, and the tokens (M,)."""
    n = batch.ids.shape[-1]
    at = torch.arange(n, device=batch.ids.device)
    wanted = (at >= batch.start[..., None] - 1) & (at < batch.stop[..., None] - 1)
    index = wanted.flatten().nonzero()[:, 0]
    return index, batch.ids.flatten()[index + 1].long()


def _inside(rects: Tensor, rows: int, columns: int) -> Tensor:
    """(..., 4) rectangles to (..., rows·columns) booleans; -1 rectangles give none."""
    r = torch.arange(rows, device=rects.device).repeat_interleave(columns)
    c = torch.arange(columns, device=rects.device).repeat(rows)
    top, left, bottom, right = (rects[..., i, None].int() for i in range(4))
    return (r >= top) & (r <= bottom) & (c >= left) & (c <= right)


def _looks(trace: Trace, where: tuple[int, int], index: Tensor, target: Tensor, head: int, at: Layout) -> Tensor:
    """-log of the attention that one head puts on the target cells (M, C), over the prefix; mean of rows with any."""
    layer, number = where
    q, k = trace.queries[layer], trace.keys[layer]
    group = q.shape[3] // k.shape[2]
    qs, ks = q[:, :, :, number].flatten(1, 2), k[:, :, number // group]
    scores = torch.bmm(qs, ks.transpose(1, 2)).flatten(0, 1)[index].float() / 8
    cells = scores[:, head : head + target.shape[1]]
    found = cells.masked_fill(~target, -1e4).logsumexp(-1)
    loss = scores.logsumexp(-1) - found
    has = target.any(-1)
    return (loss * has).sum() / has.sum().clamp(min=1)


def _classes(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of sparse classes: 0 means nothing there and weighs 0.05, ``SKIP`` nothing at all."""
    target = target.flatten().long()
    skip = target == SKIP
    each = F.cross_entropy(logits.float(), target.masked_fill(skip, 0), reduction="none")
    weight = torch.where(target > 0, 1.0, 0.05).masked_fill(skip, 0.0)
    return (each * weight).sum() / weight.sum()


def _cell_losses(helpers: Helpers, cells: Tensor, batch: Batch) -> dict[str, Tensor]:
    rows, columns = batch.images.shape[1] // 28, batch.images.shape[2] // 28
    on = ~batch.edges[..., 0].isnan()
    y = torch.arange(rows, device=cells.device).repeat_interleave(columns) + 0.5
    x = torch.arange(columns, device=cells.device).repeat(rows) + 0.5
    offsets = (batch.edges - torch.stack((x, y, x, y), -1)).nan_to_num()
    guess = helpers.cell(cells).float()
    gap = F.smooth_l1_loss(guess[..., :4], offsets.asinh(), reduction="none", beta=0.1).sum(-1)
    return {
        "chars": _classes(helpers.chars(cells).view(-1, CHAR_CLASSES), batch.chars),
        "ring": _classes(helpers.ring(cells).view(-1, CHAR_CLASSES), batch.ring),
        "first": _classes(helpers.first(cells).view(-1, LONGEST + 1), batch.first),
        "edges": (gap * on).sum() / on.sum().clamp(min=1),
        "on": F.binary_cross_entropy_with_logits(guess[..., 4], on.float()),
    }


def losses(
    model: Model, helpers: Helpers, batch: Batch, head: Tensor, close: int, dtype: torch.dtype = torch.bfloat16
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Unweighted losses, and figures to report: token accuracy and share of fully right answers for each task."""
    last, trace, at = model(batch.images, head, close, batch.ids.int(), dtype)
    rows, columns = batch.images.shape[1] // 28, batch.images.shape[2] // 28
    index, target = answer_positions(batch)
    logits = model.logits(last.flatten(0, 2)[index]).float()
    letter = batch.letter.flatten()[index + 1].long()
    weight = torch.where(letter >= 0, LETTERS, 1.0)
    each = F.cross_entropy(logits, target, reduction="none")
    # logits near log-probabilities: bf16 keeps neighbours apart there, at 30 it rounds to an eighth
    out = {"answer": (each * weight).sum() / weight.sum(), "z": Z_LOSS * logits.logsumexp(-1).square().mean()}
    out |= _cell_losses(helpers, trace.cells, batch)

    lead = head.numel()
    image = trace.hidden[PLACE_LAYER][: at.b * at.p].view(at.b, at.p, -1)[:, lead : lead + rows * columns]
    on = ~batch.edges[..., 0].isnan()
    gap = (helpers.place(image).float() * 8 - batch.edges.nan_to_num()).abs().sum(-1)
    out["place"] = (gap * on).sum() / on.sum().clamp(min=1) / 8

    block = index // at.n
    grounded = batch.ground.flatten()[block]
    guess = helpers.box(trace.hidden[BOX_LAYER][at.b * at.p :][index]).float()
    gap = (guess - batch.box.flatten(0, 1)[block]).abs().sum(-1)
    out["box"] = (gap * grounded).sum() / grounded.sum().clamp(min=1)

    spots = _inside(batch.locate.flatten(0, 1)[block], rows, columns).any(1)
    out["find"] = _looks(trace, FIND, index, spots, lead, at)
    follow = _inside(batch.gaze.flatten(0, 2)[index + 1], rows, columns)
    out["follow"] = torch.stack([_looks(trace, w, index, follow, lead, at) for w in FOLLOW]).mean()
    counted = helpers.count(trace.hidden[COUNT_LAYER][at.b * at.p :][index]).float()
    out["count"] = F.cross_entropy(counted, letter.clamp(max=COUNTED - 1), ignore_index=-1)

    with torch.no_grad():
        right = logits.argmax(-1) == target
        wrong = torch.zeros(at.b * at.k, device=right.device).index_add_(0, block, (~right).float())
        ground = batch.ground.flatten()
        figures = {
            "token": right.float().mean(),
            "ground": (wrong[ground] == 0).float().mean(),
            "read": (wrong[~ground] == 0).float().mean(),
            "box_mae": (gap * grounded).sum() / grounded.sum().clamp(min=1) / 4,
        }
    return out, figures
