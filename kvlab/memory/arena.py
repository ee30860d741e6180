"""One memory for rings and pages: superblocks, each a whole ring or broken into pages, and no fixed split."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from kvlab.errors import InvalidInput, OutOfMemory, positive, require
from kvlab.memory.block_pool import BlockPool


class PageMove(NamedTuple):
    """A page that makes room for a ring: what was in `source` is in `target` from now on."""

    source: int
    target: int


class Arena(BlockPool):
    """`rows` superblocks of `pages_per_row` pages; page p is in row `p // pages_per_row`.

        row 0   [ ring                    ]      rings fill from the low end
        row 1   [ ring                    ]
        row 2   [                         ]      whole: a ring or pages to be
        row 3   [ 12 | 13 |    | 15 |     ]      broken: pages come from the fullest broken row,
        row 4   [ 16 | 17 | 18 | 19 | 20  ]      and rows break from the high end

    To a block table this is a pool of pages. `take_ring` asks for a whole row: where there is none but the free pages
    add up to one, the emptiest broken row is evacuated. So neither side has a fixed share, and a ring is refused only
    when the free pages do not add up to one. A row whose pages are all free is whole again.

    Costs: a page O(pages_per_row + rows), a ring O(rows) and its evacuation O(pages_per_row).
    """

    __slots__ = ("_broken", "_rings", "_whole", "pages_per_row", "rows")

    def __init__(self, rows: int, pages_per_row: int) -> None:
        self.rows = positive("rows", rows)
        self.pages_per_row = positive("pages_per_row", pages_per_row)
        super().__init__(rows * pages_per_row)
        self._free = []
        self._whole = list(range(rows))
        self._rings: set[int] = set()
        self._broken: dict[int, list[int]] = {}
        """Row -> its free pages, a heap."""

    @property
    def free_blocks(self) -> int:
        """Free pages, those of whole rows included."""
        return len(self._whole) * self.pages_per_row + sum(map(len, self._broken.values()))

    @property
    def rings(self) -> int:
        """Rows that are rings."""
        return len(self._rings)

    @property
    def broken_rows(self) -> int:
        """Rows that are broken into pages."""
        return len(self._broken)

    @property
    def whole_rows(self) -> int:
        """Rows that could be a ring at once."""
        return len(self._whole)

    def next_free(self) -> list[int]:
        """All free pages in the order they would be handed out."""
        size = self.pages_per_row
        found = [page for row in self._by_fullness() for page in sorted(self._broken[row])]
        for row in sorted(self._whole, reverse=True):
            found += range(row * size, (row + 1) * size)
        return found

    def can_allocate(self, count: int) -> bool:
        """Whether `allocate(count)` would succeed."""
        return count <= self.free_blocks

    def allocate(self, count: int = 1) -> list[int]:
        """`count` free pages, one reference each. Raises `OutOfMemory` when fewer are free."""
        if count < 1:
            raise InvalidInput(f"asked for {count} pages; ask for at least 1")
        if count > self.free_blocks:
            raise OutOfMemory(
                f"asked for {count} pages, {self.free_blocks} of {self.blocks} are free "
                f"({self.rings} of {self.rows} rows are rings); free some first"
            )
        taken: list[int] = []
        for row in self._by_fullness():
            free = self._broken[row]
            while free and len(taken) < count:
                taken.append(heapq.heappop(free))
        while len(taken) < count:
            row = max(self._whole)
            self._whole.remove(row)
            pages = range(row * self.pages_per_row, (row + 1) * self.pages_per_row)
            wanted = min(len(pages), count - len(taken))
            taken += pages[:wanted]
            self._broken[row] = list(pages[wanted:])
        for page in taken:
            self._references[page] = 1
        return taken

    def _by_fullness(self) -> list[int]:
        """Broken rows with a free page, the fullest first, of equal ones the highest."""
        rows = [row for row, free in self._broken.items() if free]
        return sorted(rows, key=lambda row: (len(self._broken[row]), -row))

    def _shelve(self, freed: Sequence[int]) -> None:
        for page in freed:
            row = page // self.pages_per_row
            free = self._broken[row]
            heapq.heappush(free, page)
            if len(free) == self.pages_per_row:
                del self._broken[row]
                self._whole.append(row)

    def take_ring(self) -> tuple[int, list[PageMove]]:
        """A row for a ring, and the pages to move out of it before, in order.

        A moved page keeps its references; whoever names it must follow (`BlockTable.relocate`). Raises `OutOfMemory`,
        nothing changed, where the free pages do not add up to a ring.
        """
        if self.free_blocks < self.pages_per_row:
            raise OutOfMemory(
                f"a ring takes a row of {self.pages_per_row} pages, {self.free_blocks} are free; free some first"
            )
        moves: list[PageMove] = []
        if self._whole:
            row = min(self._whole)
            self._whole.remove(row)
        else:
            row = max(self._broken, key=lambda each: (len(self._broken[each]), -each))
            moves = self._evacuate(row)
        self._rings.add(row)
        return row, moves

    def _evacuate(self, row: int) -> list[PageMove]:
        """Move every held page of a broken row into the others."""
        empty = set(self._broken.pop(row))
        size, references = self.pages_per_row, self._references
        held = [page for page in range(row * size, (row + 1) * size) if page not in empty]
        counts = [references[page] for page in held]
        targets = self.allocate(len(held)) if held else []
        for page, target, count in zip(held, targets, counts, strict=True):
            references[page] = 0
            references[target] = count
            self._generations[page] += 1
        return [PageMove(page, target) for page, target in zip(held, targets, strict=True)]

    def give_ring(self, row: int) -> None:
        """The row is whole again. Raises `InvalidInput` where it is no ring."""
        if row not in self._rings:
            raise InvalidInput(f"row {row} is no ring; {self.rings} of {self.rows} rows are")
        self._rings.remove(row)
        self._whole.append(row)

    def row_kinds(self) -> list[str]:
        """What each row is: "ring", "broken" or "whole"."""
        return [
            "ring" if row in self._rings else "broken" if row in self._broken else "whole" for row in range(self.rows)
        ]

    def audit(self) -> None:
        """Check the books against each other; `InvariantViolation` names what is broken."""
        size, references = self.pages_per_row, self._references
        require(
            sorted([*self._whole, *self._rings, *self._broken]) == list(range(self.rows)),
            "a row is not one of whole, ring and broken",
        )
        require(min(references) >= 0, "a page has negative references")
        for row in range(self.rows):
            held = [page for page in range(row * size, (row + 1) * size) if references[page]]
            if row in self._broken:
                free = self._broken[row]
                require(len(free) == len(set(free)), f"a page of row {row} is free twice")
                require(len(held) + len(free) == size, f"row {row}: {len(held)} held and {len(free)} free pages")
                require(not set(held) & set(free), f"row {row}: a free page has references")
                require(all(page // size == row for page in free), f"row {row} names a page of another row as free")
                require(bool(held), f"row {row} is broken although all its pages are free")
                require(all(free[(i - 1) // 2] <= free[i] for i in range(1, len(free))), f"row {row}: no heap")
            else:
                require(not held, f"row {row} is no row of pages, but page {held[:1]} has references")
