"""HostSwap: the state machine, the bugs it must catch, and what sharing saves."""

import pytest
from support.host_swap_machine import HostSwapMachine
from support.machines import Bug, catches, keeps_its_invariants
from support.planted_parts import swap_shares_partial_blocks

from kvlab.errors import InvariantViolation, OutOfMemory
from kvlab.memory.block_pool import BlockPool, Handle
from kvlab.memory.block_table import BlockTable
from kvlab.memory.host_swap import HostSwap, HostTable, Transfer

swap_out, swap_in, forget = HostSwap.swap_out, HostSwap.swap_in, HostSwap.forget


def forgets_that_a_device_block_was_freed(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: HostSwap, host_block: int) -> int | None:
        handle = self._on_device.get(host_block)
        return handle.block if handle is not None and self.device.references[handle.block] else None

    patch.setattr(HostSwap, "_alive", buggy)


def takes_a_host_copy_of_another_life(patch: pytest.MonkeyPatch) -> None:
    pair = HostSwap._pair

    def buggy(self: HostSwap, handle: Handle, host_block: int) -> None:
        pair(self, Handle(handle.block, 0), host_block)

    patch.setattr(HostSwap, "_pair", buggy)
    patch.setattr(BlockPool, "handle", lambda self, block: Handle(block, 0))


def remembers_copies_that_were_given_up(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: HostSwap, swapped: HostTable) -> None:
        remembered = dict(self._on_device), dict(self._on_host)
        forget(self, swapped)
        self._on_device, self._on_host = remembered

    patch.setattr(HostSwap, "forget", buggy)


def keeps_counting_slots_it_gave_back(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: HostSwap, swapped: HostTable) -> None:
        filled = self.filled_slots
        forget(self, swapped)
        self.filled_slots = filled

    patch.setattr(HostSwap, "forget", buggy)


def keeps_its_host_blocks(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: HostSwap, swapped: HostTable, table: BlockTable) -> list[Transfer]:
        self.host.touch(swapped.blocks)
        return swap_in(self, swapped, table)

    patch.setattr(HostSwap, "swap_in", buggy)


def forgets_the_references_of_shared_host_copies(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: HostSwap, table: BlockTable) -> tuple[HostTable, list[Transfer]]:
        swapped, transfers = swap_out(self, table)
        for block in set(swapped.blocks) - {each.target for each in transfers}:
            self.host._references[block] -= 1
        return swapped, transfers

    patch.setattr(HostSwap, "swap_out", buggy)


BUGS = [
    swap_shares_partial_blocks,
    forgets_that_a_device_block_was_freed,
    takes_a_host_copy_of_another_life,
    remembers_copies_that_were_given_up,
    keeps_counting_slots_it_gave_back,
    keeps_its_host_blocks,
    forgets_the_references_of_shared_host_copies,
]


def test_tables_come_back_intact_for_ten_thousand_operations() -> None:
    keeps_its_invariants(HostSwapMachine)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_the_machine_catches(bug: Bug) -> None:
    catches(HostSwapMachine, bug)


def two_tables_over_a_prompt_of(tokens: int) -> tuple[BlockTable, BlockTable, HostSwap]:
    pool = BlockPool(8)
    parent = BlockTable(pool, 4)
    parent.append(tokens)
    return parent, parent.fork(), HostSwap(pool, 8, 4)


def test_a_full_block_goes_to_the_host_once_and_a_partial_one_for_each_table() -> None:
    parent, child, swap = two_tables_over_a_prompt_of(10)
    (first, there), (second, again) = swap.swap_out(parent), swap.swap_out(child)
    assert [each.tokens for each in there] == [4, 4, 2]
    assert [each.tokens for each in again] == [2]
    assert first.blocks[:2] == second.blocks[:2]
    assert first.blocks[2] != second.blocks[2]
    assert swap.filled_slots == 12


def test_a_block_that_stayed_on_the_device_is_shared_again_instead_of_copied_back() -> None:
    parent, child, swap = two_tables_over_a_prompt_of(10)
    prompt = parent.blocks[:2]
    swapped, _ = swap.swap_out(parent)
    assert swap.blocks_back(swapped) == 1
    back = swap.swap_in(swapped, parent)
    assert [each.tokens for each in back] == [2]
    assert parent.blocks[:2] == child.blocks[:2] == prompt
    assert parent.blocks[2] != child.blocks[2]


def test_the_second_of_two_swapped_tables_shares_what_the_first_brought_back() -> None:
    parent, child, swap = two_tables_over_a_prompt_of(10)
    (first, _), (second, _) = swap.swap_out(parent), swap.swap_out(child)
    assert swap.device.free_blocks == 8
    assert [each.tokens for each in swap.swap_in(first, parent)] == [4, 4, 2]
    assert swap.blocks_back(second) == 1
    assert [each.tokens for each in swap.swap_in(second, child)] == [2]
    assert parent.blocks[:2] == child.blocks[:2]
    assert (swap.host.free_blocks, swap.filled_slots) == (8, 0)


def test_a_swap_out_without_room_says_how_much_it_needs() -> None:
    pool = BlockPool(8)
    table = BlockTable(pool, 4)
    table.append(10)
    with pytest.raises(OutOfMemory, match="swapping out needs 3 host blocks, 2 of 2 are free"):
        HostSwap(pool, 2, 4).swap_out(table)


def test_a_swap_in_without_room_says_how_much_it_needs() -> None:
    parent, child, swap = two_tables_over_a_prompt_of(10)
    swapped, _ = swap.swap_out(parent)
    child.release()
    swap.device.allocate(6)
    with pytest.raises(OutOfMemory, match="swapping in needs 3 blocks, 2 are free"):
        swap.swap_in(swapped, parent)


def test_audit_sees_copies_that_are_remembered_wrongly() -> None:
    parent, _, swap = two_tables_over_a_prompt_of(10)
    swap.swap_out(parent)
    swap.audit()
    pairs = dict(swap._on_device)
    swap._on_device.popitem()
    with pytest.raises(InvariantViolation, match="disagree about each other"):
        swap.audit()
    swap._on_device = pairs
    swap.host.free([0])
    with pytest.raises(InvariantViolation, match="a freed host block is remembered"):
        swap.audit()
