"""Real engines dying in every phase, broken folders, and what is left afterwards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.peers.conftest import alive, engine_options, worker
from visavis.backends.worker import WorkerModel
from visavis.child_process import descendants
from visavis.errors import BackendError, VisavisError, WorkerDiedError
from visavis.sampling import SamplingParams

pytestmark = pytest.mark.peers

Start = Callable[..., WorkerModel]
Tiny = Callable[[str], Path]
HELLO = [{"role": "user", "content": "the thing and so on " * 40}]
LONG = SamplingParams(max_tokens=400, ignore_eos=True)


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def test_killed_while_loading_then_loaded_again(tiny: Tiny) -> None:
    model = worker("vllm")
    folder = str(tiny("qwen2"))

    def when(phase: str, seconds: float) -> None:
        if phase == "load" and model.pid is not None:
            _kill(model.pid)

    with pytest.raises(WorkerDiedError, match=r"vllm: the worker .* was killed by SIGKILL.* while loading"):
        model.load(folder, engine_options("vllm"), when)
    assert model.pid is None
    with model.load(folder, engine_options("vllm")):
        assert (
            len(model.complete([model.prepare(HELLO)], SamplingParams(max_tokens=3, ignore_eos=True))[0].token_ids) == 3
        )


def test_killed_before_the_first_token_and_while_streaming(start: Start, tiny: Tiny) -> None:
    model = start("vllm", tiny("qwen2"))
    pid, family = model.pid, descendants(os.getpid())
    assert pid is not None
    prompt = model.prepare(HELLO)
    # The first request of a fresh engine works on its prompt for some tenths of a second.
    threading.Timer(0.05, _kill, (pid,)).start()
    with pytest.raises(WorkerDiedError, match=r"killed by SIGKILL.* while answering"):
        model.complete([prompt] * 8, LONG)
    assert not any(alive(p) for p in family)

    model.load(str(tiny("qwen2")), engine_options("vllm"))
    assert model.pid is not None
    stream = model.stream_batch([prompt], LONG)
    pieces = [next(stream) for _ in range(5)]
    assert any(piece.token_ids for piece in pieces)
    _kill(model.pid)
    with pytest.raises(WorkerDiedError, match="while answering"):
        list(stream)


def test_leaving_a_stream_stops_the_engine_and_the_next_request_is_right(start: Start, tiny: Tiny) -> None:
    model = start("vllm", tiny("qwen2"))
    prompt = model.prepare(HELLO)
    short = SamplingParams(max_tokens=5, ignore_eos=True)
    expected = model.complete([prompt], short)[0].token_ids
    for _ in range(3):
        stream = model.stream_batch([prompt] * 4, LONG)
        next(stream)
        stream.close()
    began = time.monotonic()
    assert model.complete([prompt], short)[0].token_ids == expected
    assert time.monotonic() - began < 30


def _without_weights(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        file.unlink()


def _with_cut_weights(folder: Path) -> None:
    (file,) = folder.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _with_another_width(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["hidden_size"] *= 2
    (folder / "config.json").write_text(json.dumps(config))


def _with_broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def _without_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("break_it", "named"),
    [
        (_without_weights, "weights|safetensors"),
        (_with_cut_weights, "(?i)safetensor|header|incomplete"),
        (_with_another_width, "(?i)size|shape|weight"),
        (_with_broken_config, r"config\.json"),
        (_without_tokenizer, r"tokenizer\.json"),
    ],
)
def test_a_broken_folder_is_one_error_and_leaves_nothing_running(
    tiny: Tiny, tmp_path: Path, break_it: Callable[[Path], None], named: str
) -> None:
    model = worker("vllm")
    folder = tmp_path / "broken"
    shutil.copytree(tiny("qwen2"), folder)
    break_it(folder)
    before = set(descendants(os.getpid()))
    with pytest.raises(VisavisError, match=named) as caught:
        model.load(str(folder), engine_options("vllm"))
    assert len(str(caught.value)) < 3000
    assert set(descendants(os.getpid())) <= before


def test_too_little_memory_is_told_with_the_command_that_says_what_fits(tiny: Tiny) -> None:
    folder = str(tiny("qwen2"))
    with pytest.raises(BackendError, match=rf"visavis plan -m {folder} --backends vllm` says what fits here"):
        worker("vllm").load(folder, engine_options("vllm", kv_cache_bytes=1 << 14))  # 16 KiB for 1024 tokens


def test_two_models_one_after_another_give_their_memory_back(start: Start, tiny: Tiny) -> None:
    def resident() -> int:
        """Of this process and everything under it, in bytes."""
        pages = 0
        for pid in (os.getpid(), *descendants(os.getpid())):
            try:
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except OSError:
                continue
        return pages * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    for family in ("qwen2", "qwen3"):
        model = start("vllm", tiny(family))
        pids = descendants(os.getpid())
        assert model.complete([model.prepare(HELLO)], SamplingParams(max_tokens=2, ignore_eos=True))[0].error is None
        held = resident()
        model.close()
        assert not any(alive(p) for p in pids)
        assert held - before > 300e6  # an engine was there
        assert resident() - before < 60e6
        usage = model.usage()
        assert usage.peak_rss_bytes is not None
        assert usage.peak_rss_bytes > 300e6


def test_an_engine_that_ends_its_own_process_tree_leaves_us_alone(tiny: Tiny, tmp_path: Path) -> None:
    """SGLang reads `vision_config.in_chans` and kills its processes, the one it runs in too, when that fails."""
    model = worker("sglang")
    folder = tmp_path / "without"
    shutil.copytree(tiny("qwen2_vl"), folder)
    config = json.loads((folder / "config.json").read_text())
    del config["vision_config"]["in_chans"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(WorkerDiedError, match="in_chans"):
        model.load(str(folder), engine_options("sglang"))
    assert model.pid is None
