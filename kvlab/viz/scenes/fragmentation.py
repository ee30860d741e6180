"""Contiguous memory: what each reservation holds, promises and wastes, and the holes between reservations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from kvlab.events import Event, RequestState, State
from kvlab.viz import svg
from kvlab.viz.drawing import Drawing, Table
from kvlab.viz.palette import colour, name
from kvlab.viz.scenes.cells import name_plate
from kvlab.viz.scenes.legend import legend
from kvlab.viz.scenes.regions import WORDS, drawn_piece, holders, holes, key_of, pieces, totals_of

WIDTH = 720.0
_BAR_LEFT = 132.0
_BAR = 34.0
_PITCH = 58.0
_STRIP = 62.0


def reservation_bars(state: State, events: Sequence[Event] = (), *, pool: str = "full") -> Drawing:
    """One bar a request, all on one scale: tokens solid, the rest of its region hatched by kind.

    `/` is reserved for tokens that will come, `\\` is inside the request's own chunk and never written, `x` is what
    the allocator added by rounding up. The table and the legend carry the totals.
    """
    requests = holders(state, pool)
    longest = max((request.regions[pool][2] for request in requests), default=1)
    scale = (WIDTH - _BAR_LEFT - 2) / longest
    parts: list[str] = []
    for row, request in enumerate(requests):
        y = row * _PITCH
        start, _, size = request.regions[pool]
        label = name(request.rid)
        words = f"{request.tokens:,} of {size:,}"
        parts.append(name_plate(0, y + 4, len(label) * 8 + 14, 26, label, colour(request.order)))
        parts.append(svg.text(_BAR_LEFT - 10, y + 22, words, class_="kv-ink kv-end"))
        for piece in pieces(request, pool):
            x = _BAR_LEFT + (piece.start - start) * scale
            parts += drawn_piece(piece, request, x, y, piece.slots * scale, _BAR, label_it=True)
        parts.append(svg.rect(_BAR_LEFT, y, size * scale, _BAR, class_="kv-outline"))
    totals = totals_of(requests, pool)
    reserved = sum(totals.values())
    key, height = legend(0, len(requests) * _PITCH + 2, WIDTH, key_of(totals, reserved))
    share = f"{100 * totals['live'] / max(1, reserved):.1f} % of {reserved:,} reserved slots hold a token"
    return Drawing(
        WIDTH,
        len(requests) * _PITCH + 2 + height,
        (*parts, *key),
        share if reserved else "Nothing is reserved",
        "; ".join(f"{WORDS[kind]}: {count:,} slots" for kind, count in totals.items() if count) or "No requests.",
        _bars_table(requests, pool, totals),
    )


def region_strip(
    state: State, events: Sequence[Event] = (), *, pool: str = "full", pending: int | None = None
) -> Drawing:
    """The whole pool as one strip, from slot 0 to its capacity: regions, and the free holes between them.

    `pending` is the size of a request that waits: it is drawn below at the same scale, under the first hole that
    takes it, or as refused when none does although their sum might.
    """
    requests = sorted(holders(state, pool), key=lambda request: request.regions[pool][0])
    capacity = state.pools[pool].capacity
    scale = (WIDTH - 2) / capacity
    top = 22.0
    parts: list[str] = []
    for request in requests:
        for piece in pieces(request, pool):
            parts += drawn_piece(
                piece, request, 1 + piece.start * scale, top, piece.slots * scale, _STRIP, label_it=False
            )
        start, _, size = request.regions[pool]
        parts.append(svg.rect(1 + start * scale, top, size * scale, _STRIP, class_="kv-outline"))
        parts += _region_label(request, 1 + start * scale, top, size * scale, size)
    free = holes(state, pool)
    for start, stop in free:
        parts += _hole(1 + start * scale, top, (stop - start) * scale, stop - start, pending)
    parts += _ruler(top + _STRIP, capacity, scale)
    bottom = top + _STRIP + 26
    if pending is not None:
        parts += _pending(pending, free, scale, bottom)
        bottom += 62
    totals = totals_of(requests, pool)
    items = [*key_of(totals, 0), (svg.rect(0.5, 0.5, 15, 11, class_="kv-hole"), "free hole")]
    key, key_height = legend(0, bottom + 4, WIDTH, items)
    spare = sum(stop - start for start, stop in free)
    largest = max((stop - start for start, stop in free), default=0)
    return Drawing(
        WIDTH,
        bottom + 4 + key_height,
        (*parts, *key),
        f"{spare:,} slots are free; the largest hole has {largest:,}",
        f"{len(requests)} regions, {len(free)} holes in {capacity:,} slots.",
        _strip_table(requests, free, pool),
    )


def _region_label(request: RequestState, x: float, y: float, width: float, size: int) -> Iterator[str]:
    label = name(request.rid)
    if width > len(label) * 8 + 16:
        yield name_plate(x + 5, y + 5, len(label) * 8 + 12, 22, label, colour(request.order))
    words = f"{size:,}"
    if width > len(words) * 7 + 8:
        yield svg.text(x + width / 2, y - 6, words, class_="kv-ink kv-middle")
    elif width > len(label) * 8:
        yield svg.text(x + width / 2, y - 6, label, class_="kv-strong kv-middle")


def _hole(x: float, y: float, width: float, slots: int, pending: int | None) -> Iterator[str]:
    small = pending is not None and slots < pending
    yield svg.rect(x + 0.5, y + 0.5, width - 1, _STRIP - 1, class_="kv-hole", data_tip=f"free hole of {slots:,} slots")
    if width > 46:
        yield svg.text(x + width / 2, y + _STRIP / 2, f"{slots:,}", class_="kv-large kv-middle")
        words = "too small" if small else "free"
        yield svg.text(x + width / 2, y + _STRIP / 2 + 16, words, class_=f"kv-{'warn' if small else 'quiet'} kv-middle")


def _ruler(y: float, capacity: int, scale: float) -> Iterator[str]:
    step = 2 ** max(0, round(math.log2(capacity / 4)))
    marks = [(slot, 1 + slot * scale) for slot in [*range(0, capacity - step // 2, step), capacity]]
    yield svg.path(svg.lines([((x, y + 3), (x, y + 8)) for _, x in marks]), class_="kv-rule")
    for slot, x in marks:
        side = "kv-middle" if 0 < slot < capacity else "kv-end" if slot else ""
        yield svg.text(x, y + 20, f"{slot:,}", class_=f"kv-quiet {side}".strip())


def _pending(pending: int, free: Sequence[tuple[int, int]], scale: float, y: float) -> Iterator[str]:
    fits = next((hole for hole in free if hole[1] - hole[0] >= pending), None)
    widest = max(free, key=lambda hole: hole[1] - hole[0], default=(0, 0))
    width = min(pending * scale, WIDTH - 2)
    left = min(1 + (fits or widest)[0] * scale, WIDTH - 1 - width)
    yield svg.rect(left, y + 8, width, 30, rx=4, class_="kv-fits" if fits else "kv-ghost")
    spare = sum(stop - start for start, stop in free)
    if fits:
        words = f"a request for {pending:,} fits at slot {fits[0]:,}"
    elif spare >= pending:
        words = f"a request for {pending:,} is refused, though {spare:,} slots are free"
    else:
        words = f"a request for {pending:,} is refused: only {spare:,} slots are free"
    yield svg.text(left + width / 2, y + 28, f"{pending:,}", class_="kv-strong kv-middle")
    look = "kv-strong" if fits else "kv-warn"
    edge = " kv-end" if left + width / 2 > WIDTH / 2 else ""
    yield svg.text(left + width if edge else left, y + 54, words, class_=look + edge)


def _bars_table(requests: Sequence[RequestState], pool: str, totals: dict[str, int]) -> Table:
    kinds = [kind for kind in WORDS if kind != "rounding" or totals["rounding"]]
    rows: list[tuple[str, ...]] = [("request", "reserved", *(WORDS[kind] for kind in kinds))]
    for request in requests:
        found = {piece.kind: piece.slots for piece in pieces(request, pool)}
        size = request.regions[pool][2]
        rows.append((name(request.rid), f"{size:,}", *(f"{found.get(kind, 0):,}" for kind in kinds)))
    whole = sum(totals.values())
    return (*rows, ("all", f"{whole:,}", *(f"{totals[kind]:,}" for kind in kinds)))


def _strip_table(requests: Sequence[RequestState], free: Sequence[tuple[int, int]], pool: str) -> Table:
    rows = [(r.regions[pool][0], r.regions[pool][2], name(r.rid), r.tokens) for r in requests]
    held: list[tuple[int, tuple[str, ...]]] = [
        (start, (f"{start:,}", f"{size:,}", who, f"{tokens:,}")) for start, size, who, tokens in rows
    ]
    held += [(start, (f"{start:,}", f"{stop - start:,}", "free", "0")) for start, stop in free]
    return (("start", "slots", "held by", "tokens"), *(row for _, row in sorted(held)))
