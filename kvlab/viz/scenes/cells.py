"""A physical block as a cell: its id, who holds it, and which of its slots are filled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvlab.events import RequestState
from kvlab.viz import svg
from kvlab.viz.palette import colour, name, text_on

_WIDE = 56.0  # cells narrower than this have small print
_SMALL = 32.0  # and narrower than this no room for both an id and an owner
_BANDS = 6  # more owners than this share the stripes of the first six; the badge still counts them all


@dataclass(frozen=True)
class CellShape:
    """Geometry that all cells of a drawing share, in pixels; slots run left to right, then down."""

    width: float
    height: float
    block_size: int
    slot_columns: int
    slot_rows: int
    pad: float
    head: float

    @classmethod
    def fit(cls, width: float, block_size: int) -> CellShape:
        """The shape for a cell at most `width` wide, on whole pixels where slots are wide enough for that."""
        pad, head = (7.0, 21.0) if width >= _WIDE else (4.0, 14.0) if width >= _SMALL else (2.0, 10.0)
        columns = min(block_size, 8 if block_size <= 32 else 16)
        rows = -(-block_size // columns)
        slot_height = min(15.0, 26.0 / rows) if width >= _WIDE else 14.0 / rows
        slot_width = (width - 2 * pad) / columns
        whole = float(int(slot_width)) if slot_width >= 2 else slot_width
        return cls(whole * columns + 2 * pad, head + rows * slot_height + pad, block_size, columns, rows, pad, head)

    @property
    def slot_width(self) -> float:
        """Of one slot."""
        return (self.width - 2 * self.pad) / self.slot_columns

    @property
    def slot_height(self) -> float:
        """Of one slot."""
        return (self.height - self.head - self.pad) / self.slot_rows

    def filled(self, x: float, y: float, count: int, band: int = 0, bands: int = 1) -> str:
        """The `d` that covers the first `count` slots of the cell at (x, y), or one horizontal band of each."""
        height = self.slot_height / bands
        whole_rows = count // self.slot_columns if bands == 1 else 0
        found = []
        if whole_rows:
            full = self.slot_columns * self.slot_width
            found.append((x + self.pad, y + self.head, full, whole_rows * self.slot_height))
        for row in range(whole_rows, self.slot_rows):
            slots = min(self.slot_columns, count - row * self.slot_columns)
            if slots > 0:
                top = y + self.head + row * self.slot_height + band * height
                found.append((x + self.pad, top, slots * self.slot_width, height))
        return svg.boxes(found)

    def separators(self, x: float, y: float) -> str:
        """The `d` of the lines between slots; empty where slots are too narrow to tell apart."""
        left, top = x + self.pad, y + self.head
        right, bottom = left + self.slot_columns * self.slot_width, top + self.slot_rows * self.slot_height
        columns = range(1, self.slot_columns) if self.slot_width >= 4 else ()
        rows = range(1, self.slot_rows) if self.slot_height >= 4 else ()
        down, across = bottom - top, right - left
        return "".join(
            [f"M{svg.number(left + i * self.slot_width)} {svg.number(top)}v{svg.number(down)}" for i in columns]
            + [f"M{svg.number(left)} {svg.number(top + j * self.slot_height)}h{svg.number(across)}" for j in rows]
        )


def block_cell(
    shape: CellShape, x: float, y: float, block: int, owners: Sequence[RequestState], filled: int
) -> tuple[str, ...]:
    """The cell with its id and owner, its fill (which alone changes when a token is written), lines and badge."""
    radius = 4 if shape.width >= _WIDE else 2
    look = "kv-cell" if owners else "kv-free"
    body = [svg.rect(x, y, shape.width, shape.height, rx=radius, class_=look), _head(shape, x, y, block, owners)]
    tip = described(block, owners, filled, shape.block_size)
    if not owners:
        return (svg.tag("g", *body, data_block=str(block), data_tip=tip),)
    if len(owners) > 1:
        body.insert(0, svg.rect(x + 3, y + 3, shape.width, shape.height, rx=radius, class_="kv-behind"))
    slots = shape.filled(x, y, shape.block_size)
    body.append(svg.path(slots, fill=colour(owners[0].order), class_="kv-tint"))
    marks = {"data_block": str(block), "data_request": " ".join(name(owner.rid) for owner in owners)}
    bands = min(len(owners), _BANDS)
    bars = [(shape.filled(x, y, filled, i, bands), colour(owner.order)) for i, owner in enumerate(owners[:bands])]
    if bands == 1:
        fill = svg.path(bars[0][0], fill=bars[0][1], data_tip=tip, **marks)
    else:
        fill = svg.tag("g", *(svg.path(d, fill=tint) for d, tint in bars), data_tip=tip, **marks)
    over = [svg.path(lines, class_="kv-slots")] if (lines := shape.separators(x, y)) else []
    if len(owners) > 1 and shape.width >= _SMALL:
        over.append(_badge(shape, x, y, len(owners)))
    return svg.tag("g", *body, **marks), fill, *over


def cached_cell(shape: CellShape, x: float, y: float, block: int) -> str:
    """A full block that nobody holds and whose prefix can still be found: hatched, with its id."""
    wide = shape.width >= _WIDE
    base = svg.rect(x, y, shape.width, shape.height, rx=4 if wide else 2, class_="kv-cell")
    number = svg.text(
        x + shape.pad, y + shape.head - (7 if wide else 4), str(block)[:4], class_="kv-quiet" if wide else "kv-tiny"
    )
    inner = (x + shape.pad, y + shape.head, shape.width - 2 * shape.pad, shape.height - shape.head - shape.pad)
    lines = svg.path(svg.hatch(*inner, "/", 6), class_="kv-hatch")
    tip = f"block {block}: cached, nobody holds it, {shape.block_size} of {shape.block_size} slots filled"
    return svg.tag("g", base, number, lines, data_block=str(block), data_tip=tip)


def _head(shape: CellShape, x: float, y: float, block: int, owners: Sequence[RequestState]) -> str:
    """Id on the left and owner on the right; a tiny cell has room for one of them: the owner, else the id."""
    wide = shape.width >= _WIDE
    left, base = x + shape.pad, y + shape.head - (7 if wide else 4)
    if shape.width < _SMALL:
        word = str(block) if not owners else f"×{len(owners)}" if len(owners) > 1 else name(owners[0].rid)
        return svg.text(left, base, word[:4], class_="kv-tiny")
    look = "kv-tiny" if not wide else "kv-strong" if owners else "kv-quiet"
    number = svg.text(left, base, str(block), class_=look)
    if len(owners) != 1:
        return number
    per_letter = 7.2 if wide else 5.2
    room = shape.width - 2 * shape.pad - len(str(block)) * (8.5 if wide else 5.5) - (9 if wide else 4)
    label = name(owners[0].rid)[: max(1, int(room / per_letter))]
    return number + _chip(x + shape.width - shape.pad, y + (4 if wide else 3), label, colour(owners[0].order), wide)


def described(block: int, owners: Sequence[RequestState], filled: int, block_size: int) -> str:
    """A block in words: 'block 3: A, 5 of 16 slots filled, 11 empty'."""
    if not owners:
        return f"block {block}: free"
    names = [name(owner.rid) for owner in owners]
    who = names[0] if len(names) == 1 else f"shared by {', '.join(names[:-1])} and {names[-1]}"
    empty = f", {block_size - filled} empty" if filled < block_size else ""
    return f"block {block}: {who}, {filled} of {block_size} slots filled{empty}"


def _chip(right: float, y: float, label: str, fill: str, wide: bool) -> str:
    """A name on its colour, its right edge at `right`."""
    height, width = (15.0, len(label) * 7.2 + 9) if wide else (10.0, len(label) * 5.2 + 4)
    look = "kv-chip kv-middle" if wide else "kv-chip-small kv-middle"
    return svg.rect(right - width, y, width, height, rx=3, fill=fill) + svg.text(
        right - width / 2, y + height - (3.5 if wide else 2.2), label, class_=look, fill=text_on(fill)
    )


def name_plate(x: float, y: float, width: float, height: float, label: str, fill: str) -> str:
    """A request's name in the middle of a plate of its colour."""
    word = svg.text(x + width / 2, y + height / 2 + 4.5, label, class_="kv-chip kv-middle", fill=text_on(fill))
    return svg.tag("g", svg.rect(x, y, width, height, rx=5, fill=fill), word, data_request=label)


def _badge(shape: CellShape, x: float, y: float, owners: int) -> str:
    """How many tables name the block; on a small cell it lies over the slots."""
    label, right = f"×{owners}", x + shape.width - shape.pad
    if shape.width >= _WIDE:
        width, top, height, look = len(label) * 7.2 + 8, y + 4, 15.0, "kv-badge-text kv-middle"
    else:
        width, height, look = len(label) * 5.0 + 3, 10.0, "kv-badge-small kv-middle"
        top = y + shape.height - shape.pad - height - 1
    plate = svg.rect(right - width, top, width, height, rx=3, class_="kv-badge")
    return svg.tag("g", plate, svg.text(right - width / 2, top + height * 0.76, label, class_=look), class_="kv-over")
