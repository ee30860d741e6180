"""One arena for rings and pages: who has which superblock, how the balance stands, what an evacuation moves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvlab.errors import InvalidInput
from kvlab.events import Event, State
from kvlab.viz import svg
from kvlab.viz.drawing import Drawing, Table
from kvlab.viz.palette import colour, name
from kvlab.viz.scenes.arena_grid import ArenaGrid
from kvlab.viz.scenes.arena_rows import ArenaRows, arena_in
from kvlab.viz.scenes.legend import legend, solid
from kvlab.viz.scenes.pool_grid import spans
from kvlab.viz.scenes.sizes import size_words

WIDTH = 760.0
_MOST_ROWS = 96
_MOST_PAGES = 128
_BAR = 28.0
_LISTED = 6


def arena_grid(state: State, events: Sequence[Event] = (), *, ring: str = "ring", page: str = "page") -> Drawing:
    """The arena of a replayed state (see `arena_in`): a scene for `player(log, arena_grid)`."""
    return arena_picture(arena_in(state, ring=ring, page=page))


def arena_picture(rows: ArenaRows) -> Drawing:
    """Superblocks as cells: a ring in its owner's colour, a broken one as its pages, a whole free one open.

    The bar below is the balance of the arena's bytes, the line under it says whether one more ring would fit.
    Raises `InvalidInput` above 96 superblocks or 128 pages in each.
    """
    if len(rows.rows) > _MOST_ROWS or rows.pages_per_row > _MOST_PAGES:
        raise InvalidInput(
            f"an arena of {len(rows.rows):,} superblocks with {rows.pages_per_row:,} pages each cannot be drawn; "
            f"at most {_MOST_ROWS} with {_MOST_PAGES} can"
        )
    grid = ArenaGrid(rows, 22, WIDTH)
    bottom = 22 + grid.height
    parts = [
        svg.text(1, 13, "rings are taken from this end →", class_="kv-quiet"),
        svg.text(WIDTH - 1, bottom + 16, "← superblocks are broken into pages from this end", class_="kv-quiet kv-end"),
        *grid.parts(),
        *_balance(rows, bottom + 30),
        svg.text(1, bottom + 98, _next_ring(rows), class_="kv-ink"),
    ]
    if rows.moves:
        parts.append(svg.text(1, bottom + 16, _moved(rows), class_="kv-strong"))
    key, key_height = legend(0, bottom + 110, WIDTH, _swatches(rows))
    return Drawing(
        WIDTH,
        bottom + 110 + key_height,
        (*parts, *key),
        _title(rows),
        f"An arena of {len(rows.rows)} superblocks, each one ring or {rows.pages_per_row} pages. {_next_ring(rows)}",
        _table(rows),
    )


def _shares(rows: ArenaRows) -> list[tuple[str, int]]:
    """Kind -> bytes, in the order of the bar."""
    return [
        ("rings", rows.count("ring") * rows.row_bytes),
        ("pages", rows.used_pages * rows.page_bytes),
        ("free pages", rows.spare_pages * rows.page_bytes),
        ("free superblocks", rows.count("free") * rows.row_bytes),
    ]


def _balance(rows: ArenaRows, y: float) -> Iterator[str]:
    whole = len(rows.rows) * rows.row_bytes
    yield svg.text(1, y + 10, "all bytes of the arena", class_="kv-quiet")
    x, top = 1.0, y + 17
    for kind, size in _shares(rows):
        wide = size / whole * (WIDTH - 2)
        if not wide:
            continue
        yield _piece(kind, x, top, wide)
        label = f"{kind} {100 * size / whole:.0f} %"
        if wide > len(label) * 7 + 14:
            half = len(label) * 3.6 + 5
            yield svg.rect(x + wide / 2 - half, top + 5, 2 * half, 18, rx=3, class_="kv-plate")
            yield svg.text(x + wide / 2, top + 18.5, label, class_="kv-ink kv-middle")
        x += wide
    yield svg.rect(1, top, WIDTH - 2, _BAR, class_="kv-outline")


def _piece(kind: str, x: float, y: float, width: float) -> str:
    """A part of the bar: rings dark, pages grey and cut, free pages pale and cut, free superblocks open."""
    if kind == "rings":
        return svg.rect(x, y, width, _BAR, class_="kv-badge")
    if kind == "free superblocks":
        return svg.rect(x, y, width, _BAR, class_="kv-paper")
    look = "kv-queue" if kind == "pages" else "kv-waste"
    every = 12.0
    cuts = svg.lines(((x + i * every, y), (x + i * every, y + _BAR)) for i in range(1, int(width / every) + 1))
    lines = svg.path(cuts, class_="kv-slots") if cuts else ""
    return svg.rect(x, y, width, _BAR, class_=look) + lines


def _next_ring(rows: ArenaRows) -> str:
    """Whether one more ring would fit, and what that would take."""
    if whole := rows.count("free"):
        return f"One more ring fits: {whole} superblock{'s are' if whole != 1 else ' is'} whole and free"
    emptiest, spare = rows.emptiest, rows.spare_pages
    if emptiest is None or spare < rows.pages_per_row:
        return f"No more ring fits: {spare} free page{'s' * (spare != 1)}, and a ring takes {rows.pages_per_row}"
    used = rows.rows[emptiest].used
    return (
        f"No superblock is whole, but {spare} pages are free: one more ring fits once superblock {emptiest}'s "
        f"{used} page{'s have' if used != 1 else ' has'} moved ({size_words(used * rows.page_bytes)})"
    )


def _moved(rows: ArenaRows) -> str:
    count = len(rows.moves)
    sources = sorted({source // rows.pages_per_row for source, _ in rows.moves})
    where = f"superblock{'s' * (len(sources) != 1)} {spans(sources)}"
    return f"{count} page{'s' * (count != 1)} moved out of {where}: {size_words(count * rows.page_bytes)} copied"


def _title(rows: ArenaRows) -> str:
    rings, broken, free = (rows.count(kind) for kind in ("ring", "pages", "free"))
    said = [f"{rings} ring{'s' * (rings != 1)}", f"{rows.used_pages} page{'s' * (rows.used_pages != 1)} in {broken}"]
    said[1] += f" broken superblock{'s' * (broken != 1)}"
    return f"{said[0]}, {said[1]}, {free} free superblock{'s' * (free != 1)}"


def _swatches(rows: ArenaRows) -> Iterator[tuple[str, str]]:
    owners = {each.ring for each in rows.rows if each.ring is not None}
    owners |= {owner for each in rows.rows for page in each.pages for owner in page}
    listed = sorted(owners, key=lambda owner: rows.orders.get(owner, 0))
    for owner in listed[:_LISTED]:
        yield solid(colour(rows.orders.get(owner, 0))), name(owner)
    if len(listed) > _LISTED:
        yield svg.rect(0.5, 0.5, 15, 11, rx=2, class_="kv-cell"), f"and {len(listed) - _LISTED} others"
    ring = svg.tag("circle", cx=8, cy=6, r=5, fill="none", stroke=colour(0), stroke_width=2.4)
    yield ring, "a ring: a whole superblock"
    yield (
        svg.rect(0.5, 0.5, 7, 11, rx=2, fill=colour(0)) + svg.rect(9, 0.5, 6.5, 11, rx=2, class_="kv-free"),
        ("pages: held, free"),
    )
    if rows.moves:
        yield svg.rect(1, 1, 14, 10, class_="kv-ghost"), "a page was here"
        yield svg.rect(1, 1, 14, 10, class_="kv-touched"), "and is here now"


def _table(rows: ArenaRows) -> Table:
    found: list[tuple[str, ...]] = [("superblocks", "what it is", "held by", "pages held", "pages free")]
    free = [row for row, each in enumerate(rows.rows) if each.kind == "free"]
    for row, each in enumerate(rows.rows):
        if each.ring is not None:
            found.append((str(row), "ring", name(each.ring), "-", "-"))
        elif each.kind == "pages":
            owners = sorted({name(owner) for page in each.pages for owner in page})
            held = ", ".join(owners[:_LISTED]) + (" ..." if len(owners) > _LISTED else "")
            found.append((str(row), "pages", held, str(each.used), str(rows.pages_per_row - each.used)))
    if free:
        found.append((spans(free), "free", "nobody", "-", "-"))
    if rows.moves:
        steps = [f"{source} to {target}" for source, target in rows.moves]
        listed = ", ".join(steps[:_LISTED]) + (" ..." if len(steps) > _LISTED else "")
        found.append(("-", "moved", listed, str(len(steps)), "-"))
    return tuple(found)
