"""The picture of paging: block tables on the left, the pool on the right, an arrow from entry to block."""

from __future__ import annotations

from collections.abc import Sequence

from kvlab.events import Event, State
from kvlab.viz import svg
from kvlab.viz.drawing import Drawing
from kvlab.viz.palette import colour
from kvlab.viz.scenes import block_tables as tables
from kvlab.viz.scenes.pool_grid import Grid, headline, paged, touched

_GAP = 64.0
WIDTH = 760.0
_MOST_ARROWS = 10


def pages(state: State, events: Sequence[Event] = (), *, pool: str = "full", width: float = WIDTH) -> Drawing:
    """Tables, grid and arrows. Entries that the frame touched have strong arrows, the others faint ones.

    With more than 10 entries only the touched ones have arrows; the player draws any entry's on hover.
    """
    geometry = paged(state, pool)
    laid = tables.lay_out(state, pool)
    left = tables.WIDTH + _GAP
    grid = Grid.fit(geometry, left, 0, width - left, max(640.0, laid.height))
    held = state.holders(pool)
    shared = sum(len(owners) > 1 for owners in held.values())
    return Drawing(
        width,
        max(laid.height, grid.height) + 3,
        (
            *laid.parts(state, events, pool),
            *grid.parts(state, events, pool),
            *_arrows(state, events, pool, laid, grid),
        ),
        headline(state, pool),
        f"{len(held)} blocks are held, {shared} of them shared; {geometry.blocks - len(held)} are free.",
        tables.tables_table(state, pool),
    )


def _arrows(state: State, events: Sequence[Event], pool: str, laid: tables.TableLayout, grid: Grid) -> tuple[str, ...]:
    hot = touched(state, events, pool)
    drawn = [entry for entry in laid.entries if not entry.hidden]
    if len(drawn) > _MOST_ARROWS:
        drawn = [entry for entry in drawn if state.requests[entry.rid].tables[pool][entry.index] in hot]
    found = []
    for entry in drawn:
        request = state.requests[entry.rid]
        block = request.tables[pool][entry.index]
        if block is None:
            continue
        x, y = grid.at(block)
        start, end = laid.anchor(entry), (x - 2, y + grid.shape.height / 2)
        tint, strong = colour(request.order), block in hot
        d = svg.curve(start, (end[0] - 4, end[1]))
        found.append(
            svg.tag(
                "g",
                svg.path(d, class_="kv-arrow", stroke=tint),
                svg.path(svg.arrow_head(end, (1, 0)), fill=tint),
                class_="kv-link" if strong else "kv-link kv-faint",
            )
        )
    return tuple(found)
