"""How `HuggingFaceModel` loads: dtypes, devices, refusals, and that nothing is filled in silently."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engines.hf.conftest import Folder
from visavis.backends.hf import HuggingFaceModel
from visavis.backends.hf_load import _dtype, _offload
from visavis.backends.options import EngineOptions, parse_options
from visavis.backends.worker import WorkerModel
from visavis.errors import ModelError, OptionError
from visavis.sampling import SamplingParams

pytestmark = pytest.mark.engines

SHORT = SamplingParams(max_tokens=12)


def load(folder: Path, **options: Any) -> HuggingFaceModel:
    return HuggingFaceModel().load(str(folder), EngineOptions(**{"warmup": False, **options}))


def copy(folder: Path, to: Path) -> Path:
    to.mkdir()
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def test_what_was_loaded_is_told(folder: Folder) -> None:
    with load(folder("qwen2_vl"), warmup=True, max_model_len=300, max_num_seqs=5) as model:
        info = model.info
        assert info is not None
        assert list(info.phases) == ["tokenizer", "import", "load", "warm-up"]
        assert (info.backend, info.device, info.dtype, info.max_model_len) == ("hf", "cpu", "float32", 300)
        assert info.settings["max_num_seqs"] == 5
        assert info.settings["class"] == "Qwen2VLForConditionalGeneration"
        assert info.settings["attn_implementation"] == "sdpa"
        assert info.marks == ()
        assert model.capabilities().images
        assert model.capabilities().batching == "static"


def test_auto_is_float32_on_a_cpu_and_the_checkpoints_on_a_gpu() -> None:
    gpu = torch.device("cuda")
    assert _dtype("auto", "bfloat16", torch.device("cpu")) == ("float32", ())
    assert _dtype("auto", "bfloat16", gpu) == ("bfloat16", ())
    assert _dtype("auto", "float16", gpu) == ("float16", ())
    assert _dtype("auto", None, gpu) == ("bfloat16", ())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_on_the_cpu(folder: Folder, dtype: str) -> None:
    with load(folder("qwen2_vl"), dtype=dtype) as model:
        prompt = model.prepare(
            [
                {
                    "role": "user",
                    "content": [{"type": "image", "image": torch.zeros(60, 60, 3, dtype=torch.uint8).numpy()}],
                }
            ]
        )
        assert model.info is not None
        assert model.info.dtype == dtype
        (got,) = model.complete([prompt], SHORT)
    assert got.error is None
    assert got.token_ids


def test_float16_of_a_bfloat16_checkpoint_is_marked_and_warned_of(folder: Folder) -> None:
    with pytest.warns(UserWarning, match="float16 for a bfloat16 checkpoint"):
        model = load(folder("qwen2", dtype=torch.bfloat16), dtype="float16")
    assert model.info is not None
    assert model.info.marks == ("float16 for a bfloat16 checkpoint: its activations may overflow to infinity and NaN",)
    model.close()


def test_torchs_own_objects_are_understood() -> None:
    got = parse_options({"dtype": torch.float16, "device": torch.device("cpu")})
    assert (got.dtype, got.device) == ("float16", "cpu")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"quantization": "awq"}, "hf has no quantization"),
        ({"tensor_parallel_size": 2}, "hf has no tensor_parallel_size"),
        ({"kv_cache_bytes": 10**9}, "hf has no kv_cache_bytes"),
        ({"gpu_memory_utilization": 0.5}, "hf has no gpu_memory_utilization"),
        ({"max_num_batched_tokens": 512}, "hf has no max_num_batched_tokens"),
        ({"extra": {"attn_implementatoin": "eager"}}, "did you mean hf.attn_implementation"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"device": "cuda:77"}, "this machine has [0-9]+ CUDA devices"),
        ({"device": "cpu", "extra": {"device_map": "auto"}}, "device cpu and device_map 'auto' exclude each other"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(folder: Folder, options: dict[str, Any], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        load(folder("qwen2"), **options)


def test_missing_weights_are_an_error_and_not_random_numbers(folder: Folder, tmp_path: Path) -> None:
    broken = copy(folder("qwen2"), tmp_path / "model")
    weights = load_file(broken / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"no weights for model\.layers\.1\.mlp\.up_proj\.weight"):
        load(broken)


def test_a_folder_without_weights_says_so(folder: Folder, tmp_path: Path) -> None:
    empty = copy(folder("qwen2"), tmp_path / "model")
    (empty / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"(?i)model\.safetensors|weights"):
        load(empty)


def test_device_map_auto_goes_through_accelerate(folder: Folder) -> None:
    with load(folder("qwen2"), extra={"device_map": "auto"}) as model:
        assert model.info is not None
        assert model.complete([model.prepare("hi")], SHORT)[0].error is None


def test_parts_put_elsewhere_are_marked() -> None:
    gpu = torch.device("cuda")
    marks, places = _offload({"model.embed": 0, "model.layers.0": "cpu", "model.layers.1": "cpu", "head": "disk"}, gpu)
    assert marks == ("offloaded: 2 to cpu, 1 to disk of 4 modules",)
    assert places == {"model.embed": "0", "model.layers.0": "cpu", "model.layers.1": "cpu", "head": "disk"}
    assert _offload({"": gpu}, gpu) == ((), None)
    assert _offload({"a": 0, "b": 1}, gpu) == ((), {"a": "0", "b": "1"})
    assert _offload({"a": "cpu", "b": "cpu"}, torch.device("cpu"))[0] == ()


def test_offload_to_disk_is_marked_and_answers_the_same(folder: Folder, tmp_path: Path) -> None:
    with load(folder("qwen2")) as model:
        prompt = model.prepare("hi")
        expected = model.complete([prompt], SHORT)[0].token_ids
    device_map = {"model": "cpu", "lm_head": "disk"}
    with load(folder("qwen2"), extra={"device_map": device_map, "offload_folder": str(tmp_path)}) as model:
        assert model.info is not None
        assert model.info.marks == ("offloaded: 1 to disk of 2 modules",)
        assert model.complete([prompt], SHORT)[0].token_ids == expected


def test_every_cache_answers_the_same(folder: Folder) -> None:
    answers = set()
    for asked in ("dynamic", "static"):
        with load(folder("qwen2"), extra={"cache_implementation": asked}) as model:
            assert model.info is not None
            assert model.info.settings["cache_implementation"] == asked
            answers.add(model.complete([model.prepare("hi")], SHORT)[0].token_ids)
    assert len(answers) == 1


@pytest.mark.parametrize(
    ("kind", "max_tokens", "expected"),
    [("qwen2", 16, "static"), ("qwen2", 300, None), ("qwen2_vl", 16, "static")],
)
def test_the_faster_cache_is_taken_where_answers_are_short(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, kind: str, max_tokens: int, expected: str | None
) -> None:
    taken = []
    with load(folder(kind)) as model:
        run = model._loaded.module.generate  # type: ignore[union-attr]

        def spy(*args: Any, generation_config: Any, **kwargs: Any) -> Any:
            taken.append(generation_config.cache_implementation)
            generation_config.max_new_tokens = 4  # what is taken is all that counts here
            return run(*args, generation_config=generation_config, **kwargs)

        monkeypatch.setattr(model._loaded.module, "generate", spy)  # type: ignore[union-attr]
        model.complete([model.prepare("hi")], SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    assert taken == [expected]


def test_close_lets_go_of_the_weights(folder: Folder) -> None:
    model = load(folder("qwen2"))
    assert model._loaded is not None
    weights = weakref.ref(model._loaded.module)
    model.complete([model.prepare("hi")], SHORT)
    model.close()
    gc.collect()
    assert weights() is None


def test_it_runs_in_a_worker_with_the_same_answer(folder: Folder) -> None:
    with load(folder("qwen2_vl")) as model:
        prompt = model.prepare("hello")
        expected = model.complete([prompt], SHORT)[0].token_ids
    with WorkerModel("hf") as worker:
        worker.load(str(folder("qwen2_vl")), EngineOptions(threads=1))
        assert worker.info is not None
        assert list(worker.info.phases) == ["start", "tokenizer", "import", "load", "warm-up"]
        assert worker.info.phases["import"] > 0.2, "torch and transformers are imported there"
        assert worker.info.settings["threads"] == 1
        (got,) = worker.complete([prompt], SHORT)
        usage = worker.usage()
    assert got.token_ids == expected
    assert usage.peak_rss_bytes is not None
    assert usage.peak_rss_bytes > 100_000_000
