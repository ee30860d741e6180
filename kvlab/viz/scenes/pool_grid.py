"""The pool of physical blocks as a grid: who holds which block, how full it is, what this frame touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvlab.errors import InvalidInput
from kvlab.events import Event, PoolGeometry, RequestState, State, from_ranges, to_ranges
from kvlab.viz import svg
from kvlab.viz.drawing import Drawing
from kvlab.viz.palette import colour, name
from kvlab.viz.scenes.cells import CellShape, block_cell, cached_cell
from kvlab.viz.scenes.legend import legend, solid, tinted

WIDTH = 720.0
_MOST_BLOCKS = 1024
_TALLEST = 590.0
_MOST_RUNS = 12


def pool_grid(state: State, events: Sequence[Event] = (), *, pool: str = "full", width: float = WIDTH) -> Drawing:
    """Every block of a paged pool as a cell, with its id, its owner and its filled slots.

    A block in one table has its request's colour and name; a block in n tables has the stripes of its owners, a
    second sheet behind it and the badge ×n. `events` (the frame's) outline what was touched and draw each
    copy-on-write as an arrow. Up to 1,024 blocks; `InvalidInput` above that, or if the pool has no blocks.
    """
    geometry = paged(state, pool)
    grid = Grid.fit(geometry, 0, 0, width)
    running = state.running()
    shared = sum(len(owners) > 1 for owners in state.holders(pool).values())
    items = [(solid(colour(request.order)), f"{name(request.rid)}: {request.tokens:,} tokens") for request in running]
    if running:
        items.append((tinted(colour(running[0].order)), "empty slot"))
    if shared:
        items.append((_SHARED, f"shared blocks: {shared}"))
    if cached := state.cached(pool):
        items.append((_CACHED, f"cached, nobody holds it: {len(cached)}"))
    items.append((svg.rect(0.5, 0.5, 15, 11, rx=2, class_="kv-free"), "free block"))
    key, key_height = legend(0, grid.height + 12, width, items)
    return Drawing(
        width,
        grid.height + 12 + key_height,
        (*grid.parts(state, events, pool), *key),
        headline(state, pool),
        f"The pool has {geometry.blocks:,} blocks of {geometry.block_size} slots; {shared} blocks are shared.",
        grid_table(state, pool),
    )


_SHARED = (
    svg.rect(3.5, 2.5, 12, 9, rx=2, class_="kv-behind")
    + svg.rect(0.5, 0.5, 12, 9, rx=2, class_="kv-cell")
    + svg.rect(2, 2, 9, 3, fill=colour(0))
    + svg.rect(2, 5, 9, 3, fill=colour(1))
)
_CACHED = svg.rect(0.5, 0.5, 15, 11, rx=2, class_="kv-cell") + svg.path(
    svg.hatch(0, 0, 16, 12, "/", 5), class_="kv-hatch"
)


def headline(state: State, pool: str) -> str:
    """What the pool holds, in one line: '37 tokens in 3 of 16 blocks, 11 slots empty'."""
    geometry, filled = state.pools[pool], state.filled(pool)
    cached = f", {len(found):,} more cached" if (found := state.cached(pool)) else ""
    if not filled:
        return f"All {geometry.blocks:,} blocks of {geometry.block_size} slots are free{cached.replace('more ', '')}"
    stored = sum(filled.values())
    empty = len(filled) * geometry.block_size - stored
    held = f"{len(filled):,} of {geometry.blocks:,} blocks"
    return f"{stored:,} tokens in {held}, {empty:,} slot{'s' * (empty != 1)} empty{cached}"


def paged(state: State, pool: str) -> PoolGeometry:
    """The geometry of a pool that has blocks; `InvalidInput` says what else to use."""
    if pool not in state.pools:
        raise InvalidInput(f"the log has no pool {pool!r}; its header names {sorted(state.pools) or 'none'}")
    geometry = state.pools[pool]
    if geometry.block_size == 1 and any(pool in request.regions for request in state.requests.values()):
        raise InvalidInput(f"pool {pool!r} holds contiguous regions, not blocks: draw it with region_strip")
    return geometry


@dataclass(frozen=True)
class Grid:
    """Where the cells are."""

    shape: CellShape
    x: float
    y: float
    blocks: int
    columns: int
    gap: float

    @classmethod
    def fit(cls, geometry: PoolGeometry, x: float, y: float, width: float, tallest: float = _TALLEST) -> Grid:
        """The fewest columns of 4, 8, 16 or 32 that keep the grid at most `tallest`, with cells of 96 at most."""
        if not 1 <= geometry.blocks <= _MOST_BLOCKS:
            raise InvalidInput(
                f"pool {geometry.name!r} has {geometry.blocks:,} blocks; the grid draws 1 to {_MOST_BLOCKS:,}"
            )
        grid = None
        for columns in (4, 8, 16, 32):
            gap = 8.0 if columns <= 8 else 4.0
            cell = min(96.0, (width - (columns - 1) * gap - 3) / columns)
            grid = cls(CellShape.fit(cell, geometry.block_size), x, y, geometry.blocks, columns, gap)
            if grid.height <= tallest and (cell < 96 or geometry.blocks <= columns):
                break
        assert grid is not None
        return grid

    @property
    def height(self) -> float:
        """Of all rows."""
        return -(-self.blocks // self.columns) * (self.shape.height + self.gap) - self.gap + 3

    def at(self, block: int) -> svg.Point:
        """The top left corner of a block's cell."""
        row, column = divmod(block, self.columns)
        return self.x + column * (self.shape.width + self.gap), self.y + row * (self.shape.height + self.gap)

    def middle(self, block: int) -> svg.Point:
        """The centre of a block's cell."""
        x, y = self.at(block)
        return x + self.shape.width / 2, y + self.shape.height / 2

    def _edge(self, block: int, towards: svg.Point) -> svg.Point:
        """Where the line from a cell's centre to a point outside leaves the cell."""
        (x, y), half_width, half_height = self.middle(block), self.shape.width / 2 + 2, self.shape.height / 2 + 2
        dx, dy = towards[0] - x, towards[1] - y
        reach = min(half_width / abs(dx) if dx else 9e9, half_height / abs(dy) if dy else 9e9, 1.0)
        return x + dx * reach, y + dy * reach

    def parts(self, state: State, events: Sequence[Event], pool: str) -> tuple[str, ...]:
        """Cells, outlines of what was touched, arrows of copies."""
        holders, filled, cached = state.holders(pool), state.filled(pool), set(state.cached(pool))
        found: list[str] = []
        for block in range(self.blocks):
            owners = [state.requests[rid] for rid in holders.get(block, ())]
            if block in cached:
                found.append(cached_cell(self.shape, *self.at(block), block))
            else:
                found += block_cell(self.shape, *self.at(block), block, owners, filled.get(block, 0))
        for block in sorted(touched(state, events, pool)):
            x, y = self.at(block)
            found.append(svg.rect(x - 1, y - 1, self.shape.width + 2, self.shape.height + 2, rx=5, class_="kv-touched"))
        for _, _, where, _, source, target in (move for move in state.moved if move[0] == "copy"):
            if where == pool:
                found.append(self._copy_arrow(source, target))
        return tuple(found)

    def _copy_arrow(self, source: int, target: int) -> str:
        (x0, y0), (x1, y1) = self.middle(source), self.middle(target)
        cx, cy = (x0 + x1) / 2 - (y1 - y0) * 0.22, (y0 + y1) / 2 - abs(x1 - x0) * 0.22 - 14
        (x0, y0), (x1, y1) = self._edge(source, (cx, cy)), self._edge(target, (cx, cy))
        d = f"M{svg.number(x0)} {svg.number(y0)}Q{svg.number(cx)} {svg.number(cy)} {svg.number(x1)} {svg.number(y1)}"
        return svg.tag(
            "g",
            svg.path(d, class_="kv-halo"),
            svg.path(d, class_="kv-copy"),
            svg.path(svg.arrow_head((x1, y1), (x1 - cx, y1 - cy), 10), class_="kv-copy-head"),
            class_="kv-link",
        )


def touched(state: State, events: Sequence[Event], pool: str) -> set[int]:
    """Blocks that this frame handed out, copied from or to, or wrote tokens into."""
    found: set[int] = set()
    size = state.pools[pool].block_size
    for kind, *fields in events:
        if kind in ("grow", "swap_in") and fields[1] == pool:
            found |= set(from_ranges(fields[2]))
        elif kind == "copy" and fields[1] == pool:
            found |= {fields[3], fields[4]}
        elif kind == "step":
            for rid, count in fields[0]:
                found |= set(_written(state.requests[rid], pool, size, count))
    return found


def _written(request: RequestState, pool: str, size: int, count: int) -> list[int]:
    first, last = (request.tokens - count) // size, (request.tokens - 1) // size
    table = request.tables.get(pool, [])[first : last + 1] if count > 0 else []
    return [block for block in table if block is not None]


def grid_table(state: State, pool: str) -> tuple[tuple[str, ...], ...]:
    """One row for each set of owners, then the free blocks."""
    holders, filled = state.holders(pool), state.filled(pool)
    size = state.pools[pool].block_size
    owned: dict[str, list[int]] = {}
    for block in sorted(holders):
        owned.setdefault(", ".join(map(name, holders[block])), []).append(block)
    rows = [
        (who, f"{len(ids):,}", spans(ids), f"{sum(filled[block] for block in ids):,} of {len(ids) * size:,}")
        for who, ids in owned.items()
    ]
    cached = sorted(state.cached(pool))
    if cached:
        rows.append(
            ("nobody, cached", f"{len(cached):,}", spans(cached), f"{len(cached) * size:,} of {len(cached) * size:,}")
        )
    free = [block for block in range(state.pools[pool].blocks) if block not in holders and block not in cached]
    return (("held by", "blocks", "ids", "filled slots"), *rows, ("nobody", f"{len(free):,}", spans(free) or "-", "-"))


def spans(ids: Sequence[int]) -> str:
    """Ids as text, runs folded, the middle of a long list left out: [7, 1, 2, 3] -> '7, 1-3'."""
    runs = [str(a) if b == a + 1 else f"{a}-{b - 1}" for a, b in to_ranges(ids)]
    if len(runs) > _MOST_RUNS:
        runs = [*runs[: _MOST_RUNS - 2], "...", runs[-1]]
    return ", ".join(runs)
