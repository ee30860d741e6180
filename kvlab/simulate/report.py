"""What a preset says: published and modelled values side by side, never in one column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from rich.table import Table
from rich.text import Text


class Row(NamedTuple):
    """One figure of one arm. `published` is None where the article prints nothing, `modelled` where we model nothing.

    Seconds, bytes, fractions; ratios say how many times as fast (or as much).
    """

    metric: str
    arm: str
    published: float | None
    modelled: float | None
    unit: str
    note: str = ""


def as_json(preset: str, rows: Iterable[Row]) -> dict[str, Any]:
    """The object of `kvlab simulate --json`."""
    return {"preset": preset, "rows": [row._asdict() for row in rows]}


def table(rows: Sequence[Row]) -> Table:
    """The rows for people: a metric is named once, its arms below each other."""
    shown = Table("metric", "arm", "published", "modelled", "note", box=None, header_style="bold")
    shown.columns[2].justify = shown.columns[3].justify = "right"
    before = None
    for row in rows:
        metric = "" if row.metric == before else row.metric.replace("_", " ")
        before = row.metric
        modelled = shown_number(row.modelled, row.unit)
        shown.add_row(metric, row.arm, shown_number(row.published, row.unit), modelled, Text(row.note, style="dim"))
    return shown


def shown_number(value: float | None, unit: str) -> str:
    """A number with its unit, in the size that people read; empty for None."""
    if value is None:
        return ""
    if unit == "s":
        return f"{value * 1e6:.3g} us" if value < 1e-3 else f"{value * 1e3:.3g} ms" if value < 1 else f"{value:,.3g} s"
    if unit == "bytes":
        return f"{value / 1e9:.3g} GB" if value >= 1e9 else f"{value / 1e6:.3g} MB"
    if unit == "fraction":
        return f"{value:.1%}"
    if unit == "ratio":
        return f"{value:.3g}x"
    return f"{value:,.0f} {unit}" if value >= 100 or value == int(value) else f"{value:.3g} {unit}"
