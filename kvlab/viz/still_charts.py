"""The still pictures of charts, drawn without plotly: for GitHub, PDF and the table's reader."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from kvlab.viz import svg
from kvlab.viz.axes import Axis
from kvlab.viz.drawing import Drawing, Table
from kvlab.viz.palette import COLOURS, text_on
from kvlab.viz.scenes.legend import legend

WIDTH = 720.0
_HEIGHT = 300.0
_LEFT = 74.0
Rows = Sequence[tuple[str, Mapping[str, float]]]
Looks = Sequence[tuple[str, str]]
_DASHES = (None, "8 5", "2 4", "8 4 2 4", "12 4", "12 4 2 4", None)


def said(value: float | None) -> str:
    """A number for a table: four digits are enough, none are invented."""
    if value is None:
        return "-"
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}".rstrip("0").rstrip(".") or "0"


def stacked(rows: Rows, parts: Sequence[str], looks: Looks, *, title: str, axis: str) -> Drawing:
    """Horizontal bars cut into parts."""
    left = max(len(label) for label, _ in rows) * 7.4 + 14
    top, pitch, height = 26.0, 42.0, 28.0
    widest = max(sum(values.values()) for _, values in rows)
    scale = Axis.fit(0, float(f"{widest:.5g}"), left, WIDTH - 12)  # rounded parts may add up to 100.0002
    key, key_height = legend(0, 0, WIDTH, [(_swatch(*look), part) for part, look in zip(parts, looks, strict=True)])
    top = key_height + 10
    bottom = top + pitch * len(rows)
    marks = [*key, *_vertical_grid(scale, top, bottom)]
    for number, (label, values) in enumerate(rows):
        y, at = top + number * pitch + (pitch - height) / 2, 0.0
        marks.append(svg.text(left - 10, y + height / 2 + 4.5, label, class_="kv-ink kv-end"))
        for part, (fill, hatch) in zip(parts, looks, strict=True):
            value = values.get(part, 0)
            if value > 0:
                marks += _bar(scale.at(at), y, scale.at(at + value) - scale.at(at), height, fill, hatch)
                if scale.at(value) - scale.at(0) > 34:
                    x = scale.at(at + value / 2)
                    marks.append(_number(x, y + height / 2, f"{value:.1f}", fill, hatch))
            at += value
    marks.append(svg.text((left + WIDTH) / 2, bottom + 38, axis, class_="kv-quiet kv-middle"))
    table = (("", *parts), *((label, *(f"{values.get(part, 0):.1f}" for part in parts)) for label, values in rows))
    return Drawing(WIDTH, bottom + 44, tuple(marks), title, f"Stacked bars: {axis}", table)


def grouped(rows: Rows, names: Sequence[str], looks: Looks, *, title: str, axis: str, log: bool = False) -> Drawing:
    """Vertical bars side by side."""
    values = [value for _, row in rows for value in row.values()]
    items = [(_swatch(*look), label) for label, look in zip(names, looks, strict=True)] if len(names) > 1 else []
    key, key_height = legend(0, 0, WIDTH, items)
    top = key_height + 28 if items else 24.0
    bottom = top + _HEIGHT - 60
    low = min(values) / 2 if log else 0.0
    scale = Axis.fit(low, max(values), bottom, top, log=log)
    marks = [*key, *_horizontal_grid(scale), svg.text(0, top - 12, axis, class_="kv-quiet")]
    pitch = (WIDTH - _LEFT - 12) / len(rows)
    width = min(70.0, pitch * 0.8 / len(names))
    for number, (label, row) in enumerate(rows):
        middle = _LEFT + pitch * (number + 0.5)
        marks.append(svg.text(middle, bottom + 20, label, class_="kv-ink kv-middle"))
        for i, (series, (fill, hatch)) in enumerate(zip(names, looks, strict=True)):
            value = row.get(series)
            if value is not None and value > 0:
                y = scale.at(value)
                marks += _bar(middle + (i - len(names) / 2) * width, y, width, bottom - y, fill, hatch)
    table = (("", *names), *((label, *(said(row.get(series)) for series in names)) for label, row in rows))
    return Drawing(WIDTH, bottom + 30, tuple(marks), title, f"Bars: {axis}", table)


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]], *, title: str, x: str, y: str, log_x: bool, log_y: bool
) -> Drawing:
    """Lines with markers."""
    points = [point for line in series.values() for point in line]
    items = [(_line_swatch(i), label) for i, label in enumerate(series)] if len(series) > 1 else []
    key, key_height = legend(0, 0, WIDTH, items)
    top = key_height + 28 if items else 24.0
    bottom = top + _HEIGHT - 60
    across = Axis.fit(min(p[0] for p in points), max(p[0] for p in points), _LEFT, WIDTH - 20, log=log_x)
    low = min(p[1] for p in points)
    up = Axis.fit(low if log_y else min(0.0, low), max(p[1] for p in points), bottom, top, log=log_y)
    marks = [*key, *_horizontal_grid(up), svg.text(0, top - 12, y, class_="kv-quiet")]
    marks += _vertical_grid(across, top, bottom)
    marks.append(svg.text((_LEFT + WIDTH) / 2, bottom + 38, x, class_="kv-quiet kv-middle"))
    for i, line in enumerate(series.values()):
        tint = COLOURS[i % len(COLOURS)]
        at = [(across.at(a), up.at(b)) for a, b in line]
        d = "M" + "L".join(f"{svg.number(a)} {svg.number(b)}" for a, b in at)
        marks.append(svg.path(d, class_="kv-curve", stroke=tint, stroke_dasharray=_DASHES[i % len(_DASHES)]))
        marks += [_dot(a, b, i, tint) for a, b in at]
    return Drawing(WIDTH, bottom + 44, tuple(marks), title, f"{y} against {x}", _points(series, x))


def _points(series: Mapping[str, Sequence[tuple[float, float]]], x: str) -> Table:
    """One row for each x, one column for each line."""
    lookup = {label: dict(line) for label, line in series.items()}
    xs = sorted({a for line in series.values() for a, _ in line})
    return ((x, *series), *((said(a), *(said(lookup[label].get(a)) for label in series)) for a in xs))


def _bar(x: float, y: float, width: float, height: float, fill: str, hatch: str) -> Iterator[str]:
    yield svg.rect(x, y, width, height, fill=fill)
    if hatch in ("/", "\\", "x"):
        yield svg.path(svg.hatch(x, y, width, height, hatch), class_="kv-bar-hatch")
    elif hatch:
        yield svg.path(_straight(x, y, width, height, hatch), class_="kv-bar-hatch")
    yield svg.rect(x, y, width, height, class_="kv-outline")


def _straight(x: float, y: float, width: float, height: float, kind: str) -> str:
    found: list[tuple[svg.Point, svg.Point]] = []
    if kind in ("|", "+"):
        found += [((x + a, y), (x + a, y + height)) for a in range(5, int(width), 7)]
    if kind in ("-", "+"):
        found += [((x, y + b), (x + width, y + b)) for b in range(5, int(height), 7)]
    return svg.lines(found)


def _number(x: float, y: float, words: str, fill: str, hatch: str) -> str:
    """A number on a bar; on a hatch it has a plate."""
    if not hatch:
        return svg.text(x, y + 4.5, words, class_="kv-middle kv-on", fill=text_on(fill))
    half = len(words) * 3.7 + 4
    plate = svg.rect(x - half, y - 9, 2 * half, 18, rx=3, class_="kv-plate")
    return plate + svg.text(x, y + 4.5, words, class_="kv-ink kv-middle")


def _swatch(fill: str, hatch: str) -> str:
    return "".join(_bar(0, 0, 16, 12, fill, hatch))


def _line_swatch(i: int) -> str:
    tint = COLOURS[i % len(COLOURS)]
    dash = _DASHES[i % len(_DASHES)]
    return svg.path("M-2 6h20", class_="kv-curve", stroke=tint, stroke_dasharray=dash) + _dot(8, 6, i, tint)


def _dot(x: float, y: float, i: int, tint: str) -> str:
    if i % 3 == 0:
        return svg.tag("circle", cx=x, cy=y, r=4, fill=tint)
    if i % 3 == 1:
        return svg.rect(x - 4, y - 4, 8, 8, fill=tint)
    return svg.path(f"M{svg.number(x)} {svg.number(y - 5)}l5 5l-5 5l-5 -5z", fill=tint)


def _horizontal_grid(scale: Axis) -> Iterator[str]:
    yield svg.path(svg.lines([((_LEFT, y), (WIDTH - 12, y)) for _, y in scale.ticks()]), class_="kv-grid")
    for value, y in scale.ticks():
        yield svg.text(_LEFT - 8, y + 4, value, class_="kv-quiet kv-end")


def _vertical_grid(scale: Axis, top: float, bottom: float) -> Iterator[str]:
    yield svg.path(svg.lines([((x, top), (x, bottom)) for _, x in scale.ticks()]), class_="kv-grid")
    for value, x in scale.ticks():
        yield svg.text(x, bottom + 18, value, class_="kv-quiet kv-middle")
