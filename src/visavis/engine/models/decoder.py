"""The decoder of every supported family: Llama, Qwen2, Qwen3 and the text halves of the Qwen-VL models.

Plain objects instead of `nn.Module`: nothing here trains, and a module call costs as much as a small product.
"""

from __future__ import annotations

from typing import Any

import torch

from visavis.engine.communicator import columns_of
from visavis.engine.kernels.base import Kernels, Linear, Rotation, SummedLinear
from visavis.engine.model_config import ModelConfig
from visavis.engine.parallel.sharding import shares_of
from visavis.engine.quantization.places import Places, matrix_places, taking

__all__ = ["Decoder", "DecoderLayer"]

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
OUTPUT = ("self_attn.o_proj",)
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
DOWN = ("mlp.down_proj",)


class DecoderLayer:
    def __init__(self, config: ModelConfig, kernels: Kernels, index: int) -> None:
        c = config
        self.kernels = kernels
        self.index = index
        self.num_heads = c.num_heads
        self.num_kv_heads = c.num_kv_heads
        self.num_rotated = c.num_heads + c.num_kv_heads
        self.head_dim = c.head_dim
        self.shares = shares_of(c, kernels.communicator.rank)
        total = c.num_heads + 2 * c.num_kv_heads
        self.input_norm = kernels.rms_norm(c.hidden_size, c.rms_norm_eps)
        self.qkv = self._linear(QKV, c.hidden_size, total * c.head_dim, bias=c.qkv_bias)
        self.qk_norm = (
            (kernels.rms_norm(c.head_dim, c.rms_norm_eps), kernels.rms_norm(c.head_dim, c.rms_norm_eps))
            if c.qk_norm
            else None
        )
        self.output = self._linear(OUTPUT, c.num_heads * c.head_dim, c.hidden_size, bias=c.output_bias, shards=c.shards)
        self.mlp_norm = kernels.rms_norm(c.hidden_size, c.rms_norm_eps)
        self.gate_up = self._linear(GATE_UP, c.hidden_size, 2 * c.intermediate_size, bias=c.mlp_bias)
        self.down = self._linear(DOWN, c.intermediate_size, c.hidden_size, bias=c.mlp_bias, shards=c.shards)

    def _linear(
        self, names: tuple[str, ...], in_features: int, out_features: int, *, bias: bool, shards: int = 1
    ) -> Linear:
        """`shards`: the ranks over which the inputs are spread."""
        linear = self.kernels.decoder_linear(self._named(names), in_features, out_features, bias=bias)
        return linear if shards == 1 else SummedLinear(linear, self.kernels.communicator)

    def _named(self, names: tuple[str, ...]) -> list[str]:
        return [f"layers.{self.index}.{name}" for name in names]

    def __call__(self, x: torch.Tensor, rotation: Rotation, plan: Any) -> torch.Tensor:
        """x: (n, hidden) → (n, hidden)."""
        kernels = self.kernels
        done = kernels.whole_layer(self.index, x, rotation, plan)
        if done is not None:
            return done
        qkv = self.qkv(self.input_norm(x)).view(x.shape[0], -1, self.head_dim)
        if self.qk_norm is not None:
            self._normalise(qkv)
        kernels.rotate_(qkv[:, : self.num_rotated], rotation)
        x = self.output.add_to(x, kernels.attention(self.index, qkv, self.num_heads, plan))
        return self.down.add_to(x, kernels.silu_mul(self.gate_up(self.mlp_norm(x))))

    def _normalise(self, qkv: torch.Tensor) -> None:
        assert self.qk_norm is not None
        q_norm, k_norm = self.qk_norm
        self.kernels.normalise_(qkv[:, : self.num_heads], q_norm)
        self.kernels.normalise_(qkv[:, self.num_heads : self.num_rotated], k_norm)

    def weights(self) -> Places:
        start = f"layers.{self.index}."
        yield f"{start}input_layernorm.weight", self.input_norm.weight
        yield f"{start}post_attention_layernorm.weight", self.mlp_norm.weight
        if self.qk_norm is not None:
            yield f"{start}self_attn.q_norm.weight", self.qk_norm[0].weight
            yield f"{start}self_attn.k_norm.weight", self.qk_norm[1].weight
        heads = [self.num_heads * self.head_dim] + [self.num_kv_heads * self.head_dim] * 2
        shares = self.shares
        for linear, names, sizes, parts in (
            (self.qkv, QKV, heads, [shares.queries, shares.keys, shares.keys]),
            (self.output, OUTPUT, [self.output.weight.shape[0]], [shares.output]),
            (self.gate_up, GATE_UP, [self.gate_up.weight.shape[0] // 2] * 2, [shares.gates] * 2),
            (self.down, DOWN, [self.down.weight.shape[0]], [shares.down]),
        ):
            yield from matrix_places(linear.weight, linear.bias, self._named(names), sizes, self.kernels.scheme, parts)


class Decoder:
    def __init__(self, config: ModelConfig, kernels: Kernels) -> None:
        self.config = config
        self.kernels = kernels
        self.embedding: Any = kernels.empty(config.vocab_size, config.hidden_size)
        self.layers = [DecoderLayer(config, kernels, i) for i in range(config.num_layers)]
        self.norm = kernels.rms_norm(config.hidden_size, config.rms_norm_eps)
        self.tied = config.tie_word_embeddings
        # Of several ranks each has the whole embedding, which saves a sum over ranks, and its rows of the head.
        first, count = columns_of(kernels.communicator.rank, kernels.communicator.size, config.vocab_size)
        self.head_rows = slice(first, first + count)
        self.lm_head: Any
        if not self.tied:
            self.lm_head = kernels.empty(count, config.hidden_size)
        else:
            self.lm_head = self.embedding if count == config.vocab_size else self.embedding[self.head_rows]

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """(n,) int64 → (n, hidden)."""
        return self.kernels.embed(self.embedding, token_ids)

    def __call__(
        self,
        x: torch.Tensor,
        rotation: Rotation,
        plan: Any,
        deepstack: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """x: (n, hidden) embedded tokens → (n, hidden), before the final norm.

        `deepstack` is (rows (v,) int64, features (v, k, hidden)): feature i is added to those rows after layer i
        (DeepStack, arXiv:2406.04334).
        """
        for layer in self.layers:
            x = layer(x, rotation, plan)
            if deepstack is not None and layer.index < deepstack[1].shape[1]:
                x.index_add_(0, deepstack[0], deepstack[1][:, layer.index])
        return x

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """(rows, hidden) of the tokens asked for → (rows, vocab) float32, on rank 0."""
        part = self.kernels.project(self.norm(x), self.lm_head)
        return self.kernels.communicator.join_columns(part, self.config.vocab_size)

    def weights(self) -> Places:
        """Names as in a text-only checkpoint, without the `model.` in front, and the memory each goes to."""
        yield "embed_tokens.weight", self.embedding
        yield "norm.weight", self.norm.weight
        if not self.tied:
            yield "lm_head.weight", taking(self.lm_head, self.layers[0].shares.head)
        for layer in self.layers:
            yield from layer.weights()
