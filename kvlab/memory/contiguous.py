"""Contiguous regions of one memory: first fit with a coalescing free list, and the buddy system."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import pairwise
from typing import NamedTuple, Protocol

from kvlab.errors import DoubleFree, OutOfMemory, positive, require


class Region(NamedTuple):
    """Slots [start, start + size), of which `asked` were asked for; the rest was lost to rounding."""

    start: int
    size: int
    asked: int

    @property
    def rounding(self) -> int:
        """Slots lost to the allocator's rounding."""
        return self.size - self.asked


class Hole(NamedTuple):
    """Free slots [start, start + size)."""

    start: int
    size: int


class RegionAllocator(Protocol):
    """What the contiguous policies need of an allocator. A refused call changes nothing."""

    slots: int

    def allocate(self, slots: int) -> Region:
        """A region of at least `slots` slots. Raises `OutOfMemory` when no hole is large enough."""

    def free(self, start: int) -> Region:
        """Give a region back by its start. Raises `DoubleFree` if none starts there."""

    def can_allocate(self, slots: int) -> bool:
        """Whether `allocate(slots)` would succeed."""

    def largest_region(self) -> int:
        """The most slots an empty memory could give to one region."""

    def rounded(self, slots: int) -> int:
        """How many slots `allocate(slots)` would take."""

    def holes(self) -> list[Hole]:
        """All free holes in order of address."""

    def audit(self) -> None:
        """`InvariantViolation` names what is broken."""


class FirstFit:
    """The lowest hole that is large enough, split; freed neighbours coalesce.

    Source: Knuth, The Art of Computer Programming, volume 1, section 2.5.
    """

    def __init__(self, slots: int) -> None:
        self.slots = positive("slots", slots)
        self._starts = [0]
        self._sizes = {0: slots}
        self._used: dict[int, Region] = {}

    def can_allocate(self, slots: int) -> bool:
        """Whether some hole holds `slots`."""
        return slots > 0 and any(self._sizes[start] >= slots for start in self._starts)

    def largest_region(self) -> int:
        """All of the memory."""
        return self.slots

    def rounded(self, slots: int) -> int:
        """First fit rounds nothing."""
        return slots

    def allocate(self, slots: int) -> Region:
        """See `RegionAllocator.allocate`."""
        positive("slots of a region", slots)
        for index, start in enumerate(self._starts):
            size = self._sizes[start]
            if size >= slots:
                del self._starts[index], self._sizes[start]
                if size > slots:
                    self._add_hole(start + slots, size - slots)
                self._used[start] = region = Region(start, slots, slots)
                return region
        raise _no_hole(slots, self.holes())

    def free(self, start: int) -> Region:
        """See `RegionAllocator.free`."""
        region = _freed(self._used, start)
        size = region.size
        after = start + size
        if after in self._sizes:
            size += self._sizes.pop(after)
            del self._starts[bisect_left(self._starts, after)]
        at = bisect_left(self._starts, start)
        before = self._starts[at - 1] if at else None
        if before is not None and before + self._sizes[before] == start:
            self._sizes[before] += size
        else:
            self._add_hole(start, size)
        return region

    def _add_hole(self, start: int, size: int) -> None:
        insort(self._starts, start)
        self._sizes[start] = size

    def holes(self) -> list[Hole]:
        """See `RegionAllocator.holes`."""
        return [Hole(start, self._sizes[start]) for start in self._starts]

    def audit(self) -> None:
        """Holes and regions tile the memory and no two holes touch."""
        holes = self.holes()
        _tiles(self.slots, self._used, holes)
        touching = any(a.start + a.size == b.start for a, b in pairwise(holes))
        require(not touching, "two holes touch: a free did not coalesce")


class Buddy:
    """Power-of-two blocks that split in halves and merge with their buddy when both are free.

    A memory whose size is no power of two begins as one block per binary digit, largest first (15,728 = 8,192 +
    4,096 + 2,048 + 1,024 + 256 + 64 + 32 + 16). A request takes the smallest sufficient free block, lowest first.
    Source: Knowlton 1965; Kwon et al. 2023 place Orca's reservations this way (section 6.1).
    """

    def __init__(self, slots: int) -> None:
        self.slots = positive("slots", slots)
        self._free: list[list[int]] = [[] for _ in range(slots.bit_length())]
        self._order: dict[int, int] = {}
        self._used: dict[int, Region] = {}
        self._tops: list[tuple[int, int]] = []
        start = 0
        for order in reversed(range(slots.bit_length())):
            if slots >> order & 1:
                self._tops.append((start, order))
                self._add(start, order)
                start += 1 << order

    def rounded(self, slots: int) -> int:
        """The next power of two."""
        return 1 << (slots - 1).bit_length()

    def largest_region(self) -> int:
        """The largest power of two in the memory."""
        return 1 << (self.slots.bit_length() - 1)

    def can_allocate(self, slots: int) -> bool:
        """Whether a free block of the rounded size or more exists."""
        return slots > 0 and any(self._free[(slots - 1).bit_length() :])

    def allocate(self, slots: int) -> Region:
        """See `RegionAllocator.allocate`."""
        order = (positive("slots of a region", slots) - 1).bit_length()
        found = next((o for o in range(order, len(self._free)) if self._free[o]), None)
        if found is None:
            raise _no_hole(self.rounded(slots), self.holes())
        start = self._free[found].pop(0)
        del self._order[start]
        for half in reversed(range(order, found)):
            self._add(start + (1 << half), half)
        self._used[start] = region = Region(start, 1 << order, slots)
        return region

    def free(self, start: int) -> Region:
        """See `RegionAllocator.free`."""
        region = _freed(self._used, start)
        order = region.size.bit_length() - 1
        base, top = next((b, o) for b, o in reversed(self._tops) if b <= start)
        while order < top:
            buddy = base + ((start - base) ^ (1 << order))
            if self._order.get(buddy) != order:
                break
            self._free[order].remove(buddy)
            del self._order[buddy]
            start = min(start, buddy)
            order += 1
        self._add(start, order)
        return region

    def _add(self, start: int, order: int) -> None:
        insort(self._free[order], start)
        self._order[start] = order

    def holes(self) -> list[Hole]:
        """See `RegionAllocator.holes`; neighbours that are not buddies stay two holes."""
        return sorted(Hole(start, 1 << order) for start, order in self._order.items())

    def audit(self) -> None:
        """Blocks and regions tile the memory, are aligned, and no two free buddies are left apart."""
        _tiles(self.slots, self._used, self.holes())
        listed = {start: order for order, starts in enumerate(self._free) for start in starts}
        require(listed == self._order, "the free lists and the index disagree")
        for start, order in self._order.items():
            base, top = next((b, o) for b, o in reversed(self._tops) if b <= start)
            require((start - base) % (1 << order) == 0, f"the free block at {start} is not aligned to its size")
            buddy = base + ((start - base) ^ (1 << order))
            require(
                order == top or self._order.get(buddy) != order,
                f"free buddies at {start}, {buddy} not merged",
            )
        for region in self._used.values():
            require(region.size == self.rounded(region.asked), f"the region at {region.start} has a wrong size")


def _freed(used: dict[int, Region], start: int) -> Region:
    try:
        return used.pop(start)
    except KeyError:
        raise DoubleFree(f"no region starts at slot {start}; it was freed before or never allocated") from None


def _no_hole(slots: int, holes: list[Hole]) -> OutOfMemory:
    largest = max((hole.size for hole in holes), default=0)
    total = sum(hole.size for hole in holes)
    return OutOfMemory(
        f"needs {slots} contiguous slots; {total} are free in {len(holes)} holes, the largest has {largest}"
    )


def _tiles(slots: int, used: dict[int, Region], holes: list[Hole]) -> None:
    end = 0
    for start, size in sorted([(r.start, r.size) for r in used.values()] + [(h.start, h.size) for h in holes]):
        require(start == end, f"slots [{min(start, end)}, {max(start, end)}) are lost or have two owners")
        end = start + size
    require(end == slots, f"regions and holes cover {end} of {slots} slots")
