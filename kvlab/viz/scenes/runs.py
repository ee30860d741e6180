"""Tables as a forest of runs: where requests hold the same blocks they are one run, which branches where they part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kvlab.events import RequestState
from kvlab.viz import svg
from kvlab.viz.scenes.cells import CellShape

_FOLD = 104.0
_SHORT_FOLD = 78.0


@dataclass
class Run:
    """Consecutive table entries from logical index `first` that exactly `owners` hold."""

    owners: list[RequestState]
    first: int
    blocks: list[int]
    children: list[Run] = field(default_factory=list)
    rows: dict[int | str, float] = field(default_factory=dict)
    x: float = 0.0
    right: float = 0.0

    @property
    def y(self) -> float:
        """Half way down the rows of its owners."""
        return sum(self.rows.values()) / len(self.rows)

    def leaves(self) -> Iterator[RequestState]:
        """Owners in the order in which the branches lie."""
        below = {request.rid for child in self.children for request in child.owners}
        for child in self.children:
            yield from child.leaves()
        yield from (request for request in self.owners if request.rid not in below)

    def settle(self, rid: int | str, y: float) -> None:
        """Tell the run, and those behind it, the row of one request."""
        if any(owner.rid == rid for owner in self.owners):
            self.rows[rid] = y
            for child in self.children:
                child.settle(rid, y)

    @property
    def fold(self) -> int:
        """How many of its blocks are folded away: all but the first and the last, if there are more than three."""
        return len(self.blocks) - 2 if len(self.blocks) > 3 else 0

    def width(self, shape: CellShape) -> float:
        """Pixels it takes."""
        if self.fold:
            return 2 * shape.width + (_FOLD if len(self.owners) > 1 else _SHORT_FOLD)
        return len(self.blocks) * (shape.width + 6) - 6

    def gaps(self, shape: CellShape, y: float) -> list[tuple[svg.Point, svg.Point]]:
        """The lines at `y` that join its cells."""
        lefts = [x for _, x in self.cells(shape)]
        return [((a + shape.width, y), (b, y)) for a, b in pairwise(lefts)]

    def cells(self, shape: CellShape) -> list[tuple[int, float]]:
        """(block, x) of the cells that are drawn."""
        if self.fold:
            return [(self.blocks[0], self.x), (self.blocks[-1], self.x + self.width(shape) - shape.width)]
        return [(block, self.x + i * (shape.width + 6)) for i, block in enumerate(self.blocks)]


def runs(requests: Sequence[RequestState], index: int, pool: str, filled: dict[int, int], size: int) -> list[Run]:
    """The forest of runs of these requests from table entry `index` on."""
    groups: dict[int, list[RequestState]] = {}
    for request in requests:
        table = request.tables[pool]
        block = table[index] if index < len(table) else None
        if block is not None:
            groups.setdefault(block, []).append(request)
    found = []
    for owners in groups.values():
        tables = [owner.tables[pool] for owner in owners]
        blocks: list[int] = []
        end = index
        while all(end < len(table) for table in tables):
            here = {table[end] for table in tables}
            block = here.pop()
            partial = block is not None and filled[block] < size and len(owners) > 1 and blocks
            if here or block is None or partial:
                break
            blocks.append(block)
            end += 1
        found.append(Run(owners, index, blocks, runs(owners, end, pool, filled, size)))
    return found
