"""One engine thread: many submitters and readers, aborts, back-pressure, crashes, and an orderly end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.engines.native.drive import greedy, make_engine
from tests.engines.native.reference import Part, Reference
from visavis.engine import AsyncNativeEngine, RequestStream
from visavis.errors import BackendError, ContextLengthError, MediaError, OptionError, QueueFullError
from visavis.prompt import Prompt
from visavis.sampling import ResolvedSampling
from visavis.sampling.structured import StructuredOutput

pytestmark = pytest.mark.engines

PARTS: list[list[Part]] = [[9], [3, ("image", (1, 8, 6)), 4], [30], [2, ("image", (1, 4, 4)), 3], [1], [17]]
LENGTHS = [20, 12, 3, 25, 16, 8]


@pytest.fixture(scope="module")
def ref(reference: Callable[..., Reference]) -> Reference:
    return reference("qwen2_5_vl", seed=3)


@pytest.fixture(scope="module")
def cases(ref: Reference) -> list[tuple[Prompt, ResolvedSampling, list[int]]]:
    """Prompts, their sampling, and what the engine answers to each alone."""
    prompts = [ref.prompt(p, seed=70 + i) for i, p in enumerate(PARTS)]
    engine = make_engine(ref)
    return [
        (p, ResolvedSampling(max_tokens=n), greedy(engine, [p], n)[0]) for p, n in zip(prompts, LENGTHS, strict=True)
    ]


@pytest.fixture
def served(ref: Reference, request: pytest.FixtureRequest) -> Iterator[AsyncNativeEngine]:
    options: dict[str, Any] = getattr(request, "param", {})
    engine = AsyncNativeEngine(make_engine(ref, max_num_batched_tokens=24), **options)
    yield engine
    engine.close()
    assert not engine._thread.is_alive()
    assert engine._engine.pool.num_free == engine._engine.pool.num_blocks


def tokens_of(stream: RequestStream) -> list[int]:
    return [token for output in stream for token in output.token_ids]


async def tokens_async(stream: RequestStream) -> list[int]:
    return [token async for output in stream for token in output.token_ids]


def endless(cases: Any) -> tuple[Prompt, ResolvedSampling]:
    return cases[0][0], ResolvedSampling(max_tokens=4000)


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to this"
        time.sleep(0.002)


def test_requests_from_many_threads_get_their_own_answers(served: AsyncNativeEngine, cases: Any) -> None:
    answers: dict[int, list[int]] = {}

    def ask(number: int) -> None:
        prompt, sampling, _ = cases[number % len(cases)]
        answers[number] = tokens_of(served.submit(prompt, sampling))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(3 * len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert answers == {i: cases[i % len(cases)][2] for i in range(3 * len(cases))}


def test_requests_from_one_event_loop_get_their_own_answers(served: AsyncNativeEngine, cases: Any) -> None:
    async def ask(number: int) -> list[int]:
        prompt, sampling, _ = cases[number % len(cases)]
        return await tokens_async(await served.submit_async(prompt, sampling))

    async def all_of_them() -> list[list[int]]:
        return await asyncio.gather(*(ask(i) for i in range(3 * len(cases))))

    assert asyncio.run(all_of_them()) == [cases[i % len(cases)][2] for i in range(3 * len(cases))]


def test_a_grammar_is_compiled_outside_the_event_loop(served: AsyncNativeEngine, cases: Any) -> None:
    prepare, where = served._engine.prepare, []

    def watched(request_id: str, prompt: Prompt, sampling: ResolvedSampling, priority: int) -> Any:
        where.append(threading.current_thread().name)
        return prepare(request_id, prompt, replace(sampling, structured=None), priority)

    served._engine.prepare = watched  # type: ignore[method-assign]

    async def run() -> list[int]:
        asked = replace(cases[0][1], structured=StructuredOutput("choice", ("yes", "no")))
        return await tokens_async(await served.submit_async(cases[0][0], asked))

    assert asyncio.run(run()) == cases[0][2]
    assert where[0].startswith("visavis-prepare")


def test_a_request_is_made_in_the_pool_while_others_decode(served: AsyncNativeEngine, cases: Any) -> None:
    prompt, sampling, expected = cases[1]
    makers: list[str] = []
    go = threading.Event()

    def make() -> tuple[Prompt, ResolvedSampling]:
        makers.append(threading.current_thread().name)
        assert go.wait(20)
        return prompt, sampling

    slow = served.submit_from(make)
    quick = served.submit(cases[0][0], cases[0][1])
    assert tokens_of(quick) == cases[0][2]  # the engine goes on while the other is being made
    assert served.statistics().preparing == 1
    go.set()
    assert tokens_of(slow) == expected
    assert makers[0].startswith("visavis-prepare")


def test_a_slow_reader_does_not_stop_the_others_and_loses_nothing(served: AsyncNativeEngine, cases: Any) -> None:
    unread = [served.submit(cases[0][0], cases[0][1]) for _ in range(3)]
    assert tokens_of(served.submit(cases[3][0], cases[3][1])) == cases[3][2]
    wait_until(lambda: all(s.ended for s in unread))
    assert [tokens_of(s) for s in unread] == [cases[0][2]] * 3


def test_an_abort_ends_the_stream_and_frees_the_blocks(served: AsyncNativeEngine, cases: Any) -> None:
    stream = served.submit(*endless(cases))
    first = next(stream)
    assert first.token_ids == (cases[0][2][0],)
    stream.abort()
    rest = list(stream)
    assert rest[-1].finish_reason == "abort"
    assert stream.finish_reason == "abort"
    stream.abort()  # again: nothing
    assert served.abort(stream.request_id) is False
    wait_until(lambda: served.statistics().running == 0)
    assert served.statistics().kv_blocks_used == 0
    assert served.statistics().aborted == 1


def test_leaving_a_stream_aborts_its_request(served: AsyncNativeEngine, cases: Any) -> None:
    with served.submit(*endless(cases)) as stream:
        next(stream)

    async def leave() -> None:
        async with await served.submit_async(*endless(cases)) as other:
            async for _ in other:
                break

    asyncio.run(leave())
    wait_until(lambda: served.statistics().aborted == 2)


def test_a_cancelled_task_can_abort_and_the_engine_goes_on(served: AsyncNativeEngine, cases: Any) -> None:
    async def run() -> None:
        async def read() -> None:
            async with await served.submit_async(*endless(cases)) as stream:
                async for _ in stream:
                    pass

        task = asyncio.create_task(read())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await tokens_async(await served.submit_async(cases[4][0], cases[4][1])) == cases[4][2]

    asyncio.run(run())
    wait_until(lambda: served.statistics().running == 0)


def test_an_aborted_request_that_is_still_being_made_never_runs(served: AsyncNativeEngine, cases: Any) -> None:
    go = threading.Event()

    def make() -> tuple[Prompt, ResolvedSampling]:
        assert go.wait(20)
        return cases[1][0], cases[1][1]

    stream = served.submit_from(make, request_id="mine")
    stream.abort()
    assert [o.finish_reason for o in stream] == ["abort"]
    again = served.submit(
        cases[0][0], cases[0][1], request_id="mine"
    )  # the name is free, the old one still in the pool
    go.set()
    assert tokens_of(again) == cases[0][2]
    assert served._engine.encoder is not None
    wait_until(lambda: served._engine.encoder._ahead_bytes == 0)
    assert served.statistics().prompt_tokens == len(cases[0][0])


@pytest.mark.parametrize("served", [{"max_waiting": 2}], indirect=True)
def test_a_full_queue_says_so_or_waits(served: AsyncNativeEngine, cases: Any) -> None:
    go = threading.Event()

    def make() -> tuple[Prompt, ResolvedSampling]:
        assert go.wait(20)
        return cases[0][0], cases[0][1]

    held = [served.submit_from(make) for _ in range(2)]
    with pytest.raises(QueueFullError, match="2 requests are waiting already"):
        served.submit(cases[0][0], cases[0][1])
    with pytest.raises(QueueFullError):
        served.submit(cases[0][0], cases[0][1], wait_s=0.01)
    done: list[list[int]] = []
    thread = threading.Thread(
        target=lambda: done.append(tokens_of(served.submit(cases[0][0], cases[0][1], wait_s=None)))
    )
    thread.start()

    async def several() -> list[list[int]]:
        async def one() -> list[int]:
            return await tokens_async(await served.submit_async(cases[5][0], cases[5][1]))

        tasks = [asyncio.create_task(one()) for _ in range(6)]
        await asyncio.sleep(0.02)
        assert not any(t.done() for t in tasks)
        tasks[0].cancel()  # one that waits for a place gives up
        go.set()
        return await asyncio.gather(*tasks[1:])

    assert asyncio.run(several()) == [cases[5][2]] * 5
    thread.join(20)
    assert done == [cases[0][2]]
    assert [tokens_of(s) for s in held] == [cases[0][2]] * 2


def test_what_is_wrong_with_a_request_is_raised_where_it_is_submitted_or_read(
    served: AsyncNativeEngine, cases: Any
) -> None:
    prompt = cases[0][0]
    with pytest.raises(ContextLengthError):
        served.submit(prompt, ResolvedSampling(max_tokens=100_000))

    def bad() -> tuple[Prompt, ResolvedSampling]:
        raise MediaError("messages[0].content[1]: no image")

    with pytest.raises(MediaError, match="no image"):
        list(served.submit_from(bad))

    def worse() -> tuple[Prompt, ResolvedSampling]:
        raise ZeroDivisionError("of course")

    with pytest.raises(BackendError, match="ZeroDivisionError: of course"):
        list(served.submit_from(worse))
    with pytest.raises(ContextLengthError):
        list(served.submit_from(lambda: (prompt, ResolvedSampling(max_tokens=100_000))))
    stream = served.submit(*endless(cases), request_id="same")
    with pytest.raises(OptionError, match="'same' is already running"):
        served.submit(prompt, ResolvedSampling(max_tokens=1), request_id="same")
    stream.abort()
    assert list(stream)[-1].finish_reason == "abort"
    assert served.statistics().waiting == served.statistics().preparing == 0
    assert tokens_of(served.submit(*cases[0][:2])) == cases[0][2]


def test_statistics_can_be_read_at_any_time(served: AsyncNativeEngine, cases: Any) -> None:
    before = served.statistics()
    assert (before.running, before.waiting, before.kv_usage, before.generated_tokens) == (0, 0, 0.0, 0)
    stream = served.submit(*endless(cases))
    next(stream)
    during = served.statistics()
    assert during.running == 1
    assert 0 < during.kv_usage < 1
    assert during.tokens_per_s > 0
    stream.abort()
    for prompt, sampling, expected in cases * 2:
        assert tokens_of(served.submit(prompt, sampling)) == expected
    after = served.statistics()
    assert (after.finished, after.aborted, after.failed) == (2 * len(cases), 1, 0)
    assert after.generated_tokens >= 2 * sum(LENGTHS)
    assert after.prompt_tokens == len(cases[0][0]) + 2 * sum(len(p) for p, _, _ in cases)
    assert after.prefix_hits > 0
    assert after.as_dict()["kv_usage"] == 0.0


def test_lower_priority_numbers_go_first(ref: Reference, cases: Any) -> None:
    engine = AsyncNativeEngine(make_engine(ref, max_num_seqs=1))
    busy = engine.submit(*endless(cases), request_id="busy")
    next(busy)
    order: list[str] = []  # of first tokens, as the engine gives them
    step = engine._engine.step

    def watched() -> Any:
        outputs = step()
        order.extend(o.request_id for o in outputs if o.request_id not in (*order, "busy"))
        return outputs

    engine._engine.step = watched  # type: ignore[method-assign]
    streams = [
        engine.submit(cases[2][0], cases[2][1], request_id=name, priority=priority)
        for name, priority in (("late", 5), ("mid", 1), ("now", -3))
    ]
    busy.abort()
    for stream in streams:
        assert tokens_of(stream) == cases[2][2]
    engine.close()
    assert order == ["now", "mid", "late"]


def test_a_crash_of_the_engines_thread_fails_every_request_with_its_cause(ref: Reference, cases: Any) -> None:
    engine = AsyncNativeEngine(make_engine(ref, max_num_seqs=1), max_waiting=3)
    go = threading.Event()

    def make() -> tuple[Prompt, ResolvedSampling]:
        assert go.wait(20)
        return cases[0][0], cases[0][1]

    running, waiting, making = engine.submit(*endless(cases)), engine.submit(*cases[0][:2]), engine.submit_from(make)
    next(running)

    def broken(*_: Any) -> Any:
        raise FloatingPointError("the card fell off")

    engine._engine.runner.run = broken  # type: ignore[method-assign]
    for stream in (running, waiting, making):
        with pytest.raises(BackendError, match=r"engine has stopped.*the card fell off") as caught:
            list(stream)
        assert isinstance(caught.value.__cause__, FloatingPointError)
    go.set()
    with pytest.raises(BackendError, match="the card fell off"):
        engine.submit(*cases[0][:2])
    assert not engine.running
    assert engine.statistics().aborted == 0
    engine.close()


def test_submitters_that_wait_for_a_place_hear_of_a_crash_and_of_the_end(ref: Reference, cases: Any) -> None:
    for end in ("crash", "close"):
        engine = AsyncNativeEngine(make_engine(ref, max_num_seqs=1), max_waiting=1)
        running = engine.submit(*endless(cases))
        next(running)
        held = engine.submit(*cases[0][:2])
        errors: list[BaseException] = []

        def wait_in_thread(engine: AsyncNativeEngine = engine, errors: list[BaseException] = errors) -> None:
            try:
                engine.submit(*cases[0][:2], wait_s=None)
            except BaseException as error:
                errors.append(error)

        async def wait_in_loop(engine: AsyncNativeEngine = engine, end: str = end) -> None:
            task = asyncio.create_task(engine.submit_async(*cases[0][:2]))
            await asyncio.sleep(0.05)
            if end == "crash":
                engine._engine.runner.run = lambda step: 1 / 0  # type: ignore[method-assign]
            else:
                threading.Thread(target=engine.close).start()
            with pytest.raises(BackendError, match="has stopped" if end == "crash" else "closed"):
                await task

        thread = threading.Thread(target=wait_in_thread)
        thread.start()
        asyncio.run(wait_in_loop())
        thread.join(20)
        assert [type(e) for e in errors] == [BackendError]
        engine.close()
        assert held.ended


def test_closing_aborts_what_runs_and_waits(ref: Reference, cases: Any) -> None:
    engine = AsyncNativeEngine(make_engine(ref, max_num_seqs=1))
    streams = [engine.submit(*endless(cases)) for _ in range(3)]
    next(streams[0])
    engine.close()
    engine.close()
    assert [list(s)[-1].finish_reason for s in streams] == ["abort"] * 3
    with pytest.raises(BackendError, match="closed"):
        engine.submit(*cases[0][:2])
    assert engine.statistics().running == 1  # as it was when it ended


def test_draining_lets_what_was_submitted_finish_and_takes_no_more(ref: Reference, cases: Any) -> None:
    engine = AsyncNativeEngine(make_engine(ref, max_num_seqs=2))
    streams = [engine.submit(p, s) for p, s, _ in cases]
    made = engine.submit_from(lambda: (cases[1][0], cases[1][1]))
    engine.close(drain=True)
    assert [tokens_of(s) for s in streams] == [expected for _, _, expected in cases]
    assert tokens_of(made) == cases[1][2]
    with pytest.raises(BackendError, match="closed"):
        engine.submit(*cases[0][:2])


def test_a_drain_that_takes_too_long_can_be_cut_short(ref: Reference, cases: Any) -> None:
    engine = AsyncNativeEngine(make_engine(ref))
    stream = engine.submit(*endless(cases))
    with pytest.raises(TimeoutError, match="still answering 1 requests"):
        engine.close(drain=True, timeout=0.05)
    engine.close()
    assert list(stream)[-1].finish_reason == "abort"


def test_reading_can_time_out(served: AsyncNativeEngine, cases: Any) -> None:
    go = threading.Event()

    def make() -> tuple[Prompt, ResolvedSampling]:
        assert go.wait(20)
        return cases[0][0], cases[0][1]

    stream = served.submit_from(make)
    with pytest.raises(TimeoutError):
        stream.get(timeout=0.01)
    go.set()
    assert tokens_of(stream) == cases[0][2]


@pytest.mark.parametrize("options", [{"max_waiting": 0}, {"prepare_threads": 0}])
def test_sizes_below_one_are_refused(ref: Reference, options: dict[str, int]) -> None:
    with pytest.raises(OptionError, match="1 or more"):
        AsyncNativeEngine(make_engine(ref), **options)
