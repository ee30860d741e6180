"""The picture of copy-on-write: tables that share a prefix run together, and split where their blocks differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvlab.events import Event, RequestState, State
from kvlab.viz import svg
from kvlab.viz.drawing import Drawing, Table
from kvlab.viz.palette import colour, name
from kvlab.viz.scenes.cells import CellShape, block_cell, name_plate
from kvlab.viz.scenes.pool_grid import paged, spans, touched
from kvlab.viz.scenes.runs import Run, runs

WIDTH = 760.0
_PLATE = 78.0
_LEFT = 124.0
_RIGHT = 92.0
_CELL = 76.0
_BETWEEN = 58.0
_TOP = 8.0


def sharing(state: State, events: Sequence[Event] = (), *, pool: str = "full") -> Drawing:
    """Every running request as a thread through its blocks: one trunk where tables agree, a branch where they part.

    A run of blocks with the same holders is drawn once, its middle folded with a count; the last, partly filled
    block is a cell of its own. Copies of the frame are drawn from source to target. Works for any tree of shared
    prefixes (samples, beams).
    """
    size = paged(state, pool).block_size
    shape = CellShape.fit(_CELL, size)
    requests = sorted((r for r in state.running() if r.tables.get(pool)), key=lambda request: request.order)
    roots = runs(requests, 0, pool, state.filled(pool), size)
    order = [request for run in roots for request in run.leaves()]
    row = max(shape.height + 22, 64.0)
    for number, request in enumerate(order):
        for run in roots:
            run.settle(request.rid, _TOP + row * number + row / 2)
    placed = list(_columns(roots, shape))
    height = _TOP + row * max(1, len(order))
    holders = state.holders(pool)
    alone = sum(len(request.tables[pool]) for request in requests)
    held = f"{len(holders):,} block{'s' * (len(holders) != 1)} in memory"
    told = f"{held} instead of {alone:,}" if alone > len(holders) else f"{held}, none shared"
    if state.copies:
        told += f", {state.copies} cop{'ies' if state.copies != 1 else 'y'} so far"
    parts = [
        *_plates(order, row),
        *_threads(order, placed, row, shape),
        *(part for run in placed for part in _box(run, shape, state, pool)),
        *_marks(placed, shape, state, events, pool, size),
        *_origins(placed, shape, state, pool),
    ]
    return Drawing(
        max(WIDTH, max((run.right for run in placed), default=0.0) + _RIGHT),
        height + 6,
        tuple(parts),
        told,
        "Tables that share a prefix run together and split where their blocks differ.",
        _table(placed, state, pool, size),
    )


def _columns(roots: Sequence[Run], shape: CellShape) -> Iterator[Run]:
    """Give every run its x, a column for each depth of its tree; yields each tree from left to right."""
    for root in roots:
        x, level = _LEFT, [root]
        while level:
            for run in level:
                run.x, run.right = x, x + run.width(shape)
                yield run
            x = max(run.right for run in level) + _BETWEEN
            level = [child for run in level for child in run.children]


def _plates(order: Sequence[RequestState], row: float) -> Iterator[str]:
    """Each request's name at the left of its row."""
    for number, request in enumerate(order):
        y = _TOP + row * number + row / 2
        yield name_plate(0, y - 13, _PLATE, 26, name(request.rid), colour(request.order))
        yield svg.text(0, y + 28, f"{request.tokens:,} tokens", class_="kv-quiet")


def _threads(order: Sequence[RequestState], placed: Sequence[Run], row: float, shape: CellShape) -> Iterator[str]:
    """The coloured thread that leads from each name through the runs of its request."""
    for number, request in enumerate(order):
        at, pieces = (_PLATE, _TOP + row * number + row / 2), []
        for run in (run for run in placed if request.rid in run.rows):
            lane = run.y + (list(run.rows).index(request.rid) - (len(run.rows) - 1) / 2) * 5
            pieces += [svg.curve(at, (run.x, lane)), svg.lines(run.gaps(shape, lane))]
            at = (run.right, lane)
        yield svg.path(
            "".join(pieces), class_="kv-thread", stroke=colour(request.order), data_request=name(request.rid)
        )


def _box(run: Run, shape: CellShape, state: State, pool: str) -> Iterator[str]:
    """The cells of a run, and the words over its fold."""
    filled = state.filled(pool)
    y = run.y - shape.height / 2
    for block, x in run.cells(shape):
        yield from block_cell(shape, x, y, block, run.owners, filled[block])
    middle = (run.x + run.right) / 2
    if run.fold:
        yield svg.text(middle, run.y + 18 + 2.5 * len(run.owners), f"+ {run.fold} more", class_="kv-quiet kv-middle")
    if len(run.owners) > 1 and len(run.blocks) > 1:
        words = f"{len(run.blocks)} blocks, stored once for {len(run.owners)}"
        yield svg.text(middle, y - 10, words, class_="kv-strong kv-middle")


def _marks(
    placed: Sequence[Run], shape: CellShape, state: State, events: Sequence[Event], pool: str, size: int
) -> Iterator[str]:
    """Outlines of touched cells; an arrow for each copy of this frame."""
    hot = touched(state, events, pool)
    where = {block: (x, run.y) for run in placed for block, x in run.cells(shape)}
    for block in sorted(hot & where.keys()):
        x, y = where[block]
        yield svg.rect(x - 1, y - shape.height / 2 - 1, shape.width + 2, shape.height + 2, rx=5, class_="kv-touched")
    written = {rid: count for kind, *rest in events if kind == "step" for rid, count in rest[0]}
    for move in state.moved:
        if move[0] != "copy" or move[2] != pool or not {move[4], move[5]} <= where.keys():
            continue
        _, rid, _, index, source, target = move
        copied = state.requests[rid].tokens - written.get(rid, 0) - index * size
        yield _copy_arrow(where[source], where[target], shape, f"copy {copied} token{'s' * (copied != 1)}")


def _origins(placed: Sequence[Run], shape: CellShape, state: State, pool: str) -> Iterator[str]:
    """Beside the block where a branch ends: whether an earlier copy made it, or was made from it."""
    moving = {block for move in state.moved if move[0] == "copy" and move[2] == pool for block in move[4:]}
    for run in placed:
        block, x = run.cells(shape)[-1]
        words = _origin(block, state, pool)
        if words and not run.children and block not in moving:
            yield svg.text(x + shape.width + 12, run.y + 4, words, class_="kv-quiet")


def _origin(block: int, state: State, pool: str) -> str:
    origin, held = state.origin.get(pool, {}), state.holders(pool)
    if block in origin:
        return f"copy of {origin[block]}"
    return "the original" if any(source == block and copy in held for copy, source in origin.items()) else ""


def _copy_arrow(source: svg.Point, target: svg.Point, shape: CellShape, words: str) -> str:
    """From the source's right side round to the target's, with the words beside it."""
    x0, x1 = source[0] + shape.width + 2, target[0] + shape.width + 2
    reach = max(x0, x1) + 34
    y0, y1 = source[1], target[1]
    middle = (y0 + y1) / 2
    d = f"M{svg.number(x0)} {svg.number(y0)}C{svg.number(reach)} {svg.number(y0)} " + " ".join(
        svg.number(value) for value in (reach, y1, x1 + 7, y1)
    )
    return svg.tag(
        "g",
        svg.path(d, class_="kv-halo"),
        svg.path(d, class_="kv-copy"),
        svg.path(svg.arrow_head((x1, y1), (-1, 0), 10), class_="kv-copy-head"),
        svg.text(reach, middle + 4, words, class_="kv-strong"),
    )


def _table(placed: Sequence[Run], state: State, pool: str, size: int) -> Table:
    """A row a run; where there were copies, what its last block is."""
    filled = state.filled(pool)
    origins = [_origin(run.blocks[-1], state, pool) for run in placed]
    rows = [
        (
            ", ".join(name(owner.rid) for owner in run.owners),
            str(len(run.owners)),
            spans(range(run.first, run.first + len(run.blocks))),
            spans(run.blocks),
            f"{filled[run.blocks[-1]]} of {size}",
            origin or "-",
        )
        for run, origin in zip(placed, origins, strict=True)
    ]
    header = ("held by", "references", "logical blocks", "physical blocks", "last one filled", "last one is")
    return tuple(row if any(origins) else row[:-1] for row in (header, *rows))
