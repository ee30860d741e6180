"""A radix tree from left to right, its spans over two pools: full KV above, sliding-window KV below."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kvlab.errors import InvalidInput
from kvlab.events import Event, State
from kvlab.viz import svg
from kvlab.viz.drawing import Drawing, Table
from kvlab.viz.palette import name
from kvlab.viz.scenes.conservation import WIDTH, Parts, gauges, parts_of
from kvlab.viz.scenes.legend import legend
from kvlab.viz.scenes.radix_tree_looks import WORDS, bar, half_pixel, padlock, ruler, stone, swatches
from kvlab.viz.scenes.radix_tree_rows import rows_of
from kvlab.viz.scenes.radix_tree_state import FULL, SWA, Edge, Flight, Span, edges_of, has_swa, page_size_of
from kvlab.viz.words import shown

_LEFT, _TOP = 86.0, 22.0
_SPAN = WIDTH - _LEFT - 8
_PITCH, _FULL_HIGH, _SWA_HIGH, _ABOVE = 74.0, 9.0, 22.0, 4.0
_MOST_ROWS = 16
_INSET = 1.5


def radix_tree(
    state: State,
    events: Sequence[Event] = (),
    *,
    window_tokens: int | None = None,
    scale_tokens: int | None = None,
    branches: int = 1,
    words: Mapping[int, str] | None = None,
    flight: Flight | None = None,
) -> Drawing:
    """Every node as two bars from its first to its last token: thin, its full KV; below it, its SWA KV.

    Requests stand at the end of the path that they lock, their own KV behind it; under the tree the two pools.
    `window_tokens` tells what of a locked span no window reaches. `scale_tokens` fills the width (default: the next
    round number of pages), `branches` is how many rows there is room for at least. `words` are shown under a node by
    its number. `flight`: tokens in computation by request. Raises `InvalidInput` where there is more than the scale, or
    more than 16 branches.
    """
    edges = edges_of(state, window_tokens, flight)
    end = max((edge.stop for edge in edges), default=0)
    scale = _round(end, page_size_of(state)) if scale_tokens is None else scale_tokens
    if end > scale or scale < 1:
        raise InvalidInput(f"the tree has {end:,} tokens on its longest path; scale_tokens={scale:,} cannot show them")
    rows = rows_of(edges)
    count = max([branches - 1, *rows]) + 1
    if count > _MOST_ROWS:
        raise InvalidInput(f"the tree has {count} branches; the picture has rows for {_MOST_ROWS}")
    touched = {fields[0] for kind, *fields in events if kind in ("node", "heal", "tombstone")}
    two = has_swa(state)
    locks = {edge.number: edge.locks for edge in edges if not edge.owner}
    parts = [*_root(two), *_trunks(edges, rows, scale)]
    for edge, row in zip(edges, rows, strict=True):
        badge = locks.get(edge.parent, 0) != edge.locks
        parts += _edge(edge, _TOP + row * _PITCH, scale, two, words or {}, badge)
        if edge.number in touched and not edge.owner:
            parts.append(_outline(edge, _TOP + row * _PITCH, scale, two))
    parts += _flags(edges, rows, scale)
    y = _TOP + count * _PITCH + 4
    parts += ruler(scale, y - 8, _LEFT, _SPAN)
    y += 26
    bars: dict[str, Parts] = {pool: parts_of(state, edges, pool) for pool in (FULL, SWA) if pool in state.pools}
    drawn, y = gauges(state, bars, y)
    kinds = {span.kind for edge in edges for span in (*edge.full, *edge.swa)}
    key, key_height = legend(0, y + 2, WIDTH, swatches(kinds))
    return Drawing(
        WIDTH, y + 2 + key_height, (*parts, *drawn, *key), _title(edges),
        "A tree of cached tokens from left to right; under each span its full-attention and its sliding-window KV.",
        _table(edges),
    )  # fmt: skip


def _round(tokens: int, page: int) -> int:
    """The next 2, 3, 4, 6, 8, 12 ... times eight pages."""
    step = 8 * page
    while step < tokens:
        step = step * 3 // 2 if step * 3 // 2 >= tokens else step * 2
    return step


def _x(position: int, scale: int) -> float:
    return half_pixel(_LEFT + position / scale * _SPAN)


def _root(two: bool) -> Iterator[str]:
    top = _TOP + _ABOVE + 12
    yield svg.rect(
        _LEFT - 12, top, 8, _FULL_HIGH + (2 + _SWA_HIGH if two else 0), rx=3, class_="kv-badge", data_tip="root"
    )
    yield svg.text(_LEFT - 18, top + 9, "full KV", class_="kv-head kv-end")
    if two:
        yield svg.text(_LEFT - 18, top + _FULL_HIGH + 18, "SWA KV", class_="kv-head kv-end")


def _trunks(edges: Sequence[Edge], rows: Sequence[int], scale: int) -> Iterator[str]:
    """Lines from the end of a node, or from the root, to its children on other rows."""
    row_of = {edge.number: row for edge, row in zip(edges, rows, strict=True) if not edge.owner}
    middle = _ABOVE + 12 + _FULL_HIGH
    for edge, row in zip(edges, rows, strict=True):
        above, x = row_of.get(edge.parent, 0), _x(edge.start, scale) - (0 if edge.start else 7)
        if above != row:
            top, low = _TOP + above * _PITCH + middle, _TOP + row * _PITCH + middle
            n = svg.number
            yield svg.path(f"M{n(x - 1)} {n(top)}V{n(low - 6)}q0 6 6 6h2", class_="kv-thread", stroke="#8d96a0")


def _edge(edge: Edge, y: float, scale: int, two: bool, words: Mapping[int, str], badge: bool) -> Iterator[str]:
    top = y + _ABOVE + 12
    x, right = _x(edge.start, scale) + _INSET, _x(edge.stop, scale) - _INSET
    inner = list(_bars(edge.full, edge, top, _FULL_HIGH, scale))
    if two:
        inner += _bars(edge.swa, edge, top + _FULL_HIGH + 2, _SWA_HIGH, scale)
    if edge.locks > 1 and not edge.owner:
        inner.append(_shared(edge, x, right, top, badge))
    room, said = int((right - x) / 6.4), words.get(edge.number, f"{edge.stop - edge.start:,}")
    label = shown(said, max(room, 1)) if edge.number in words else said
    if edge.owner:
        label = next((each for each in _own_words(edge) if len(each) <= room), "")
    if len(label) <= room:
        low = top + _FULL_HIGH + (2 + _SWA_HIGH if two else 0) + 13
        inner.append(svg.text((x + right) / 2, low, label, class_="kv-quiet kv-middle"))
    yield svg.tag("g", *inner, data_tip=_said(edge))


def _own_words(edge: Edge) -> tuple[str, str]:
    who = name(edge.owner.rid) if edge.owner else ""
    flying = any(span.kind == "flight" for span in edge.full)
    return (f"{who}: in flight", "in flight") if flying else (f"{who}'s own", "own")


def _shared(edge: Edge, x: float, right: float, top: float, badge: bool) -> str:
    """A line over what several lock, and at its beginning how many they are."""
    line = svg.path(svg.lines([((x, top - 3), (right, top - 3))]), class_="kv-copy")
    if not badge:
        return line
    label = f"×{edge.locks}"
    wide = len(label) * 7.2 + 8
    return line + svg.tag(
        "g",
        svg.rect(x, top - 20, wide, 15, rx=3, class_="kv-badge"),
        svg.text(x + wide / 2, top - 8.5, label, class_="kv-badge-text kv-middle"),
    )


def _bars(spans: Sequence[Span], edge: Edge, y: float, height: float, scale: int) -> Iterator[str]:
    for span in spans:
        x = _x(span.start, scale) + (_INSET if span.start == edge.start else 0)
        right = _x(span.stop, scale) - (_INSET if span.stop == edge.stop else 0)
        wide = max(0.5, right - x)
        yield bar(span.kind, x, y, wide, height)
        if height < _SWA_HIGH:
            continue
        if span.kind == "tombstone" and wide > 14:
            yield stone(x + wide / 2, y + height - 3, 15)
        elif span.kind in ("live", "dead") and wide > 14 and not edge.owner:
            many = f"×{edge.swa_locks}" if edge.swa_locks > 1 and wide > 34 else ""
            left = x + wide / 2 - 4 - len(many) * 3.5
            yield padlock(left, y + height / 2 - 6, "kv-paper" if span.kind == "live" else "kv-badge")
            if many:
                ink = {"fill": "#FFFFFF"} if span.kind == "live" else {}
                look = "kv-chip" if ink else "kv-head"
                yield svg.text(left + 11, y + height / 2 + 4.5, many, class_=look, **ink)


def _outline(edge: Edge, y: float, scale: int, two: bool) -> str:
    x, right = _x(edge.start, scale), _x(edge.stop, scale)
    high = _FULL_HIGH + (2 + _SWA_HIGH if two else 0)
    return svg.rect(x, y + _ABOVE + 10.5, right - x, high + 3, rx=2, class_="kv-touched")


def _flags(edges: Sequence[Edge], rows: Sequence[int], scale: int) -> Iterator[str]:
    """The names of the requests at the ends of the paths that they lock."""
    ends: dict[str | int, tuple[int, int]] = {}
    for edge, row in zip(edges, rows, strict=True):
        for each in edge.users if not edge.owner else ():
            if edge.stop >= ends.get(each.rid, (0, 0))[0]:
                ends[each.rid] = edge.stop, row
        if edge.owner:
            ends.setdefault(edge.owner.rid, (edge.start, row))
    places: dict[tuple[int, int], list[str]] = {}
    for rid, place in ends.items():
        places.setdefault(place, []).append(shown(name(rid), 8))
    for (stop, row), names in places.items():
        right, y = max(_x(stop, scale), _LEFT + 4), _TOP + row * _PITCH - 2
        label = " ".join(names)
        wide = len(label) * 7.4 + 22
        left = max(0.0, right - wide)
        n = svg.number
        pole = svg.path(f"M{n(right)} {n(y)}v{n(_ABOVE + 14 + _FULL_HIGH + 6)}", class_="kv-copy")
        plate = svg.rect(left, y - 3, wide, 17, rx=3, class_="kv-badge")
        text = svg.text(left + 16, y + 10, label, class_="kv-badge-text")
        yield svg.tag("g", pole, plate, padlock(left + 5, y, "kv-paper"), text, data_request=label)


def _conditions(spans: Sequence[Span]) -> str:
    return ", ".join(f"{span.tokens:,} {span.kind}" for span in spans) or "-"


def _users(edge: Edge) -> str:
    if edge.users:
        return ", ".join(shown(name(each.rid), 16) for each in edge.users)
    return f"{edge.locks} lock{'s' * (edge.locks != 1)}" if edge.locks else "nobody"


def _said(edge: Edge) -> str:
    what = f"{_users(edge)}'s own KV" if edge.owner else f"node {edge.number}, locked by {_users(edge)}"
    swa = "; ".join(f"{span.tokens:,} {WORDS[span.kind]}" for span in edge.swa)
    return f"tokens {edge.start:,} to {edge.stop:,}, {what}" + (f". SWA: {swa}" if swa else "")


def _title(edges: Sequence[Edge]) -> str:
    nodes = [edge for edge in edges if not edge.owner]
    if not nodes:
        return "The tree is empty"
    total = sum(edge.stop - edge.start for edge in nodes)
    said = f"{total:,} tokens in {len(nodes)} node{'s' * (len(nodes) != 1)}"
    counts = {kind: sum(span.tokens for edge in edges for span in edge.swa if span.kind == kind) for kind in WORDS}
    for kind, what in (("dead", "dead but pinned"), ("tombstone", "tombstones")):
        if counts[kind]:
            said += f", {counts[kind]:,} {what}"
    return said


def _table(edges: Sequence[Edge]) -> Table:
    rows = [
        (
            f"{edge.start:,}-{edge.stop:,}",
            "request's own" if edge.owner else f"node {edge.number}",
            "root" if edge.parent < 0 else f"node {edge.parent}",
            _users(edge),
            _conditions(edge.full),
            _conditions(edge.swa),
        )
        for edge in edges
    ]
    return (("tokens", "span", "after", "locked by", "full KV", "SWA KV"), *rows)
