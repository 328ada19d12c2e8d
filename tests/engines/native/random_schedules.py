"""Any schedule the engine may meet: arrivals, aborts, too few blocks, steps without memory, caches on and off.

Every answer is compared with the one the same request gets alone. The requests come from a fixed menu, whose answers
are worked out once; so a difference is the schedule's fault, and the menu is chosen to tempt caches: prompts that share
a beginning, equal ids over different images, one image twice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.engines.native.drive import make_engine
from tests.engines.native.reference import Part, Reference
from visavis.engine import NativeEngine
from visavis.errors import BackendError
from visavis.prompt import Prompt
from visavis.sampling import ResolvedSampling

__all__ = ["Dish", "EngineUnderLoad", "make_menu"]

LONGEST = 14
"""Tokens of an answer, at most."""
GREEDY_MARGIN = 1e-3
"""How far apart the two best logits are at every token of the menu, so that no rounding decides."""
IMAGE: Part = ("image", (1, 4, 6))  # 6 tokens
TEXTS: list[list[Part]] = [[13], [13, 5], [13, 5, 4], [13, 5, 9], [1], [6], [27]]
PICTURES: list[list[Part]] = [
    [5],
    [5, IMAGE, 2],
    [5, IMAGE, 2, 3],
    [5, IMAGE, 2, IMAGE, 3],
    [IMAGE, 1],
    [2, ("image", (1, 6, 4)), 1, ("video", (2, 4, 4)), 4],
]


@dataclass(frozen=True)
class Dish:
    """A request and what it must get; a shorter `max_tokens` gets the beginning of it."""

    prompt: Prompt
    sampling: dict[str, Any]
    answer: list[int]


@dataclass
class Order:
    dish: Dish
    max_tokens: int
    tokens: list[int]


def make_menu(ref: Reference) -> list[Dish]:
    prompts = [ref.prompt(parts, seed=4) for parts in (PICTURES if ref.vision else TEXTS)]
    if ref.vision:  # equal ids and grids over other pixels
        prompts += [_other_pixels(prompts[i], name) for i, name in ((1, "x"), (3, "y"))]
    menu = []
    alone = make_engine(ref, kernels="torch", enable_prefix_caching=False, encoder_cache_bytes=0)
    for number, prompt in enumerate(prompts):
        reference = ref.answer(prompt, LONGEST)
        best = reference.logits.topk(2).values
        assert (best[:, 0] - best[:, 1]).min() > GREEDY_MARGIN, f"prompt {number} has a near tie: take another seed"
        menu.append(Dish(prompt, {}, reference.token_ids))
        sampling = {"temperature": 1.1, "seed": number, "repetition_penalty": 1.2}
        menu.append(Dish(prompt, sampling, _answer_alone(alone, prompt, sampling)))
    return menu


def _other_pixels(prompt: Prompt, name: str) -> Prompt:
    random = np.random.default_rng(ord(name))
    first = prompt.media[0]
    pixels = random.integers(0, 256, first.pixels.shape, dtype=np.uint8)
    return replace(prompt, media=(replace(first, pixels=pixels, content_hash=name), *prompt.media[1:]))


def _answer_alone(engine: NativeEngine, prompt: Prompt, sampling: dict[str, Any]) -> list[int]:
    engine.add_request("alone", prompt, ResolvedSampling(max_tokens=LONGEST, **sampling))
    tokens: list[int] = []
    while engine.has_work:
        tokens += [token for output in engine.step() for token in output.token_ids]
    return tokens


class EngineUnderLoad(RuleBasedStateMachine):
    models: ClassVar[dict[str, tuple[Reference, list[Dish]]]] = {}
    seen: ClassVar[Counter[str]] = Counter()  # what the examples of a run went through

    def __init__(self) -> None:
        super().__init__()
        self.orders: dict[str, Order] = {}
        self.number = 0
        self.taken: list[int] = []  # blocks held back from the engine
        self.starve = False

    @initialize(
        kind=st.sampled_from(["text", "vision"]),
        block_size=st.sampled_from([2, 4, 5, 8]),
        spare=st.integers(0, 12),
        tokens=st.integers(4, 24),
        seats=st.integers(1, 4),
        prefix_caching=st.booleans(),
        encoder_cache=st.sampled_from([0, 6 * 64 * 4 * 3, 1 << 20]),
        kernels=st.sampled_from(["auto", "torch"]),
        dishes=st.lists(st.integers(0, 99), min_size=1, max_size=6),
    )
    def begin(
        self,
        kind: str,
        block_size: int,
        spare: int,
        tokens: int,
        seats: int,
        prefix_caching: bool,
        encoder_cache: int,
        kernels: str,
        dishes: list[int],
    ) -> None:
        """Some requests at once: examples in which Hypothesis leaves `submit` out are of use, too."""
        ref, self.menu = self.models[kind]
        longest = max(len(dish.prompt) for dish in self.menu) + LONGEST
        self.engine = make_engine(
            ref,
            block_size=block_size,
            num_blocks=-(-longest // block_size) + spare,
            max_num_batched_tokens=tokens,
            max_num_seqs=min(seats, tokens),
            enable_prefix_caching=prefix_caching,
            encoder_cache_bytes=encoder_cache,
            kernels=kernels,
        )
        run = self.engine.runner.run

        def sometimes_without_memory(step: Any) -> Any:
            result = run(step)
            if self.starve and len(self.engine.scheduler.running) > 1:  # one alone would rightly fail
                self.starve = False
                self.spoil(step)
                raise torch.OutOfMemoryError("as the test wants it")
            return result

        self.engine.runner.run = sometimes_without_memory  # type: ignore[method-assign]
        self.submit(dishes, LONGEST, 0)

    @rule(
        dishes=st.lists(st.integers(0, 99), min_size=1, max_size=4),
        max_tokens=st.integers(1, LONGEST),
        priority=st.sampled_from([0, 0, 0, -1, 2]),
    )
    def submit(self, dishes: list[int], max_tokens: int, priority: int) -> None:
        for dish in dishes:
            self.submit_one(dish, max_tokens, priority)

    def submit_one(self, dish: int, max_tokens: int, priority: int) -> None:
        name = str(self.number)
        self.number += 1
        order = Order(self.menu[dish % len(self.menu)], max_tokens, [])
        sampling = ResolvedSampling(max_tokens=max_tokens, **order.dish.sampling)
        seq = self.engine.prepare(name, order.dish.prompt, sampling, priority)
        if dish % 2:
            self.engine.make_patches(seq)
        self.engine.add(seq)
        self.orders[name] = order

    @rule(steps=st.sampled_from([1, 1, 1, 2, 4, 8]))
    def work(self, steps: int) -> None:
        for _ in range(steps):
            if self.engine.has_work:
                self.step()

    def step(self) -> None:
        try:
            outputs = self.engine.step()
        except BackendError as error:
            if not self.taken or "stuck" not in str(error):
                raise
            self.engine.pool.release(self.taken)  # nobody else would give blocks back
            return
        for output in outputs:
            order = self.orders[output.request_id]
            assert output.error is None, output.error
            order.tokens += output.token_ids
            expected = order.dish.answer[: order.max_tokens]
            assert order.tokens == expected[: len(order.tokens)], f"request {output.request_id} went another way"
            if output.finish_reason is not None:
                assert order.tokens == expected, f"request {output.request_id} ended early"
                del self.orders[output.request_id]

    @precondition(lambda self: self.orders)
    @rule(which=st.integers(0, 99))
    def abort(self, which: int) -> None:
        name = list(self.orders)[which % len(self.orders)]
        assert self.engine.abort(name)
        del self.orders[name]

    @precondition(lambda self: self.reading())
    @rule(which=st.integers(0, 99))
    def start_again(self, which: int) -> None:
        """Aborts a request in the middle of its prompt, and asks for the same."""
        reading = self.reading()
        name = reading[which % len(reading)]
        order = self.orders.pop(name)
        assert self.engine.abort(name)
        self.submit_one(self.menu.index(order.dish), order.max_tokens, 0)

    def reading(self) -> list[str]:
        """Requests whose prompt is computed in part."""
        running = self.engine.scheduler.running
        return [s.request_id for s in running if 0 < s.num_computed_tokens < s.num_prompt_tokens]

    def spoil(self, step: Any) -> None:
        """A step that did not finish may have written anything to the places of its tokens."""
        size = self.engine.pool.block_size
        for seq, length in [*step.prefills, *((s, 1) for s in step.decodes)]:
            for i in range(seq.num_computed_tokens, seq.num_computed_tokens + length):
                self.engine.runner.kernels.cache.data[:, seq.block_table[i // size] * size + i % size] = 9.0  # type: ignore[attr-defined]

    @precondition(lambda self: not self.taken and self.engine.scheduler.running)
    @rule(leave=st.integers(0, 2))
    def take_blocks(self, leave: int) -> None:
        """The next block a request needs must come from another request."""
        size = self.engine.pool.block_size
        self.engine.pool.grow(self.taken, max(self.engine.pool.num_free - leave, 0) * size)

    @precondition(lambda self: self.taken)
    @rule()
    def give_blocks_back(self) -> None:
        self.engine.pool.release(self.taken)

    @precondition(lambda self: len(self.orders) > 1)
    @rule()
    def run_out_of_memory(self) -> None:
        self.starve = True
        self.work(3)

    @invariant()
    def every_block_has_as_many_users_as_tables_hold_it(self) -> None:
        if not hasattr(self, "engine"):
            return
        pool = self.engine.pool
        held = Counter(self.taken)
        for seq in self.engine.scheduler.running:
            assert len(set(seq.block_table)) == len(seq.block_table)
            held.update(seq.block_table)
        assert [held[block] for block in range(pool.num_blocks)] == pool._users
        assert len(held) + pool.num_free == pool.num_blocks

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        engine = self.engine
        engine.pool.release(self.taken)
        for _ in range(3000):
            if not engine.has_work:
                break
            self.step()
        assert not engine.has_work, "starved"
        assert not self.orders, f"lost: {list(self.orders)}"
        assert engine.pool.num_free == engine.pool.num_blocks, "blocks are missing"
        statistics = engine.statistics()
        if engine.encoder is not None:
            assert engine.encoder.cache.num_read == 0
            assert engine.encoder._ahead_bytes == 0
        self.seen.update(
            examples=1,
            requests=self.number,
            finished=statistics.finished,
            aborted=statistics.aborted,
            preemptions=statistics.preemptions,
            out_of_memory=statistics.out_of_memory,
            prefix_hits=statistics.prefix_hits,
            prefix_evictions=statistics.prefix_evictions,
            encoder_hits=statistics.encoder_hits,
            encoder_evictions=statistics.encoder_evictions,
        )
        engine.close()
