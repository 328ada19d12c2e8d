"""A backend in a child process: real processes, and every way in which one can end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from visavis.backends.options import EngineOptions
from visavis.backends.protocol import Usage
from visavis.backends.worker import WorkerModel
from visavis.chat.types import Conversation, Message, Text
from visavis.child_process import ChildProcess, descendants
from visavis.errors import BackendError, ModelError, OptionError, WorkerDiedError
from visavis.prompt import Prompt
from visavis.sampling import SamplingParams

ROOT = Path(__file__).parents[3]

Start = Callable[..., WorkerModel]


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(exit_at=3, …)`: a worker with a fake engine and that script, loaded; closed at the end."""
    made: list[WorkerModel] = []

    def begin(load: bool = True, worker: dict[str, Any] | None = None, **script: Any) -> WorkerModel:
        model = WorkerModel("fake", **(worker or {}))
        made.append(model)
        if load:
            model.load(None, EngineOptions(extra=script))
        return model

    yield begin
    for model in made:
        model.close()


def prompt(model: WorkerModel, text: str = "hi") -> Prompt:
    assert model.family is not None
    return model.family.prepare(Conversation((Message("user", (Text(text),)),)))


def is_gone(pid: int, within: float = 5.0) -> bool:
    deadline = time.monotonic() + within
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)


# ---- at work -------------------------------------------------------------------------------------------------------


def test_a_worker_answers_as_the_backend_in_it(start: Start) -> None:
    seen: list[tuple[str, float]] = []
    model = start(load=False)
    script = {"answers": {"one": "first answer", "two": "second STOP gone"}, "chunk": 2, "queue_s": 0.5, "noise": True}
    model.load(None, EngineOptions(extra=script), lambda phase, seconds: seen.append((phase, seconds)))
    assert model.name == "fake"
    got = model.complete([prompt(model, "one"), prompt(model, "two")], SamplingParams(stop=("STOP",), logprobs=1))
    assert [c.text for c in got] == ["first answer", "second "]
    assert [c.stop_reason for c in got][1] == "STOP"
    times = got[0].timings.token_times
    assert times[0] == pytest.approx(0.6, abs=0.05), "stamped on the child's scripted clock"
    assert times[2] - times[0] == pytest.approx(0.01)
    assert got[0].timings.queue_s == 0.5
    assert got[0].logprobs is not None
    assert [phase for phase, _ in seen] == ["tokenizer", "start", "load", "warm-up", "ready"]
    assert model.info is not None
    assert list(model.info.phases) == ["start", "tokenizer", "load", "warm-up"]
    assert model.info.phases["start"] > 0.05
    assert model.info.phases["load"] == 0.5
    assert model.info.interpreter == sys.executable
    assert model.info.model == "tiny-screen"


def test_failed_requests_cross_the_border_and_the_others_go_on(start: Start) -> None:
    model = start(answers="fine", fail={1: "it broke"})
    got = model.complete([prompt(model)] * 3)
    assert [c.error for c in got] == [None, "it broke", None]


def test_many_events_arrive_in_order(start: Start) -> None:
    model = start(answers="abcdefghij" * 20, per_token_s=0.0)
    got = model.complete([prompt(model)] * 20)
    assert {c.text for c in got} == {"abcdefghij" * 20}


def test_closing_the_iterator_aborts_in_the_child_and_the_next_batch_is_clean(start: Start) -> None:
    model = start(answers="abcdefgh" * 50, real_step_s=0.005)
    with closing(model.stream_batch([prompt(model)] * 2)) as deltas:
        next(deltas)
    began = time.monotonic()
    (got,) = model.complete([prompt(model)], SamplingParams(max_tokens=3))
    assert (len(got.token_ids), got.finish_reason) == (3, "length")
    assert time.monotonic() - began < 1.5, "the aborted batch would have taken 2 s"


def test_a_stop_string_ends_the_work_in_the_child(start: Start) -> None:
    model = start(answers="ab STOP " + "x" * 400, real_step_s=0.005)
    began = time.monotonic()
    (got,) = model.complete([prompt(model)], SamplingParams(stop=("STOP",)))
    assert got.text == "ab "
    assert time.monotonic() - began < 1.5, "the whole answer would have taken 2 s"


def test_usage_is_the_childs_own(start: Start) -> None:
    ballast = bytearray(os.urandom(1)) * 300_000_000  # of the parent: must not be counted
    model = start(answers="ok")
    usage = model.usage()
    assert isinstance(usage, Usage)
    assert usage.peak_rss_bytes is not None
    assert 10_000_000 < usage.peak_rss_bytes < 250_000_000 < len(ballast)
    assert usage.gpu_peak_bytes is None
    assert list(usage.phases) == ["start", "tokenizer", "load", "warm-up"]
    model.close()
    assert model.usage().peak_rss_bytes is not None, "what held before the close"


def test_usage_while_a_batch_runs_is_refused_and_a_second_batch_too(start: Start) -> None:
    model = start(answers="abc")
    with closing(model.stream_batch([prompt(model)])) as deltas:
        next(deltas)
        with pytest.raises(BackendError, match="serving a batch"):
            model.usage()
        with pytest.raises(BackendError, match="serving another batch"):
            model.complete([prompt(model)])
    assert model.complete([prompt(model)])[0].text == "abc"


# ---- failing to start ----------------------------------------------------------------------------------------------


def test_an_error_while_loading_is_raised_as_it_is_and_leaves_no_process(start: Start) -> None:
    model = start(load=False)
    with pytest.raises(BackendError, match=r"^not enough memory$"):
        model.load(None, EngineOptions(extra={"fail_load": "not enough memory"}))
    assert (model.pid, model.info) == (None, None)


def test_bad_options_are_option_errors_also_from_the_child(start: Start) -> None:
    model = start(load=False)
    with pytest.raises(OptionError, match="answerz"):
        model.load(None, EngineOptions(extra={"answerz": 1}))


def test_a_model_that_is_not_there_starts_no_process(start: Start) -> None:
    model = start(load=False)
    with pytest.raises(ModelError):
        model.load("/nowhere/at/all")
    assert model.pid is None


def test_death_while_loading_carries_the_last_words(start: Start) -> None:
    model = start(load=False)
    with pytest.raises(WorkerDiedError, match=r"ended with exit code 41 while loading") as caught:
        model.load(None, EngineOptions(extra={"exit_at": "load", "noise": True}))
    assert "fake engine: dying now" in str(caught.value)
    assert "fake engine: a warning" in str(caught.value)


def test_a_load_that_hangs_is_ended(start: Start) -> None:
    model = start(load=False, worker={"start_timeout_s": 1.5})
    with pytest.raises(WorkerDiedError, match=r"said nothing for 1.5 s while loading and was ended"):
        model.load(None, EngineOptions(extra={"hang_at": "load"}))
    assert model.pid is None


def test_an_interpreter_that_is_not_there(start: Start) -> None:
    model = start(load=False, worker={"python": "/nowhere/python"})
    with pytest.raises(OptionError, match="cannot start /nowhere/python: No such file"):
        model.load(None)


def test_an_interpreter_that_cannot_run_us_says_why(start: Start, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'ImportError: no module named numpy' >&2\nexit 1\n")
    broken.chmod(0o755)
    model = start(load=False, worker={"python": str(broken)})
    with pytest.raises(WorkerDiedError, match="ended with exit code 1 while starting") as caught:
        model.load(None)
    assert "no module named numpy" in str(caught.value)


def test_another_protocol_version_is_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from visavis.backends import worker

    monkeypatch.setattr(worker, "PROTOCOL", 999)
    model = start(load=False)
    with pytest.raises(BackendError, match=r"runs another visavis .* protocol 2 instead of 999"):
        model.load(None)
    assert model.pid is None


def test_the_current_folder_shadows_no_module(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    model = start(answers="ok")
    assert model.complete([prompt(model)])[0].text == "ok"


# ---- dying at work -------------------------------------------------------------------------------------------------


def test_death_while_answering_is_an_error_of_the_batch_and_load_starts_anew(start: Start) -> None:
    model = start(answers="abcdef", exit_at=3, real_step_s=0.05)
    seen: list[int] = []
    deltas = model.stream_batch([prompt(model)])
    with pytest.raises(WorkerDiedError, match="ended with exit code 41 while answering") as caught:
        seen.extend(i for delta in deltas for i in delta.token_ids)
    assert len(seen) == 3, "what came before its death was given"
    assert "dying now" in str(caught.value)
    with pytest.raises(WorkerDiedError, match="has died; call load"):
        model.complete([prompt(model)])
    with pytest.raises(WorkerDiedError, match="has died"):
        model.usage()
    model.load(None, EngineOptions(extra={"answers": "back"}))
    assert model.complete([prompt(model)])[0].text == "back"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_kill_from_outside_names_the_signal(start: Start, number: signal.Signals) -> None:
    model = start(answers="abc" * 500, real_step_s=0.01)
    deltas = model.stream_batch([prompt(model)])
    next(deltas)
    assert model.pid is not None
    os.kill(model.pid, number)
    with pytest.raises(WorkerDiedError, match=f"was killed by {number.name}.* while answering"):
        list(deltas)


def test_a_kill_between_batches_is_noticed_by_the_next(start: Start) -> None:
    model = start(answers="abc")
    assert model.pid is not None
    os.kill(model.pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        model.complete([prompt(model)])


@pytest.mark.parametrize("how", ["hangs", "stopped"])
def test_a_hang_ends_after_the_idle_time(start: Start, how: str) -> None:
    model = start(
        answers="abc" * 100,
        worker={"idle_timeout_s": 1.0},
        **({"hang_at": 2} if how == "hangs" else {"real_step_s": 0.02}),
    )
    pid = model.pid
    assert pid is not None
    deltas = model.stream_batch([prompt(model)])
    next(deltas)
    if how == "stopped":
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(WorkerDiedError, match=r"said nothing for 1 s while answering and was ended"):
        list(deltas)
    assert is_gone(pid)


def test_an_engine_error_at_work_leaves_the_worker_alive(start: Start) -> None:
    model = start(answers="abcdef", fail_after=2)
    pid = model.pid
    with pytest.raises(BackendError, match="broke down"):
        model.complete([prompt(model)])
    assert model.usage().peak_rss_bytes
    assert model.pid == pid


# ---- ending --------------------------------------------------------------------------------------------------------


def test_close_ends_the_process_and_may_be_repeated(start: Start) -> None:
    model = start(answers="ok")
    pid = model.pid
    assert pid is not None
    model.close()
    assert is_gone(pid, within=0.0)
    model.close()
    with pytest.raises(OptionError, match="call load"):
        model.complete([prompt(model)])


def test_close_ends_a_worker_that_hangs_or_is_stopped(start: Start) -> None:
    model = start(answers="ok", worker={"close_timeout_s": 0.3})
    pid = model.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    model.close()
    assert is_gone(pid, within=0.0)


def test_children_of_the_child_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that left for a session of its own and ignores SIGTERM."""
    (tmp_path / "parent_of_two.py").write_text(
        textwrap.dedent(
            """
            import subprocess, sys, time
            code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
            for session in (False, True):
                subprocess.Popen([sys.executable, "-c", code], start_new_session=session)
            time.sleep(600)
            """
        )
    )
    child = ChildProcess("parent_of_two", label="test", env={"PYTHONPATH": str(tmp_path)})
    deadline = time.monotonic() + 10
    while len(family := descendants(child.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(family) == 2
    child.end()
    assert all(is_gone(pid, within=0.0) for pid in (child.pid, *family))
    child.end()


ORPHAN = """
import os, sys, time
from visavis.backends.options import EngineOptions
from visavis.backends.worker import WorkerModel
model = WorkerModel("fake")
model.load(None, EngineOptions(extra={{"answers": "a b c d " * 300, "real_step_s": 0.01}}))
print(model.pid, flush=True)
{then}
"""


@pytest.mark.parametrize(
    "then",
    [
        "time.sleep(600)",  # killed from outside
        "os._exit(0)",
        "sys.exit(0)",
        "raise KeyboardInterrupt",
        "import threading; threading.Thread(target=lambda: model.complete([model.prepare('hi')])).start(); os._exit(1)",
    ],
    ids=["killed", "exits at once", "exits", "interrupted", "exits while answering"],
)
def test_no_worker_outlives_its_parent(then: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN.format(then=then)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    if "sleep" in then:
        assert not is_gone(pid, within=0.0)
        parent.kill()
    parent.wait(20)
    parent.stdout.close()
    assert is_gone(pid)


def test_ctrl_c_while_answering_ends_both_at_once() -> None:
    loop = "print(next(s := model.stream_batch([model.prepare('hi')])).index, flush=True); list(s)"
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN.format(then=loop)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert parent.stdout.readline() == b"0\n", "it has begun to answer"
    began = time.monotonic()
    parent.send_signal(signal.SIGINT)
    _, said = parent.communicate(timeout=20)
    assert time.monotonic() - began < 5, "the answer would have taken 10 s"
    assert parent.returncode == -signal.SIGINT
    assert said.decode().rstrip().endswith("KeyboardInterrupt")
    assert is_gone(pid)


def test_a_worker_started_in_a_thread_lives_on_when_the_thread_ends() -> None:
    """The kernel's parent-death signal follows threads, so it must not be used there."""
    import threading

    model = WorkerModel("fake")
    thread = threading.Thread(target=lambda: model.load(None, EngineOptions(extra={"answers": "ok"})))
    thread.start()
    thread.join()
    with model:
        time.sleep(0.2)
        assert model.complete([prompt(model)])[0].text == "ok"


def test_an_engine_that_hides_its_failure_in_the_log_is_quoted_from_there(tmp_path: Path) -> None:
    child = object.__new__(ChildProcess)
    child.log_path = tmp_path / "worker.log"
    child.log_path.write_text(
        "(EngineCore) ERROR   File x.py, line 3\n"
        "(EngineCore) ERROR ValueError: the cache holds 512 tokens, max_model_len is 4096\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    said = "vllm failed to load: RuntimeError: Engine core initialization failed. See root cause above."
    assert child.root_cause(said) == "ValueError: the cache holds 512 tokens, max_model_len is 4096"
    child.log_path.write_text("visavis.errors.BackendError: out of memory\n")
    assert child.root_cause("fake failed: out of memory") == ""
