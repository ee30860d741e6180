"""One request's blocks on their way to the matrix engine, a block a step: by a workspace, as a slice, from a ring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvlab.errors import InvalidInput, positive
from kvlab.viz import svg
from kvlab.viz.drawing import Drawing, Table
from kvlab.viz.palette import WARNING, colour, text_on
from kvlab.viz.scenes.gather_counts import ROUTES, Progress, caption, steps
from kvlab.viz.scenes.legend import legend, solid, tinted
from kvlab.viz.scenes.sectors import on_circle, sector, spokes

WIDTH = 760.0
_PANEL, _BETWEEN = 234.0, 29.0
_COLUMNS, _CELL, _GAP = 6, 33.0, 4.0
_TOP = 26.0
_MOST_BLOCKS, _MOST_TABLE = 30, 8
_FILL = colour(0)
_HOLE = 0.55


def gather_steps(table: Sequence[int], pool_blocks: int, *, step: int) -> Drawing:
    """The moment after `step` steps; in each step every route moves its next block, until it has none left.

    `table` are the request's physical blocks in order, in a pool of up to 30. Gather first copies each block (read and
    written) and then reads the copy; a slice reads from block 0 to the highest one of the table, whosever they are; a
    ring is read where it lies. Raises `InvalidInput` for a block twice or outside the pool, or more than 8 blocks.
    """
    positive("pool_blocks", pool_blocks)
    if pool_blocks > _MOST_BLOCKS or not 1 <= len(table) <= _MOST_TABLE:
        raise InvalidInput(
            f"a pool of {pool_blocks} blocks and a table of {len(table)} cannot be drawn; "
            f"at most {_MOST_BLOCKS} and {_MOST_TABLE} (and at least one block) can"
        )
    if len(set(table)) < len(table) or not all(0 <= block < pool_blocks for block in table):
        raise InvalidInput(f"{list(table)} are not different blocks of a pool of {pool_blocks}")
    if not 0 <= step <= steps(table):
        raise InvalidInput(f"there are steps 0 to {steps(table)}, not {step}")
    rows = -(-pool_blocks // _COLUMNS)
    grid = rows * (_CELL + _GAP) - _GAP
    lower = _TOP + grid + 26
    engine = lower + 92
    parts: list[str] = []
    all_done = [Progress(route, table, step) for route in ROUTES]
    for i, done in enumerate(all_done):
        x = i * (_PANEL + _BETWEEN)
        parts.append(svg.text(x, 14, done.route, class_="kv-strong"))
        parts += _ring(done, x, _TOP, grid) if done.route == "ring" else _pool(done, pool_blocks, x)
        if done.route == "gather":
            parts += _workspace(done, x, lower)
        parts += _engine(done, x, engine)
        parts += _moving(done, x, grid, lower, engine)
    parts += _bars(all_done, engine + 46)
    y = engine + 144
    key, key_height = legend(0, y, WIDTH, _ITEMS)
    return Drawing(
        WIDTH,
        y + key_height,
        (*parts, *key),
        f"Step {step}, blocks moved: {', '.join(f'{each.route} {each.moved}' for each in all_done)}",
        "Three routes side by side: where each block lies, what the engine has read, and all the blocks moved so far.",
        _table(all_done),
    )


def gather_frames(table: Sequence[int], pool_blocks: int) -> list[tuple[Drawing, str]]:
    """Every step with its caption: for `Player.from_drawings`."""
    return [(gather_steps(table, pool_blocks, step=i), caption(table, i)) for i in range(steps(table) + 1)]


_ITEMS = (
    (solid(_FILL), "has reached the engine"),
    (tinted(_FILL), "the request's, not read yet"),
    (svg.rect(0.5, 0.5, 15, 11, rx=2, class_="kv-free"), "free or somebody else's"),
    (
        svg.rect(0, 0, 16, 12, class_="kv-queue") + svg.path(svg.hatch(0, 0, 16, 12, "\\", 5), class_="kv-slots"),
        "a copy, or read for nothing",
    ),
    (svg.rect(1, 1, 14, 10, rx=2, fill="none", stroke=WARNING, stroke_width=2), "moves in this step"),
)


def _lefts() -> list[float]:
    return [i * (_PANEL + _BETWEEN) for i in range(3)]


def _at(block: int, x: float) -> svg.Point:
    row, column = divmod(block, _COLUMNS)
    return x + column * (_CELL + _GAP), _TOP + row * (_CELL + _GAP)


def _pool(done: Progress, pool_blocks: int, x: float) -> Iterator[str]:
    table, slice_ = done.table, done.route == "slice"
    for block in range(pool_blocks):
        left, top = _at(block, x)
        if block in table:
            read = block < done.entered if slice_ else table.index(block) < done.entered
            yield _cell(left, top, _CELL, block, read)
            continue
        yield svg.rect(left, top, _CELL, _CELL, rx=3, class_="kv-free")
        yield svg.text(left + 5, top + 13, str(block), class_="kv-quiet")
        if slice_ and block < done.entered:
            yield _wasted(left, top, _CELL, _CELL)
    if done.moving and (slice_ or done.step <= len(table)):
        yield _now(*_at(done.step - 1 if slice_ else table[done.step - 1], x), _CELL, _CELL)


def _cell(left: float, top: float, width: float, block: int, read: bool) -> str:
    """A block of the request, solid once the engine has it."""
    if read:
        box = svg.rect(left, top, width, _CELL, rx=3, fill=_FILL)
        return box + svg.text(left + 5, top + 13, str(block), class_="kv-chip", fill=text_on(_FILL))
    box = svg.rect(left, top, width, _CELL, rx=3, fill=_FILL, class_="kv-tint")
    return box + svg.text(left + 5, top + 13, str(block), class_="kv-head")


def _wasted(x: float, y: float, width: float, height: float) -> str:
    lines = svg.path(svg.hatch(x, y, width, height, "\\", 8), class_="kv-slots")
    return svg.rect(x, y, width, height, class_="kv-queue") + lines


def _now(x: float, y: float, width: float, height: float) -> str:
    return svg.rect(x - 1, y - 1, width + 2, height + 2, rx=4, fill="none", stroke=WARNING, stroke_width=3)


def _workspace(done: Progress, x: float, y: float) -> Iterator[str]:
    yield svg.text(x, y + 2, "workspace", class_="kv-quiet")
    size = _space(done.table)
    for entry, block in enumerate(done.table):
        left = x + entry * size
        if entry < done.copied:
            yield _cell(left, y + 9, size - 3, block, entry < done.entered)
        else:
            yield svg.rect(left, y + 9, size - 3, _CELL, rx=3, class_="kv-free")
    if done.moving:
        yield _now(x + (done.step - 1) % len(done.table) * size, y + 9, size - 3, _CELL)


def _space(table: Sequence[int]) -> float:
    return min(_CELL + _GAP, (_PANEL - 8) / len(table))


def _ring(done: Progress, x: float, top: float, height: float) -> Iterator[str]:
    """The same tokens in one ring: a sector a block."""
    count = len(done.table)
    cx, cy, outer = x + _PANEL / 2, top + height / 2, min(height, _PANEL) / 2
    inner = outer * _HOLE
    for entry in range(count):
        d = sector(cx, cy, outer, inner, entry / count, (entry + 1) / count)
        yield svg.path(d, fill=_FILL, class_=None if entry < done.entered else "kv-tint")
    yield svg.path(spokes(cx, cy, outer + 1, inner - 1, [i / count for i in range(count)]), class_="kv-slots")
    if done.moving:
        d = sector(cx, cy, outer, inner, (done.step - 1) / count, done.step / count)
        yield svg.path(d, fill="none", stroke=WARNING, stroke_width=3)
    yield svg.text(cx, cy + 4, "in place", class_="kv-quiet kv-middle")


def _engine(done: Progress, x: float, y: float) -> Iterator[str]:
    yield svg.rect(x, y, _PANEL - 6, 34, rx=6, class_="kv-badge")
    words = f"engine: {done.useful} of {len(done.table)} blocks"
    if done.useful == len(done.table):
        words = f"engine: done at step {done.steps}"
    yield svg.text(x + (_PANEL - 6) / 2, y + 21, words, class_="kv-badge-text kv-middle")


def _moving(done: Progress, x: float, grid: float, lower: float, engine: float) -> Iterator[str]:
    """The arrow of what moves in this step."""
    if not done.moving:
        return
    count, size = len(done.table), _space(done.table)
    if done.route == "gather":
        entry = (done.step - 1) % count
        middle = x + entry * size + (size - 3) / 2
        if done.step <= count:
            left, top = _at(done.table[entry], x)
            yield _arrow((left + _CELL / 2, top + _CELL), (middle, lower + 8))
        else:
            yield _arrow((middle, lower + 9 + _CELL), (middle, engine))
    elif done.route == "slice":
        left, top = _at(done.step - 1, x)
        yield _arrow((left + _CELL / 2, top + _CELL), (left + _CELL / 2, engine))
    else:
        cx, cy, outer = x + _PANEL / 2, _TOP + grid / 2, min(grid, _PANEL) / 2
        start = on_circle(cx, cy, outer * (1 + _HOLE) / 2, (done.step - 0.5) / count)
        yield _arrow(start, (cx, engine))


def _arrow(start: svg.Point, end: svg.Point) -> str:
    d = svg.lines([(start, (end[0], end[1] - 6))])
    direction = (end[0] - start[0], end[1] - start[1])
    return svg.tag(
        "g",
        svg.path(d, class_="kv-halo"),
        svg.path(d, class_="kv-curve", stroke=WARNING),
        svg.path(svg.arrow_head(end, direction, 10), fill=WARNING),
        class_="kv-link",
    )


def _bars(all_done: Sequence[Progress], y: float) -> Iterator[str]:
    """Blocks read and written so far, a bar a route on one scale."""
    most = max(Progress(each.route, each.table, steps(each.table)).moved for each in all_done)
    left, room = 76.0, WIDTH - 76 - 56
    unit = room / most
    yield svg.text(left, y + 10, "blocks read and written so far", class_="kv-quiet")
    cuts = svg.lines(((left + n * unit, y + 17), (left + n * unit, y + 87)) for n in range(1, most))
    for i, done in enumerate(all_done):
        top = y + 17 + 25 * i
        yield svg.text(left - 10, top + 14, done.route, class_="kv-ink kv-end")
        yield _wasted(left, top, room, 18)
        yield svg.rect(left + done.moved * unit, top - 1, (most - done.moved) * unit + 1, 20, class_="kv-paper")
        if done.useful:
            yield svg.rect(left, top, done.useful * unit, 18, fill=_FILL)
        yield svg.text(left + done.moved * unit + 8, top + 14, str(done.moved), class_="kv-strong")
    if cuts:
        yield svg.path(cuts, class_="kv-slots")


def _table(all_done: Sequence[Progress]) -> Table:
    return (
        ("route", "blocks copied", "request's blocks at the engine", "blocks read and written"),
        *((each.route, str(each.copied), f"{each.useful} of {len(each.table)}", str(each.moved)) for each in all_done),
    )
