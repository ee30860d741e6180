"""SVG elements as strings, with one fixed way to print numbers, so that the same state gives the same bytes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from html import escape

from kvlab.errors import InvalidInput

Point = tuple[float, float]
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def number(value: float) -> str:
    """At most two decimals, no trailing zeros: 12.50 -> 12.5, 3.0 -> 3, -0.001 -> 0."""
    printed = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if printed == "-0" else printed


def tag(element: str, *content: str, **attributes: str | float | None) -> str:
    """One element; `content` is SVG already. `class_` is `class`, `data_block` is `data-block`; None is left out."""
    written = "".join(
        f' {key.strip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(content)
    return f"<{element}{written}>{inside}</{element}>" if inside else f"<{element}{written}/>"


def _value(value: str | float) -> str:
    return escaped(value, quote=True) if isinstance(value, str) else number(value)


def escaped(words: str, *, quote: bool = False) -> str:
    """Words as XML; a character that XML cannot hold (a control character, half a surrogate pair) becomes �."""
    return escape(_NO_XML.sub("\ufffd", words), quote=quote)


def rect(x: float, y: float, width: float, height: float, **attributes: str | float | None) -> str:
    """A rectangle; `rx` rounds it."""
    return tag("rect", x=x, y=y, width=width, height=height, **attributes)


def text(x: float, y: float, words: str, **attributes: str | float | None) -> str:
    """A line of text on the baseline `y`."""
    return tag("text", escaped(words), x=x, y=y, **attributes)


def path(d: str, **attributes: str | float | None) -> str:
    """A path from its `d` string."""
    return tag("path", d=d, **attributes)


def boxes(rectangles: Iterable[tuple[float, float, float, float]]) -> str:
    """The `d` of a path that fills several (x, y, width, height)."""
    return "".join(f"M{number(x)} {number(y)}h{number(w)}v{number(h)}h{number(-w)}z" for x, y, w, h in rectangles)


def lines(segments: Iterable[tuple[Point, Point]]) -> str:
    """The `d` of a path of separate straight lines."""
    return "".join(f"M{number(x0)} {number(y0)}L{number(x1)} {number(y1)}" for (x0, y0), (x1, y1) in segments)


def hatch(x: float, y: float, width: float, height: float, kind: str, step: float = 7) -> str:
    """The `d` of 45-degree lines that fill a rectangle: kind '/', '\\' or 'x' (both).

    Lines rather than an SVG pattern: a pattern needs an id, and ids collide when two pictures share a page.
    The lines lie on one grid for the whole drawing, so neighbouring rectangles join without a seam.
    """
    if kind not in ("/", "\\", "x"):
        raise InvalidInput(f"a hatch is '/', '\\\\' or 'x', not {kind!r}")
    found: list[tuple[Point, Point]] = []
    right, bottom = x + width, y + height
    if kind in ("/", "x"):  # u + v = c
        c = math.ceil((x + y) / step) * step
        while c < right + bottom:
            u0, u1 = max(x, c - bottom), min(right, c - y)
            found.append(((u0, c - u0), (u1, c - u1)))
            c += step
    if kind in ("\\", "x"):  # u - v = c
        c = math.ceil((x - bottom) / step) * step
        while c < right - y:
            u0, u1 = max(x, y + c), min(right, bottom + c)
            found.append(((u0, u0 - c), (u1, u1 - c)))
            c += step
    return lines(segment for segment in found if segment[1][0] - segment[0][0] > 0.01)


def arrow_head(tip: Point, direction: Point, size: float = 7) -> str:
    """The `d` of a filled triangle whose point is `tip`, looking along `direction`."""
    length = math.hypot(*direction) or 1.0
    dx, dy = direction[0] / length, direction[1] / length
    x, y = tip[0] - size * dx, tip[1] - size * dy
    half = size * 0.5
    corners = (tip, (x - half * dy, y + half * dx), (x + half * dy, y - half * dx))
    return "M" + "L".join(f"{number(a)} {number(b)}" for a, b in corners) + "z"


def curve(start: Point, end: Point, bend: float = 0.5) -> str:
    """The `d` of a curve that leaves and arrives horizontally."""
    reach = (end[0] - start[0]) * bend
    points = ((start[0] + reach, start[1]), (end[0] - reach, end[1]), end)
    return f"M{number(start[0])} {number(start[1])}C" + " ".join(f"{number(a)} {number(b)}" for a, b in points)
