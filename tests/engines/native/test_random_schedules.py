"""300 random schedules, and the proof that they would notice: bugs planted one at a time are all found."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.engines.native.random_schedules import EngineUnderLoad, make_menu
from tests.engines.native.reference import Reference
from visavis.engine import block_hash, encoder
from visavis.engine.block_pool import BlockPool
from visavis.engine.encoder_cache import EncoderCache
from visavis.engine.scheduler import Scheduler
from visavis.engine.sequence import SequenceStatus

pytestmark = pytest.mark.engines

EXAMPLES = int(os.environ.get("VISAVIS_SCHEDULES", "300"))
SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=12,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes; a schedule is printed as it was
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.fixture(scope="module", autouse=True)
def models(reference: Callable[..., Reference]) -> Iterator[None]:
    for kind, family in (("text", "qwen3"), ("vision", "qwen3_vl")):
        ref = reference(family, seed=3, layers=2)
        EngineUnderLoad.models[kind] = (ref, make_menu(ref))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="native: memory ran out")
        yield


def test_no_schedule_changes_an_answer_or_loses_a_block(count: Callable[..., None]) -> None:
    EngineUnderLoad.seen.clear()
    run_state_machine_as_test(EngineUnderLoad, settings=SETTINGS)
    seen = EngineUnderLoad.seen
    count(", ".join(f"{name} {number}" for name, number in seen.items()))
    assert seen["examples"] >= EXAMPLES
    for name in ("aborted", "preemptions", "out_of_memory", "prefix_hits", "prefix_evictions", "encoder_hits"):
        assert seen[name] > EXAMPLES // 30, f"the schedules hardly ever met: {name}"


# ---- planted bugs ----------------------------------------------------------------------------------------------------


def a_shared_block_is_not_counted(patch: Any) -> None:
    def share(self: Any, block_table: list[int], found: list[int]) -> None:
        for block in found:
            if self._users[block] == 0:
                del self._idle[block]
                self._users[block] += 1  # only the first time
        block_table += found

    patch.setattr(BlockPool, "share", share)


def blocks_leak_when_a_request_ends(patch: Any) -> None:
    release = BlockPool.release

    def leaky(self: Any, block_table: list[int], *, forget: bool = False) -> None:
        if len(block_table) > 6:
            block_table.pop()
        release(self, block_table, forget=forget)

    patch.setattr(BlockPool, "release", leaky)


def an_evicted_block_keeps_its_name(patch: Any) -> None:
    def take(self: Any) -> int:
        if self._blank:
            block = self._blank.pop()
        else:
            block, _ = self._idle.popitem(last=False)
            self._name_of.pop(block)
            self.num_evictions += 1
        self._users[block] = 1
        return int(block)

    patch.setattr(BlockPool, "_take", take)


def names_leave_images_out(patch: Any) -> None:
    rows = block_hash._rows

    def ids_alone(*args: Any) -> Any:
        made = rows(*args)
        made[:, -3:] = 0 if made.shape[1] > 2 else made[:, -3:]
        return made

    patch.setattr(block_hash, "_rows", ids_alone)


def names_leave_the_beginning_out(patch: Any) -> None:
    def extend(self: Any, seq: Any, num_tokens: int) -> None:
        size = self.block_size
        for i in range(len(seq.block_hashes), num_tokens // size):
            seq.block_hashes.append(str(seq.token_ids[i * size : (i + 1) * size]).encode())

    patch.setattr(block_hash.BlockHasher, "extend", extend)


def a_block_is_named_before_it_is_full(patch: Any) -> None:
    computed = Scheduler._computed

    def too_early(self: Any, seq: Any, length: int) -> None:
        computed(self, seq, length)
        if self._hasher is not None and len(seq.block_hashes) > seq.num_computed_tokens // self.pool.block_size:
            index = seq.num_computed_tokens // self.pool.block_size
            self.pool.name(seq.block_table[index], seq.block_hashes[index])

    patch.setattr(Scheduler, "_computed", too_early)


def the_last_token_is_taken_from_the_cache(patch: Any) -> None:
    def all_blocks(self: Any, seq: Any) -> list[int]:
        if self._hasher is None:
            return []
        found: list[int] = self.pool.find(seq.block_hashes[: seq.num_tokens // self.pool.block_size])
        return found

    patch.setattr(Scheduler, "_cached_blocks", all_blocks)


def a_preempted_request_thinks_it_is_computed(patch: Any) -> None:
    admit = Scheduler._admit

    def careless(self: Any, seq: Any) -> bool:
        again, before = seq.num_output_tokens > 0, len(seq.token_ids) - 1
        done = admit(self, seq)
        if done and again:
            seq.num_computed_tokens = before
        return done

    patch.setattr(Scheduler, "_admit", careless)


def a_step_without_memory_counts_as_done(patch: Any) -> None:
    back_off = Scheduler.back_off

    def advance_all_the_same(self: Any, step: Any) -> Any:
        verdict = back_off(self, step)
        for seq, length in step.prefills:
            if seq.status is SequenceStatus.RUNNING:
                seq.num_computed_tokens += min(length, seq.num_uncomputed_tokens - 1)
        return verdict

    patch.setattr(Scheduler, "back_off", advance_all_the_same)


def images_of_one_size_share_an_output(patch: Any) -> None:
    patch.setattr(encoder, "media_key", lambda item, rule: f"{item.grid}".encode())


def an_output_is_never_let_go(patch: Any) -> None:
    patch.setattr(EncoderCache, "release", lambda self, key: None)


PLANTED = [
    a_shared_block_is_not_counted,
    blocks_leak_when_a_request_ends,
    an_evicted_block_keeps_its_name,
    names_leave_images_out,
    names_leave_the_beginning_out,
    a_block_is_named_before_it_is_full,
    the_last_token_is_taken_from_the_cache,
    a_preempted_request_thinks_it_is_computed,
    a_step_without_memory_counts_as_done,
    images_of_one_size_share_an_output,
    an_output_is_never_let_go,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    once = settings(SETTINGS, phases=[Phase.generate], database=None, derandomize=True)
    found = False
    try:
        run_state_machine_as_test(EngineUnderLoad, settings=once)
    except Exception:  # a wrong token, a lost block, or the engine's own complaint
        found = True
    assert found, f"{EXAMPLES} schedules did not notice that {plant.__name__.replace('_', ' ')}"
