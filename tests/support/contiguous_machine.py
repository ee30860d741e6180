"""FirstFit and Buddy against an array of slots."""

from itertools import groupby

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kvlab.errors import DoubleFree, InvalidInput, OutOfMemory
from kvlab.memory.contiguous import Buddy, FirstFit, Hole, RegionAllocator
from support.machines import Counted


def runs_of_free(owners: list[int | None]) -> list[Hole]:
    """Maximal runs of slots without an owner."""
    holes, start = [], 0
    for owner, run in groupby(owners):
        size = len(list(run))
        if owner is None:
            holes.append(Hole(start, size))
        start += size
    return holes


def free_buddies(owners: list[int | None]) -> list[Hole]:
    """The largest free blocks of the buddy system: split a block only while part of it is owned."""
    found: list[Hole] = []

    def split(start: int, size: int) -> None:
        part = owners[start : start + size]
        if all(owner is None for owner in part):
            found.append(Hole(start, size))
        elif any(owner is None for owner in part) and size > 1:
            split(start, size // 2)
            split(start + size // 2, size // 2)

    start = 0
    for digit in reversed(range(len(owners).bit_length())):
        if len(owners) >> digit & 1:
            split(start, 1 << digit)
            start += 1 << digit
    return found


class RegionMachine(Counted):
    """The model: who owns each slot."""

    def make(self, slots: int) -> RegionAllocator:
        raise NotImplementedError

    def taken(self, slots: int) -> int:
        raise NotImplementedError

    def best(self, slots: int) -> Hole | None:
        raise NotImplementedError

    def expected_holes(self) -> list[Hole]:
        raise NotImplementedError

    @initialize(slots=st.integers(1, 70))
    def fresh(self, slots: int) -> None:
        self.regions = self.make(slots)
        self.owners: list[int | None] = [None] * slots
        self.held: dict[int, int] = {}

    @rule(slots=st.integers(0, 72) | st.integers(1, 9))
    def allocate(self, slots: int) -> None:
        if not slots:
            with pytest.raises(InvalidInput):
                self.regions.allocate(slots)
            return
        hole = self.best(self.taken(slots))
        assert self.regions.can_allocate(slots) == (hole is not None)
        assert self.regions.rounded(slots) == self.taken(slots)
        if hole is None:
            with pytest.raises(OutOfMemory, match=f"needs {self.taken(slots)} contiguous slots"):
                self.regions.allocate(slots)
            return
        region = self.regions.allocate(slots)
        assert region == (hole.start, self.taken(slots), slots)
        assert region.rounding == self.taken(slots) - slots
        self.held[region.start] = region.size
        self.owners[region.start : region.start + region.size] = [region.start] * region.size

    @rule(start=st.integers(-1, 72))
    def free_any(self, start: int) -> None:
        if start in self.held:
            self.give_back(start)
        else:
            with pytest.raises(DoubleFree):
                self.regions.free(start)

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 99))
    def free_held(self, pick: int) -> None:
        self.give_back(list(self.held)[pick % len(self.held)])

    def give_back(self, start: int) -> None:
        size = self.held.pop(start)
        region = self.regions.free(start)
        assert (region.start, region.size) == (start, size)
        self.owners[start : start + size] = [None] * size

    @invariant()
    def agrees(self) -> None:
        self.regions.audit()
        assert self.regions.holes() == self.expected_holes()


class FirstFitMachine(RegionMachine):
    """Holes are all runs of free slots; the lowest that is large enough is taken."""

    def make(self, slots: int) -> RegionAllocator:
        return FirstFit(slots)

    def taken(self, slots: int) -> int:
        return slots

    def best(self, slots: int) -> Hole | None:
        return next((hole for hole in self.expected_holes() if hole.size >= slots), None)

    def expected_holes(self) -> list[Hole]:
        return runs_of_free(self.owners)


class BuddyMachine(RegionMachine):
    """Holes are free buddies; the smallest that is large enough is taken, of those the lowest."""

    def make(self, slots: int) -> RegionAllocator:
        return Buddy(slots)

    def taken(self, slots: int) -> int:
        return next(1 << digit for digit in range(20) if 1 << digit >= slots)

    def best(self, slots: int) -> Hole | None:
        large = [hole for hole in self.expected_holes() if hole.size >= slots]
        return min(large, key=lambda hole: (hole.size, hole.start), default=None)

    def expected_holes(self) -> list[Hole]:
        return free_buddies(self.owners)
