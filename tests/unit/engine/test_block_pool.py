"""Blocks: shared by counting, found by name, evicted longest unused first, never lost."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from visavis.engine.block_pool import BlockPool


def named(pool: BlockPool, names: str) -> list[int]:
    """A table of full blocks, one per letter."""
    table: list[int] = []
    assert pool.grow(table, len(names) * pool.block_size)
    for block, name in zip(table, names, strict=True):
        pool.name(block, name.encode())
    return table


def find(pool: BlockPool, names: str) -> list[int]:
    return pool.find([name.encode() for name in names])


def test_what_was_given_back_is_found_again_up_to_the_first_unknown_name() -> None:
    pool = BlockPool(6, 4)
    table = named(pool, "abc")
    blocks = list(table)
    pool.release(table)
    assert pool.num_free == 6
    assert find(pool, "abc") == blocks
    assert find(pool, "abx") == blocks[:2]
    assert find(pool, "xbc") == []


def test_a_shared_block_is_free_only_after_its_last_user() -> None:
    pool = BlockPool(3, 4)
    first = named(pool, "ab")
    second: list[int] = []
    pool.share(second, find(pool, "ab"))
    assert second == first
    assert pool.num_free == 1
    pool.release(first)
    assert pool.num_free == 1
    assert not pool.grow(first, 8)  # two blocks: they are still read
    pool.release(second)
    assert pool.num_free == 3


def test_blank_blocks_go_first_then_the_longest_unused_and_of_one_prompt_the_end_before_the_beginning() -> None:
    pool = BlockPool(5, 4)
    old, young = named(pool, "ab"), named(pool, "cd")
    pool.release(old)
    pool.release(young)
    taken: list[int] = []
    pool.grow(taken, 4)  # the one blank block
    assert (pool.num_evictions, pool.num_cached) == (0, 4)
    pool.grow(taken, 8)
    assert (len(find(pool, "ab")), len(find(pool, "cd"))) == (1, 2)
    pool.grow(taken, 12)
    assert (len(find(pool, "ab")), len(find(pool, "cd"))) == (0, 2)
    assert pool.num_evictions == 2


def test_use_makes_a_block_young_again() -> None:
    pool = BlockPool(4, 4)
    for names in ("ab", "cd"):
        pool.release(named(pool, names))
    table: list[int] = []
    pool.share(table, find(pool, "ab"))
    pool.release(table)
    assert pool.grow(table, 8)
    assert (len(find(pool, "ab")), len(find(pool, "cd"))) == (2, 0)


def test_what_is_free_after_sharing_counts_idle_blocks_once() -> None:
    """Of 4 blocks 2 are idle: a request of 3 blocks that finds both leaves 1, one that finds none too."""
    pool = BlockPool(4, 4)
    pool.release(named(pool, "ab"))
    assert pool.num_free_after(find(pool, "ab"), 12) == 1
    assert pool.num_free_after([], 12) == 1
    held: list[int] = []
    pool.share(held, find(pool, "ab"))
    assert pool.num_free_after(find(pool, "ab"), 12) == 1  # both are in use already: only the third is taken
    assert pool.num_free_after([], 12) == -1


def test_a_second_block_of_equal_content_is_blank_once_it_is_given_back() -> None:
    pool = BlockPool(4, 4)
    first, twin = named(pool, "a"), named(pool, "a")
    assert find(pool, "a") == first
    pool.release(twin)
    pool.release(first)
    assert pool.num_cached == 1
    table: list[int] = []
    pool.grow(table, 12)
    assert pool.num_evictions == 0


def test_content_not_to_be_trusted_is_forgotten() -> None:
    pool = BlockPool(4, 4)
    pool.release(named(pool, "ab"), forget=True)
    assert find(pool, "ab") == []
    assert (pool.num_free, pool.num_cached) == (4, 0)


def test_blocks_come_ascending_so_that_a_lone_table_is_one_run() -> None:
    pool = BlockPool(6, 4)
    pool.release(named(pool, "abcdef"))  # evicted from the end on
    table: list[int] = []
    pool.grow(table, 24)
    assert table == [0, 1, 2, 3, 4, 5]


class PoolAgainstModel(RuleBasedStateMachine):
    """Any order of calls, against plain bookkeeping: `held` has the tables, `content` what each block holds."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(7, 2)
        self.held: list[list[int]] = []
        self.content: dict[int, bytes] = {}
        self.next_name = 0

    @rule(blocks=st.integers(0, 4), hit=st.integers(0, 3))
    def begin(self, blocks: int, hit: int) -> None:
        """A request whose first `hit` names are ones given before."""
        known = list(self.content.values())[:hit]
        found = self.pool.find(known)
        for block, name in zip(found, known, strict=False):
            assert self.content[block] == name, "a block is found that holds something else"
        table: list[int] = []
        tokens = 2 * (len(found) + blocks)
        fits = self.pool.num_free_after(found, tokens) >= 0
        if fits:
            self.pool.share(table, found)
        before = set().union(*self.held)
        if fits:
            assert self.pool.grow(table, tokens)
            new = table[len(found) :]
            assert not before & set(new), "a block in use was given away"
            for block in new:
                self.content.pop(block, None)
            self.held.append(table)

    @precondition(lambda self: any(self.held))
    @rule(which=st.integers(0, 20), fresh=st.booleans())
    def fill(self, which: int, fresh: bool) -> None:
        table = [t for t in self.held if t]
        block = table[which % len(table)][-1]
        if block in self.content:
            return
        self.next_name += fresh
        name = str(self.next_name).encode()
        self.pool.name(block, name)
        if name not in self.content.values():
            self.content[block] = name

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 20), forget=st.booleans())
    def end(self, which: int, forget: bool) -> None:
        table = self.held.pop(which % len(self.held))
        if forget:
            for block in table:
                self.content.pop(block, None)
        self.pool.release(table, forget=forget)
        assert table == []

    @invariant()
    def every_block_is_used_or_free(self) -> None:
        used = set().union(*self.held)
        assert len(used) + self.pool.num_free == self.pool.num_blocks


PoolAgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_any_order_of_calls = PoolAgainstModel.TestCase
