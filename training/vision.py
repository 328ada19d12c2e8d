"""The vision tower: pixels to one vector a 28 px cell. B screens, N patches, C = N/4 cells, D width."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.config import MEAN, MERGE, PATCH, STD, TEMPORAL, Shape
from training.parts import LayerNorm, Linear, attend, rotate


def vision_before(
    x: Tensor, scale: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, cos: Tensor, sin: Tensor, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Norm, projection and rotation: (B, N, D) to q, k, v (B, heads, N, 64)."""
    b, n, d = x.shape
    h = F.layer_norm(x, (d,), scale.to(x.dtype), shift.to(x.dtype), 1e-6)
    out = F.linear(h, weight.to(x.dtype), bias.to(x.dtype)).view(b, n, 3 * heads, d // heads)
    qk, v = out.split((2 * heads, heads), 2)
    q, k = rotate(qk, cos[:, None], sin[:, None]).chunk(2, 2)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def vision_after(
    x: Tensor, seen: Tensor, proj: tuple[Tensor, Tensor], norm: tuple[Tensor, Tensor], mlp: tuple[Tensor, ...]
) -> Tensor:
    """Output projection, residual, norm, quick-GELU MLP, residual. ``seen`` is (B, heads, N, 64)."""
    dtype = x.dtype
    x = x + F.linear(seen.transpose(1, 2).reshape(x.shape), proj[0].to(dtype), proj[1].to(dtype))
    h = F.layer_norm(x, (x.shape[-1],), norm[0].to(dtype), norm[1].to(dtype), 1e-6)
    h = F.linear(h, mlp[0].to(dtype), mlp[1].to(dtype))
    return x + F.linear(h * torch.sigmoid(1.702 * h), mlp[2].to(dtype), mlp[3].to(dtype))


class VisionAttention(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.qkv = Linear(s.v_dim, 3 * s.v_dim)
        self.proj = Linear(s.v_dim, s.v_dim)


class VisionMlp(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.fc1 = Linear(s.v_dim, s.v_hidden)
        self.fc2 = Linear(s.v_hidden, s.v_dim)


class VisionBlock(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.heads = s.v_heads
        self.norm1, self.norm2 = LayerNorm(s.v_dim, 1e-6), LayerNorm(s.v_dim, 1e-6)
        self.attn, self.mlp = VisionAttention(s), VisionMlp(s)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        qkv, proj, one, two = self.attn.qkv, self.attn.proj, self.norm1, self.norm2
        q, k, v = vision_before(x, one.weight, one.bias, qkv.weight, qkv.bias, cos, sin, self.heads)
        mlp = (self.mlp.fc1.weight, self.mlp.fc1.bias, self.mlp.fc2.weight, self.mlp.fc2.bias)
        seen = attend(q, k, v, False)
        return vision_after(x, seen, (proj.weight, proj.bias), (two.weight, two.bias), mlp)


class PatchEmbed(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.proj = nn.Conv3d(3, s.v_dim, (TEMPORAL, PATCH, PATCH), (TEMPORAL, PATCH, PATCH), bias=False)

    def forward(self, patches: Tensor) -> Tensor:
        """(B, N, 3·14·14) of one frame: a still image is its frame twice, so both temporal kernels add up."""
        weight = self.proj.weight.sum(2).flatten(1)
        return F.linear(patches, weight.to(patches.dtype))


class Merger(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        wide = s.v_dim * MERGE * MERGE
        self.wide = wide
        self.ln_q = LayerNorm(s.v_dim, 1e-6)
        self.mlp = nn.Sequential(Linear(wide, wide), nn.GELU(), Linear(wide, s.hidden))

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.ln_q(x).view(x.shape[0], -1, self.wide))


class Vision(nn.Module):
    """The vision tower: patches in merge order to one vector a cell."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(s)
        self.blocks = nn.ModuleList(VisionBlock(s) for _ in range(s.v_layers))
        self.merger = Merger(s)
        self.head_dim = s.v_dim // s.v_heads

    def angles(self, rows: int, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos and sin, (4·rows·columns, head_dim) float32, of a grid counted in cells."""
        quarter = self.head_dim // 4
        inv = 1.0 / 10000 ** (torch.arange(quarter, device=device, dtype=torch.float32) / quarter)
        y, x = torch.meshgrid(
            torch.arange(2 * rows, device=device), torch.arange(2 * columns, device=device), indexing="ij"
        )
        grid = torch.stack((y, x), -1).view(rows, 2, columns, 2, 2).transpose(1, 2).reshape(-1, 2)
        freqs = (grid[:, :, None].float() * inv).flatten(1)
        both = torch.cat((freqs, freqs), -1)
        return both.cos(), both.sin()

    def forward(self, patches: Tensor, rows: int, columns: int) -> Tensor:
        cos, sin = (t.to(patches.dtype) for t in self.angles(rows, columns, patches.device))
        x = self.patch_embed(patches)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.merger(x)


def patchify(images: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 (B, H, W, 3) to normalised patches (B, N, 588) in merge order, as the processor makes them."""
    b, h, w, _ = images.shape
    mean = torch.tensor(MEAN, device=images.device)
    std = torch.tensor(STD, device=images.device)
    x = ((images.float() / 255 - mean) / std).to(dtype)
    x = x.view(b, h // 28, 2, PATCH, w // 28, 2, PATCH, 3)
    return x.permute(0, 1, 4, 2, 5, 7, 3, 6).reshape(b, -1, 3 * PATCH * PATCH)
