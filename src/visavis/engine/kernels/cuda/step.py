"""`DecodeStep`: the launches of one decode step, from the last tokens to the next ones, into memory that stays put.

Everything a step reads from the host comes in one small int32 table (`Columns`), so a step is one copy and one graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from visavis.engine.kernels.cuda.sampling import Mode, SampleStep
from visavis.engine.kernels.triton.elementwise import begin_step_kernel
from visavis.engine.kernels.triton.launch import Launcher, pad
from visavis.engine.kv_cache import KVCache

if TYPE_CHECKING:
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
        self.scratch = launcher.decode_scratch(seats, c.num_kv_heads, group, c.head_dim, c.hidden_size)
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
        few = rows <= self.launcher.skinny_rows
        for layer in self.model.layers:
            self._layer(layer, x, columns, few)
        self._head(x, few)
        self.sampling(self.logits[:rows], self.sampled[:rows], columns["seat"], columns["index"], mode)

    def _layer(self, layer: DecoderLayer, x: torch.Tensor, columns: dict[str, torch.Tensor], few: bool) -> None:
        rows = x.shape[0]
        qkv, attended, inner = self.qkv[:rows], self.attended[:rows], self.inner[:rows]
        run = self.launcher
        flat = qkv.view(rows, -1)
        first, second = layer.input_norm, layer.mlp_norm
        if few:
            run.product(
                "qkv", x, layer.qkv.weight, flat,
                bias=layer.qkv.bias, norm=first.weight, eps=first.eps, scratch=self.scratch,
            )  # fmt: skip
        else:
            normed = run.rms_norm(x, first.weight, first.eps, self.normed[:rows])
            _linear(normed, layer.qkv.weight, layer.qkv.bias, flat)
        run.decode_attention(
            qkv, self.layers[layer.index], attended, self.tables, columns["seat"], columns["context"],
            block_size=self.cache.block_size, scratch=self.scratch, turn=(columns["position"], self.cos, self.sin),
            qk_norm=None if layer.qk_norm is None else (layer.qk_norm[0].weight, layer.qk_norm[1].weight),
            eps=first.eps,
        )  # fmt: skip
        if few:
            run.product(
                "output", attended, layer.output.weight, x, bias=layer.output.bias, residual=True, scratch=self.scratch
            )
            run.product(
                "gate_up", x, layer.gate_up.weight, inner, bias=layer.gate_up.bias, norm=second.weight,
                eps=second.eps, silu=True, scratch=self.scratch,
            )  # fmt: skip
            run.product("down", inner, layer.down.weight, x, bias=layer.down.bias, residual=True, scratch=self.scratch)
            return
        layer.output.add_to(x, attended)
        normed = run.rms_norm(x, second.weight, second.eps, self.normed[:rows])
        _linear(normed, layer.gate_up.weight, layer.gate_up.bias, self.gate_up[:rows])
        layer.down.add_to(x, run.silu_mul(self.gate_up[:rows], inner))

    def _head(self, x: torch.Tensor, few: bool) -> None:
        rows = x.shape[0]
        norm, weight = self.model.norm, self.model.lm_head
        if few:
            self.launcher.product(
                "lm_head", x, weight, self.logits[:rows], norm=norm.weight, eps=norm.eps, scratch=self.scratch
            )
            return
        normed = self.launcher.rms_norm(x, norm.weight, norm.eps, self.normed[:rows])
        if self.rounded is None:
            _linear(normed, weight, None, self.logits[:rows])
        else:
            _linear(normed, weight, None, self.rounded[:rows])
            self.logits[:rows].copy_(self.rounded[:rows])


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor) -> None:
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)
