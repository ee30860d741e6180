"""Charts: plotly figures of a house style, each with a still picture and a table that say the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kvlab.errors import InvalidInput
from kvlab.viz import still_charts
from kvlab.viz.axes import Axis
from kvlab.viz.drawing import Drawing, Table
from kvlab.viz.palette import COLOURS, text_on

PLOTLY_MIME: Final = "application/vnd.plotly.v1+json"
PALE_GREY: Final = "#D5DADF"
GREY: Final = "#98A1AA"
DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")
SYMBOLS: Final = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")
HATCHES: Final = ("", "/", "x", "\\", "|", "-", "+")

# The shares of a KV pool look the same in every chart: a hatch, and a colour.
SHARES: Final = {
    "tokens": (COLOURS[0], ""),
    "reserved": (COLOURS[1], "/"),
    "internal": (PALE_GREY, "\\"),
    "external": (GREY, "x"),
    "free": ("#FFFFFF", ""),
}


class Chart:
    """Shows a plotly figure where one can be drawn, else its still picture, else its table.

    `figure` is a plotly figure or its JSON as a dictionary. For a figure of your own give `table` (header first) and
    `title`; the functions of this module give a `drawing` instead. Raises `InvalidInput` without either.
    """

    def __init__(
        self, figure: Any, table: Table | None = None, *, title: str = "", drawing: Drawing | None = None
    ) -> None:
        if drawing is None and not table:
            raise InvalidInput("a chart needs a table that says the same: Chart(figure, table, title=...)")
        self.figure = _styled(figure, title)
        self.drawing = drawing
        self.table = drawing.table if drawing else tuple(tuple(row) for row in table or ())
        self.title = drawing.title if drawing else title

    def __repr__(self) -> str:
        return Drawing(0, 0, (), self.title, "", self.table).text()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        data: dict[str, Any] = {"text/plain": repr(self), PLOTLY_MIME: self.figure}
        if self.drawing:
            data["image/svg+xml"] = self.drawing.svg()
        return data


def stacked_shares(
    rows: Sequence[tuple[str, Mapping[str, float]]], *, title: str, axis: str = "share of all slots (%)"
) -> Chart:
    """One bar a system, cut into shares; the parts `tokens`, `reserved`, `internal`, `external` have fixed looks.

    `rows` are (system, {part: value}) from top to bottom; a part that a row lacks counts 0.
    """
    parts = _columns(rows)
    looks = [SHARES.get(part, (COLOURS[i % len(COLOURS)], HATCHES[i % len(HATCHES)])) for i, part in enumerate(parts)]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": part,
            "y": [label for label, _ in rows],
            "x": [float(values.get(part, 0)) for _, values in rows],
            "text": [_said(values.get(part, 0)) if values.get(part, 0) >= 4 else "" for _, values in rows],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "hovertemplate": "%{y}, " + part + ": %{x:.1f}<extra></extra>",
            "marker": _marker(fill, hatch),
            "textfont": {"color": text_on(fill), "size": 13},
        }
        for part, (fill, hatch) in zip(parts, looks, strict=True)
    ]
    layout = {
        "barmode": "stack",
        "bargap": 0.35,
        "height": 150 + 44 * len(rows),
        "xaxis": {"title": {"text": axis}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "showgrid": False},
        "legend": {"traceorder": "normal"},
    }
    drawing = still_charts.stacked(rows, parts, looks, title=title, axis=axis)
    return Chart({"data": data, "layout": layout}, title=title, drawing=drawing)


def bars(rows: Sequence[tuple[str, Mapping[str, float]]], *, title: str, axis: str, log: bool = False) -> Chart:
    """Bars side by side: `rows` are (category, {series: value}); `axis` names the value with its unit."""
    names = _columns(rows)
    _all_positive([value for _, values in rows for value in values.values()], log)
    looks = [(COLOURS[i % len(COLOURS)], HATCHES[i % len(HATCHES)]) for i in range(len(names))]
    data = [
        {
            "type": "bar",
            "name": series,
            "x": [label for label, _ in rows],
            "y": [_or_none(values.get(series)) for _, values in rows],
            "hovertemplate": "%{x}, " + series + ": %{y}<extra></extra>",
            "marker": _marker(fill, hatch),
        }
        for series, (fill, hatch) in zip(names, looks, strict=True)
    ]
    layout = {
        "barmode": "group",
        "height": 380,
        "xaxis": {"showgrid": False, "type": "category"},
        "yaxis": {"title": {"text": axis}, **_scale(log, (v for _, values in rows for v in values.values()))},
        "showlegend": len(names) > 1,
    }
    drawing = still_charts.grouped(rows, names, looks, title=title, axis=axis, log=log)
    return Chart({"data": data, "layout": layout}, title=title, drawing=drawing)


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    x: str,
    y: str,
    log_x: bool = False,
    log_y: bool = False,
) -> Chart:
    """One line a series of (x, y) points, told apart by colour, dash and marker; `x` and `y` name the axes."""
    if not series or not all(series.values()):
        raise InvalidInput("every line needs at least one point")
    _all_positive([point[0] for points in series.values() for point in points], log_x)
    _all_positive([point[1] for points in series.values() for point in points], log_y)
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": label,
            "x": [float(a) for a, _ in points],
            "y": [float(b) for _, b in points],
            "line": {"color": COLOURS[i % len(COLOURS)], "width": 2.5, "dash": DASHES[i % len(DASHES)]},
            "marker": {"symbol": SYMBOLS[i % len(SYMBOLS)], "size": 8},
            "hovertemplate": label + "<br>" + x + ": %{x}<br>" + y + ": %{y}<extra></extra>",
        }
        for i, (label, points) in enumerate(series.items())
    ]
    layout = {
        "height": 400,
        "xaxis": {"title": {"text": x}, **_scale(log_x, (point[0] for points in series.values() for point in points))},
        "yaxis": {"title": {"text": y}, **_scale(log_y, (point[1] for points in series.values() for point in points))},
        "showlegend": len(series) > 1,
    }
    drawing = still_charts.curves(series, title=title, x=x, y=y, log_x=log_x, log_y=log_y)
    return Chart({"data": data, "layout": layout}, title=title, drawing=drawing)


def _styled(figure: Any, title: str) -> dict[str, Any]:
    """The figure's JSON on a light card; its own layout wins, plotly's default template and random ids go."""
    plain = json.loads(figure.to_json() if hasattr(figure, "to_json") else json.dumps(figure))
    for trace in plain["data"]:
        trace.pop("uid", None)
    own = plain.get("layout", {})
    own.pop("template", None)
    axis = {"gridcolor": "#E3E6EA", "linecolor": "#B6BEC7", "zeroline": False, "automargin": True, "ticks": "outside"}
    house: dict[str, Any] = {
        "font": {"family": "system-ui, 'Segoe UI', Roboto, Arial, sans-serif", "size": 13, "color": "#1F2328"},
        "paper_bgcolor": "#FFFFFF",
        "plot_bgcolor": "#FFFFFF",
        "colorway": list(COLOURS),
        "margin": {"l": 64, "r": 20, "t": 84 if title else 40, "b": 52},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "xaxis": axis,
        "yaxis": axis,
    }
    if title:
        place = {"x": 0, "xref": "paper", "y": 0.97, "yanchor": "top", "font": {"size": 15}}
        house["title"] = {"text": f"<b>{title}</b>", **place}
    for key, value in own.items():
        house[key] = {**house[key], **value} if isinstance(value, dict) and key in house else value
    return {"data": plain["data"], "layout": house}


def _scale(log: bool, values: Iterable[float]) -> dict[str, Any]:
    """A logarithmic axis has the ticks of the still picture: plotly's own write a small 2 for 20."""
    if not log:
        return {"type": "linear"}
    found = list(values)
    axis = Axis.fit(min(found), max(found), 0, 1, log=True)
    words, places = zip(*axis.ticks(), strict=True)
    at = [float(f"{axis.low * (axis.high / axis.low) ** place:.6g}") for place in places]
    return {"type": "log", "tickvals": at, "ticktext": list(words)}


def _marker(fill: str, hatch: str) -> dict[str, Any]:
    marker: dict[str, Any] = {"color": fill, "line": {"color": "#1F2328", "width": 0.6}}
    if hatch:
        marker["pattern"] = {"shape": hatch, "fillmode": "overlay", "fgcolor": "#1F2328", "size": 8, "solidity": 0.13}
    return marker


def _columns(rows: Sequence[tuple[str, Mapping[str, float]]]) -> list[str]:
    """The keys of all rows, in order of first appearance."""
    found = list(dict.fromkeys(key for _, values in rows for key in values))
    if not found:
        raise InvalidInput("a chart needs at least one row with a value")
    return found


def _all_positive(values: Sequence[float], log: bool) -> None:
    if log and min(values) <= 0:
        raise InvalidInput(f"a logarithmic axis has no place for {min(values):g}")


def _said(value: float) -> str:
    return f"{value:.1f}"


def _or_none(value: float | None) -> float | None:
    return None if value is None else float(value)
