"""From memory to the matrix engine: each route's bytes as the width of its path, by way of a workspace or straight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from kvlab.errors import InvalidInput
from kvlab.viz import svg
from kvlab.viz.drawing import Drawing, Table
from kvlab.viz.palette import WARNING, colour, text_on
from kvlab.viz.scenes.legend import legend, solid
from kvlab.viz.scenes.sizes import size_words
from kvlab.viz.words import shown

WIDTH = 760.0
Source: TypeAlias = Literal["pages", "slice", "ring"]
_MEMORY, _SPACE, _ENGINE = (112.0, 112.0), (352.0, 112.0), (640.0, 118.0)
_THICKEST, _LEAST = 78.0, 1.5
_HEAD, _FOOT, _NODE = 26.0, 16.0, 58.0
_TOP = 28.0
_FILL = colour(0)
_NAMES = {"pages": "scattered pages", "slice": "one slice", "ring": "rings"}


@dataclass(frozen=True)
class RouteBytes:
    """What a route moved: `useful` the tokens that queries read, `padded` with whole blocks and batch padding,
    `physical` all reads and writes of memory. From "pages" the padded bytes are copied to a workspace first."""

    name: str
    source: Source
    useful: int
    padded: int
    physical: int

    def __post_init__(self) -> None:
        if self.source not in get_args(Source):
            raise InvalidInput(f"a route reads {', '.join(get_args(Source))}, not {self.source!r}")
        if not 0 < self.useful <= self.padded <= self.physical:
            raise InvalidInput(
                f"{self.name}: useful {self.useful:,} <= padded {self.padded:,} <= physical {self.physical:,} must hold"
            )
        if self.copies and self.physical < 3 * self.padded:
            raise InvalidInput(
                f"{self.name}: a copy is read, written and read again, at least {3 * self.padded:,} bytes; "
                f"physical is {self.physical:,}"
            )

    @property
    def copies(self) -> bool:
        """Whether the bytes go through a workspace."""
        return self.source == "pages"

    @property
    def entering(self) -> int:
        """Bytes that the matrix engine reads."""
        return self.physical - self.copied

    @property
    def copied(self) -> int:
        """Bytes read and written to fill the workspace."""
        return 2 * self.padded if self.copies else 0

    @property
    def widest(self) -> int:
        """Bytes of the widest part of the path."""
        return max(self.copied, self.entering)


def gather_path(routes: Sequence[RouteBytes], *, decimal: bool = False) -> Drawing:
    """A row a route, memory on the left, one matrix engine on the right; all widths on one scale.

    In each path the useful bytes are solid, the rest (padding, holes) hatched. `decimal` writes GB instead of GiB.
    Raises `InvalidInput` without a route.
    """
    if not routes:
        raise InvalidInput("there is no route to draw")
    scale = _THICKEST / max(each.widest for each in routes)
    parts: list[str] = []
    y = _TOP
    rows = []
    for route in routes:
        high = max(_NODE, route.widest * scale + 8)
        rows.append((route, y + _HEAD, high))
        y += _HEAD + high + _FOOT
    bottom = y - _FOOT
    for words, (x, width) in (("memory", _MEMORY), ("workspace", _SPACE), ("", _ENGINE)):
        parts.append(svg.text(x + width / 2, 14, words, class_="kv-quiet kv-middle"))
    for route, top, high in rows:
        parts += _row(route, top, high, scale, decimal)
    x, width = _ENGINE
    parts.append(svg.rect(x, _TOP, width - 1, bottom - _TOP, rx=8, class_="kv-badge"))
    for i, word in enumerate(("matrix", "engine")):
        parts.append(svg.text(x + width / 2, (_TOP + bottom) / 2 - 4 + 18 * i, word, class_="kv-badge-text kv-middle"))
    parts += _bars(routes, bottom + 20, decimal)
    y = bottom + 20 + 22 + 24 * len(routes) + 8
    key, key_height = legend(0, y, WIDTH, _swatches(routes))
    return Drawing(
        WIDTH,
        y + key_height,
        (*parts, *key),
        _title(routes, decimal),
        "For each route, the path of the KV bytes from memory to the matrix engine; its width is the number of bytes.",
        _table(routes, decimal),
    )


_REST = svg.rect(0, 0, 16, 12, class_="kv-queue") + svg.path(svg.hatch(0, 0, 16, 12, "\\", 5), class_="kv-slots")
_COPY = svg.rect(0, 0, 16, 12, fill=WARNING, class_="kv-tint") + svg.path(
    svg.hatch(0, 0, 16, 12, "/", 5), class_="kv-arrow", stroke=WARNING
)


def _swatches(routes: Sequence[RouteBytes]) -> Iterator[tuple[str, str]]:
    yield solid(_FILL), "useful: a query reads it"
    if any(each.entering > each.useful for each in routes):
        yield _REST, "padding, holes, other requests"
    if any(each.copies for each in routes):
        yield _COPY, "the copy: read and written"


def _row(route: RouteBytes, top: float, high: float, scale: float, decimal: bool) -> Iterator[str]:
    middle = top + high / 2
    yield svg.text(0, top - 8, route.name, class_="kv-strong")
    yield from _source(route.source, top, high)
    left = _MEMORY[0] + _MEMORY[1]
    if route.copies:
        wide = route.copied * scale
        yield _copied(left, middle - wide / 2, _SPACE[0] - left - 3, wide)
        yield svg.path(svg.lines([((left, middle), (_SPACE[0] - 3, middle))]), class_="kv-slots")
        yield svg.path(svg.arrow_head((_SPACE[0] - 1, middle), (1, 0), 11), class_="kv-copy-head")
        yield from _label(left, _SPACE[0], top - 8, f"{size_words(route.padded, decimal=decimal)} read, then written")
        yield svg.rect(_SPACE[0], top, _SPACE[1], high, rx=6, class_="kv-cell")
        yield svg.text(_SPACE[0] + _SPACE[1] / 2, middle + 4, "a copy", class_="kv-ink kv-middle")
        left = _SPACE[0] + _SPACE[1]
    yield from _band(left, _ENGINE[0], middle, route.entering, route.useful, scale)
    words = f"{size_words(route.entering, decimal=decimal)} read{' again' if route.copies else ''}"
    yield from _label(left, _ENGINE[0], top - 8, words)


def _band(left: float, right: float, middle: float, count: int, useful: int, scale: float) -> Iterator[str]:
    wide = max(_LEAST, count * scale)
    top, solid_part = middle - wide / 2, wide * useful / count
    end = right - 3
    yield svg.rect(left, top, end - left, solid_part, fill=_FILL)
    if wide - solid_part > 0.3:
        y, high = top + solid_part, wide - solid_part
        yield svg.rect(left, y, end - left, high, class_="kv-queue")
        yield svg.path(svg.hatch(left, y, end - left, high, "\\", 8), class_="kv-slots")
    yield svg.path(svg.arrow_head((right - 1, middle), (1, 0), 11), class_="kv-copy-head")


def _copied(x: float, y: float, width: float, height: float) -> str:
    lines = svg.path(svg.hatch(x, y, width, height, "/", 8), class_="kv-arrow", stroke=WARNING)
    return svg.rect(x, y, width, height, fill=WARNING, class_="kv-tint") + lines


def _label(left: float, right: float, y: float, words: str) -> Iterator[str]:
    yield svg.text((left + right) / 2, y, words, class_="kv-ink kv-middle")


def _source(source: Source, top: float, high: float) -> Iterator[str]:
    """A small picture of where the bytes lie, in the memory column."""
    (x, width), middle = _MEMORY, top + high / 2
    yield svg.text(x - 10, middle + 4, _NAMES[source], class_="kv-quiet kv-end")
    yield svg.rect(x, top, width, high, rx=6, class_="kv-cell")
    cells = [(column, row) for row in range(3) for column in range(7)]
    step, size = 14.0, 11.0
    left, upper = x + (width - 7 * step + 3) / 2, middle - (3 * step - 3) / 2
    if source == "ring":
        for i in range(3):
            yield svg.tag(
                "circle", cx=x + width / 2 + (i - 1) * 34, cy=middle, r=11, fill="none", stroke=_FILL, stroke_width=7
            )
        return
    mine = {(1, 0), (4, 0), (6, 1), (2, 1), (0, 2), (3, 2)}
    at = {cell: (left + cell[0] * step, upper + cell[1] * step, size, size) for cell in cells}
    yield svg.path(svg.boxes(box for cell, box in at.items() if cell not in mine), class_="kv-kept")
    yield svg.path(svg.boxes(at[cell] for cell in sorted(mine)), fill=_FILL)
    if source == "slice":
        yield svg.rect(left - 3, upper - 3, 7 * step + 3, 3 * step + 3, rx=3, class_="kv-touched")


def _bars(routes: Sequence[RouteBytes], y: float, decimal: bool) -> Iterator[str]:
    """All that each route moves, on one scale: what is useful, what was read with it, what the copy took."""
    most = max(each.physical for each in routes)
    left = _MEMORY[0]
    room = WIDTH - left - 250
    yield svg.text(left, y + 10, "all bytes moved", class_="kv-quiet")
    yield svg.text(WIDTH - 160, y + 10, "useful", class_="kv-quiet kv-end")
    yield svg.text(WIDTH - 80, y + 10, "padded", class_="kv-quiet kv-end")
    yield svg.text(WIDTH - 2, y + 10, "physical", class_="kv-quiet kv-end")
    for i, route in enumerate(routes):
        top = y + 18 + 24 * i
        wide, live = route.entering / most * room, route.useful / most * room
        yield svg.text(left - 10, top + 13, shown(route.name, 15), class_="kv-ink kv-end")
        yield svg.rect(left, top, wide, 17, class_="kv-queue")
        yield svg.path(svg.hatch(left, top, wide, 17, "\\", 8), class_="kv-slots")
        yield svg.rect(left, top, live, 17, fill=_FILL)
        if route.copies:
            yield _copied(left + wide, top, route.copied / most * room, 17)
        share = f"{100 * route.useful / route.physical:.0f} %"
        if live > 40:
            yield svg.text(left + live / 2, top + 13, share, class_="kv-chip kv-middle", fill=text_on(_FILL))
        counts = (route.useful, route.padded, route.physical)
        for x, count, look in zip((160, 80, 2), counts, ("kv-ink", "kv-ink", "kv-head"), strict=True):
            yield svg.text(WIDTH - x, top + 13, size_words(count, decimal=decimal), class_=f"{look} kv-end")


def _title(routes: Sequence[RouteBytes], decimal: bool) -> str:
    moved = [f"{each.name} {size_words(each.physical, decimal=decimal)}" for each in routes]
    return ", ".join([moved[0].replace(routes[0].name, f"{routes[0].name} moves", 1), *moved[1:]])


def _table(routes: Sequence[RouteBytes], decimal: bool) -> Table:
    def size(count: int) -> str:
        return size_words(count, decimal=decimal)

    return (
        ("route", "reads from", "through a workspace", "useful", "padded", "physical"),
        *(
            (
                each.name,
                _NAMES[each.source],
                "yes" if each.copies else "no",
                size(each.useful),
                size(each.padded),
                size(each.physical),
            )
            for each in routes
        ),
    )
