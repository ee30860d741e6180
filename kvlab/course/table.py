"""A table of a notebook: HTML where it can be drawn, columns of text elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from kvlab.course.card import PLAIN, card, heading, paragraph
from kvlab.errors import InvalidInput
from kvlab.viz.drawing import text_table


@dataclass(frozen=True)
class Table:
    """Rows of text under a header, the first column naming each row; `note` stands below.

    With clock readings (`measured_text`) the columns of the text are not padded: a reading's width would be compared.
    Raises `InvalidInput` without rows or where a row has not the header's length.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def __post_init__(self) -> None:
        if not self.rows or {len(row) for row in self.rows} != {len(self.header)}:
            raise InvalidInput(f"the table {self.title!r} needs rows of {len(self.header)} cells: {self.rows!r}")

    def __repr__(self) -> str:
        note = [self.note] if self.note else []
        lines = [self.header, *self.rows]
        read = any("measured:" in cell for row in self.rows for cell in row)
        told = "\n".join("  " + " | ".join(line) for line in lines) if read else text_table(lines)
        return "\n".join([self.title, told, *note])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        style = "text-align:{};padding:2px 10px"
        left, right = style.format("left"), style.format("right")
        head = "".join(
            f'<th scope="col" style="{right if i else left}">{escape(name)}</th>' for i, name in enumerate(self.header)
        )
        body = "\n".join(
            f'<tr><th scope="row" style="{left};font-weight:600">{escape(row[0])}</th>'
            + "".join(f'<td style="{right}">{escape(cell)}</td>' for cell in row[1:])
            + "</tr>"
            for row in self.rows
        )
        table = f'<table style="margin:4px 0">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>'
        below = [paragraph(self.note)] if self.note else []
        return {"text/plain": repr(self), "text/html": card(self.title, PLAIN, heading(self.title), table, *below)}
