"""Requests that come while a real engine answers others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from visavis.backends.worker import WorkerModel
from visavis.completion import Completion
from visavis.sampling import SamplingParams

pytestmark = pytest.mark.peers

Start = Callable[..., WorkerModel]
Tiny = Callable[[str], Path]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_requests_join_the_running_batch_and_their_times_count_from_their_arrival(
    start: Start, tiny: Tiny, engine: str
) -> None:
    model = start(engine, tiny("qwen2"))
    prompts = [model.prepare([{"role": "user", "content": text}]) for text in ("one", "two words", "three short words")]
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    alone = [model.complete([prompt], params)[0].token_ids for prompt in prompts]
    done: dict[int, Completion] = {}
    with closing(model.stream_batch(prompts, params, [0.0, 0.05, 2.0])) as deltas:
        done = {d.index: d.completion for d in deltas if d.completion is not None}
    assert [done[i].token_ids for i in range(3)] == alone
    assert all(0 < done[i].timings.token_times[0] < 2 for i in range(3))

    with closing(model.stream_batch(prompts[:2], params, [0.0, 30.0])) as deltas:
        for delta in deltas:
            if delta.completion is not None:
                break  # the second is not due for a long time: leaving must not wait for it
    assert model.complete([prompts[0]], params)[0].token_ids == alone[0]
