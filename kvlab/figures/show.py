"""The ledger as a table for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Table
from rich.text import Text

from kvlab.figures.ledger import Figure

STYLES = {"exact": "green", "within rounding": "green", "consistent": "cyan", "published": "dim"}


def number(value: Any) -> str:
    """A figure as people write it: thousands separated, at most four decimals, ranges with a dash."""
    if value is None:
        return ""
    if isinstance(value, list):
        return " / ".join(number(each) for each in value)
    if isinstance(value, float):
        return f"{value:,.4f}".rstrip("0").rstrip(".")
    return f"{value:,}" if isinstance(value, int) else str(value)


def table(figures: Iterable[Figure]) -> Table:
    """One row a claim; the verdict in colour and in words."""
    shown = Table("claim", "theirs", "ours", "verdict", box=None, header_style="bold")
    shown.columns[1].justify = shown.columns[2].justify = "right"
    for figure in figures:
        claim = figure.claim
        text = Text(claim.claim).append(f"\n{claim.id}", style="dim")
        if figure.note:
            text.append(f"\n{figure.note}", style="italic")
        verdict = Text(figure.verdict, style=STYLES.get(figure.verdict, "bold red"))
        shown.add_row(text, f"{number(claim.value)} {claim.unit}", number(figure.ours), verdict)
    return shown
