"""BlockTable: the state machine, the bugs it must catch, and the paper's small cases."""

import sys
from collections.abc import Callable, Sequence

import pytest
from support.block_table_machine import BlockTableMachine
from support.machines import Bug, catches, keeps_its_invariants
from support.planted_parts import fork_forgets_the_references

from kvlab.errors import InvalidInput, InvariantViolation, OutOfMemory, StaleHandle
from kvlab.memory.block_pool import BlockPool
from kvlab.memory.block_table import BlockCopy, BlockTable

append, fork, truncate = BlockTable.append, BlockTable.fork, BlockTable.truncate


def copy_on_write_keeps_its_reference(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: BlockTable, count: int = 1) -> BlockCopy | None:
        copied = append(self, count)
        if copied is not None:
            self.pool.touch([copied.source])
        return copied

    patch.setattr(BlockTable, "append", buggy)


def copies_for_the_last_holder_too(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: BlockTable, count: int = 1) -> BlockCopy | None:
        last = self.blocks[-1] if self.tokens % self.block_size and count > 0 else None
        if last is None or self.pool.references[last] > 1 or not self.pool.free_blocks:
            return append(self, count)
        self.pool.touch([last])
        copied = append(self, count)
        self.pool.free([last])
        return copied

    patch.setattr(BlockTable, "append", buggy)


def writes_in_place_into_a_shared_block(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: BlockTable, count: int = 1) -> BlockCopy | None:
        if not self.tokens % self.block_size:
            return append(self, count)
        last = self.blocks[-1]
        references, self.pool._references[last] = self.pool._references[last], 1
        try:
            return append(self, count)
        finally:
            self.pool._references[last] = references

    patch.setattr(BlockTable, "append", buggy)


def takes_the_copy_and_then_refuses(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: BlockTable, count: int = 1) -> BlockCopy | None:
        if count > 0 and self.blocks_needed(count) > self.pool.free_blocks > 0:
            self.blocks_needed(1)
            self.pool.allocate()
        return append(self, count)

    patch.setattr(BlockTable, "append", buggy)


def copies_a_whole_block_of_tokens(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: BlockTable, count: int = 1) -> BlockCopy | None:
        copied = append(self, count)
        return None if copied is None else copied._replace(tokens=copied.tokens - 1)

    patch.setattr(BlockTable, "append", buggy)


def fork_shares_the_list_itself(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: BlockTable) -> BlockTable:
        child = fork(self)
        child.blocks = self.blocks
        return child

    patch.setattr(BlockTable, "fork", buggy)


def truncate_leaves_a_block(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: BlockTable, tokens: int) -> Sequence[int]:
        if not 0 <= tokens <= self.tokens:
            return truncate(self, tokens)
        freed = truncate(self, min(self.tokens, tokens + self.block_size))
        self.tokens = tokens
        return freed

    patch.setattr(BlockTable, "truncate", buggy)


def truncate_forgets_to_free(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: BlockTable, tokens: int) -> Sequence[int]:
        dropped = self.blocks[-(-tokens // self.block_size) :]
        if 0 <= tokens <= self.tokens:
            self.pool.touch(dropped)
        return truncate(self, tokens)

    patch.setattr(BlockTable, "truncate", buggy)


BUGS = [
    copy_on_write_keeps_its_reference,
    copies_for_the_last_holder_too,
    writes_in_place_into_a_shared_block,
    takes_the_copy_and_then_refuses,
    copies_a_whole_block_of_tokens,
    fork_forgets_the_references,
    fork_shares_the_list_itself,
    truncate_leaves_a_block,
    truncate_forgets_to_free,
]


def table_of(tokens: int, *, blocks: int = 8, block_size: int = 4) -> BlockTable:
    table = BlockTable(BlockPool(blocks), block_size)
    table.append(tokens)
    return table


def test_tables_read_back_what_was_written_for_ten_thousand_operations() -> None:
    keeps_its_invariants(BlockTableMachine)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_the_machine_catches(bug: Bug) -> None:
    catches(BlockTableMachine, bug)


def test_n_samples_of_a_partial_block_make_n_minus_1_copies_and_the_last_writes_in_place() -> None:
    parent = table_of(6)
    samples = [parent, *(parent.fork() for _ in range(3))]
    copies = [sample.append() for sample in samples]
    assert [copied is not None for copied in copies] == [True, True, True, False]
    assert {copied.source for copied in copies if copied} == {parent.pool.blocks - 7} == {1}
    assert len({sample.blocks[1] for sample in samples}) == 4
    assert {sample.blocks[0] for sample in samples} == {0}


def test_a_fork_at_a_full_block_copies_nothing() -> None:
    parent = table_of(8)
    child = parent.fork()
    assert parent.append() is None
    assert child.append() is None


def test_a_copy_that_does_not_fit_is_refused_although_the_new_token_itself_needs_no_block() -> None:
    parent = table_of(6, blocks=2)
    child = parent.fork()
    with pytest.raises(OutOfMemory, match="one to copy shared block 1"):
        child.append()
    assert (child.tokens, child.blocks, list(parent.pool.references)) == (6, [0, 1], [2, 2])


def test_a_table_whose_blocks_were_freed_is_refused_even_where_the_next_token_starts_a_block() -> None:
    for tokens in (6, 8):
        table = table_of(tokens)
        table.pool.free(table.blocks)
        with pytest.raises(StaleHandle, match="stale"):
            table.append()
        assert table.pool.free_blocks == 8


def test_a_table_can_be_truncated_inside_a_shared_block_and_then_copies_before_it_writes() -> None:
    parent = table_of(8)
    child = parent.fork()
    assert list(child.truncate(5)) == []
    assert child.append() == BlockCopy(entry=1, source=1, target=2, tokens=1)


@pytest.mark.parametrize("position", [-1, 6, 100])
def test_a_slot_outside_the_table_is_refused(position: int) -> None:
    with pytest.raises(InvalidInput, match="tokens 0 to 5"):
        table_of(6).slot(position)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 9)])
def test_slots_outside_the_blocks_are_refused(start: int, stop: int) -> None:
    with pytest.raises(InvalidInput, match="reaches to 8"):
        table_of(6).slots(start, stop)


def test_blocks_are_replaced_only_in_an_empty_table_and_only_by_as_many_as_the_tokens_need() -> None:
    table = table_of(6)
    with pytest.raises(InvalidInput):
        table.replace([5], 4)
    for blocks, tokens in (([5], 5), ([5, 6], 4)):
        with pytest.raises(InvalidInput):
            BlockTable(table.pool, 4).replace(blocks, tokens)


def test_audit_names_what_is_broken() -> None:
    table = table_of(6)
    table.pool.free([1])
    with pytest.raises(InvariantViolation, match="block 1, which is free"):
        table.audit()
    table.pool.allocate(7)
    with pytest.raises(InvariantViolation, match="earlier life of block 1"):
        table.audit()


def test_a_fork_of_a_hundred_thousand_tokens_needs_no_deep_stack() -> None:
    table = table_of(100_000, blocks=6_300, block_size=16)
    deep, limit = table, sys.getrecursionlimit()
    sys.setrecursionlimit(120)
    try:
        for _ in range(200):
            deep = deep.fork()
    finally:
        sys.setrecursionlimit(limit)
    assert deep.blocks == table.blocks
    assert set(table.pool.references) == {201, 0}


def test_a_copy_that_exactly_fits_is_made() -> None:
    parent = table_of(6, blocks=3)
    child = parent.fork()
    assert child.append(2) == BlockCopy(entry=1, source=1, target=2, tokens=2)
    assert parent.pool.free_blocks == 0


def test_a_table_is_stale_where_its_blocks_have_another_life() -> None:
    table = table_of(10)
    table.pool.free(table.blocks[2:])
    table.pool.allocate(6)
    assert table.slots(0, 8).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert table.slot(7) == 7
    for use in (
        lambda: table.slot(8),
        lambda: table.slots(7, 9),
        lambda: table.slots(9, 10),
        table.fork,
        table.append,
        table.release,
        lambda: table.truncate(8),
    ):
        with pytest.raises(StaleHandle, match="stale"):
            use()
    assert (table.tokens, table.blocks, table.pool.free_blocks) == (10, [0, 1, 2], 0)
    assert list(table.truncate(9)) == []


def too_few_blocks(table: BlockTable) -> None:
    table.tokens += 4


def the_same_block_twice(table: BlockTable) -> None:
    table.blocks[1], table._generations[1] = table.blocks[0], table._generations[0]


def a_generation_short(table: BlockTable) -> None:
    table._generations.pop()


@pytest.mark.parametrize(
    ("breakage", "message"),
    [
        (too_few_blocks, "more or fewer blocks than its tokens need"),
        (the_same_block_twice, "a table names a block twice"),
        (a_generation_short, "a table lost a generation"),
    ],
)
def test_audit_sees(breakage: Callable[[BlockTable], None], message: str) -> None:
    table = table_of(6)
    table.audit()
    breakage(table)
    with pytest.raises(InvariantViolation, match=message):
        table.audit()
