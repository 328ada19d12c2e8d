"""Engine options from outside, and what a backend may not ignore."""

from __future__ import annotations

from typing import Any

import pytest

from visavis.backends.options import EngineOptions, parse_options, refuse_unsupported
from visavis.errors import OptionError


@pytest.mark.parametrize(
    ("spelled", "meant"),
    [
        ("bf16", "bfloat16"),
        ("BF16", "bfloat16"),
        ("bfloat16", "bfloat16"),
        ("fp16", "float16"),
        ("half", "float16"),
        ("fp32", "float32"),
        ("float", "float32"),
        ("torch.bfloat16", "bfloat16"),
        ("auto", "auto"),
    ],
)
def test_dtypes_in_every_spelling(spelled: str, meant: str) -> None:
    assert parse_options({"dtype": spelled}).dtype == meant


def test_numbers_and_none() -> None:
    got = parse_options(
        {"threads": "2", "max_model_len": 4096.0, "kv_cache_bytes": 2**33, "gpu_memory_utilization": "0.5", "seed": 0}
    )
    assert (got.threads, got.max_model_len, got.kv_cache_bytes, got.gpu_memory_utilization) == (2, 4096, 2**33, 0.5)
    assert parse_options({"threads": None, "dtype": None}) == EngineOptions()
    assert parse_options({"extra": {"a": 1}}).extra == {"a": 1}


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("dtype", "float8"),
        ("dtype", 16),
        ("threads", 0),
        ("threads", 100_000),  # OpenMP would end the process
        ("threads", 1.5),
        ("threads", True),
        ("threads", "two"),
        ("max_model_len", -1),
        ("max_num_seqs", float("inf")),
        ("kv_cache_bytes", "4GiB"),
        ("gpu_memory_utilization", 0),
        ("gpu_memory_utilization", 1.1),
        ("gpu_memory_utilization", "most"),
        ("tensor_parallel_size", 0),
        ("enforce_eager", "yes"),
        ("trust_remote_code", 1),
        ("warmup", "no"),
        ("seed", -1),
        ("device", 0),
        ("quantization", 4),
        ("extra", "a=1"),
    ],
)
def test_unusable_values_are_refused_by_name(name: str, bad: Any) -> None:
    with pytest.raises(OptionError, match=rf"^hf: {name} .* is not valid: .* is needed"):
        parse_options({name: bad}, where="hf")


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(OptionError, match="unknown engine option 'max_len'; did you mean max_model_len"):
        parse_options({"max_len": 5})
    with pytest.raises(
        OptionError, match="unknown engine option 'gpu_memory_utilisation'; did you mean gpu_memory_util"
    ):
        parse_options({"gpu_memory_utilisation": 0.5})
    with pytest.raises(OptionError, match="known: dtype, device"):
        parse_options({"swap_space": 4})


def test_an_option_an_engine_would_ignore_is_refused() -> None:
    refuse_unsupported("hf", EngineOptions(dtype="float32"), {"dtype"})
    refuse_unsupported("hf", EngineOptions(warmup=False, extra={"x": 1}), ())
    with pytest.raises(
        OptionError, match="hf has no quantization: 'awq' cannot be honoured; leave it out or use another"
    ):
        refuse_unsupported("hf", EngineOptions(quantization="awq"), {"dtype"})


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ({"image": 4, "video": 1}, {"image": 4, "video": 1}),
        ({"images": "3"}, {"image": 3}),
        ("image=4, video=0", {"image": 4, "video": 0}),
    ],
)
def test_limits_in_every_spelling(given: object, limits: dict[str, int]) -> None:
    assert parse_options({"limit_per_prompt": given}).limit_per_prompt == limits


@pytest.mark.parametrize("given", [4, "4", "", {}, "image=-1", "image=x", "audio=1", {"image": True}])
def test_limits_that_say_nothing_are_refused(given: object) -> None:
    with pytest.raises(OptionError, match=r"limit_per_prompt .* is not valid: .*"):
        parse_options({"limit_per_prompt": given})
