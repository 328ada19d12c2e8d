"""The kernels' twins in plain torch: what each must compute, in float32 throughout unless said otherwise."""

from __future__ import annotations

import torch
import torch.nn.functional as F

__all__ = ["attention", "join_norm", "product", "quick_gelu", "rms_norm", "rotate", "silu_mul"]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """(…, N) → (…, N) of x's dtype, rounded before the weight."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide.to(x.dtype).float() * weight.float()).to(x.dtype)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """(rows, 2M), gates first → (rows, M)."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate).to(gate_up.dtype).float() * up).to(gate_up.dtype)


def product(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    residual: torch.Tensor | None = None,
    silu: bool = False,
) -> torch.Tensor:
    """(rows, K) · (N, K)ᵀ → (rows, N) float32."""
    wide = x.float()
    if norm is not None:
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * norm.float()
    y = wide @ weight.float().t()
    if bias is not None:
        y = y + bias.float()
    if silu:
        gate, up = y.chunk(2, dim=-1)
        y = F.silu(gate) * up
    return y if residual is None else y + residual.float()


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """heads (n, count, D), cos and sin (n, D / 2) float32 → rotated, in heads' dtype."""
    low, high = heads.float().chunk(2, dim=-1)
    c, s = cos[:, None], sin[:, None]
    return torch.cat((low * c - high * s, high * c + low * s), dim=-1).to(heads.dtype)


def attention(queries: torch.Tensor, stored: torch.Tensor, num_context: int) -> torch.Tensor:
    """queries (n, H, D) after `num_context` tokens, over stored (m, 2K, D) → (n, H · D) float32, causal."""
    n, heads, d = queries.shape
    k, v = stored.float().chunk(2, dim=1)
    k, v = (t.repeat_interleave(heads // t.shape[1], dim=1) for t in (k, v))
    score = torch.einsum("nhd,mhd->hnm", queries.float(), k) * d**-0.5
    seen = torch.arange(stored.shape[0], device=queries.device) <= (
        num_context + torch.arange(n, device=queries.device)[:, None]
    )
    weight = score.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("hnm,mhd->nhd", weight, v).reshape(n, -1)


def join_norm(
    x: torch.Tensor, late: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x (rows, N) with `late` added, and that normalised: by LayerNorm with a `bias`, by RMSNorm without."""
    if late is not None:
        x = (x.float() + late.float()).to(x.dtype)
    if bias is None:
        return x, rms_norm(x, weight, eps)
    return x, F.layer_norm(x.float(), weight.shape, weight.float(), bias.float(), eps).to(x.dtype)


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """x · sigmoid(1.702 x), in x's dtype."""
    wide = x.float()
    return (wide * torch.sigmoid(1.702 * wide)).to(x.dtype)
