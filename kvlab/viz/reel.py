"""Frames as indices into distinct pieces: what a player sends to the browser once, and what it then only looks up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvlab.events import to_ranges
from kvlab.viz.drawing import Drawing


@dataclass(frozen=True)
class Reel:
    """Frame f's SVG is the fragments that `frames[f]` names, one after the other; its table the rows of `tables[f]`.

    Both are strings of indices, runs folded ("0-12 15 14"): a notebook file spends a line on each number of a list.
    Cells of a row are separated by tabs; the first row of a table is its header.
    """

    fragments: list[str]
    frames: list[str]
    rows: list[str]
    tables: list[str]
    width: float
    height: float


def reel(drawings: Sequence[Drawing]) -> Reel:
    """Store each distinct part and table row once; parts that only ever come together become one fragment."""
    fragments, frames = _joined(*_distinct([drawing.parts for drawing in drawings]))
    rows, tables = _distinct([["\t".join(row) for row in drawing.table] for drawing in drawings])
    return Reel(
        fragments,
        [folded(frame) for frame in frames],
        rows,
        [folded(table) for table in tables],
        max(drawing.width for drawing in drawings),
        max(drawing.height for drawing in drawings),
    )


def folded(indices: Sequence[int]) -> str:
    """[0, 1, 2, 5, 4] -> '0-2 5 4'."""
    runs = ((start, stop - 1) for start, stop in to_ranges(indices))
    return " ".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def unfolded(words: str) -> list[int]:
    """What `folded` wrote."""
    runs = (word.partition("-") for word in words.split())
    return [each for first, _, last in runs for each in range(int(first), int(last or first) + 1)]


def _distinct(sequences: Sequence[Sequence[str]]) -> tuple[list[str], list[list[int]]]:
    number: dict[str, int] = {}
    indices = [[number.setdefault(each, len(number)) for each in sequence] for sequence in sequences]
    return list(number), indices


def _joined(fragments: list[str], frames: list[list[int]]) -> tuple[list[str], list[list[int]]]:
    """Merge runs a, b, c where a is always followed by b, b always by c, and each only comes after the other."""
    times = Counter(each for frame in frames for each in frame)
    pairs = Counter(pair for frame in frames for pair in pairwise(frame))
    after = {a: b for (a, b), count in pairs.items() if count == times[a] == times[b] and a != b}
    inner = set(after.values())
    joined: list[str] = []
    number: dict[int, int] = {}
    for first in range(len(fragments)):
        if first in inner:
            continue
        run, at = [first], first
        while at in after:
            at = after[at]
            run.append(at)
        number[first] = len(joined)
        joined.append("".join(fragments[each] for each in run))
    return joined, [[number[each] for each in frame if each in number] for frame in frames]
