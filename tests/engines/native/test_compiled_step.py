"""The compiled decode step and attention against float64 arithmetic, over odd shapes, storage types and lengths."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.native.compiled import need_compiled_kernels
from visavis.engine.kernels.base import AttentionRow, Rotation, StepLayout
from visavis.engine.kernels.cpu.arena import Arena
from visavis.engine.kernels.cpu.decode_step import CpuDecodeStep, unsupported
from visavis.engine.kernels.cpu.kernels import CpuKernels
from visavis.engine.kernels.cpu.library import TYPES, Workers, library
from visavis.engine.kernels.cpu.packed import PackedWeight
from visavis.engine.kernels.cpu.recycled import RecycledMemory
from visavis.engine.kernels.torch_kernels import TorchKernels
from visavis.engine.kv_cache import KVCache
from visavis.engine.model_config import ModelConfig

pytestmark = pytest.mark.engines

need_compiled_kernels()


def _config(heads: int, kv_heads: int, head_dim: int, hidden: int, intermediate: int, qk_norm: bool) -> ModelConfig:
    kind = "Qwen3ForCausalLM" if qk_norm else "LlamaForCausalLM"
    return ModelConfig.from_dict(
        {
            "architectures": [kind],
            "model_type": "qwen3" if qk_norm else "llama",
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_hidden_layers": 2,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": head_dim,
            "vocab_size": 101,  # no multiple of the four rows of a tile
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": False,
            "hidden_act": "silu",
        }
    )


class Weights:
    """Random weights in the storage type, and the decode step in float64 over them."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, seed: int) -> None:
        self.config = c = config
        generator = torch.Generator().manual_seed(seed)
        arena = Arena()

        def weight(*shape: int, std: float = 0.2) -> torch.Tensor:
            made = arena.empty(shape, dtype)
            return made.copy_(torch.randn(shape, generator=generator) * std)

        def linear(n: int, k: int, bias: bool = False) -> Any:
            std = min(0.2, 6 * k**-0.5)  # attention's scores stay at tens
            made = SimpleNamespace(weight=weight(n, k, std=std), bias=weight(n) if bias else None)
            made.packed = PackedWeight.pack(made.weight, made.bias, arena.empty)
            return made

        def norm(n: int) -> Any:
            return SimpleNamespace(weight=(torch.rand(n, generator=generator) + 0.5).to(dtype))

        self.layers = [
            SimpleNamespace(
                qkv=linear((c.num_heads + 2 * c.num_kv_heads) * c.head_dim, c.hidden_size, bias=True),
                output=linear(c.hidden_size, c.num_heads * c.head_dim),
                gate_up=linear(2 * c.intermediate_size, c.hidden_size),
                down=linear(c.hidden_size, c.intermediate_size),
                input_norm=norm(c.hidden_size),
                mlp_norm=norm(c.hidden_size),
                qk_norm=(norm(c.head_dim), norm(c.head_dim)) if c.qk_norm else None,
            )
            for _ in range(c.num_layers)
        ]
        self.norm = norm(c.hidden_size)
        self.lm_head = weight(c.vocab_size, c.hidden_size)
        self.head = PackedWeight.pack(self.lm_head, None, arena.empty)

    def quantise_layers(self) -> None:
        """Their matrices to int8, as the engine makes them: a scale a row."""
        arena = Arena()
        for layer in self.layers:
            for linear in (layer.qkv, layer.output, layer.gate_up, layer.down):
                linear.packed = PackedWeight.quantise(linear.weight, linear.bias, arena.empty)
                scale = linear.weight.abs().amax(1, keepdim=True) / 127
                linear.weight = (linear.weight / scale).round().double() * scale

    def step(self, cache: KVCache, threads: int, max_batch: int) -> CpuDecodeStep:
        workers = Workers(threads, self.config.num_layers)
        return CpuDecodeStep(
            self.config, self.layers, self.norm, self.head, cache, workers, RecycledMemory(), max_batch
        )

    def rms(self, v: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return v * torch.rsqrt(v.square().mean(-1, keepdim=True) + self.config.rms_norm_eps) * weight.double()

    def layer(self, index: int, x: torch.Tensor, rotation: Rotation, step: CpuDecodeStep, plan: Any) -> torch.Tensor:
        """A layer over a prompt's tokens in float64, but that `step` attends, and vectors are rounded before a product
        as those of many tokens are."""
        c, layer = self.config, self.layers[index]
        rounds = library().visavis_rounds(self.head.struct.dtype, 100)

        def product(linear: Any, v: torch.Tensor) -> torch.Tensor:
            out = (v.bfloat16().double() if rounds else v) @ linear.weight.double().T
            return out if linear.bias is None else out + linear.bias.double()

        qkv = product(layer.qkv, self.rms(x.double(), layer.input_norm.weight)).view(len(x), -1, c.head_dim)
        q, k, v = qkv.split([c.num_heads, c.num_kv_heads, c.num_kv_heads], dim=1)
        if layer.qk_norm is not None:
            q, k = self.rms(q, layer.qk_norm[0].weight), self.rms(k, layer.qk_norm[1].weight)
        turned = [t * rotation.cos + t.roll(c.head_dim // 2, -1) * rotation.signed_sin for t in (q, k)]
        mixed = step.attention(index, torch.cat([*turned, v], 1).float(), plan)
        x = x + product(layer.output, mixed.double())
        gate, up = product(layer.gate_up, self.rms(x, layer.mlp_norm.weight)).chunk(2, -1)
        return x + product(layer.down, gate * gate.sigmoid() * up)

    def reference(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, past: list[list[tuple[torch.Tensor, torch.Tensor]]]
    ) -> torch.Tensor:
        """x (n, hidden); `past[layer][row]`: keys and values (length, K, D) before this token; float64 throughout, but
        that vectors are rounded before a product where the library says so."""
        c = self.config
        rounds = library().visavis_rounds(self.head.struct.dtype, len(x))
        x, cos, sin = x.double(), cos.double()[:, None], sin.double()[:, None]

        rms = self.rms

        def product(linear: Any, v: torch.Tensor) -> torch.Tensor:
            out = rounded(v) @ linear.weight.double().T
            return out if linear.bias is None else out + linear.bias.double()

        def rounded(v: torch.Tensor) -> torch.Tensor:
            return v.bfloat16().double() if rounds else v

        def rotate(v: torch.Tensor) -> torch.Tensor:
            a, b = v.chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

        for layer, layer_past in zip(self.layers, past, strict=True):
            qkv = product(layer.qkv, rms(x, layer.input_norm.weight)).view(len(x), -1, c.head_dim)
            q, k, v = qkv.split([c.num_heads, c.num_kv_heads, c.num_kv_heads], dim=1)
            if layer.qk_norm is not None:
                q, k = rms(q, layer.qk_norm[0].weight), rms(k, layer.qk_norm[1].weight)
            q, k = rotate(q), rotate(k)
            k, v = k.to(self.lm_head.dtype).double(), v.to(self.lm_head.dtype).double()  # the cache holds them so
            mixed = []
            for row, (keys, values) in enumerate(layer_past):
                all_k = torch.cat([keys.double(), k[row : row + 1]]).repeat_interleave(c.num_heads // c.num_kv_heads, 1)
                all_v = torch.cat([values.double(), v[row : row + 1]]).repeat_interleave(
                    c.num_heads // c.num_kv_heads, 1
                )
                scores = torch.einsum("hd,lhd->hl", q[row], all_k) * c.head_dim**-0.5
                mixed.append(torch.einsum("hl,lhd->hd", scores.softmax(-1), all_v).flatten())
            x = x + product(layer.output, torch.stack(mixed))
            gate, up = product(layer.gate_up, rms(x, layer.mlp_norm.weight)).chunk(2, -1)
            x = x + product(layer.down, gate * gate.sigmoid() * up)
        return rounded(rms(x, self.norm.weight)) @ self.lm_head.double().T


SHAPES = [  # heads, kv heads, head size, hidden, intermediate, q/k norm
    (4, 2, 16, 64, 96, False),
    (9, 3, 64, 576, 160, False),
    (6, 1, 80, 96, 32, True),
    (16, 1, 128, 64, 64, True),
    (6, 6, 96, 32, 352, False),
    (5, 1, 512, 64, 64, True),
]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s)))
def test_step_equals_float64_arithmetic(shape: tuple[int, int, int, int, int, bool], dtype: torch.dtype, threads: int):
    config = _config(*shape)
    assert unsupported(config, dtype) is None
    lengths = [1, 2, 15, 16, 17, 256, 257, 600, 31]  # around block and chunk borders; nine rows: tiles of 4, 4 and 1
    block = 16
    weights = Weights(config, dtype, seed=threads)
    generator = torch.Generator().manual_seed(7)
    num_blocks = sum(-(-n // block) for n in lengths) + 3
    cache = KVCache(
        config.num_layers,
        num_blocks,
        block,
        config.num_kv_heads,
        config.head_dim,
        device=torch.device("cpu"),
        dtype=dtype,
    )
    cache.data.fill_(float("nan"))  # what nobody wrote must not be read
    order = torch.randperm(num_blocks, generator=generator).tolist()
    rows, past = [], [[] for _ in range(config.num_layers)]
    for uid, length in enumerate(lengths):
        table = [order.pop() for _ in range(-(-length // block))]
        rows.append(AttentionRow(uid, length - 1, 1, table))
        slots = torch.tensor([table[i // block] * block + i % block for i in range(length - 1)], dtype=torch.long)
        for layer in range(config.num_layers):
            held = torch.randn(length - 1, 2 * config.num_kv_heads, config.head_dim, generator=generator).to(dtype)
            cache.data[layer, slots] = held
            past[layer].append(tuple(held.chunk(2, dim=1)))
    step = weights.step(cache, threads, max_batch=len(rows))
    x = torch.randn(len(rows), config.hidden_size, generator=generator)
    angles = torch.rand(len(rows), config.head_dim // 2, generator=generator) * 6
    expected = weights.reference(x, angles.cos(), angles.sin(), past)
    got = step(x.clone(), angles.cos().numpy(), angles.sin().numpy(), rows)
    step.close()
    # float32 sums of float32 or widened bfloat16 values. Attention scores here reach tens, so their rounding (6e-8 of
    # them) comes out of the softmax as some 1e-6, and as 1e-5 on a processor with 4 lanes and no fused multiply-add. In
    # bfloat16 a number on the border of two may be rounded to either, 4e-3 of it apart, which most rows are spared.
    error = (got.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert error.median() < 3e-5, error
    assert error.max() < (3e-5 if dtype == torch.float32 else 1e-2), error


def test_many_batches_of_changing_size_give_the_same_as_alone() -> None:
    """Rows must not see each other, whatever the batch before was: the thread pool and buffers are reused."""
    config = _config(4, 2, 32, 64, 96, False)
    weights = Weights(config, torch.float32, seed=3)
    cache = KVCache(2, 64, 4, 2, 32, device=torch.device("cpu"), dtype=torch.float32)
    step = weights.step(cache, 2, max_batch=8)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 64, generator=generator)
    cos, sin = np.ones((8, 16), np.float32), np.zeros((8, 16), np.float32)
    rows = [AttentionRow(i, 0, 1, [i]) for i in range(8)]
    alone = torch.cat([step(x[i : i + 1].clone(), cos[:1], sin[:1], [rows[i]]) for i in range(8)])
    for size in (8, 3, 7, 1, 5, 8, 2) * 20:
        chosen = torch.randperm(8, generator=generator)[:size].tolist()
        got = step(x[chosen].clone(), cos[:size], sin[:size], [rows[i] for i in chosen])
        assert torch.allclose(got, alone[chosen], rtol=0, atol=1e-5)
    step.close()


@pytest.mark.parametrize(
    ("shape", "words"),
    [((4, 2, 24, 64, 96, False), "head size 24"), ((4, 2, 16, 64, 100, False), "multiples of 32")],
)
def test_a_shape_it_cannot_run_is_said(shape: tuple[int, int, int, int, int, bool], words: str) -> None:
    reason = unsupported(_config(*shape), torch.float32)
    assert reason is not None
    assert words in reason


def _small_step(threads: int = 2, max_batch: int = 8) -> CpuDecodeStep:
    config = _config(4, 2, 32, 64, 96, False)
    weights = Weights(config, torch.float32, seed=3)
    cache = KVCache(2, 64, 4, 2, 32, device=torch.device("cpu"), dtype=torch.float32)
    return weights.step(cache, threads, max_batch)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["embedding", "value, first chunk", "value, last chunk", "key, last chunk"])
def test_a_broken_number_comes_out_of_its_own_row_alone(place: str, value: float) -> None:
    """No clamp and no comparison may turn it into a number, and no tile or buffer may carry it to a neighbour."""
    config = _config(4, 2, 32, 64, 96, False)
    weights = Weights(config, torch.float32, seed=3)
    cache = KVCache(2, 32, 16, 2, 32, device=torch.device("cpu"), dtype=torch.float32)
    generator = torch.Generator().manual_seed(5)
    cache.data.normal_(generator=generator)
    rows = [AttentionRow(0, 19, 1, [0, 1]), AttentionRow(1, 299, 1, list(range(2, 21))), AttentionRow(2, 6, 1, [21])]
    step = weights.step(cache, 2, max_batch=4)
    x = torch.randn(3, 64, generator=generator)
    cos, sin = np.ones((3, 16), np.float32), np.zeros((3, 16), np.float32)
    clean = step(x.clone(), cos, sin, rows)
    broken = x.clone()
    if place == "embedding":
        broken[1, 5] = value
    elif place.startswith("value"):
        cache.data[0, 2 * 16 + (17 if "first" in place else 290), 2, 3] = value
    else:
        cache.data[0, 2 * 16 + 290, 0, 3] = math.nan  # an infinite score of the right sign has a weight of 0 by right
    got = step(broken, cos, sin, rows)
    step.close()
    assert not got[1].isfinite().all()
    torch.testing.assert_close(got[[0, 2]], clean[[0, 2]], atol=1e-5, rtol=0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_can_end_and_is_refused_a_step() -> None:
    code = """
import os, sys, time
from tests.engines.native.test_compiled_step import AttentionRow, _small_step, np, torch
from visavis.errors import BackendError
step = _small_step()
child = os.fork()
if child == 0:
    try:
        turn = np.ones((1, 16), np.float32)
        step(torch.zeros(1, 64), turn, turn, [AttentionRow(0, 0, 1, [0])])
    except BackendError as error:
        sys.exit(7 if "forked" in str(error) else 8)  # not os._exit: what it holds is freed on the way out
    sys.exit(9)
until = time.monotonic() + 60
while time.monotonic() < until:
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        sys.exit(os.waitstatus_to_exitcode(status))
    time.sleep(0.01)
os.kill(child, 9)
sys.exit(10)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 7


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_threads_that_cannot_be_had_are_an_error_and_not_the_end_of_the_process() -> None:
    code = """
import re, resource, sys
from pathlib import Path
from tests.engines.native.test_compiled_step import _small_step
from visavis.errors import BackendError
_small_step().close()
size = int(re.search(r"VmSize:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (size + (256 << 20), -1))
try:
    _small_step(threads=256)  # their stacks alone take 2 GiB
except BackendError as error:
    sys.exit(7 if "256 threads" in str(error) else 8)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 7


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_that_cannot_be_had_is_an_error_and_not_the_end_of_the_process() -> None:
    code = """
import re, resource, sys
from pathlib import Path
from tests.engines.native.test_compiled_step import _small_step
from visavis.errors import BackendError
_small_step().close()
size = int(re.search(r"VmSize:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (size + (256 << 20), -1))
try:
    _small_step(max_batch=1 << 20)  # their queries, keys and values alone take 1 GiB
except BackendError as error:
    sys.exit(7 if "no memory" in str(error) else 8)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 7


def _attend(
    step: CpuDecodeStep, qkv: torch.Tensor, context: int, table: list[int], *, as_decodes: bool = False
) -> torch.Tensor:
    """Layer 1 over one request's tokens qkv, which come after `context` others."""
    count, size = len(qkv), step.block_size
    slots = torch.tensor([table[i // size] * size + i % size for i in range(context, context + count)])
    layout = StepLayout(slots, prefills=[AttentionRow(0, context, count, table)])
    if as_decodes:
        layout = StepLayout(slots, decodes=[AttentionRow(i, context + i, 1, table) for i in range(count)])
    return step.attention(1, qkv, step.plan(layout))


CHUNKS = [  # context, new tokens: around the borders of blocks of queries and keys
    (0, 1),
    (0, 9),
    (0, 31),
    (0, 33),
    (0, 64),
    (0, 200),
    (1, 65),
    (63, 2),
    (64, 32),
    (300, 8),
    (300, 9),
    (300, 100),
    (511, 1),
    (511, 7),
]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s)))
def test_prompt_attention_equals_float64_arithmetic(
    shape: tuple[int, int, int, int, int, bool], dtype: torch.dtype, threads: int
):
    """Chunks with and without context; what no token wrote is NaN."""
    config = _config(*shape)
    heads, kv_heads, d = config.num_heads, config.num_kv_heads, config.head_dim
    generator = torch.Generator().manual_seed(11)
    cache = KVCache(config.num_layers, 40, 16, kv_heads, d, device=torch.device("cpu"), dtype=dtype)
    step = Weights(config, dtype, seed=1).step(cache, threads, max_batch=2)
    for context, count in CHUNKS:
        cache.data.fill_(float("nan"))
        table = torch.randperm(40, generator=generator)[: -(-(context + count) // 16)].tolist()
        qkv = torch.randn(context + count, heads + 2 * kv_heads, d, generator=generator)
        if context:
            _attend(step, qkv[:context], 0, table)
        got = _attend(step, qkv[context:], context, table)
        queries, new = qkv[context:, :heads], qkv[:, heads:].to(dtype)
        stored = cache.data[1].view(40, 16, -1, d)[table].flatten(0, 1)
        assert torch.equal(stored[: context + count], new)
        assert stored[context + count :].isnan().all()
        k, v = new.double().repeat_interleave(heads // kv_heads, 1).chunk(2, dim=1)
        rounds = library().visavis_prompt_rounds(TYPES[dtype], count)
        scaled = (queries * d**-0.5).bfloat16().double() if rounds else queries.double() * d**-0.5
        scores = torch.einsum("nhd,mhd->hnm", scaled, k)
        scores.masked_fill_(torch.ones(count, context + count, dtype=torch.bool).triu(context + 1), -math.inf)
        weights = scores.softmax(-1)

        def mean(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            return torch.einsum("hnm,mhd->nhd", weights, values)

        expected = mean(weights, v)
        error = (got.view_as(expected).double() - expected).abs()
        allowed = 3e-6 + 1e-5 * expected.abs()
        if rounds:
            # Weights w become w (1 + e), also in their own sum: off by Σ w e (v - mean) / Σ w (1 + e). With |e| ≤ 2^-8
            # that is at most 2^-8 √(Σ w (v - mean)²), and 2^-8 of it for the divisor. On average e² is 0.18 · 2^-16, so
            # half of the numbers, e being independent, are off by less than 0.29 · 2^-8 √(Σ w² (v - mean)²).
            squares = weights.square()
            each = mean(squares, v * v) - 2 * expected * mean(squares, v) + expected.square() * mean(squares, v**0)
            assert (error <= 3e-6 + 0.35 * 2**-8 * each.clamp(min=0).sqrt()).double().mean() > 0.5
            allowed += 1.01 * 2**-8 * (mean(weights, v * v) - expected.square()).clamp(min=0).sqrt()
        assert (error <= allowed).all(), (context, count, (error / allowed).max())
    step.close()


KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.float32}  # of weights → of the cache


def _weights_of(kind: str, config: ModelConfig) -> Weights:
    weights = Weights(config, KINDS[kind], seed=2)
    if kind == "int8":
        weights.quantise_layers()
    return weights


def _rotation(count: int, head_dim: int, generator: torch.Generator) -> Rotation:
    angles = torch.rand(count, 1, head_dim // 2, generator=generator) * 6
    return Rotation(angles.cos().repeat(1, 1, 2), torch.cat([-angles.sin(), angles.sin()], -1))


def _check_whole_layer(kind: str, weights: Weights, step: CpuDecodeStep, cache: KVCache, layout: StepLayout) -> None:
    """Layer 1 over the layout's tokens, and what it stores over other numbers."""
    config, slots = weights.config, layout.slot_mapping
    generator = torch.Generator().manual_seed(len(slots))
    x = torch.randn(len(slots), config.hidden_size, generator=generator)
    rotation = _rotation(len(slots), config.head_dim, generator)
    plan = step.plan(layout)
    before = cache.data.normal_(generator=generator).clone()
    expected = weights.layer(1, x, rotation, step, plan)
    stored = cache.data.clone()
    cache.data.copy_(before)
    given = x.clone()
    got = step.layer(1, given, rotation, plan)
    assert got is given
    exact = kind != "bfloat16"
    error = (got.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert error.median() < (1e-5 if exact else 3e-3), (len(slots), error)
    assert error.max() < (1e-4 if exact else 2e-2), (len(slots), error)
    wrong = (cache.data[1, slots].double() - stored[1, slots].double()).norm() / stored[1, slots].double().norm()
    assert wrong < (1e-6 if exact else 1e-3), (len(slots), wrong)
    others = torch.ones(before.shape[1], dtype=torch.bool)
    others[slots] = False
    assert torch.equal(cache.data[0], before[0])
    assert torch.equal(cache.data[1, others], before[1, others])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "-".join(map(str, s)))
def test_a_whole_layer_equals_float64_arithmetic(
    shape: tuple[int, int, int, int, int, bool], kind: str, threads: int
) -> None:
    """Numbers of tokens around those of tiles and of a thread's blocks."""
    config = _config(*shape)
    cache = KVCache(2, 40, 16, config.num_kv_heads, config.head_dim, device=torch.device("cpu"), dtype=KINDS[kind])
    weights = _weights_of(kind, config)
    step = weights.step(cache, threads, max_batch=2)
    for count in (1, 3, 13, 96, 97, 290, 300):
        layout = StepLayout(torch.arange(count), prefills=[AttentionRow(0, 0, count, list(range(19)))])
        _check_whole_layer(kind, weights, step, cache, layout)
    step.close()


WIDE = [  # beyond the columns (K_BLOCK) after which a product of many vectors begins anew
    (4, 2, 64, 256, 4160, True),
    (4, 4, 64, 2080, 96, False),
]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [*SHAPES[1:4], *WIDE], ids=lambda s: "-".join(map(str, s)))
def test_a_whole_layer_takes_decodes_and_chunks_together(
    shape: tuple[int, int, int, int, int, bool], kind: str, threads: int
) -> None:
    """Chunks after a context, in blocks of the cache in any order."""
    config = _config(*shape)
    generator = torch.Generator().manual_seed(3)
    cache = KVCache(2, 60, 16, config.num_kv_heads, config.head_dim, device=torch.device("cpu"), dtype=KINDS[kind])
    weights = _weights_of(kind, config)
    step = weights.step(cache, threads, max_batch=4)
    for chunks in (((300, 5), (17, 41)), ((33, 97), (0, 200)), ((64, 1), (1, 2))):
        free = torch.randperm(60, generator=generator).tolist()
        rows = [
            AttentionRow(uid, context, new, [free.pop() for _ in range(-(-(context + new) // 16))])
            for uid, (context, new) in enumerate([(0, 1), (39, 1), (289, 1), *chunks])
        ]
        slots = [row.block_table[i // 16] * 16 + i % 16 for row in rows for i in range(row.num_context, row.num_keys)]
        layout = StepLayout(torch.tensor(slots), decodes=rows[:3], prefills=rows[3:])
        _check_whole_layer(kind, weights, step, cache, layout)
    step.close()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_whole_layer_is_taken_from_48_tokens_a_thread_on(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And only where the compiled code can read what it is given."""
    config = _config(4, 2, 32, 64, 96, False)
    weights = Weights(config, torch.float32, seed=3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    kernels = CpuKernels(torch.device("cpu"), torch.float32, "test", config.num_layers)
    cache = KVCache(2, 16, 16, 2, 32, device=torch.device("cpu"), dtype=torch.float32)
    kernels.bind_cache(cache)
    generator = torch.Generator().manual_seed(1)

    def layer(count: int, **other: Any) -> torch.Tensor | None:
        layout = StepLayout(torch.arange(count), prefills=[AttentionRow(0, 0, count, list(range(10)))])
        x, rotation = torch.zeros(count, 64), _rotation(count, 32, generator)
        return kernels.whole_layer(1, other.get("x", x), other.get("rotation", rotation), kernels.plan(layout))

    most = 48 * threads
    assert layer(most) is None  # there is no compiled step yet
    model: Any = SimpleNamespace(
        config=config, layers=weights.layers, norm=weights.norm, lm_head=weights.head, embedding=None
    )
    whole_step = kernels.whole_step(model, Any, cache, max_batch=2)
    assert layer(most - 1) is None
    assert layer(most) is not None
    assert layer(most, x=torch.zeros(most, 64, dtype=torch.bfloat16)) is None
    assert layer(most, x=torch.zeros(64, most).T) is None
    cos, sin = _rotation(most, 32, generator)
    assert layer(most, rotation=Rotation(cos.double(), sin)) is None
    assert layer(most, rotation=Rotation(cos, sin[:, 0])) is None
    whole_step.close()


def test_a_few_tokens_of_a_prompt_are_attended_as_as_many_decodes() -> None:
    """Bit for bit, and whatever the most decodes of a step are."""
    config = _config(4, 2, 32, 64, 96, False)
    weights = Weights(config, torch.float32, seed=3)
    qkv = torch.randn(608, 8, 32, generator=torch.Generator().manual_seed(4))
    table = list(range(38))
    got = []
    for max_batch, as_decodes in ((1, False), (8, True)):
        cache = KVCache(2, 38, 16, 2, 32, device=torch.device("cpu"), dtype=torch.float32)
        step = weights.step(cache, 2, max_batch=max_batch)
        _attend(step, qkv[:600], 0, table)
        got.append(_attend(step, qkv[600:], 600, table, as_decodes=as_decodes))
        step.close()
    assert torch.equal(*got)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_decodes_and_prompts_of_one_step_equal_plain_torch(dtype: torch.dtype) -> None:
    config = _config(6, 2, 32, 64, 96, False)
    weights = Weights(config, dtype, seed=3)
    device, generator = torch.device("cpu"), torch.Generator().manual_seed(6)
    compiled, plain = CpuKernels(device, dtype, "test", config.num_layers), TorchKernels(device, torch.float32)
    decodes = [AttentionRow(0, 300, 1, list(range(20))), AttentionRow(1, 5, 1, [20])]
    prefills = [AttentionRow(2, 40, 3, [23, 21, 22]), AttentionRow(3, 17, 90, [24, 30, 25, 26, 29, 28, 27])]
    rows = decodes + prefills
    slots = [row.block_table[i // 16] * 16 + i % 16 for row in rows for i in range(row.num_context, row.num_keys)]
    layout = StepLayout(torch.tensor(slots), decodes, prefills)
    qkv = torch.randn(len(slots), 10, 32, generator=generator)
    past = torch.randn(2, 31 * 16, 4, 32, generator=generator)
    got = []
    for kernels in (compiled, plain):
        cache = KVCache(2, 31, 16, 2, 32, device=device, dtype=dtype)
        cache.data.copy_(past)
        if kernels is compiled:
            model: Any = SimpleNamespace(
                config=config, layers=weights.layers, norm=weights.norm, lm_head=weights.head, embedding=None
            )
            whole_step = kernels.whole_step(model, Any, cache, max_batch=2)
        else:  # in float32, the numbers that the cache holds
            cache = KVCache(2, 31, 16, 2, 32, device=device, dtype=torch.float32)
            cache.data.copy_(past.to(dtype))
        kernels.bind_cache(cache)
        new = qkv.clone()
        if kernels is plain:
            new[:, 6:] = new[:, 6:].to(dtype)
        got.append(kernels.attention(1, new, 6, kernels.plan(layout)))
    mine, expected = got
    kept = 5 if library().visavis_prompt_rounds(TYPES[dtype], 90) else len(slots)  # tokens before the long prompt
    torch.testing.assert_close(mine[:kept], expected[:kept], atol=3e-6, rtol=1e-5)
    # There, queries and weights rounded by up to 2^-8 of them, scores and values being about 1.
    torch.testing.assert_close(mine[kept:], expected[kept:], atol=2 * 2**-8, rtol=0)
    whole_step.close()


def test_what_does_not_fit_the_model_is_refused() -> None:
    step = _small_step()
    slots, row = torch.arange(5), AttentionRow(0, 0, 5, [0, 1])
    plan = step.plan(StepLayout(slots, prefills=[row]))
    for qkv in (
        torch.zeros(4, 8, 32),
        torch.zeros(5, 6, 32),
        torch.zeros(5, 8, 64),
        torch.zeros(5, 9, 32)[:, :8],
        torch.zeros(5, 8, 32, dtype=torch.float64),
    ):
        with pytest.raises(ValueError, match="is no contiguous float32"):
            step.attention(0, qkv, plan)
    turn = Rotation(torch.ones(5, 1, 32), torch.zeros(5, 1, 32))
    for x in (
        torch.zeros(4, 64),
        torch.zeros(6, 64),
        torch.zeros(5, 32),
        torch.zeros(5, 65)[:, :64],
        torch.zeros(5, 64, dtype=torch.bfloat16),
    ):
        with pytest.raises(ValueError, match="is no contiguous float32"):
            step.layer(0, x, turn, plan)
    with pytest.raises(ValueError, match="is no contiguous float32"):
        step.layer(0, torch.zeros(5, 64), Rotation(turn.cos[:4], turn.signed_sin), plan)
    with pytest.raises(ValueError, match="one int64 a token"):
        step.plan(StepLayout(slots[:4], prefills=[row]))
    with pytest.raises(ValueError, match="one int64 a token"):
        step.plan(StepLayout(slots.int(), prefills=[row]))
    with pytest.raises(ValueError, match="too short"):
        step.plan(StepLayout(slots, prefills=[AttentionRow(0, 4, 5, [0, 1])]))
    with pytest.raises(ValueError, match="room for 8"):
        step.plan(StepLayout(torch.arange(9), decodes=[AttentionRow(i, 0, 1, [i]) for i in range(9)]))
    step.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_where_a_prompt_is_cut_changes_no_bit(dtype: torch.dtype) -> None:
    config = _config(6, 2, 32, 64, 96, False)
    cache = KVCache(2, 16, 16, 2, 32, device=torch.device("cpu"), dtype=dtype)
    step = Weights(config, dtype, seed=3).step(cache, 2, max_batch=1)
    qkv = torch.randn(200, 10, 32, generator=torch.Generator().manual_seed(2))
    whole = _attend(step, qkv, 0, list(range(13)))
    for cut in (9, 33, 64, 101, 191):
        cache.data.fill_(float("nan"))
        parts = _attend(step, qkv[:cut], 0, list(range(13))), _attend(step, qkv[cut:], cut, list(range(13)))
        assert torch.equal(torch.cat(parts), whole)
    step.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_broken_key_or_value_reaches_the_tokens_that_see_it(dtype: torch.dtype) -> None:
    config = _config(4, 2, 32, 64, 96, False)
    cache = KVCache(2, 16, 16, 2, 32, device=torch.device("cpu"), dtype=dtype)
    step = Weights(config, dtype, seed=3).step(cache, 2, max_batch=1)
    for head in (4, 6):  # a key, a value
        qkv = torch.randn(200, 8, 32, generator=torch.Generator().manual_seed(2))
        qkv[150, head, 3] = math.nan
        got = _attend(step, qkv, 0, list(range(13)))
        assert got[150:, :64].isnan().any(dim=1).all()
        assert got[:128].isfinite().all()  # blocks of keys that no token of theirs sees are not read
        assert got[:, 64:].isfinite().all()  # nor is the other key head's
    step.close()
