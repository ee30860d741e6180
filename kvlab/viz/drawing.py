"""A drawing: SVG parts plus the table that says the same; and the picture that shows it where nothing runs."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from kvlab.errors import InvalidInput
from kvlab.viz import svg

Table = tuple[tuple[str, ...], ...]

_MARGIN = 16
_TITLE_HEIGHT = 26
_LINE_HEIGHT = 19
_RULE = re.compile(r"^\.(kv-[\w-]+) \{([^}]*)\}", re.MULTILINE)
_VARIABLE = re.compile(r"var\(\s*--[\w-]+\s*,\s*([^()]+?)\s*\)")
_CLASS = re.compile(r' class="([^"]*)"')


@dataclass(frozen=True)
class Drawing:
    """What a scene returns. `parts` are complete SVG elements in painting order, in the box `width` x `height`.

    `table` says the same in words: rows of equal length, the first one the header. Parts name their look by the
    `kv-*` classes of player.css (data colours are attributes), so one part is right in every theme.
    """

    width: float
    height: float
    parts: tuple[str, ...]
    title: str
    description: str
    table: Table

    def __post_init__(self) -> None:
        if len({len(row) for row in self.table}) != 1:
            raise InvalidInput(f"the table of {self.title!r} needs a header and rows of its length: {self.table!r}")

    def svg(self, caption: str = "") -> str:
        """A complete SVG on a light card: title above, caption below, all looks written out as attributes."""
        width = self.width + 2 * _MARGIN
        said = textwrap.wrap(caption, int(self.width / 6.9))
        top = _MARGIN + (_TITLE_HEIGHT if self.title else 0)
        height = top + self.height + (10 + _LINE_HEIGHT * len(said) if said else 0) + _MARGIN
        below = top + self.height + 10
        body = (
            svg.tag("title", svg.escaped(self.title or self.description)),
            svg.tag("desc", svg.escaped(caption or self.description)),
            svg.rect(0.5, 0.5, width - 1, height - 1, rx=8, class_="kv-card"),
            svg.text(_MARGIN, _MARGIN + 12, self.title, class_="kv-title") if self.title else "",
            svg.tag("g", *self.parts, transform=f"translate({_MARGIN} {top})"),
            *(
                svg.text(_MARGIN, below + _LINE_HEIGHT * (i + 1) - 5, line, class_="kv-said")
                for i, line in enumerate(said)
            ),
        )
        return written_out(
            svg.tag(
                "svg", *body, xmlns="http://www.w3.org/2000/svg", width=width, height=height,
                viewBox=f"0 0 {svg.number(width)} {svg.number(height)}", role="img",
                font_family="system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif",
            )
        )  # fmt: skip

    def text(self, caption: str = "") -> str:
        """Title, caption and table as plain text."""
        return "\n".join([*filter(None, (self.title, caption)), text_table(self.table)])


class Picture:
    """Shows a drawing: SVG where it can be drawn, else title and table as text."""

    def __init__(self, drawing: Drawing, caption: str = "") -> None:
        self.drawing = drawing
        self.caption = caption

    def __repr__(self) -> str:
        return self.drawing.text(self.caption)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/plain": repr(self), "image/svg+xml": self.drawing.svg(self.caption)}


def text_table(table: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell, numbers to the right; a line under the header."""
    columns = list(zip(*table, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(re.fullmatch(r"[-+]?[\d,.]+( %)?", cell) for cell in column[1:]) for column in columns]

    def line(row: Sequence[str]) -> str:
        cells = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
        return "  ".join(cells).rstrip()

    return "\n".join([line(table[0]), "  ".join("-" * w for w in widths), *map(line, table[1:])])


@cache
def looks() -> dict[str, dict[str, str]]:
    """The `kv-*` rules of player.css as class -> property -> value, each theme variable replaced by its fallback."""
    sheet = files("kvlab.viz").joinpath("player.css").read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = {}
    for selector, body in _RULE.findall(sheet):
        pairs = (declaration.split(":", 1) for declaration in body.split(";") if ":" in declaration)
        found[selector] = {key.strip(): _VARIABLE.sub(r"\1", value.strip()) for key, value in pairs}
    return found


def written_out(drawn: str) -> str:
    """Each class replaced by its properties: without a style sheet an SVG survives sanitizers and PDF tools."""

    def attributes(match: re.Match[str]) -> str:
        merged: dict[str, str] = {}
        for each in match.group(1).split():
            merged |= looks()[each]
        return "".join(f' {key}="{escape(value)}"' for key, value in merged.items())

    return _CLASS.sub(attributes, drawn)
