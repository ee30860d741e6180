"""Which slots a kernel touched, over the pool: one mark a read, wrong and missed ones marked as such."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kvlab.errors import InvalidInput
from kvlab.events import State
from kvlab.viz import svg
from kvlab.viz.drawing import Drawing, Table
from kvlab.viz.palette import WARNING, colour, name
from kvlab.viz.scenes.cells import CellShape
from kvlab.viz.scenes.legend import legend, solid, tinted
from kvlab.viz.scenes.pool_grid import WIDTH, Grid, paged

_LARGE = 16
"""Up to so many blocks have cells large enough for a count in each slot."""


def slot_reads(
    state: State, reads: Mapping[int, int], wanted: Collection[int], *, pool: str = "full", width: float = WIDTH
) -> Drawing:
    """The pool grid with a dot in each slot that was read (a number where more than once).

    `reads` counts by slot, `wanted` are the slots that had to be read. A read of any other slot is a cross, a wanted
    slot that nobody read a dashed frame. Raises `InvalidInput` for a slot outside the pool.
    """
    geometry = paged(state, pool)
    slots = geometry.blocks * geometry.block_size
    outside = sorted(slot for slot in {*reads, *wanted} if not 0 <= slot < slots)
    if outside:
        raise InvalidInput(f"the pool has slots 0 to {slots - 1}; slot {outside[0]} is none of them")
    done = {slot: count for slot, count in reads.items() if count}
    wrong, missed = sorted(set(done) - set(wanted)), sorted(set(wanted) - set(done))
    grid = Grid.fit(geometry, 1, 1, width)
    if geometry.blocks <= _LARGE and geometry.block_size <= 32:
        grid = Grid(CellShape.fit((width - 27) / 4, geometry.block_size), 1, 1, geometry.blocks, 4, 8.0)
    marks = [_mark(grid, slot, count, slot in wanted) for slot, count in sorted(done.items())]
    marks += [_frame(grid, slot) for slot in missed]
    running = state.running()
    items = [(solid(colour(each.order)), f"{name(each.rid)}: {each.tokens:,} tokens") for each in running]
    tint = colour(running[0].order if running else 0)
    items += [(tinted(tint), "empty slot"), (_dot(tint), "read"), (_CROSS, "wrongly read"), (_MISSED, "missed")]
    key, key_height = legend(0, grid.height + 14, width, items)
    good = len(done) - len(wrong)
    return Drawing(
        width,
        grid.height + 14 + key_height,
        (*grid.parts(state, (), pool), *marks, *key),
        f"{good} of {len(set(wanted))} slots read, {len(wrong)} wrongly read, {len(missed)} missed",
        "The pool's slots with a mark in each one that was read.",
        _table(state, pool, done, set(wanted)),
    )


def _centre(grid: Grid, slot: int) -> svg.Point:
    block, offset = divmod(slot, grid.shape.block_size)
    (x, y), row, column = grid.at(block), offset // grid.shape.slot_columns, offset % grid.shape.slot_columns
    left, top = x + grid.shape.pad, y + grid.shape.head
    return left + (column + 0.5) * grid.shape.slot_width, top + (row + 0.5) * grid.shape.slot_height


def _mark(grid: Grid, slot: int, count: int, right: bool) -> str:
    (x, y), reach = _centre(grid, slot), min(grid.shape.slot_width, grid.shape.slot_height) / 2
    if not right:
        return _cross(x, y, reach - 1)
    dot = svg.tag("circle", cx=x, cy=y, r=reach - 0.8, class_="kv-plate")
    if count > 1 and reach >= 5:
        number = svg.text(x, y + 3, str(count), class_="kv-badge-small kv-middle")
        return svg.tag("g", dot, svg.tag("circle", cx=x, cy=y, r=reach - 1.2, class_="kv-badge"), number)
    return dot + svg.tag("circle", cx=x, cy=y, r=reach * 0.5, class_="kv-badge")


def _cross(x: float, y: float, reach: float) -> str:
    d = svg.lines([((x - reach, y - reach), (x + reach, y + reach)), ((x - reach, y + reach), (x + reach, y - reach))])
    return svg.path(d, class_="kv-halo") + svg.path(d, class_="kv-curve", stroke=WARNING)


def _frame(grid: Grid, slot: int) -> str:
    (x, y), wide, high = _centre(grid, slot), grid.shape.slot_width, grid.shape.slot_height
    box = (x - wide / 2 + 1, y - high / 2 + 1, wide - 2, high - 2)
    return svg.rect(*box, class_="kv-cell") + svg.rect(*box, class_="kv-ghost")


def _dot(tint: str) -> str:
    rings = ((5.0, "kv-plate"), (3.0, "kv-badge"))
    return solid(tint) + "".join(svg.tag("circle", cx=8, cy=6, r=radius, class_=look) for radius, look in rings)


_CROSS = _cross(8, 6, 4.5)
_MISSED = svg.rect(1, 1, 14, 10, class_="kv-ghost")


def _table(state: State, pool: str, reads: Mapping[int, int], wanted: set[int]) -> Table:
    size, holders = state.pools[pool].block_size, state.holders(pool)
    rows = []
    for block in sorted({slot // size for slot in (*reads, *wanted)}):
        here = range(block * size, (block + 1) * size)
        right = [slot for slot in here if slot in wanted]
        rows.append(
            (
                str(block),
                ", ".join(map(name, holders.get(block, ()))) or "nobody",
                str(len(right)),
                str(sum(reads.get(slot, 0) for slot in here)),
                str(sum(slot in reads and slot not in wanted for slot in here)),
                str(sum(slot not in reads for slot in right)),
            )
        )
    return (("block", "held by", "slots to read", "reads", "wrongly read", "missed"), *(rows or [("-",) * 6]))
