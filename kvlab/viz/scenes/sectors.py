"""Pieces of a ring as SVG paths; turns run from 0 (12 o'clock) clockwise to 1."""

from __future__ import annotations

import math

from kvlab.viz import svg


def on_circle(cx: float, cy: float, radius: float, turn: float) -> svg.Point:
    """The point of a circle at a turn."""
    angle = 2 * math.pi * turn
    return cx + radius * math.sin(angle), cy - radius * math.cos(angle)


def sector(cx: float, cy: float, outer: float, inner: float, start: float, stop: float) -> str:
    """The `d` of the piece between two radii and two turns; a whole ring is two halves."""
    if stop - start > 0.999:
        half = (start + stop) / 2
        return sector(cx, cy, outer, inner, start, half) + sector(cx, cy, outer, inner, half, stop)

    def at(radius: float, turn: float) -> str:
        x, y = on_circle(cx, cy, radius, turn)
        return f"{svg.number(x)} {svg.number(y)}"

    large = int(stop - start > 0.5)
    out, back = (f"A{svg.number(radius)} {svg.number(radius)} 0 {large}" for radius in (outer, inner))
    return f"M{at(outer, start)}{out} 1 {at(outer, stop)}L{at(inner, stop)}{back} 0 {at(inner, start)}z"


def spokes(cx: float, cy: float, outer: float, inner: float, turns: list[float]) -> str:
    """The `d` of lines between two radii at these turns."""
    return svg.lines((on_circle(cx, cy, inner, turn), on_circle(cx, cy, outer, turn)) for turn in turns)
