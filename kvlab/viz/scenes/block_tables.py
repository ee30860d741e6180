"""Each request's block table: logical block -> physical block, and how many of its slots are filled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvlab.events import Event, RequestState, State, from_ranges
from kvlab.viz import svg
from kvlab.viz.drawing import Drawing
from kvlab.viz.palette import colour, name
from kvlab.viz.scenes.cells import name_plate
from kvlab.viz.scenes.pool_grid import headline, paged, spans, touched

WIDTH = 324.0
_HEADER = 30.0
_ROW = 23.0
_BETWEEN = 12.0
_BAR_LEFT = 92.0
_BAR = 128.0
_ROWS = 16
_FEW = 4


def block_tables(state: State, events: Sequence[Event] = (), *, pool: str = "full") -> Drawing:
    """One table a request, in order of first admission; a long table folds its middle.

    Each row is an entry: logical index, physical block, its slots, "5/16". Entries that this frame touched are
    outlined. A table keeps room for the blocks its request will need, so that rows stay put while it grows.
    """
    paged(state, pool)
    laid = lay_out(state, pool)
    count = len(state.running())
    return Drawing(
        WIDTH,
        laid.height,
        laid.parts(state, events, pool),
        headline(state, pool),
        f"{count} request{'s' if count != 1 else ''} in memory.",
        tables_table(state, pool),
    )


@dataclass(frozen=True)
class Entry:
    """One drawn row: table entry `index`, or `hidden` entries folded away."""

    rid: int | str
    index: int
    y: float
    hidden: int = 0


@dataclass(frozen=True)
class TableLayout:
    """Rows of all tables; `headers` are (request, y)."""

    headers: tuple[tuple[RequestState, float], ...]
    entries: tuple[Entry, ...]
    height: float

    def anchor(self, entry: Entry) -> svg.Point:
        """Where an arrow leaves an entry: the right end of its row."""
        return WIDTH, entry.y + _ROW / 2

    def parts(self, state: State, events: Sequence[Event], pool: str) -> tuple[str, ...]:
        """Column titles; each request's header and rows, in the order in which the keyboard walks through them."""
        size = state.pools[pool].block_size
        holders, hot = state.holders(pool), touched(state, events, pool)
        found = [_titles()] if self.headers else [svg.text(0, 14, "No request holds memory.", class_="kv-quiet")]
        for request, y in self.headers:
            found += _header(request, y, pool, size)
            for entry in (entry for entry in self.entries if entry.rid == request.rid):
                if entry.hidden:
                    found.append(_fold(entry, request, pool))
                    continue
                block = request.tables[pool][entry.index]
                shared = len(holders[block]) if block is not None else 0
                found += _row(entry, request, block, shared, size)
                if block in hot and _is_touched(request, entry.index, events, pool, size):
                    found.append(svg.rect(42, entry.y + 2, WIDTH - 42, _ROW - 4, rx=3, class_="kv-touched"))
        return tuple(found)


def lay_out(state: State, pool: str) -> TableLayout:
    """Place every running request, with room for its last token; while there are few, name those that left too."""
    shown = [r for r in state.requests.values() if r.status == "running" or len(state.requests) <= _FEW]
    shown.sort(key=lambda request: request.order)
    limit = max(4, _ROWS // max(1, len(shown)))
    size = state.pools[pool].block_size
    headers, entries, y = [], [], 18.0
    for request in shown:
        headers.append((request, y))
        y += _HEADER
        length = len(request.tables.get(pool, ()))
        room = min(limit, max(length, -(-request.final // size))) if request.status == "running" else 0
        for row, (index, hidden) in enumerate(_folded(length, limit)):
            entries.append(Entry(request.rid, index, y + row * _ROW, hidden))
        y += room * _ROW + _BETWEEN
    return TableLayout(tuple(headers), tuple(entries), max(y - _BETWEEN, 24.0))


def _folded(length: int, limit: int) -> list[tuple[int, int]]:
    """(index, hidden) rows: the first entry, a fold, the last ones; all of them where they fit."""
    if length <= limit:
        return [(index, 0) for index in range(length)]
    last = range(length - (limit - 2), length)
    return [(0, 0), (1, length - limit + 1), *((index, 0) for index in last)]


def _is_touched(request: RequestState, index: int, events: Sequence[Event], pool: str, size: int) -> bool:
    for kind, *fields in events:
        if kind == "step":
            for rid, count in fields[0]:
                if rid == request.rid and count > 0 and (request.tokens - count) // size <= index:
                    return True
        elif kind == "copy" and fields[:3] == [request.rid, pool, index]:
            return True
        elif kind in ("grow", "swap_in") and fields[0] == request.rid and fields[1] == pool:
            return index >= len(request.tables[pool]) - len(from_ranges(fields[2]))
    return False


def _titles() -> str:
    words = ((0, "logical", "kv-quiet"), (48, "block", "kv-quiet"), (_BAR_LEFT, "slots", "kv-quiet"))
    right = svg.text(WIDTH - 6, 10, "filled", class_="kv-quiet kv-end")
    return svg.tag("g", *(svg.text(x, 10, word, class_=look) for x, word, look in words), right)


def _header(request: RequestState, y: float, pool: str, size: int) -> tuple[str, ...]:
    label = name(request.rid)
    width = len(label) * 9 + 14
    return (
        name_plate(0, y + 4, width, 22, label, colour(request.order)),
        svg.text(width + 8, y + 19.5, _summary(request, pool, size), class_="kv-head"),
    )


def _summary(request: RequestState, pool: str, size: int) -> str:
    blocks = len([block for block in request.tables.get(pool, ()) if block is not None])
    if request.status != "running":
        where = f" ({len(request.host.get(pool, ()))} blocks on the host)" if request.host else ""
        return f"{request.status.replace('_', ' ')}{where}"
    if not blocks:
        return "no blocks yet"
    empty = len(request.tables[pool]) * size - request.tokens
    return f"{request.tokens:,} tokens, {blocks} block{'s' * (blocks != 1)}, {empty} slot{'s' * (empty != 1)} empty"


def _row(entry: Entry, request: RequestState, block: int | None, holders: int, size: int) -> tuple[str, ...]:
    """The row with its numbers, its slots (which alone change when a token is written), the lines between them."""
    y, tint = entry.y, colour(request.order)
    key = f"{name(request.rid)}:{entry.index}"
    index = svg.text(36, y + 16, str(entry.index), class_="kv-quiet kv-end")
    if block is None:
        return (index + svg.text(48, y + 16, "freed: behind the window", class_="kv-quiet"),)
    filled = min(size, max(0, request.tokens - entry.index * size))
    marks = {"data_entry": key, "data_block": str(block), "data_request": name(request.rid)}
    box = svg.rect(42, y + 2, WIDTH - 42, _ROW - 4, rx=3, class_="kv-cell")
    number = svg.text(64, y + 16, str(block), class_="kv-strong kv-middle")
    unit, left, top, height = _BAR / size, _BAR_LEFT, y + 5.5, _ROW - 11
    empty = svg.rect(left, top, _BAR, height, fill=tint, class_="kv-tint")
    tip = f"{name(request.rid)}: logical block {entry.index} is physical block {block}"
    base = svg.tag("g", index, box, number, empty, data_tip=tip, **marks)
    share = f" ×{holders}" if holders > 1 else ""
    count = svg.text(WIDTH - 6, y + 16, f"{filled}/{size}{share}", class_="kv-ink kv-end")
    bar = svg.rect(left, top, filled * unit, height, fill=tint)
    down = f"v{svg.number(height)}"
    lines = "".join(f"M{svg.number(left + i * unit)} {svg.number(top)}{down}" for i in range(1, size))
    separators = (svg.path(lines, class_="kv-slots"),) if unit >= 4 and lines else ()
    return base, svg.tag("g", bar, count, **marks), *separators


def _fold(entry: Entry, request: RequestState, pool: str) -> str:
    table = request.tables[pool][entry.index : entry.index + entry.hidden]
    ids = spans([block for block in table if block is not None])
    ids = ids if len(ids) <= 24 else f"{ids[:22]} …"
    words = f"⋮  {entry.hidden} more: {ids}"
    return svg.text(48, entry.y + 16, words, class_="kv-quiet")


def tables_table(state: State, pool: str) -> tuple[tuple[str, ...], ...]:
    """Request, tokens, blocks in table order (full ones folded), empty slots."""
    size = state.pools[pool].block_size
    rows: list[tuple[str, ...]] = [("request", "tokens", "block table", "empty slots")]
    for request in sorted(state.requests.values(), key=lambda request: request.order):
        table = request.tables.get(pool, [])
        held = [block for block in table if block is not None]
        if not held:
            rows.append((name(request.rid), "-", f"none ({request.status})", "-"))
            continue
        behind = len(table) - len(held)
        words = (f"{behind} freed, " if behind else "") + spans(held)
        rows.append((name(request.rid), f"{request.tokens:,}", words, str(len(table) * size - request.tokens)))
    return tuple(rows)
