"""Scattered blocks enter one accumulator: the maximum jumps, and what was summed before shrinks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvlab.errors import InvalidInput
from kvlab.viz import svg
from kvlab.viz.axes import Axis
from kvlab.viz.drawing import Drawing, Table
from kvlab.viz.palette import colour, text_on
from kvlab.viz.scenes.legend import legend, solid, tinted

WIDTH = 760.0
_COLUMNS = 8
_CELL_HEIGHT, _CELL_GAP = 50.0, 8.0
_CHART = (44.0, 500.0)
_CHART_HEIGHT = 184.0
_BAR_LEFT, _BAR_RIGHT, _BAR = 64.0, 700.0, 24.0


@dataclass(frozen=True)
class Taken:
    """One block as an accumulator took it in, in the numbers of the code that ran (they may be infinite or NaN).

    `scores` are those of the block's filled slots, `rescale` is the factor on the earlier sum, `total` the running
    sum of weights after the block, `output` what the values add up to, divided by that sum.
    """

    block: int
    scores: tuple[float, ...]
    old_max: float
    new_max: float
    rescale: float
    total: float
    output: tuple[float, ...]


def accumulator(taken: Sequence[Taken], blocks: int, block_size: int, *, shown: int | None = None) -> Drawing:
    """Memory on top, the scores under it with the running maximum as a staircase, the running sum at the bottom.

    `taken` are the request's blocks in the order of its table, in a pool of `blocks`. `shown` draws the moment after
    the first so many; all frames have one size and one scale. Raises `InvalidInput` for a block outside the pool, a
    block with more scores than slots, or no block at all.
    """
    if not taken:
        raise InvalidInput("an accumulator is drawn from the blocks that it took in; there are none")
    for each in taken:
        if not 0 <= each.block < blocks or not 1 <= len(each.scores) <= block_size:
            raise InvalidInput(f"{each} is no block of a pool of {blocks} blocks with {block_size} slots each")
    count = len(taken) if shown is None else shown
    memory = _Memory(blocks, block_size)
    top = memory.height + 58
    parts = [*memory.parts(taken, count), *_scores(taken, count, top, memory), *_state(taken, count, top)]
    bottom = top + _CHART_HEIGHT + 44
    parts += _sums(taken, count, bottom)
    items = [
        (solid(colour(0)), "read"),
        (tinted(colour(0)), "still to be read"),
        (_OTHER, "not this request's"),
    ]
    key, key_height = legend(0, bottom + 118, WIDTH, items)
    last = taken[count - 1] if count else None
    return Drawing(
        WIDTH,
        bottom + 118 + key_height,
        (*parts, *key),
        f"{count} of {len(taken)} blocks read"
        + (f": maximum {words(last.new_max)}, sum {words(last.total)}" if last else ""),
        "Memory, the scores of each block with the running maximum, and the running sum before and after the block.",
        _table(taken[:count]),
    )


def accumulator_frames(taken: Sequence[Taken], blocks: int, block_size: int) -> list[tuple[Drawing, str]]:
    """A frame before the first block and one after each, with captions: for `Player.from_drawings`."""
    said = ["Nothing is read yet: the maximum is minus infinity, the sum is 0", *map(_caption, taken)]
    return [(accumulator(taken, blocks, block_size, shown=i), caption) for i, caption in enumerate(said)]


def words(value: float) -> str:
    """A number as these pictures print it: three digits, and words for what is none."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


_OTHER = svg.rect(0.5, 0.5, 15, 11, rx=2, class_="kv-free")


def _caption(one: Taken) -> str:
    listed = ", ".join(map(words, one.scores)) if len(one.scores) <= 8 else f"{len(one.scores)} scores"
    begin = f"Block {one.block} is read: {listed}. "
    if one.old_max == -math.inf:
        return f"{begin}The maximum is now {words(one.new_max)}, and there was no sum before"
    factor = f"the earlier sum is multiplied by {words(one.rescale)}"
    if one.new_max == one.old_max:
        return f"{begin}None is above the maximum {words(one.old_max)}: {factor}"
    return f"{begin}The maximum goes from {words(one.old_max)} to {words(one.new_max)}: {factor}"


@dataclass(frozen=True)
class _Memory:
    """The pool on top: rows of up to eight cells."""

    blocks: int
    block_size: int

    @property
    def columns(self) -> int:
        return min(_COLUMNS, self.blocks)

    @property
    def width(self) -> float:
        return (WIDTH - (self.columns - 1) * _CELL_GAP - 2) / self.columns

    @property
    def height(self) -> float:
        return -(-self.blocks // self.columns) * (_CELL_HEIGHT + _CELL_GAP) - _CELL_GAP

    def at(self, block: int) -> svg.Point:
        row, column = divmod(block, self.columns)
        return 1 + column * (self.width + _CELL_GAP), 1 + row * (_CELL_HEIGHT + _CELL_GAP)

    def below(self, block: int) -> svg.Point:
        x, y = self.at(block)
        return x + self.width / 2, y + _CELL_HEIGHT + 3

    def parts(self, taken: Sequence[Taken], count: int) -> list[str]:
        entries = {each.block: entry for entry, each in enumerate(taken)}
        found = []
        for block in range(self.blocks):
            if block in entries:
                entry = entries[block]
                found.append(self._own(block, entry, len(taken[entry].scores), entry < count))
            else:
                x, y = self.at(block)
                cell = svg.rect(x, y, self.width, _CELL_HEIGHT, rx=4, class_="kv-free")
                found.append(cell + svg.text(x + 8, y + 17, str(block), class_="kv-quiet"))
        if count:
            x, y = self.at(taken[count - 1].block)
            found.append(svg.rect(x - 1, y - 1, self.width + 2, _CELL_HEIGHT + 2, rx=5, class_="kv-touched"))
        return found

    def _own(self, block: int, entry: int, filled: int, read: bool) -> str:
        (x, y), tint = self.at(block), colour(entry)
        slot = (self.width - 14) / self.block_size
        plate = svg.rect(x + self.width - 58, y + 4, 52, 16, rx=3, fill=tint)
        plate += svg.text(x + self.width - 32, y + 16, f"entry {entry}", class_="kv-chip kv-middle", fill=text_on(tint))
        every = svg.path(svg.boxes([(x + 7, y + 25, slot * self.block_size, 18)]), fill=tint, class_="kv-tint")
        full = svg.path(svg.boxes([(x + 7, y + 25, slot * filled, 18)]), fill=tint) if read else ""
        cuts = [((x + 7 + i * slot, y + 25), (x + 7 + i * slot, y + 43)) for i in range(1, self.block_size)]
        tip = f"block {block}, entry {entry} of the table: {filled} of {self.block_size} slots filled"
        return svg.tag(
            "g",
            svg.rect(x, y, self.width, _CELL_HEIGHT, rx=4, class_="kv-cell"),
            svg.text(x + 8, y + 17, str(block), class_="kv-strong"),
            plate,
            every + full + svg.path(svg.lines(cuts), class_="kv-slots"),
            data_block=str(block),
            data_tip=tip,
        )


def _scores(taken: Sequence[Taken], count: int, top: float, memory: _Memory) -> list[str]:
    """A stem for each score, block after block, and the running maximum over them."""
    finite = [value for each in taken for value in (*each.scores, each.new_max) if math.isfinite(value)]
    axis = Axis.fit(min(finite, default=0.0), max(finite, default=1.0), top + _CHART_HEIGHT, top + 40)
    left, right = _CHART
    room = (right - left) / len(taken)
    parts = [svg.path(svg.lines([((left, y), (right, y)) for _, y in axis.ticks()]), class_="kv-rule kv-faint")]
    parts += [svg.text(left - 8, y + 4, label, class_="kv-quiet kv-end") for label, y in axis.ticks()]
    parts.append(svg.text(0, top + 6, "scores", class_="kv-strong"))
    for entry, each in enumerate(taken):
        x, tint = left + entry * room, colour(entry)
        parts.append(svg.text(x + room / 2, top + 6, f"block {each.block}", class_="kv-ink kv-middle"))
        if entry >= count:
            continue
        parts.append(_arrow(memory.below(each.block), (x + room / 2, top - 8), tint, entry == count - 1))
        step = room / (len(each.scores) + 1)
        for i, score in enumerate(each.scores, 1):
            if not math.isfinite(score):
                continue
            at, y = x + i * step, axis.at(score)
            stem = svg.path(svg.lines([((at, axis.start), (at, y))]), class_="kv-curve", stroke=tint)
            parts.append(stem + svg.tag("circle", cx=at, cy=y, r=5, fill=tint))
    return [*parts, *_staircase(taken, count, axis, room)]


def _staircase(taken: Sequence[Taken], count: int, axis: Axis, room: float) -> list[str]:
    """The running maximum: a level over each block, a riser where it changed, an arrow on the latest one."""
    d, parts, before = [], [], math.nan
    for entry, each in enumerate(taken[:count]):
        x, level = _CHART[0] + entry * room, each.new_max
        if not math.isfinite(level):
            before = math.nan
            continue
        y = axis.at(level)
        d.append(((x, y), (x + room, y)))
        rises = math.isfinite(before) and level != before
        if rises:
            d.append(((x, axis.at(before)), (x, y)))
        if entry == count - 1:
            label = f"maximum {words(before)} → {words(level)}" if rises else f"maximum {words(level)}"
            look = "kv-warn" if rises else "kv-strong"
            parts.append(svg.text(x + 8, y - 7, label, class_=look))
            if rises:
                up = -1.0 if y < axis.at(before) else 1.0
                parts.append(svg.path(svg.arrow_head((x, y), (0, up), 11), class_="kv-copy-head"))
        before = level
    return [svg.path(svg.lines(d), class_="kv-copy"), *parts] if d else []


def _arrow(start: svg.Point, end: svg.Point, tint: str, now: bool) -> str:
    middle = (start[1] + end[1]) / 2
    points = ((start[0], middle), (end[0], middle), (end[0], end[1] - 5))
    d = f"M{svg.number(start[0])} {svg.number(start[1])}C"
    d += " ".join(f"{svg.number(x)} {svg.number(y)}" for x, y in points)
    head = svg.path(svg.arrow_head(end, (0, 1)), fill=tint)
    return svg.tag(
        "g", svg.path(d, class_="kv-arrow", stroke=tint), head, class_="kv-link" if now else "kv-link kv-faint"
    )


def _state(taken: Sequence[Taken], count: int, top: float) -> list[str]:
    """The three things that are kept, on the right."""
    x, width = _CHART[1] + 36, WIDTH - _CHART[1] - 37
    last = taken[count - 1] if count else None
    rows = [
        ("maximum m", words(last.new_max if last else -math.inf)),
        ("sum l", words(last.total if last else 0.0)),
    ]
    parts = [svg.rect(x, top - 8, width, _CHART_HEIGHT + 12, rx=6, class_="kv-cell")]
    parts.append(svg.text(x + 12, top + 12, "the accumulator", class_="kv-head"))
    for i, (label, value) in enumerate(rows):
        y = top + 40 + i * 24
        parts.append(svg.text(x + 12, y, label, class_="kv-ink"))
        parts.append(svg.text(x + width - 12, y, value, class_="kv-large kv-end"))
    parts.append(svg.text(x + 12, top + 92, "output so far, acc / l", class_="kv-ink"))
    if last is None or not all(map(math.isfinite, last.output)):
        return [
            *parts,
            svg.text(x + width - 12, top + 136, "none" if last is None else "NaN", class_="kv-large kv-end"),
        ]
    return [*parts, *_bars(taken, last.output[:8], x + 12, top + 102, width - 24)]


def _bars(taken: Sequence[Taken], output: Sequence[float], x: float, y: float, width: float) -> list[str]:
    """The first components of the output as bars from zero, on one scale for all frames."""
    values = [value for each in taken for value in each.output[:8] if math.isfinite(value)]
    axis = Axis.fit(min(0.0, *values), max(0.0, *values), y + 58, y)
    room, zero = width / len(output), axis.at(0)
    boxes = [(x + i * room + 3, min(zero, axis.at(v)), room - 6, abs(zero - axis.at(v))) for i, v in enumerate(output)]
    parts = [svg.path(svg.boxes(boxes), class_="kv-badge")]
    parts.append(svg.path(svg.lines([((x, zero), (x + width, zero))]), class_="kv-rule"))
    if len(output) <= 4:
        marks = [(x + (i + 0.5) * room, value) for i, value in enumerate(output)]
        parts += [svg.text(at, y + 71, words(round(value, 2)), class_="kv-quiet kv-middle") for at, value in marks]
    return parts


def _sums(taken: Sequence[Taken], count: int, top: float) -> list[str]:
    """The earlier sum above, the sum after the block below, and between them how far the earlier one shrank."""
    largest = max((each.total for each in taken if math.isfinite(each.total)), default=0.0)
    per_unit = (_BAR_RIGHT - _BAR_LEFT) / largest if largest > 0 else 0.0
    low = top + 72
    parts = [svg.text(0, top + 16, "sum", class_="kv-strong"), svg.text(0, top + 33, "before", class_="kv-quiet")]
    parts += [svg.text(0, low + 12, "sum", class_="kv-strong"), svg.text(0, low + 29, "after", class_="kv-quiet")]
    if not count:
        return [*parts, svg.text(_BAR_LEFT, low + 17, "0", class_="kv-ink")]
    earlier, shares = _shares(taken, count)
    last = taken[count - 1]
    if not earlier:
        parts.append(svg.text(_BAR_LEFT, top + 25, "0", class_="kv-ink"))
    if any(not math.isfinite(value) or value < 0 for value in (*earlier, *shares)):
        return [*parts, svg.text(_BAR_LEFT, low + 17, words(last.total), class_="kv-large")]
    if earlier:
        wide, narrow = sum(earlier) * per_unit, sum(earlier) * last.rescale * per_unit
        parts += _bar(earlier, top + 8, per_unit)
        corners = [(wide, top + 32.0), (narrow, low), (0.0, low), (0.0, top + 32.0)]
        d = "M" + "L".join(f"{svg.number(_BAR_LEFT + x)} {svg.number(y)}" for x, y in corners) + "z"
        parts.append(svg.path(d, class_="kv-waste"))
        edge = svg.lines([((_BAR_LEFT + wide, top + 32), (_BAR_LEFT + narrow, low))])
        parts.append(svg.path(edge, class_="kv-rule"))
        look = "kv-quiet" if last.rescale == 1 else "kv-warn"
        parts.append(svg.text(_BAR_LEFT + 8, top + 56, f"× {words(last.rescale)}", class_=look))
    return [*parts, *_bar(shares, low, per_unit)]


def _shares(taken: Sequence[Taken], count: int) -> tuple[list[float], list[float]]:
    """What each block has in the sum before and after the block `count - 1`."""
    before: list[float] = []
    shares: list[float] = []
    for each in taken[:count]:
        before = shares
        kept = [share * each.rescale for share in before]
        new = each.total - sum(kept)
        shares = [*kept, 0.0 if abs(new) < 1e-9 * abs(each.total) else new]
    return before, shares


def _bar(shares: Sequence[float], y: float, per_unit: float) -> list[str]:
    parts, x = [], _BAR_LEFT
    for entry, share in enumerate(shares):
        width = share * per_unit
        parts.append(svg.rect(x, y, width, _BAR, fill=colour(entry)))
        label = f"{words(share)}"
        if width > len(label) * 7.2 + 8:
            look = "kv-chip kv-middle"
            parts.append(svg.text(x + width / 2, y + 16, label, class_=look, fill=text_on(colour(entry))))
        x += width
    return [*parts, svg.text(x + 8, y + 17, f"= {words(sum(shares))}", class_="kv-strong")]


def _table(taken: Sequence[Taken]) -> Table:
    header = ("entry", "block", "scores", "maximum", "factor on the earlier sum", "sum")
    if not taken:
        return header, ("-", "-", "none read", "-∞", "-", "0")
    return (
        header,
        *(
            (
                str(entry),
                str(each.block),
                ", ".join(map(words, each.scores)),
                words(each.new_max),
                words(each.rescale) if entry else "-",
                words(each.total),
            )
            for entry, each in enumerate(taken)
        ),
    )
