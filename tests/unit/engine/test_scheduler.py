"""Scheduling: budgets, order, admission, preemption, and blocks that all come home."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.engine.helpers import sequence
from visavis.engine.block_pool import BlockPool
from visavis.engine.scheduler import CALM_STEPS, PRIORITY_STEP_S, ScheduledStep, Scheduler
from visavis.engine.sequence import Sequence, SequenceStatus


def make(num_blocks: int = 100, block_size: int = 4, seqs: int = 8, tokens: int = 16) -> Scheduler:
    return Scheduler(BlockPool(num_blocks, block_size), seqs, tokens)


def advance(step: ScheduledStep) -> None:
    """What the engine does after a step: computed tokens move on, finished prompts and decodes get a token."""
    for seq, length in [*step.prefills, *((s, 1) for s in step.decodes)]:
        seq.num_computed_tokens += length
        if seq.num_uncomputed_tokens == 0:
            seq.token_ids.append(7)


def arriving(at: float, tokens: int = 3, priority: int = 0) -> Sequence:
    seq = sequence(tokens)
    seq.arrival_time, seq.priority = at, priority
    return seq


def test_a_long_prompt_is_cut_into_chunks_beside_decodes() -> None:
    scheduler = make()
    short, long = sequence(3), sequence(40)
    scheduler.add(short)
    scheduler.add(long)
    step = scheduler.schedule()
    assert (step.decodes, step.prefills) == ([], [(short, 3), (long, 13)])  # 16 in all
    advance(step)
    step = scheduler.schedule()
    assert (step.decodes, step.prefills) == ([short], [(long, 15)])
    advance(step)
    step = scheduler.schedule()
    assert (step.decodes, step.prefills) == ([short], [(long, 12)])  # the rest
    advance(step)
    assert scheduler.schedule().decodes == [short, long]


def test_requests_are_admitted_in_order_even_when_a_later_one_would_fit() -> None:
    scheduler = make(num_blocks=10, tokens=100)
    first, big, small = sequence(16), sequence(28), sequence(4)
    for seq in (first, big, small):
        scheduler.add(seq)
    step = scheduler.schedule()
    assert step.prefills == [(first, 16)]  # 4 of 10 blocks; `big` needs 7
    advance(step)
    assert scheduler.schedule().prefills == []
    scheduler.finish(first)
    assert scheduler.schedule().prefills == [(big, 28), (small, 4)]


def test_no_more_than_max_num_seqs_run() -> None:
    scheduler = make(seqs=2, tokens=50)
    for _ in range(3):
        scheduler.add(sequence(2))
    step = scheduler.schedule()
    assert len(step.prefills) == 2
    advance(step)
    step = scheduler.schedule()
    assert len(step.decodes) == 2
    assert not step.prefills
    scheduler.finish(step.decodes[0])
    advance(ScheduledStep(decodes=[step.decodes[1]]))
    step = scheduler.schedule()
    assert (len(step.decodes), len(step.prefills)) == (1, 1)


def test_the_youngest_is_preempted_and_starts_over_first() -> None:
    scheduler = make(num_blocks=5, block_size=4, tokens=50)
    old, young, waiting = sequence(7), sequence(5), sequence(3)
    scheduler.add(old)
    advance(scheduler.schedule())
    scheduler.add(young)
    advance(scheduler.schedule())  # old decodes its 8th token, young prefills: 2 + 2 blocks
    assert scheduler.pool.grow([], 4)  # the last block is gone
    scheduler.add(waiting)
    step = scheduler.schedule()
    assert step.preempted == [young]  # old crosses into a third block
    assert step.decodes == [old]
    assert young.num_computed_tokens == 0
    assert young.block_table == []
    assert list(scheduler.waiting) == [young, waiting]
    advance(step)
    scheduler.finish(old)
    assert scheduler.schedule().prefills[0][0] is young


def test_the_youngest_preempts_itself_when_it_is_the_one_in_need() -> None:
    scheduler = make(num_blocks=5, block_size=4, tokens=50)
    old, young = sequence(5), sequence(7)
    scheduler.add(old)
    advance(scheduler.schedule())
    scheduler.add(young)
    advance(scheduler.schedule())
    advance(scheduler.schedule())  # young's 8th token
    assert scheduler.pool.grow([], 4)
    step = scheduler.schedule()
    assert (step.decodes, step.preempted) == ([old], [young])


def test_a_finished_request_gives_its_blocks_back_wherever_it_was() -> None:
    scheduler = make(seqs=1)
    running, waiting = sequence(9), sequence(5)
    scheduler.add(running)
    scheduler.add(waiting)
    scheduler.schedule()
    for seq in (waiting, running):
        scheduler.finish(seq)
        assert seq.status is SequenceStatus.FINISHED
    assert not scheduler.has_work
    assert scheduler.pool.num_free == scheduler.pool.num_blocks


def test_lower_priority_numbers_go_first_and_equal_ones_by_arrival() -> None:
    scheduler = make(tokens=100)
    later, first, urgent = arriving(2.0), arriving(1.0), arriving(3.0, priority=-1)
    for seq in (later, first, urgent):
        scheduler.add(seq)
    assert [s for s, _ in scheduler.schedule().prefills] == [urgent, first, later]


def test_a_request_of_low_priority_is_overtaken_for_a_limited_time_only() -> None:
    """Priority 2 against 0: those that come up to 2 · PRIORITY_STEP_S later go before it, the next one does not."""
    scheduler = make(seqs=1, tokens=100)
    patient = arriving(100.0, priority=2)
    scheduler.add(patient)
    limit = 100.0 + 2 * PRIORITY_STEP_S
    within, beyond = [arriving(limit - i) for i in (8, 4, 1)], arriving(limit + 1)
    for seq in (beyond, *within):
        scheduler.add(seq)
    order = []
    while scheduler.has_work:
        order += [s for s, _ in scheduler.schedule().prefills]
        scheduler.finish(order[-1])
    assert order == [*within, patient, beyond]


def test_a_steady_stream_of_urgent_requests_does_not_starve_the_others() -> None:
    """One seat, one urgent newcomer a second, each served in a second: the patient one has its turn after 30 s."""
    scheduler = make(seqs=1, tokens=100)
    patient = arriving(0.0, priority=3)
    scheduler.add(patient)
    for second in range(1, 100):
        scheduler.add(arriving(float(second)))
        (served, _), *others = scheduler.schedule().prefills
        assert not others
        scheduler.finish(served)
        if served is patient:
            break
    assert second == 3 * PRIORITY_STEP_S  # the one that comes then has an equal turn, and came later


def test_the_one_whose_turn_is_last_is_preempted_whenever_it_was_admitted() -> None:
    scheduler = make(num_blocks=5, block_size=4, tokens=50)
    low = arriving(0.0, 5, priority=9)
    scheduler.add(low)
    advance(scheduler.schedule())
    high = arriving(50.0, 7)
    scheduler.add(high)
    advance(scheduler.schedule())
    assert scheduler.pool.grow([], 4)
    advance(scheduler.schedule())  # high's 8th token
    step = scheduler.schedule()
    assert (step.decodes, step.preempted) == ([high], [low])


def test_a_step_without_memory_is_tried_with_half_its_prompt_tokens_and_grows_back() -> None:
    scheduler = make(num_blocks=1000, tokens=400)
    seq = sequence(2000)
    scheduler.add(seq)
    step = scheduler.schedule()
    assert step.prefills == [(seq, 400)]
    assert scheduler.back_off(step) is None
    step = scheduler.schedule()
    assert step.prefills == [(seq, 200)]  # nothing of the step that failed counts as computed
    for _ in range(CALM_STEPS):
        scheduler.advance(ScheduledStep())
    assert scheduler.schedule().prefills == [(seq, 400)]


def test_a_decode_step_without_memory_goes_on_without_its_last_request() -> None:
    scheduler = make()
    old, young = sequence(3), sequence(3)
    for seq in (old, young):
        scheduler.add(seq)
    advance(scheduler.schedule())
    step = scheduler.schedule()
    assert step.decodes == [old, young]
    assert scheduler.back_off(step) is None
    step = scheduler.schedule()
    assert (step.decodes, step.prefills, step.preempted) == ([old], [], [young])  # and it has no seat for now
    assert scheduler.back_off(step) is old
    scheduler.finish(old)
    assert scheduler.schedule().prefills == [(young, 4)]


def test_a_prompt_too_large_in_the_smallest_chunk_is_named() -> None:
    scheduler = make(tokens=100)
    seq = sequence(90)
    scheduler.add(seq)
    for tokens in (90, 45, 22, 16):
        step = scheduler.schedule()
        assert step.prefills == [(seq, tokens)]
        verdict = scheduler.back_off(step)
    assert verdict is seq


def test_names_are_worked_out_only_with_prefix_caching() -> None:
    for caching in (True, False):
        scheduler = Scheduler(BlockPool(10, 4, enable_prefix_caching=caching), 4, 100)
        first, second = sequence(9), sequence(9)
        scheduler.add(first)
        scheduler.advance(scheduler.schedule())
        scheduler.finish(first)
        scheduler.add(second)
        assert scheduler.schedule().prefills == [(second, 1 if caching else 9)]
        assert (second.num_cached_tokens, scheduler.prefix_hits) == ((8, 8) if caching else (0, 0))
        assert scheduler.prefix_queries == 18


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    num_blocks=st.integers(12, 30),
    budget=st.integers(4, 20),
    seed=st.integers(0, 999),
)
def test_any_load_finishes_in_order_within_its_budget(
    prompts: list[int], num_blocks: int, budget: int, seed: int
) -> None:
    """Answers of 12 tokens at most, so one request needs at most 11 of the blocks."""
    chance = random.Random(seed)
    scheduler = Scheduler(BlockPool(num_blocks, 4), 4, budget)
    pending = [sequence(n) for n in prompts]
    alive: list[Sequence] = []
    for _ in range(3000):
        while pending and chance.random() < 0.5:
            alive.append(pending.pop(0))
            scheduler.add(alive[-1])
        step = scheduler.schedule()
        assert len(step.decodes) + sum(n for _, n in step.prefills) <= budget
        assert all(n > 0 for _, n in step.prefills)
        assert len(scheduler.running) <= 4
        owned = [block for seq in scheduler.running for block in seq.block_table]
        assert len(owned) == len(set(owned)), "two requests own one block"
        assert len(owned) + scheduler.pool.num_free == num_blocks
        for seq, length in [*step.prefills, *((s, 1) for s in step.decodes)]:
            assert len(seq.block_table) * 4 >= seq.num_computed_tokens + length
        assert set(step.decodes) >= {s for s in scheduler.running if s.is_decoding}, "a decoding request was left out"
        advance(step)
        for seq in list(alive):
            if seq.num_output_tokens >= 12 or chance.random() < 0.01:
                scheduler.finish(seq)
                alive.remove(seq)
        if not alive and not pending:
            break
    assert not alive, "starved"
    assert not pending
    assert scheduler.pool.num_free == num_blocks
