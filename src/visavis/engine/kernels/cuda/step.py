"""`DecodeStep`: the launches of one decode step, from the last tokens to the next ones, into memory that stays put.

Everything a step reads from the host comes in one small int32 table (`Columns`), so a step is one copy and one graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from visavis.engine.kernels.cuda.sampling import Mode, SampleStep
from visavis.engine.kernels.triton.elementwise import begin_step_kernel
from visavis.engine.kernels.triton.launch import Folded, Launcher, Parts
from visavis.engine.kernels.triton.launch_quantized import TILE_ROWS, QuantizedLauncher
from visavis.engine.kernels.triton.tiles import pad
from visavis.engine.kv_cache import KVCache
from visavis.engine.quantization.weight import QuantizedWeight

if TYPE_CHECKING:
    from visavis.engine.kernels.base import Norm
    from visavis.engine.models.decoder import Decoder, DecoderLayer
    from visavis.engine.models.rope import RotaryEmbedding

__all__ = ["COLUMNS", "DecodeStep"]

COLUMNS = ("source", "token", "seat", "context", "position", "index", "place", "block")
"""Per request: its row in the last step (or -1) and else its newest token; its seat (row of the tables kept on the
device); its tokens in the cache (-1: no request); the newest token's rotary position; how many tokens the answer has;
where in its block table a new block goes (or -1), and which."""


class DecodeStep:
    def __init__(
        self,
        model: Decoder,
        rope: RotaryEmbedding,
        cache: KVCache,
        launcher: Launcher,
        seats: int,
        max_model_len: int,
    ) -> None:
        c = model.config
        self.model = model
        self.cache = cache
        self.layers = cache.data.unbind(0)
        self.launcher = launcher
        self.quantized = QuantizedLauncher(launcher)
        device, dtype = launcher.device, cache.data.dtype
        self.seats = seats
        # One row beyond the seats for the rows of a batch that hold no request.
        self.tables = torch.zeros((seats + 1, -(-max_model_len // cache.block_size)), dtype=torch.int32, device=device)
        self.packed = torch.zeros(len(COLUMNS) * seats, dtype=torch.int32, device=device)  # the columns of a step
        self.hole = np.array([-1, 0, seats, -1, 0, 0, -1, 0], dtype=np.int32)  # the columns of no request
        self.sampled = torch.zeros(seats, dtype=torch.int32, device=device)
        angles = torch.arange(max_model_len, device=device)[:, None].float() * rope.inv_freq.to(device)
        self.cos, self.sin = angles.cos(), angles.sin()
        heads = c.num_heads + 2 * c.num_kv_heads
        self.hidden = torch.empty((seats, c.hidden_size), device=device, dtype=dtype)
        self.normed = torch.empty_like(self.hidden)
        self.qkv = torch.empty((seats, heads, c.head_dim), device=device, dtype=dtype)
        self.attended = torch.empty((seats, c.num_heads * c.head_dim), device=device, dtype=dtype)
        self.gate_up = torch.empty((seats, 2 * c.intermediate_size), device=device, dtype=dtype)
        self.inner = torch.empty((seats, c.intermediate_size), device=device, dtype=dtype)
        self.logits = torch.empty((seats, c.vocab_size), device=device)
        self.rounded = (
            torch.empty((seats, c.vocab_size), device=device, dtype=dtype) if dtype != torch.float32 else None
        )
        group = c.num_heads // c.num_kv_heads
        widest = max(c.hidden_size, heads * c.head_dim, min(c.vocab_size, 128 * launcher.processors))
        self.scratch = launcher.decode_scratch(seats, c.num_kv_heads, group, c.head_dim, widest, TILE_ROWS)
        most_programs = -(-c.hidden_size // 16)  # no tile has fewer columns
        self.folded = Folded(self.normed, torch.empty((most_programs, TILE_ROWS), device=device))
        self._folded_for: Norm | None = None  # what `folded` is the input of
        self.folds = dtype != torch.float16  # which a residual stream times a gain may overflow
        self.sampling = SampleStep(c.vocab_size, seats, launcher)

    def fill_with_holes(self, rows: int) -> None:
        holes = torch.from_numpy(np.repeat(self.hole, rows))
        self.packed[: len(holes)].copy_(holes)

    def __call__(self, rows: int, mode: Mode) -> None:
        """Launches a step of `rows` requests (those beyond the real ones have context -1); tokens go to `sampled`."""
        packed = self.packed[: len(COLUMNS) * rows].view(len(COLUMNS), rows)
        columns = dict(zip(COLUMNS, packed.unbind(0), strict=True))
        x = self.hidden[:rows]
        n = x.shape[1]
        begin_step_kernel[(rows,)](
            self.model.embedding, self.sampled, columns["source"], columns["token"], columns["seat"],
            columns["place"], columns["block"], self.tables, x, self.tables.stride(0),
            N=n, BLOCK=pad(n), PDL=self.launcher.overlap, num_warps=4, **self.launcher.options,
        )  # fmt: skip
        self._folded_for = None
        norms = [*(layer.input_norm for layer in self.model.layers[1:]), self.model.norm]
        for layer, following in zip(self.model.layers, norms, strict=True):
            self._layer(layer, x, columns, following)
        self._product("lm_head", x, self.model.lm_head, None, self.logits[:rows], norm=self.model.norm)
        self.sampling(self.logits[:rows], self.sampled[:rows], columns["seat"], columns["index"], mode)

    def _layer(self, layer: DecoderLayer, x: torch.Tensor, columns: dict[str, torch.Tensor], following: Norm) -> None:
        rows = x.shape[0]
        qkv, attended, inner = self.qkv[:rows], self.attended[:rows], self.inner[:rows]
        self._product("qkv", x, layer.qkv.weight, layer.qkv.bias, qkv.view(rows, -1), norm=layer.input_norm)
        parts = self.launcher.decode_attention(
            qkv, self.layers[layer.index], attended, self.tables, columns["seat"], columns["context"],
            block_size=self.cache.block_size, scratch=self.scratch, turn=(columns["position"], self.cos, self.sin),
            qk_norm=None if layer.qk_norm is None else (layer.qk_norm[0].weight, layer.qk_norm[1].weight),
            eps=layer.input_norm.eps, later=isinstance(layer.output.weight, torch.Tensor),
        )  # fmt: skip
        output = layer.output
        self._product(
            "output", attended, output.weight, output.bias, x, residual=True, then=layer.mlp_norm, parts=parts
        )
        gate_up = layer.gate_up
        self._product("gate_up", x, gate_up.weight, gate_up.bias, inner, norm=layer.mlp_norm, silu=True)
        self._product("down", inner, layer.down.weight, layer.down.bias, x, residual=True, then=following)

    def _product(
        self,
        kind: str,
        x: torch.Tensor,
        weight: torch.Tensor | QuantizedWeight,
        bias: torch.Tensor | None,
        out: torch.Tensor,
        *,
        norm: Norm | None = None,
        residual: bool = False,
        silu: bool = False,
        then: Norm | None = None,
        parts: Parts | None = None,
    ) -> None:
        """out = x (normalised with `norm`) · weightᵀ, or added to it, or silu(gates) · ups of it: by our kernels for
        few rows, which fold all of that in, else by cuBLAS and one kernel for each of those. `then`: the norm that the
        result goes through next; `parts`: what attention has left to join."""
        rows = x.shape[0]
        run = self.launcher
        folded_for, self._folded_for = self._folded_for, None
        if isinstance(weight, QuantizedWeight):
            self._quantized(kind, x, weight, bias, out, norm, residual, silu)
            return
        ours = rows <= run.most_rows(kind)
        folded = None
        gain, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
        if norm is not None and rows > 1:
            if ours and folded_for is norm:
                x, folded = self.normed[:rows], self.folded
            else:
                x = run.rms_norm(x, norm.weight, norm.eps, self.normed[:rows])
            gain = None
        if ours:
            fold = None
            if then is not None and rows > 1 and self.folds:
                fold, self._folded_for = (self.folded, then.weight), then
            run.product(
                kind, x, weight, out, bias=bias, norm=gain, eps=eps, residual=residual, silu=silu, scratch=self.scratch,
                parts=parts, fold=fold, folded=folded,
            )  # fmt: skip
        elif residual:
            if bias is not None:  # not added by itself: the residual is rounded once
                out.add_(_linear(x, weight, bias, self.normed[:rows]))
            else:
                out.addmm_(x, weight.t())
        elif silu:
            run.silu_mul(_linear(x, weight, bias, self.gate_up[:rows]), out)
        elif out.dtype != x.dtype:
            assert self.rounded is not None  # the logits
            out.copy_(_linear(x, weight, bias, self.rounded[:rows]))
        else:
            _linear(x, weight, bias, out)

    def _quantized(
        self,
        kind: str,
        x: torch.Tensor,
        weight: QuantizedWeight,
        bias: torch.Tensor | None,
        out: torch.Tensor,
        norm: Norm | None,
        residual: bool,
        silu: bool,
    ) -> None:
        rows, run = x.shape[0], self.quantized
        if norm is not None and (rows > 1 or weight.order is not None):
            x = self.launcher.rms_norm(x, norm.weight, norm.eps, self.normed[:rows])
            norm = None
        if run.fuses(rows, x.dtype):
            gain, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
            run.product(
                kind, x, weight, out, bias=bias, norm=gain, eps=eps, residual=residual, silu=silu, scratch=self.scratch
            )
        elif silu:
            self.launcher.silu_mul(run.linear(x, weight, bias), out)
        elif residual:
            run.linear(x, weight, bias, out)
        else:
            out.copy_(run.linear(x, weight, bias))


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> torch.Tensor:
    if bias is None:
        return torch.mm(x, weight.t(), out=out)
    return torch.addmm(bias, x, weight.t(), out=out)
