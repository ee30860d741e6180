"""A ring as a clock face: keys on the outer circle, values on the inner one, the write pointer outside."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from kvlab.viz import svg
from kvlab.viz.palette import colour, text_on
from kvlab.viz.scenes.ring_slots import RingSlots
from kvlab.viz.scenes.sectors import on_circle, sector, spokes

MOST_CELLS = 32
_MARGIN = 34.0
_CUT, _HOLE, _BETWEEN = 0.70, 0.42, 0.02


def clock(ring: RingSlots, x: float, y: float, size: float) -> Iterator[str]:
    """The clock in a square of `size`. Up to 32 slots are drawn each, more as runs of consecutive positions.

    The colour of a slot is the lap in which it was written, so a wrap is a change of colour.
    """
    cx, cy, radius = x + size / 2, y + size / 2, size / 2 - _MARGIN
    circles = (
        (ring.keys, radius, radius * (_CUT + _BETWEEN)),
        (ring.values, radius * (_CUT - _BETWEEN), radius * _HOLE),
    )
    for positions, outer, inner in circles:
        if ring.window <= MOST_CELLS:
            yield from _cells(ring, positions, cx, cy, outer, inner)
        else:
            yield from _runs(ring, positions, cx, cy, outer, inner)
    if ring.window <= MOST_CELLS:
        turns = [slot / ring.window for slot in range(ring.window)]
        yield svg.path(spokes(cx, cy, radius + 1, radius * _HOLE - 1, turns), class_="kv-slots")
        every = 1 if radius * 6.28 / ring.window > 20 else 2
        for slot in range(0, ring.window, every):
            px, py = on_circle(cx, cy, radius + 11, (slot + 0.5) / ring.window)
            yield svg.text(px, py + 3, str(slot), class_="kv-tiny kv-middle")
    yield from _marks(ring, cx, cy, radius)
    yield svg.text(cx, cy + 2, f"{ring.tokens:,}", class_="kv-large kv-middle")
    yield svg.text(cx, cy + 17, f"token{'s' * (ring.tokens != 1)}", class_="kv-quiet kv-middle")
    yield svg.text(x, y + size - 18, "outside: K", class_="kv-quiet")
    yield svg.text(x, y + size - 4, "inside: V", class_="kv-quiet")


def _cells(
    ring: RingSlots, positions: tuple[int | None, ...], cx: float, cy: float, outer: float, inner: float
) -> Iterator[str]:
    room = 6.28 * (outer + inner) / 2 / ring.window
    for slot, position in enumerate(positions):
        d = sector(cx, cy, outer, inner, slot / ring.window, (slot + 1) / ring.window)
        if position is None:
            yield svg.path(d, class_="kv-free")
            continue
        fill = colour(position // ring.window)
        px, py = on_circle(cx, cy, (outer + inner) / 2, (slot + 0.5) / ring.window)
        label = str(position)
        fits = room > len(label) * 7 + 3
        look = "kv-chip kv-middle" if fits else "kv-chip-small kv-middle"
        word = svg.text(px, py + (4 if fits else 3), label, class_=look, fill=text_on(fill))
        yield svg.path(d, fill=fill) + (word if room > len(label) * 5 else "")


def _runs(
    ring: RingSlots, positions: tuple[int | None, ...], cx: float, cy: float, outer: float, inner: float
) -> Iterator[str]:
    slots = range(ring.window)
    for _, run in groupby(slots, key=lambda s: None if positions[s] is None else (positions[s] or 0) - s):
        members = list(run)
        start, stop = members[0] / ring.window, (members[-1] + 1) / ring.window
        first, last = positions[members[0]], positions[members[-1]]
        d = sector(cx, cy, outer, inner, start, stop)
        if first is None or last is None:
            yield svg.path(d, class_="kv-free")
            continue
        fill = colour(first // ring.window)
        yield svg.path(d, fill=fill)
        px, py = on_circle(cx, cy, (outer + inner) / 2, (start + stop) / 2)
        label = f"{first:,}-{last:,}" if last > first else f"{first:,}"
        half = len(label) * 3.3 + 4
        if (stop - start) * 6.28 * (outer + inner) / 2 > 2 * half + 12:
            yield svg.rect(px - half, py - 8, 2 * half, 16, rx=3, class_="kv-plate")
            yield svg.text(px, py + 4, label, class_="kv-said-small kv-middle")


def _marks(ring: RingSlots, cx: float, cy: float, radius: float) -> Iterator[str]:
    """Outlines of the newest slot and of wrong ones, the position that was overwritten, and the pointer."""
    share, inner = 1 / ring.window, radius * _HOLE
    wrong = sorted({*ring.torn, *ring.stale})
    if wrong:
        pieces = (sector(cx, cy, radius, inner, slot * share, (slot + 1) * share) for slot in wrong)
        yield svg.path("".join(pieces), class_="kv-torn")
    if ring.newest is not None:
        d = sector(cx, cy, radius, inner, ring.newest * share, (ring.newest + 1) * share)
        yield svg.path(d, class_="kv-touched")
    if ring.newest is not None and ring.overwritten is not None and ring.window <= MOST_CELLS:
        px, py = on_circle(cx, cy, radius + 25, (ring.newest + 0.5) * share)
        label = f"{ring.overwritten:,}"
        half = len(label) * 3.2 + 2
        yield svg.text(px, py + 4, label, class_="kv-gone kv-middle") + svg.path(
            svg.lines([((px - half, py), (px + half, py))]), class_="kv-torn"
        )
    turn = (ring.pointer + 0.5) * share
    tip, tail = on_circle(cx, cy, radius + 18, turn), on_circle(cx, cy, radius + 32, turn)
    yield svg.path(svg.arrow_head(tip, (tip[0] - tail[0], tip[1] - tail[1]), 13), class_="kv-copy-head")
