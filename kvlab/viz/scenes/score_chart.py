"""The scores of blocks in the order in which they are read, and the running maximum over them as a staircase."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kvlab.viz import svg
from kvlab.viz.axes import Axis
from kvlab.viz.palette import colour
from kvlab.viz.scenes.taken import Taken, words

LEFT, RIGHT = 44.0, 500.0
HEIGHT = 184.0


def score_chart(taken: Sequence[Taken], count: int, top: float, below: Callable[[int], svg.Point]) -> list[str]:
    """A stem for each score of the first `count` blocks, and the running maximum over them.

    An arrow comes down to each block's stems from `below(block)`, the point under it in memory.
    """
    finite = [value for each in taken for value in (*each.scores, each.new_max) if math.isfinite(value)]
    axis = Axis.fit(min(finite, default=0.0), max(finite, default=1.0), top + HEIGHT, top + 40)
    room = (RIGHT - LEFT) / len(taken)
    parts = [svg.path(svg.lines([((LEFT, y), (RIGHT, y)) for _, y in axis.ticks()]), class_="kv-rule kv-faint")]
    parts += [svg.text(LEFT - 8, y + 4, label, class_="kv-quiet kv-end") for label, y in axis.ticks()]
    parts.append(svg.text(0, top + 6, "scores", class_="kv-strong"))
    for entry, each in enumerate(taken):
        x, tint = LEFT + entry * room, colour(entry)
        parts.append(svg.text(x + room / 2, top + 6, f"block {each.block}", class_="kv-ink kv-middle"))
        if entry >= count:
            continue
        parts.append(_arrow(below(each.block), (x + room / 2, top - 8), tint, entry == count - 1))
        step = room / (len(each.scores) + 1)
        for i, score in enumerate(each.scores, 1):
            if not math.isfinite(score):
                continue
            at, y = x + i * step, axis.at(score)
            stem = svg.path(svg.lines([((at, axis.start), (at, y))]), class_="kv-curve", stroke=tint)
            parts.append(stem + svg.tag("circle", cx=at, cy=y, r=5, fill=tint))
    return [*parts, *_staircase(taken, count, axis, room)]


def _staircase(taken: Sequence[Taken], count: int, axis: Axis, room: float) -> list[str]:
    """The running maximum: a level over each block, a riser where it changed, an arrow on the latest one."""
    d, parts, before = [], [], math.nan
    for entry, each in enumerate(taken[:count]):
        x, level = LEFT + entry * room, each.new_max
        if not math.isfinite(level):
            before = math.nan
            continue
        y = axis.at(level)
        d.append(((x, y), (x + room, y)))
        rises = math.isfinite(before) and level != before
        if rises:
            d.append(((x, axis.at(before)), (x, y)))
        if entry == count - 1:
            label = f"maximum {words(before)} → {words(level)}" if rises else f"maximum {words(level)}"
            look = "kv-warn" if rises else "kv-strong"
            parts.append(svg.text(x + 8, y - 7, label, class_=look))
            if rises:
                up = -1.0 if y < axis.at(before) else 1.0
                parts.append(svg.path(svg.arrow_head((x, y), (0, up), 11), class_="kv-copy-head"))
        before = level
    return [svg.path(svg.lines(d), class_="kv-copy"), *parts] if d else []


def _arrow(start: svg.Point, end: svg.Point, tint: str, now: bool) -> str:
    middle = (start[1] + end[1]) / 2
    points = ((start[0], middle), (end[0], middle), (end[0], end[1] - 5))
    d = f"M{svg.number(start[0])} {svg.number(start[1])}C"
    d += " ".join(f"{svg.number(x)} {svg.number(y)}" for x, y in points)
    head = svg.path(svg.arrow_head(end, (0, 1)), fill=tint)
    return svg.tag(
        "g", svg.path(d, class_="kv-arrow", stroke=tint), head, class_="kv-link" if now else "kv-link kv-faint"
    )
