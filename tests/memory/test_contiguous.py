"""FirstFit and Buddy: the state machines, the bugs they must catch, and the paper's pool."""

from collections.abc import Callable

import pytest
from support.contiguous_machine import BuddyMachine, FirstFitMachine
from support.machines import Bug, catches, keeps_its_invariants

from kvlab.errors import DoubleFree, InvalidInput, InvariantViolation, OutOfMemory
from kvlab.memory.contiguous import Buddy, FirstFit, Hole, Region

MACHINES = {"first-fit": FirstFitMachine, "buddy": BuddyMachine}
allocate, buddy_allocate, buddy_free = FirstFit.allocate, Buddy.allocate, Buddy.free


def first_fit_leaves_holes_apart(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: FirstFit, start: int) -> Region:
        if start not in self._used:
            raise DoubleFree("never")
        region = self._used.pop(start)
        self._add_hole(start, region.size)
        return region

    patch.setattr(FirstFit, "free", buggy)


def first_fit_merges_only_with_the_hole_before(patch: pytest.MonkeyPatch) -> None:
    free = FirstFit.free

    def buggy(self: FirstFit, start: int) -> Region:
        after = None
        if start in self._used:
            after = start + self._used[start].size
        if after not in self._sizes:
            return free(self, start)
        size = self._sizes.pop(after)
        self._starts.remove(after)
        region = free(self, start)
        self._add_hole(after, size)
        return region

    patch.setattr(FirstFit, "free", buggy)


def first_fit_takes_the_smallest_hole(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: FirstFit, slots: int) -> Region:
        self._starts.sort(key=lambda start: (self._sizes[start] < slots, self._sizes[start]))
        try:
            return allocate(self, slots)
        finally:
            self._starts.sort()

    patch.setattr(FirstFit, "allocate", buggy)


def first_fit_hole_begins_a_slot_early(patch: pytest.MonkeyPatch) -> None:
    add = FirstFit._add_hole

    def buggy(self: FirstFit, start: int, size: int) -> None:
        add(self, max(0, start - 1), size + (start > 0))

    patch.setattr(FirstFit, "_add_hole", buggy)


def first_fit_accepts_a_double_free(patch: pytest.MonkeyPatch) -> None:
    free = FirstFit.free
    patch.setattr(
        FirstFit, "free", lambda self, start: free(self, start) if start in self._used else Region(start, 0, 0)
    )


def buddy_does_not_merge(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: Buddy, start: int) -> Region:
        if start not in self._used:
            raise DoubleFree("never")
        region = self._used.pop(start)
        self._add(start, region.size.bit_length() - 1)
        return region

    patch.setattr(Buddy, "free", buggy)


def buddy_merges_once(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: Buddy, start: int) -> Region:
        tops = self._tops
        order = self._used[start].size.bit_length() - 1 if start in self._used else 0
        self._tops = [(base, min(top, order + 1)) for base, top in tops]
        try:
            return buddy_free(self, start)
        finally:
            self._tops = tops

    patch.setattr(Buddy, "free", buggy)


def buddy_merges_neighbours_that_are_no_buddies(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: Buddy, start: int) -> Region:
        region = buddy_free(self, start)
        for first, order in sorted(self._order.items()):
            second = first + (1 << order)
            if self._order.get(first) == self._order.get(second) == order and order + 1 < len(self._free):
                for each in (first, second):
                    self._free[order].remove(each)
                    del self._order[each]
                self._add(first, order + 1)
        return region

    patch.setattr(Buddy, "free", buggy)


def buddy_does_not_round(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: Buddy, slots: int) -> Region:
        return buddy_allocate(self, slots)._replace(size=slots)

    patch.setattr(Buddy, "allocate", buggy)


def buddy_keeps_the_high_half(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: Buddy, slots: int) -> Region:
        region = buddy_allocate(self, slots)
        high = region.start + region.size
        order = region.size.bit_length() - 1
        if self._order.get(high) == order:
            self._free[order].remove(high)
            del self._order[high], self._used[region.start]
            self._add(region.start, order)
            self._used[high] = region = region._replace(start=high)
        return region

    patch.setattr(Buddy, "allocate", buggy)


def buddy_takes_the_largest_block(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: Buddy, slots: int) -> Region:
        kept = self._free
        largest = max((order for order, starts in enumerate(kept) if starts), default=0)
        if 0 < slots <= 1 << largest:
            order = (slots - 1).bit_length()
            start = kept[largest].pop(0)
            del self._order[start]
            for half in reversed(range(order, largest)):
                self._add(start + (1 << half), half)
            self._used[start] = Region(start, 1 << order, slots)
            return self._used[start]
        return buddy_allocate(self, slots)

    patch.setattr(Buddy, "allocate", buggy)


BUGS = [
    (FirstFitMachine, first_fit_leaves_holes_apart),
    (FirstFitMachine, first_fit_merges_only_with_the_hole_before),
    (FirstFitMachine, first_fit_takes_the_smallest_hole),
    (FirstFitMachine, first_fit_hole_begins_a_slot_early),
    (FirstFitMachine, first_fit_accepts_a_double_free),
    (BuddyMachine, buddy_does_not_merge),
    (BuddyMachine, buddy_merges_once),
    (BuddyMachine, buddy_merges_neighbours_that_are_no_buddies),
    (BuddyMachine, buddy_does_not_round),
    (BuddyMachine, buddy_keeps_the_high_half),
    (BuddyMachine, buddy_takes_the_largest_block),
]


@pytest.mark.parametrize("name", MACHINES)
def test_regions_agree_with_an_array_of_slots_for_ten_thousand_operations(name: str) -> None:
    keeps_its_invariants(MACHINES[name])


@pytest.mark.parametrize(("machine", "bug"), BUGS, ids=[bug.__name__ for _, bug in BUGS])
def test_the_machine_catches(machine: type[FirstFitMachine | BuddyMachine], bug: Bug) -> None:
    catches(machine, bug)


def test_the_papers_pool_begins_as_one_block_a_binary_digit() -> None:
    sizes = [8192, 4096, 2048, 1024, 256, 64, 32, 16]
    buddy = Buddy(15_728)
    assert [hole.size for hole in buddy.holes()] == sizes
    assert [hole.start for hole in buddy.holes()] == [sum(sizes[:i]) for i in range(8)]
    assert buddy.largest_region() == 8192


def test_seven_reservations_of_the_longest_sequence_fit_into_the_papers_pool() -> None:
    buddy = Buddy(15_728)
    for _ in range(7):
        buddy.allocate(2048)
    with pytest.raises(
        OutOfMemory, match="needs 2048 contiguous slots; 1392 are free in 5 holes, the largest has 1024"
    ):
        buddy.allocate(2048)


@pytest.mark.parametrize("allocator", [FirstFit, Buddy])
@pytest.mark.parametrize("slots", [0, -4, 2.0, True])
def test_sizes_that_are_no_positive_integers_are_refused(allocator: type[FirstFit | Buddy], slots: object) -> None:
    with pytest.raises(InvalidInput):
        allocator(slots)
    memory = allocator(8)
    with pytest.raises(InvalidInput):
        memory.allocate(slots)
    assert memory.holes() == [Hole(0, 8)]


@pytest.mark.parametrize("allocator", [FirstFit, Buddy])
@pytest.mark.parametrize("slots", [0, -4])
def test_asking_whether_nothing_fits_agrees_with_allocating_nothing(
    allocator: type[FirstFit | Buddy], slots: int
) -> None:
    assert not allocator(8).can_allocate(slots)


def slots_lost(memory: FirstFit | Buddy) -> None:
    memory._used.clear()


def slots_owned_twice(memory: FirstFit | Buddy) -> None:
    memory._used[4] = Region(4, 8, 8)


def beyond_the_end(memory: FirstFit | Buddy) -> None:
    memory.slots += 1


@pytest.mark.parametrize("breakage", [slots_lost, slots_owned_twice, beyond_the_end])
@pytest.mark.parametrize("allocator", [FirstFit, Buddy])
def test_audit_sees_that_regions_and_holes_do_not_tile_the_memory(
    allocator: type[FirstFit | Buddy], breakage: Callable[[FirstFit | Buddy], None]
) -> None:
    memory = allocator(16)
    memory.allocate(8)
    memory.audit()
    breakage(memory)
    with pytest.raises(InvariantViolation, match=r"lost or have two owners|cover"):
        memory.audit()


def test_audit_sees_holes_that_should_be_one() -> None:
    memory = FirstFit(16)
    memory._starts, memory._sizes = [0, 6], {0: 6, 6: 10}
    with pytest.raises(InvariantViolation, match="two holes touch"):
        memory.audit()


def test_audit_sees_buddies_apart_lists_that_disagree_wrong_sizes_and_blocks_out_of_line() -> None:
    apart, listed, sized, askew = (Buddy(16) for _ in range(4))
    apart._free, apart._order = [[], [], [], [0, 8], []], {0: 3, 8: 3}
    listed._free[4].clear()
    sized.allocate(8)
    sized._used[0] = Region(0, 8, 3)
    askew._free, askew._order = [[], [0, 6, 14], [2, 10], [], []], {0: 1, 2: 2, 6: 1, 10: 2, 14: 1}
    askew._used = {8: Region(8, 2, 2)}
    for memory, message in (
        (apart, "free buddies at 0, 8 not merged"),
        (listed, "lost or have two owners|disagree|cover"),
        (sized, "the region at 0 has a wrong size"),
        (askew, "at 2 is not aligned"),
    ):
        with pytest.raises(InvariantViolation, match=message):
            memory.audit()


def test_a_full_memory_says_that_nothing_is_free() -> None:
    memory = FirstFit(8)
    memory.allocate(8)
    with pytest.raises(OutOfMemory, match="needs 1 contiguous slots; 0 are free in 0 holes, the largest has 0"):
        memory.allocate(1)
