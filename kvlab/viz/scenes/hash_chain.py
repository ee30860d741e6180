"""Prefix caching: each block's digest names its tokens and all before them, so equal chains run together and part."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvlab.errors import InvalidInput
from kvlab.viz import svg
from kvlab.viz.captions import listed
from kvlab.viz.drawing import Drawing
from kvlab.viz.palette import WARNING, name
from kvlab.viz.scenes.hash_links import Chains, Column, checked, columns, common
from kvlab.viz.scenes.hash_rows import GREEN, STATUS, Row, counted, described, table, title
from kvlab.viz.scenes.legend import legend
from kvlab.viz.words import shown
from kvlab.workload import RequestId

WIDTH = 760.0
_MOST = 6
_GAP = 22.0
_FOLD = 56.0
_BOX = 72.0
_ROW = 106.0
_TOP = 40.0
_ROWS = 12
_DIGEST = 6


def hash_chain(chains: Chains, *, salts: Mapping[RequestId, str] | None = None) -> Drawing:
    """A row of full blocks for each request: words, digest, status; an arrow from the digest that it was made from.

    Blocks that chains share are green and tied together; the first that a chain has to itself is red: it and all
    behind it are other blocks, whatever their tokens. `salts` stand where the chains begin. A long chain folds.
    Raises `InvalidInput` for a status that there is not (see `Link`), or more than 12 chains.
    """
    found = checked(chains)
    if len(found) > _ROWS:
        raise InvalidInput(f"there are {len(found)} chains; the picture has rows for {_ROWS}: choose some")
    rows = [Row(rid, links, i, list(found.values())) for i, (rid, links) in enumerate(found.items())]
    place = _Place.of(rows)
    parts = list(_heads(place)) if rows else [svg.text(0, 14, "There is no chain.", class_="kv-quiet")]
    for row in rows:
        parts += _start(place, row, (salts or {}).get(row.rid, ""))
        parts += [part for number in range(len(place.columns)) for part in _piece(place, row, number, rows)]
    parts += [part for above, below in pairwise(rows) for part in _ties(place, above, below)]
    bottom = _TOP + _ROW * max(1, len(rows)) - 16
    key, key_height = legend(0, bottom, WIDTH, _swatches(rows))
    return Drawing(
        WIDTH,
        bottom + key_height,
        (*parts, *key),
        title(rows),
        "A row of blocks for each request, an arrow from each digest to the next one that it goes into.",
        table(rows, place.columns),
    )


@dataclass(frozen=True)
class _Place:
    """Where the columns are; the first begins at `left`."""

    columns: list[Column]
    left: float
    box: float

    @classmethod
    def of(cls, rows: Sequence[Row]) -> _Place:
        found = columns([row.links for row in rows], _MOST)
        left = max((len(row.label) for row in rows), default=0) * 9.5 + 56
        folds = sum(column.stop - column.start > 1 for column in found)
        room = WIDTH - left - _FOLD * folds - _GAP * (len(found) - 1)
        return cls(found, left, min(118.0, room / max(1, len(found) - folds)))

    def width(self, number: int) -> float:
        column = self.columns[number]
        return self.box if column.stop - column.start == 1 else _FOLD

    def x(self, number: int) -> float:
        return self.left + sum(self.width(i) + _GAP for i in range(number))


def _y(row: Row) -> float:
    return _TOP + row.number * _ROW


def _heads(place: _Place) -> Iterator[str]:
    yield svg.text(0, 14, "Each digest is made from the one before it and the block's tokens.", class_="kv-quiet")
    for number, column in enumerate(place.columns):
        if column.stop - column.start == 1:
            middle = place.x(number) + place.width(number) / 2
            yield svg.text(middle, _TOP - 8, f"block {column.start}", class_="kv-quiet kv-middle")


def _start(place: _Place, row: Row, salt: str) -> Iterator[str]:
    """The request's name, and what the first digest is made from."""
    middle, x = _y(row) + _BOX / 2, place.left - _GAP - 11
    yield svg.text(0, middle + 5, row.label, class_="kv-large", data_request=name(row.rid))
    if salt:
        yield svg.text(0, _y(row) + _BOX - 8, "salt", class_="kv-tiny")
        yield svg.text(0, _y(row) + _BOX + 2, shown(salt, int((place.left - 4) / 5)), class_="kv-tiny")
    yield svg.tag("circle", cx=x, cy=middle, r=10, class_="kv-cell")
    yield svg.text(x, middle + 4, "+" if salt else "∅", class_="kv-quiet kv-middle")
    if not row.links:
        yield svg.text(place.left, middle + 4, "no full block: nothing to look up", class_="kv-quiet")


def _piece(place: _Place, row: Row, number: int, rows: Sequence[Row]) -> Iterator[str]:
    """One column of a row, with the arrow that leads to it."""
    column, x = place.columns[number], place.x(number)
    if column.start >= len(row.links):
        return
    tint = row.tint(column.start)
    y = _y(row) + _BOX / 2
    line = svg.lines([((x - _GAP, y), (x - 6, y))])
    look = {"stroke": tint, "class_": "kv-arrow"} if tint else {"class_": "kv-fits"}
    head = {"fill": tint} if tint else {"class_": "kv-badge"}
    yield svg.path(line, **look) + svg.path(svg.arrow_head((x - 1, y), (1, 0)), **head)
    if column.stop - column.start == 1:
        yield _box(place, row, number, rows)
    else:
        yield _fold(row, x, column)


def _box(place: _Place, row: Row, number: int, rows: Sequence[Row]) -> str:
    """A block: two lines of its tokens, the beginning of its digest, its status."""
    index, x, y, width = place.columns[number].start, place.x(number), _y(row), place.box
    link = row.links[index]
    also = [each for each in rows if each is not row and common(each.links, row.links) > index]
    middle, letters = x + width / 2, int((width - 8) / 6.3)
    lines = textwrap.wrap(shown(link.label, 400), max(1, letters), max_lines=2, placeholder="…") or [""]
    first = y + (17 if len(lines) == 2 else 24)
    words = [svg.text(middle, first + 14 * i, line, class_="kv-said-small kv-middle") for i, line in enumerate(lines)]
    base = svg.rect(x, y, width, _BOX, rx=5, class_="kv-free" if link.status in ("cached", "evicted") else "kv-cell")
    tip = f"{row.label}, block {index}: digest {shown(link.digest, 20)}, {described(link)}"
    tip += f"; the same block as in {listed(each.label for each in also)}" if also else ""
    marks = {"data_request": " ".join(name(each.rid) for each in (row, *also)), "data_tip": tip}
    sign = "✓ " if link.status == "hit" else "≠ " if index == row.parted else ""
    where = f" → {link.block}" if link.block is not None else ""
    return svg.tag(
        "g",
        base,
        _look(row, index, x, y, width),
        *words,
        svg.text(
            middle,
            y + (48 if link.label else 38),
            f"#{shown(link.digest, 40)[:_DIGEST]}{where}",
            class_="kv-mono kv-middle",
        ),
        svg.text(middle, y + 64, f"{sign}{STATUS[link.status]}", class_="kv-head kv-middle"),
        **marks,
    )


def _look(row: Row, index: int, x: float, y: float, width: float) -> str:
    """The tint and the frame of a block: green where shared, red where the chain parts, hatched where evicted."""
    if row.links[index].status == "evicted":
        plate = svg.rect(x + 9, y + 5, width - 18, _BOX - 10, rx=4, class_="kv-plate")
        return svg.path(svg.hatch(x, y, width, _BOX, "/", 7), class_="kv-hatch") + plate
    tint = row.tint(index)
    if not tint:
        computed = row.links[index].status == "computed"
        return svg.rect(x, y, width, _BOX, rx=5, fill=WARNING, class_="kv-tint") if computed else ""
    return svg.rect(x, y, width, _BOX, rx=5, fill=tint, class_="kv-tint") + svg.rect(
        x + 1, y + 1, width - 2, _BOX - 2, rx=4, stroke=tint, class_="kv-curve"
    )


def _fold(row: Row, x: float, column: Column) -> str:
    """Several blocks as a small stack with their number."""
    hidden = row.links[column.start : column.stop]
    whole = min(column.stop, len(row.links)) <= row.shared
    y, height = _y(row) + 12, _BOX - 24
    sheets = [svg.rect(x + dx, y - dx, _FOLD - 8, height, rx=4, class_="kv-cell") for dx in (8, 4, 0)]
    if whole or row.parted is not None:
        sheets.append(svg.rect(x, y, _FOLD - 8, height, rx=4, fill=GREEN if whole else WARNING, class_="kv-tint"))
    middle = x + (_FOLD - 8) / 2
    number = svg.text(middle, y + height / 2 + 4.5, f"+{len(hidden):,}", class_="kv-strong kv-middle")
    tip = f"{row.label}, blocks {column.start}-{column.start + len(hidden) - 1}: {counted(hidden)}"
    return svg.tag("g", *sheets, number, data_request=name(row.rid), data_tip=tip)


def _ties(place: _Place, above: Row, below: Row) -> Iterator[str]:
    """Between two rows: = where the blocks are one and the same, ≠ where the chains part."""
    same = common(above.links, below.links)
    y0, y1 = _y(above) + _BOX, _y(below)
    for number, column in enumerate(place.columns):
        x = place.x(number) + (place.width(number) - (8 if column.stop - column.start > 1 else 0)) / 2
        if min(column.stop, len(below.links)) <= same and column.start < same:
            yield svg.path(svg.lines([((x - 3, y0 + 4), (x - 3, y1 - 4)), ((x + 3, y0 + 4), (x + 3, y1 - 4))]),
                           class_="kv-curve", stroke=GREEN)  # fmt: skip
        elif column.start == same and same < min(len(above.links), len(below.links)):
            middle = (y0 + y1) / 2
            bars = [((x - 9, middle - 4), (x + 9, middle - 4)), ((x - 9, middle + 4), (x + 9, middle + 4))]
            stroke = svg.lines([*bars, ((x - 6, middle + 11), (x + 6, middle - 11))])
            yield svg.path(stroke, class_="kv-curve", stroke=WARNING)


def _swatches(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    statuses = {link.status for row in rows for link in row.links}
    box = (0.5, 0.5, 15, 11)

    def framed(tint: str) -> str:
        return svg.rect(*box, rx=2, fill=tint, class_="kv-tint") + svg.rect(*box, rx=2, stroke=tint, class_="kv-curve")

    if any(row.tint(index) == GREEN for row in rows for index in range(len(row.links))):
        yield framed(GREEN), "same digest: same tokens, same past"
    if any(row.tint(index) == WARNING for row in rows for index in range(len(row.links))):
        yield framed(WARNING), "first that differs"
    if "computed" in statuses:
        yield svg.rect(*box, rx=2, class_="kv-cell") + svg.rect(*box, rx=2, fill=WARNING, class_="kv-tint"), "computed"
    if "cached" in statuses:
        yield svg.rect(*box, rx=2, class_="kv-free"), "cached, nobody holds it"
    if "evicted" in statuses:
        ground = svg.rect(*box, rx=2, class_="kv-free")
        yield ground + svg.path(svg.hatch(0, 0, 16, 12, "/", 5), class_="kv-hatch"), "evicted"
