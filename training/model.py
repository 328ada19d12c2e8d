"""The model as it is trained: Qwen2-VL's mathematics on uniform batches, one image prefix shared by many questions.

Parameter names are those of Qwen2-VL checkpoints, so the state dict is the exported file. Weights are float32 masters,
cast to the activations' dtype where they are used. Shapes: B screens, C cells (28 px squares) a screen, N = 4C patches,
P prefix tokens, K questions a screen, L tokens a question block, D hidden size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.config import Shape
from training.parts import Linear, RMSNorm, attend, rotate
from training.vision import Vision, patchify


def text_before(
    x: Tensor,
    scale: Tensor,
    weights: tuple[Tensor, ...],
    biases: tuple[Tensor, ...],
    cos: Tensor,
    sin: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Norm, projection and rotation: (T, D) to q (T, heads, 64), k and v (T, kv_heads, 64)."""
    h = F.rms_norm(x, scale.shape, scale.to(x.dtype), eps)
    out = F.linear(h, torch.cat(weights).to(x.dtype), torch.cat(biases).to(x.dtype)).view(x.shape[0], -1, 64)
    heads, kv = weights[0].shape[0] // 64, weights[1].shape[0] // 64
    qk, v = out.split((heads + kv, kv), 1)
    q, k = rotate(qk, cos, sin).split((heads, kv), 1)
    return q, k, v


def text_after(x: Tensor, seen: Tensor, out: Tensor, scale: Tensor, mlp: tuple[Tensor, ...], eps: float) -> Tensor:
    """Output projection, residual, norm, SwiGLU MLP (gate, up, down), residual. ``seen`` is (T, heads·64)."""
    x = x + F.linear(seen, out.to(x.dtype))
    h = F.rms_norm(x, scale.shape, scale.to(x.dtype), eps)
    gate, up = F.linear(h, torch.cat(mlp[:2]).to(x.dtype)).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, mlp[2].to(x.dtype))


class Attention(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.q_proj = Linear(s.hidden, s.heads * 64)
        self.k_proj = Linear(s.hidden, s.kv_heads * 64)
        self.v_proj = Linear(s.hidden, s.kv_heads * 64)
        self.o_proj = Linear(s.heads * 64, s.hidden, bias=False)


class Mlp(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.gate_proj = Linear(s.hidden, s.inter, bias=False)
        self.up_proj = Linear(s.hidden, s.inter, bias=False)
        self.down_proj = Linear(s.inter, s.hidden, bias=False)


@dataclass(slots=True)
class Layout:
    """Sizes and angles of one batch. ``cos``/``sin`` are (B·P + B·K·L, 1, 64)."""

    b: int
    p: int
    k: int
    n: int
    cos: Tensor
    sin: Tensor


class Layer(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.input_layernorm = RMSNorm(s.hidden, s.eps)
        self.post_attention_layernorm = RMSNorm(s.hidden, s.eps)
        self.self_attn, self.mlp = Attention(s), Mlp(s)

    def forward(self, x: Tensor, at: Layout) -> tuple[Tensor, Tensor, Tensor]:
        """(T, D) to (T, D); also block queries (B, K, L, heads, 64) and prefix keys (B, P, kv, 64)."""
        own, mlp = self.self_attn, self.mlp
        parts = (own.q_proj, own.k_proj, own.v_proj)
        weights, biases = tuple(p.weight for p in parts), tuple(p.bias for p in parts)
        q, k, v = text_before(x, self.input_layernorm.weight, weights, biases, at.cos, at.sin, self.s.eps)
        split = at.b * at.p
        group = self.s.heads // self.s.kv_heads
        kp, vp = (t[:split].view(at.b, at.p, -1, 64) for t in (k, v))
        wide_k, wide_v = (t.repeat_interleave(group, 2).transpose(1, 2) for t in (kp, vp))
        first = attend(q[:split].view(at.b, at.p, -1, 64).transpose(1, 2), wide_k, wide_v, True)
        qb = q[split:].view(at.b * at.k, at.n, -1, 64).transpose(1, 2)
        keys, values = (
            torch.cat(
                (
                    w[:, None].expand(-1, at.k, -1, -1, -1).flatten(0, 1),
                    t[split:].view(at.b * at.k, at.n, -1, 64).repeat_interleave(group, 2).transpose(1, 2),
                ),
                2,
            )
            for w, t in ((wide_k, k), (wide_v, v))
        )
        then = attend(qb, keys, values, True)
        seen = torch.cat([t.transpose(1, 2).reshape(-1, self.s.heads * 64) for t in (first, then)])
        ffn = (mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight)
        x = text_after(x, seen, own.o_proj.weight, self.post_attention_layernorm.weight, ffn, self.s.eps)
        return x, q[split:].view(at.b, at.k, at.n, -1, 64), kp


class Text(nn.Module):
    """The language model's body (names as in ``model.*``)."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.embed_tokens = nn.Embedding(s.vocab, s.hidden)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = RMSNorm(s.hidden, s.eps)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(3, T) positions to cos and sin (T, 1, 64) float32, mrope sections in order t, h, w."""
        inv = 1.0 / self.s.theta ** (torch.arange(32, device=positions.device, dtype=torch.float32) / 32)
        freqs = positions[..., None].float() * inv
        mixed = torch.cat([part[i] for i, part in enumerate(freqs.split(self.s.sections, -1))], -1)
        both = torch.cat((mixed, mixed), -1)[:, None]
        return both.cos(), both.sin()


@dataclass(slots=True)
class Trace:
    """Everything the losses look at: cell vectors, hidden states (T, D) after each layer, queries and keys a layer."""

    cells: Tensor
    hidden: list[Tensor]
    queries: list[Tensor]
    keys: list[Tensor]


class Model(nn.Module):
    """tiny-screen in training."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.visual, self.model = Vision(s), Text(s)
        self._init()

    def _init(self) -> None:
        for name, p in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(p)
            elif p.ndim >= 2:
                fan = p[0].numel()
                std = 0.02 if "embed_tokens" in name else 1 / math.sqrt(fan)
                deep = name.endswith(("o_proj.weight", "down_proj.weight", "attn.proj.weight", "fc2.weight"))
                nn.init.normal_(p, std=std * (0.3 if deep else 1.0))

    def positions(self, head: int, rows: int, columns: int, b: int, k: int, n: int, device: torch.device) -> Tensor:
        """(3, B·P + B·K·L) mrope positions; every block goes on right after the prefix."""
        lead = torch.arange(head, device=device).expand(3, -1)
        y = torch.arange(rows, device=device).repeat_interleave(columns) + head
        x = torch.arange(columns, device=device).repeat(rows) + head
        image = torch.stack((torch.full_like(y, head), y, x))
        after = head + max(rows, columns)
        close = torch.full((3, 1), after, device=device)
        prefix = torch.cat((lead, image, close), 1)
        block = torch.arange(after + 1, after + 1 + n, device=device).expand(3, -1)
        return torch.cat((prefix.repeat(1, b), block.repeat(1, b * k)), 1)

    def forward(
        self, images: Tensor, head: Tensor, close: int, blocks: Tensor, dtype: torch.dtype = torch.bfloat16
    ) -> tuple[Tensor, Trace, Layout]:
        """uint8 images (B, H, W, 3), head ids (h,), the vision-end id and block ids (B, K, L).

        Returns the last hidden states of the blocks (B, K, L, D), normed, with the trace and layout.
        """
        b, height, width, _ = images.shape
        rows, columns = height // 28, width // 28
        _, k, n = blocks.shape
        cells = self.visual(patchify(images, dtype), rows, columns)
        table = self.model.embed_tokens.weight.to(dtype)
        lead = F.embedding(head, table).expand(b, -1, -1)
        end = table[close].expand(b, 1, -1)
        prefix = torch.cat((lead, cells, end), 1)
        p = prefix.shape[1]
        x = torch.cat((prefix.flatten(0, 1), F.embedding(blocks.flatten(), table)))
        cos, sin = self.model.angles(self.positions(head.numel(), rows, columns, b, k, n, images.device))
        at = Layout(b, p, k, n, cos.to(dtype), sin.to(dtype))
        trace = Trace(cells, [], [], [])
        for layer in self.model.layers:
            x, q, keys = layer(x, at)
            trace.hidden.append(x)
            trace.queries.append(q)
            trace.keys.append(keys)
        last = self.model.norm(x[b * p :]).view(b, k, n, -1)
        return last, trace, at

    def logits(self, hidden: Tensor) -> Tensor:
        """Tied output layer."""
        return F.linear(hidden, self.model.embed_tokens.weight.to(hidden.dtype))
