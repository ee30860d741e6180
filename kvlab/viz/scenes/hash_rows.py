"""A chain as a row of the picture: which of its blocks others have too, its title, its table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from kvlab.viz.drawing import Table
from kvlab.viz.palette import COLOURS, WARNING, name
from kvlab.viz.scenes.hash_links import Column, Link, common, parted, shared
from kvlab.viz.words import shown
from kvlab.workload import RequestId

GREEN: Final = COLOURS[2]
STATUS: Final = {"hit": "found", "held": "in use", "cached": "cached", "computed": "computed", "evicted": "evicted"}
_NAME = 10


@dataclass(frozen=True)
class Row:
    """Chain `number` of `all`."""

    rid: RequestId
    links: tuple[Link, ...]
    number: int
    all: Sequence[tuple[Link, ...]]

    @property
    def label(self) -> str:
        """What the request is called."""
        return shown(name(self.rid), _NAME)

    @cached_property
    def shared(self) -> int:
        """How many of its first blocks another chain has too."""
        return shared(self.all, self.number)

    @cached_property
    def parted(self) -> int | None:
        """The first block that no chain above has, if there is one above."""
        return parted(self.all, self.number)

    def tint(self, index: int) -> str:
        """Green for what is found or shared, red where the chain parts from the others, else nothing."""
        if index < self.shared or self.links[index].status == "hit":
            return GREEN
        return WARNING if index == self.parted else ""


def described(link: Link) -> str:
    """Its status and its place: 'found in physical block 7'."""
    return STATUS[link.status] + (f" in physical block {link.block}" if link.block is not None else "")


def title(rows: Sequence[Row]) -> str:
    """How much was found, and of two chains where they part."""
    found, total = (sum(link.status == "hit" or every for row in rows for link in row.links) for every in (False, True))
    told = f"{found:,} of {total:,} full block{'s' * (total != 1)} found in the cache"
    if len(rows) == 2 and rows[1].links:
        one, other = rows
        hits = sum(link.status == "hit" for link in other.links)
        told = f"{other.label} finds {hits:,} of its {len(other.links):,} blocks"
        if other.parted is not None:
            told += f"; block {other.parted:,} is the first that {one.label} does not have"
    return told


def counted(links: Sequence[Link]) -> str:
    """The statuses of several blocks: '58 found, 1 computed'."""
    counts = Counter(STATUS[link.status] for link in links)
    return ", ".join(f"{count:,} {status}" for status, count in counts.items())


def table(rows: Sequence[Row], columns: Sequence[Column]) -> Table:
    """A line a block, one for all that the picture folds."""
    lines = [("request", "block", "digest", "parent's digest", "tokens", "status", "also in")]
    for row in rows:
        common_with = {each.label: common(each.links, row.links) for each in rows if each is not row}
        for start, stop in columns:
            links = row.links[start:stop]
            if not links:
                continue
            also = ", ".join(label for label, length in common_with.items() if length >= start + len(links)) or "-"
            if len(links) > 1:
                last, words = start + len(links) - 1, f"{len(links):,} blocks"
                lines.append((row.label, f"{start}-{last}", "…", "…", words, counted(links), also))
                continue
            parent = shown(row.links[start - 1].digest, 16) if start else "-"
            digest, words = shown(links[0].digest, 16), shown(links[0].label, 40)
            lines.append((row.label, str(start), digest, parent, words, described(links[0]), also))
    return tuple(lines)
