"""KV cache and activation formulas: against arithmetic, against live tensors of transformers, against an H200."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from tests.unit.plan.configs import GIB, qwen2_vl_7b, qwen3_vl_235b_fp8, qwen25_1_5b
from visavis.plan.memory import (
    compiled_text_bytes,
    kv_geometry,
    logits_bytes,
    text_activation_bytes,
    vision_activation_bytes,
)
from visavis.plan.shape import ModelShape, read_shape

TEXT = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


# ---- KV cache -----------------------------------------------------------------------------------------------


def test_kv_bytes_a_token_are_two_times_layers_heads_and_head_dim() -> None:
    kv = kv_geometry(read_shape(qwen25_1_5b()).text, dtype="bfloat16")
    assert kv.bytes_per_token == 2 * 28 * 2 * 128 * 2 == 28672
    assert kv.bytes_per_block == 458752
    assert kv_geometry(read_shape(qwen2_vl_7b()).text, dtype="bfloat16").bytes_per_token == 56 * 1024
    assert kv_geometry(read_shape(qwen25_1_5b()).text, dtype="fp8").bytes_per_token == 14336


def test_kv_heads_are_divided_over_ranks_and_never_below_one() -> None:
    text = read_shape(qwen3_vl_235b_fp8()).text  # 4 KV heads
    sizes = [kv_geometry(text, dtype="bfloat16", ranks=n).bytes_per_token for n in (1, 2, 4, 8)]
    assert sizes == [94 * 2 * 4 * 128 * 2, 94 * 2 * 2 * 128 * 2, 94 * 2 * 128 * 2, 94 * 2 * 128 * 2]


def test_blocks_are_whole() -> None:
    kv = kv_geometry(read_shape(qwen25_1_5b()).text, dtype="bfloat16")
    assert kv.blocks(458752 * 3 - 1) == 2
    assert kv.blocks(-1) == 0
    assert kv.blocks_for(33) == 3


# ---- activations, against the tensors transformers holds at once --------------------------------------------


def live_peak(model: Any, call: Any) -> int:
    """The most bytes of tensor storage alive at once during `call`, the model's own apart."""
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter

    own = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}

    class Live(TorchDispatchMode):
        now = peak = 0

        def __init__(self) -> None:
            super().__init__()
            self.known = set(own)

        def _gone(self, key: int, size: int) -> None:
            self.now -= size
            self.known.discard(key)

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = function(*args, **(kwargs or {}))
            for tensor in tree_iter(out):
                if isinstance(tensor, torch.Tensor) and (key := tensor.untyped_storage()._cdata) not in self.known:
                    storage = tensor.untyped_storage()
                    self.known.add(key)
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self._gone, key, storage.nbytes())
                    self.peak = max(self.peak, self.now)
            return out

    with torch.no_grad(), Live() as live:
        call()
    return live.peak


def shape_of(config: Any) -> ModelShape:
    return read_shape(config.to_dict())


@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("qwen2", {"intermediate_size": 1493}),  # the MLP decides
        ("qwen2", {"intermediate_size": 256}),  # attention decides
        ("qwen3", {"head_dim": 64}),
        ("llama", {"head_dim": 96}),
    ],
)
def test_text_peak_is_what_transformers_holds(kind: str, extra: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(kind, **{**TEXT, **extra})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    ids = torch.zeros(1, 1024, dtype=torch.long)
    peak = live_peak(model, lambda: model(input_ids=ids, use_cache=False, logits_to_keep=1))
    predicted = text_activation_bytes(shape_of(config).text, 1024, dtype="bfloat16")
    assert predicted == pytest.approx(peak, rel=0.03)


@pytest.mark.parametrize(("per_token", "width"), [(2, 96), (4, 96), (4, 384)])
def test_expert_peak_is_what_transformers_holds(per_token: int, width: int) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    experts = {"num_experts": 16, "num_experts_per_tok": per_token, "moe_intermediate_size": width, "head_dim": 64}
    config = transformers.AutoConfig.for_model("qwen3_moe", **TEXT, **experts)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    ids = torch.zeros(1, 1024, dtype=torch.long)
    peak = live_peak(model, lambda: model(input_ids=ids, use_cache=False, logits_to_keep=1))
    predicted = text_activation_bytes(shape_of(config).text, 1024, dtype="bfloat16", fused_experts=False)
    assert predicted == pytest.approx(peak, rel=0.06)


VISION = {
    "qwen2_vl": {"depth": 2, "embed_dim": 128, "hidden_size": 256, "num_heads": 4, "mlp_ratio": 4},
    "qwen2_5_vl": {
        "depth": 2,
        "hidden_size": 128,
        "out_hidden_size": 256,
        "num_heads": 8,
        "intermediate_size": 2000,
        "fullatt_block_indexes": [1],
    },
    "qwen3_vl": {
        "depth": 4,
        "hidden_size": 128,
        "out_hidden_size": 256,
        "num_heads": 4,
        "intermediate_size": 342,
        "deepstack_visual_indexes": [0, 1, 2],
    },
}


@pytest.mark.parametrize("kind", sorted(VISION))
def test_vision_peak_is_what_transformers_holds(kind: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    text = {**TEXT, "head_dim": 64} if kind == "qwen3_vl" else TEXT
    config = transformers.AutoConfig.for_model(kind, text_config=text, vision_config=VISION[kind])
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16).eval()
    tower = model.model.visual
    shape = shape_of(config).vision
    assert shape is not None
    pixels = torch.zeros(32 * 32, shape.patch_elements, dtype=torch.bfloat16)
    peak = live_peak(tower, lambda: tower(pixels, grid_thw=torch.tensor([[1, 32, 32]])))
    assert vision_activation_bytes(shape, 32 * 32, dtype="bfloat16") == pytest.approx(peak, rel=0.03)


# Peak of torch.cuda.memory_allocated over what was there before, transformers 5.17, torch 2.11, sdpa, bf16, one H200.
# Text: Qwen2.5-1.5B's width (4 layers), tokens → GiB. Vision: the full-size towers' width (4 or 5 blocks) without their
# pixels, patches → GiB.
H200_TEXT = {2048: 0.1309, 8192: 0.5079, 32768: 2.0315}
H200_VISION = {
    "qwen2_vl": {4096: 0.1693, 16384: 0.6741},
    "qwen2_5_vl": {4096: 0.1690, 16384: 0.6741},
    "qwen3_vl": {4096: 0.1912, 16384: 0.7598},
}


@pytest.mark.parametrize(("tokens", "gib"), H200_TEXT.items())
def test_text_peak_on_an_h200(tokens: int, gib: float) -> None:
    predicted = text_activation_bytes(read_shape(qwen25_1_5b()).text, tokens, dtype="bfloat16")
    assert predicted / GIB == pytest.approx(gib, rel=0.035)


@pytest.mark.parametrize("kind", sorted(H200_VISION))
def test_vision_peak_on_an_h200(kind: str) -> None:
    given = {"out_hidden_size": 3584} if kind != "qwen2_vl" else {"hidden_size": 3584}
    if kind == "qwen2_5_vl":
        given["hidden_size"] = 1280
    vision = read_shape({**qwen2_vl_7b(), "model_type": kind, "vision_config": given}).vision
    assert vision is not None
    for patches, gib in H200_VISION[kind].items():
        pixels = patches * vision.patch_elements * 2
        predicted = vision_activation_bytes(vision, patches, dtype="bfloat16") - pixels
        assert predicted / GIB == pytest.approx(gib, rel=0.01)


def test_sampling_memory_on_an_h200() -> None:
    # sort, softmax, cumulative sum and scatter of 256 × 151936 float32 logits: 1.305 GiB beside the 16-bit ones
    predicted = logits_bytes(read_shape(qwen25_1_5b()).text, 256) - 256 * 151936 * 2
    assert predicted / GIB == pytest.approx(1.305, rel=0.06)


def test_ranks_divide_the_wide_part_only() -> None:
    text = read_shape(qwen25_1_5b()).text
    one, two = (text_activation_bytes(text, 1, dtype="bfloat16", ranks=n) for n in (1, 2))
    assert one - two == 3 * 8960 / 2 * 2


def test_memory_grows_in_proportion_to_tokens_and_patches() -> None:
    shape = read_shape(qwen2_vl_7b())
    assert shape.vision is not None
    assert text_activation_bytes(shape.text, 4096, dtype="bfloat16") == 2 * text_activation_bytes(
        shape.text, 2048, dtype="bfloat16"
    )
    assert vision_activation_bytes(shape.vision, 400, dtype="float32") == 2 * vision_activation_bytes(
        shape.vision, 400, dtype="bfloat16"
    )


def test_compiled_cpu_kernels_hold_gate_and_up_of_few_tokens() -> None:
    text = read_shape(qwen25_1_5b()).text  # hidden 1536, 12 and 2 heads of 128, intermediate 8960
    always, heads, attended = 1536 + 2 * 128, 1536 + 2 * 256, 1536
    by_operation = heads + max(1536, attended) + 3 * 8960
    block = 1536 + 256 + 8960

    def bytes_of(tokens: int, threads: int | None, dtype: str = "float32") -> float:
        return compiled_text_bytes(text, tokens, dtype=dtype, threads=threads)

    assert bytes_of(95, 2) == 4 * 95 * (always + by_operation)
    in_blocks = 2048 * (always + heads + attended) + 95 * by_operation + 2 * 96 * block
    assert bytes_of(2048, 2) == 4 * in_blocks
    assert bytes_of(2048, 2, "bfloat16") == 4 * (in_blocks + 95 * 8960 / 2)  # inputs of products, rounded
    assert bytes_of(100, 2) == 4 * (100 * (always + heads + attended) + 95 * by_operation + 100 * block)


@pytest.mark.parametrize("tokens", [1, 47, 48, 95, 512, 2048])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_where_the_threads_are_not_known_the_most_of_any_number_is_planned(tokens: int, dtype: str) -> None:
    text = read_shape(qwen25_1_5b()).text
    each = [compiled_text_bytes(text, tokens, dtype=dtype, threads=threads) for threads in range(1, 65)]
    assert compiled_text_bytes(text, tokens, dtype=dtype, threads=None) == max(each)
