"""Several drawings of one moment as a single drawing: below each other, or in columns."""

from __future__ import annotations

from collections.abc import Sequence

from kvlab.errors import positive
from kvlab.viz import svg
from kvlab.viz.drawing import Drawing, Table

_GAP = 28.0
_HEADING = 24.0


def arrange(drawings: Sequence[Drawing], sizes: Sequence[tuple[float, float]], columns: int = 1) -> Drawing:
    """Put each drawing into a box of its `sizes` (width, height), so that all frames of a player agree.

    A single drawing is returned in its box as it is; of several, each has its own title over it, the whole none.
    """
    positive("columns", columns)
    first = drawings[0]
    if len(drawings) == 1:
        return Drawing(*sizes[0], first.parts, first.title, first.description, first.table)
    parts: list[str] = []
    y, width = 0.0, 0.0
    for start in range(0, len(drawings), columns):
        x, tallest = 0.0, 0.0
        for drawing, (wide, high) in zip(
            drawings[start : start + columns], sizes[start : start + columns], strict=True
        ):
            parts.append(svg.text(x, y + 13, drawing.title, class_="kv-strong"))
            move = f"translate({svg.number(x)} {svg.number(y + _HEADING)})"
            parts += [svg.tag("g", part, transform=move) for part in drawing.parts]
            x, tallest = x + wide + _GAP, max(tallest, high + _HEADING)
        y, width = y + tallest + _GAP, max(width, x - _GAP)
    return Drawing(
        width,
        y - _GAP,
        tuple(parts),
        "",
        " ".join(drawing.description for drawing in drawings),
        _tables([drawing.table for drawing in drawings]),
    )


def _tables(tables: Sequence[Table]) -> Table:
    """One below the other, as wide as the widest."""
    columns = max(len(table[0]) for table in tables)
    rows = [(*row, *[""] * (columns - len(row))) for table in tables for row in table]
    return tuple(rows)
