"""Start-up failures that are about memory point to `visavis plan`; others do not."""

from __future__ import annotations

import pytest

import visavis
from visavis.backends.memory_hint import with_plan
from visavis.backends.options import EngineOptions
from visavis.errors import BackendError, OptionError, VisavisError, WorkerDiedError

# As vLLM 0.32, SGLang 0.5.23 and torch 2.13 write them.
MEMORY = [
    "To serve at least one request with the model's max seq len (4096), (1.75 GiB KV cache is needed, which is larger "
    "than the available KV cache memory (1.0 GiB). Try increasing `gpu_memory_utilization`",
    "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine",
    "Free memory on device cuda:0 (3.1/79.2 GiB) on startup is less than desired GPU memory utilization (0.92, 72.9 "
    "GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
    "Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.1",
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 1.75 GiB.",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried to",
]


@pytest.mark.parametrize("text", MEMORY)
def test_a_failure_about_memory_says_which_command_tells_what_fits(text: str) -> None:
    error = BackendError(f"vllm cannot start: {text}")
    told = with_plan(error, "vllm", "org/model", EngineOptions(tensor_parallel_size=2))
    assert type(told) is BackendError
    assert str(told).startswith(str(error))
    assert "`visavis plan -m org/model --backends vllm --tensor-parallel-size 2` says what fits here" in str(told)
    assert "max_model_len, max_num_seqs, gpu_memory_utilization" in str(told)


@pytest.mark.parametrize(
    "error",
    [
        OptionError("hf has no gpu_memory_utilization: 0.5 cannot be honoured"),
        BackendError("sglang failed to load: KeyError: 'in_chans'; server_args=ServerArgs(mem_fraction_static=0.9)"),
        BackendError("CUDA out of memory; visavis plan -m x says what fits"),
        WorkerDiedError("sglang: the worker was killed by SIGKILL (out of memory?)\nkill_process_tree called: pid=3"),
    ],
)
def test_what_is_not_about_memory_or_told_already_is_left_as_it_is(error: VisavisError) -> None:
    assert with_plan(error, "vllm", None, EngineOptions()) is error


def test_a_killed_worker_may_have_been_short_of_memory() -> None:
    """Its log's tail comes last, so the hint stands before it."""
    died = WorkerDiedError("sglang: the worker (process 1) was killed by SIGKILL (out of memory?)\nlast line")
    told = with_plan(died, "sglang", None, EngineOptions())
    assert type(told) is WorkerDiedError
    assert str(told).startswith("if memory was short: `visavis plan --backends sglang` says what fits here")
    assert str(told).endswith("last line")


def test_a_server_elsewhere_is_planned_by_nobody_here() -> None:
    error = BackendError("CUDA out of memory")
    assert with_plan(error, "openai", None, EngineOptions()) is error


def test_load_itself_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("visavis.backends.memory_hint.PLANNED", ("fake",))
    with pytest.raises(BackendError, match=r"CUDA out of memory; this is about memory: `visavis plan --backends fake`"):
        visavis.load(backend="fake", extra={"fail_load": "CUDA out of memory"})


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
                "to allocate 2097152000000 bytes. Error code 12 (Cannot allocate memory)"
            ),
            "native: out of memory while it was started (1953.1 GiB at once); this is about memory",
        ),
        (RuntimeError("CUDA out of memory. Tried to allocate 1.75 GiB. GPU 0 has"), "(1.75 GiB at once)"),
        (MemoryError(), "native: out of memory while it was started (MemoryError)"),
    ],
)
def test_what_torch_and_python_raise_when_memory_runs_out_is_an_error_of_ours(error: Exception, said: str) -> None:
    told = with_plan(error, "native", None, EngineOptions())
    assert type(told) is BackendError
    assert said in str(told)
    assert "`visavis plan --backends native` says what fits here" in str(told)


def test_other_errors_of_torch_stay_what_they_are() -> None:
    error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    assert with_plan(error, "native", None, EngineOptions()) is error
