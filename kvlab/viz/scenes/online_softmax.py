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
from kvlab.viz.scenes import running_sum as sums
from kvlab.viz.scenes import score_chart as chart
from kvlab.viz.scenes.legend import legend, solid, tinted
from kvlab.viz.scenes.taken import Taken, words

WIDTH = 760.0
_COLUMNS = 8
_CELL_HEIGHT, _CELL_GAP = 50.0, 8.0


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
    parts = [
        *memory.parts(taken, count),
        *chart.score_chart(taken, count, top, memory.below),
        *_state(taken, count, top),
    ]
    bottom = top + chart.HEIGHT + 44
    parts += sums.running_sum(taken, count, bottom)
    items = [
        (solid(colour(0)), "read"),
        (tinted(colour(0)), "still to be read"),
        (_OTHER, "not this request's"),
    ]
    key, key_height = legend(0, bottom + sums.HEIGHT + 14, WIDTH, items)
    last = taken[count - 1] if count else None
    return Drawing(
        WIDTH,
        bottom + sums.HEIGHT + 14 + key_height,
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


def _state(taken: Sequence[Taken], count: int, top: float) -> list[str]:
    """The three things that are kept, on the right."""
    x, width = chart.RIGHT + 36, WIDTH - chart.RIGHT - 37
    last = taken[count - 1] if count else None
    rows = [
        ("maximum m", words(last.new_max if last else -math.inf)),
        ("sum l", words(last.total if last else 0.0)),
    ]
    parts = [svg.rect(x, top - 8, width, chart.HEIGHT + 12, rx=6, class_="kv-cell")]
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
