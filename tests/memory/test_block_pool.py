"""BlockPool: the state machine, the bugs it must catch, bad input, and what a large pool costs."""

import tracemalloc
from collections.abc import Callable, Sequence

import pytest
from support.block_pool_machine import BlockPoolMachine
from support.machines import Bug, catches, keeps_its_invariants

from kvlab.errors import DoubleFree, InvalidInput, InvariantViolation, OutOfMemory, StaleHandle
from kvlab.memory.block_pool import BlockPool, Handle

allocate, free, touch = BlockPool.allocate, BlockPool.free, BlockPool.touch


def no_new_generation(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: BlockPool, blocks: Sequence[int]) -> Sequence[int]:
        freed = free(self, blocks)
        for block in freed:
            self._generations[block] -= 1
        return freed

    patch.setattr(BlockPool, "free", buggy)


def frees_a_shared_block(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: BlockPool, blocks: Sequence[int]) -> Sequence[int]:
        for block in blocks:
            if 0 <= block < self.blocks and self._references[block] > 1:
                self._references[block] = 1
        return free(self, blocks)

    patch.setattr(BlockPool, "free", buggy)


def frees_a_repeated_block_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockPool, "_merged", lambda self, blocks: (list(blocks), self._counts(blocks)))


def hands_out_the_oldest_block(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: BlockPool, count: int = 1) -> list[int]:
        self._free.reverse()
        try:
            return allocate(self, count)
        finally:
            self._free.reverse()

    patch.setattr(BlockPool, "allocate", buggy)


def touches_only_the_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockPool, "touch", lambda self, blocks: touch(self, blocks[:1]))


def takes_what_there_is_and_then_refuses(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: BlockPool, count: int = 1) -> list[int]:
        if count > self.free_blocks > 0:
            allocate(self, self.free_blocks)
        return allocate(self, count)

    patch.setattr(BlockPool, "allocate", buggy)


def resolves_a_block_of_a_later_life(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: BlockPool, handle: Handle) -> int:
        if not self._references[handle.block]:
            raise StaleHandle("free")
        return handle.block

    patch.setattr(BlockPool, "resolve", buggy)


BUGS = [
    no_new_generation,
    frees_a_shared_block,
    frees_a_repeated_block_twice,
    hands_out_the_oldest_block,
    touches_only_the_first,
    takes_what_there_is_and_then_refuses,
    resolves_a_block_of_a_later_life,
]


def test_the_pool_agrees_with_plain_lists_for_ten_thousand_operations() -> None:
    keeps_its_invariants(BlockPoolMachine)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_the_machine_catches(bug: Bug) -> None:
    catches(BlockPoolMachine, bug)


@pytest.mark.parametrize("blocks", [0, -1, 1.5, True, "8", None])
def test_a_pool_of_a_bad_size_is_refused(blocks: object) -> None:
    with pytest.raises(InvalidInput, match="blocks must be an integer of at least 1"):
        BlockPool(blocks)


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 2, 2], [1, 2, 3, 4], []])
def test_an_order_that_is_no_permutation_is_refused(order: list[int]) -> None:
    with pytest.raises(InvalidInput, match="each of the blocks 0 to 3 once"):
        BlockPool(4, order=order)


def test_a_lowest_id_pool_takes_no_order_and_an_unknown_reuse_is_refused() -> None:
    with pytest.raises(InvalidInput, match="own order"):
        BlockPool(2, reuse="lowest-id", order=[1, 0])
    with pytest.raises(InvalidInput, match="'last-freed' or 'lowest-id'"):
        BlockPool(2, reuse="oldest")


@pytest.mark.parametrize("handle", [Handle(9, 0), Handle(-1, 0)])
def test_a_handle_of_another_pool_is_refused(handle: Handle) -> None:
    pool = BlockPool(4)
    pool.allocate(4)
    with pytest.raises((StaleHandle, InvalidInput)):
        pool.resolve(handle)


def test_a_handle_dies_with_its_block_even_if_the_same_block_comes_back() -> None:
    pool = BlockPool(1)
    handle = pool.handle(*pool.allocate())
    pool.free([0])
    pool.allocate()
    with pytest.raises(StaleHandle, match="generation 0 then, 1 now"):
        pool.resolve(handle)


def test_the_last_reference_returned_decides_when_a_repeated_block_is_freed() -> None:
    pool = BlockPool(2)
    pool.allocate(2)
    pool.touch([0])
    assert list(pool.free([0, 1, 0])) == [1, 0]
    assert pool.next_free() == [0, 1]


def test_the_same_block_twice_in_one_free_call_is_refused_when_it_has_one_reference() -> None:
    """vllm #42571: it entered the free list twice, and two requests later shared it."""
    pool = BlockPool(4)
    pool.allocate(4)
    with pytest.raises(DoubleFree, match="block 2 has 1 references"):
        pool.free([1, 2, 2])
    assert pool.free_blocks == 0
    pool.free([2])
    assert pool.allocate() == [2]
    with pytest.raises(OutOfMemory):
        pool.allocate()


@pytest.mark.parametrize("reuse", ["last-freed", "lowest-id"])
def test_a_pool_of_a_million_blocks_costs_at_most_64_megabytes(reuse: str) -> None:
    tracemalloc.start()
    try:
        pool = BlockPool(1_000_000, reuse=reuse)
        pool.allocate(1_000)
        assert tracemalloc.get_traced_memory()[1] <= 64_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("reuse", ["last-freed", "lowest-id"])
def test_no_operation_allocates_memory_that_grows_with_the_pool(reuse: str) -> None:
    tracemalloc.start()
    try:
        pool = BlockPool(1_000_000, reuse=reuse)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(50):
            blocks = pool.allocate(20)
            pool.touch(blocks)
            pool.resolve(pool.handle(blocks[0]))
            pool.free([*blocks, *blocks])
        # A copy of the free list or of the references takes 4 or 8 million bytes.
        assert tracemalloc.get_traced_memory()[1] - before <= 1_000_000
    finally:
        tracemalloc.stop()


def on_the_free_list_twice(pool: BlockPool) -> None:
    pool._free.append(pool._free[0])


def outside_the_pool(pool: BlockPool) -> None:
    pool._free[-1] = pool.blocks


def free_and_referenced(pool: BlockPool) -> None:
    pool._references[pool._free[0]] = 1


def below_zero(pool: BlockPool) -> None:
    pool._references[0] = -1


def lost(pool: BlockPool) -> None:
    pool._references[0] = 0


def unordered(pool: BlockPool) -> None:
    pool._free.reverse()


@pytest.mark.parametrize(
    ("breakage", "message"),
    [
        (on_the_free_list_twice, "on the free list twice"),
        (outside_the_pool, "outside the pool"),
        (free_and_referenced, "a free block has references"),
        (below_zero, "negative references"),
        (lost, "1 held [+] 6 free blocks are not 8"),
        (unordered, "not a heap"),
    ],
)
def test_audit_names(breakage: Callable[[BlockPool], None], message: str) -> None:
    pool = BlockPool(8, reuse="lowest-id")
    pool.allocate(2)
    pool.audit()
    breakage(pool)
    with pytest.raises(InvariantViolation, match=message):
        pool.audit()
