"""The superblocks of an arena as a grid, and the arrows of pages that move between them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvlab.viz import svg
from kvlab.viz.palette import colour, name, text_on
from kvlab.viz.scenes.arena_rows import ArenaRows, Superblock
from kvlab.viz.words import shown
from kvlab.workload import RequestId

_HEAD, _PAD, _GAP = 17.0, 5.0, 8.0
_MOST_STRIPES = 4
_NAMED = 14.0
_WIDEST = 150.0


@dataclass(frozen=True)
class ArenaGrid:
    """Where superblocks and their pages are, in a box `width` wide."""

    arena: ArenaRows
    y: float
    width: float

    @property
    def columns(self) -> int:
        """Superblocks side by side."""
        count = len(self.arena.rows)
        most = 8 if count <= 48 else 16
        return -(-count // -(-count // most))

    @property
    def cell(self) -> tuple[float, float]:
        """Width and height of a superblock."""
        wide = min(_WIDEST, (self.width - (self.columns - 1) * _GAP - 2) / self.columns)
        return wide, _HEAD + _PAD + min(78.0, max(34.0, wide * 0.62))

    @property
    def height(self) -> float:
        """Of all rows."""
        return -(-len(self.arena.rows) // self.columns) * (self.cell[1] + _GAP) - _GAP

    def at(self, row: int) -> svg.Point:
        """The top left corner of a superblock."""
        down, across = divmod(row, self.columns)
        return 1 + across * (self.cell[0] + _GAP), self.y + down * (self.cell[1] + _GAP)

    def page(self, number: int) -> tuple[float, float, float, float]:
        """The box (x, y, width, height) of a page, numbered through the arena."""
        row, index = divmod(number, self.arena.pages_per_row)
        x, y = self.at(row)
        wide, high = self.cell[0] - 2 * _PAD, self.cell[1] - _HEAD - _PAD
        columns = min(self.arena.pages_per_row, max(1, round(math.sqrt(self.arena.pages_per_row * wide / high))))
        rows = -(-self.arena.pages_per_row // columns)
        down, across = divmod(index, columns)
        gap = 2.0 if wide / columns > 8 else 1.0
        step, drop = wide / columns, high / rows
        return x + _PAD + across * step, y + _HEAD + down * drop, step - gap, drop - gap

    def parts(self) -> Iterator[str]:
        """Every superblock, then the arrows."""
        for row, each in enumerate(self.arena.rows):
            if each.ring is not None:
                yield self._ring(row, each.ring)
                continue
            (x, y), (wide, high) = self.at(row), self.cell
            look = "kv-free" if each.kind == "free" else "kv-cell"
            body = svg.rect(x, y, wide, high, rx=5, class_=look)
            body += svg.text(x + _PAD, y + 12, str(row), class_="kv-quiet")
            if each.kind == "free":
                body += svg.text(x + wide / 2, y + high / 2 + 6, "free", class_="kv-quiet kv-middle")
                yield svg.tag("g", body, data_tip=f"superblock {row}: whole and free")
                continue
            yield body
            yield from self._pages(row, each)
        per_row = self.arena.pages_per_row
        ways: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for source, target in self.arena.moves:
            ways.setdefault((source // per_row, target // per_row), []).append((source, target))
        for moves in ways.values():
            yield self._arrow(moves)

    def _pages(self, row: int, block: Superblock) -> Iterator[str]:
        """Pages with names where there is room; else runs of one holder as one box, cut by the lines between pages."""
        first = row * self.arena.pages_per_row
        if self.page(first)[2] >= _NAMED:
            for index, holders in enumerate(block.pages):
                yield self._page(first + index, holders)
            return
        runs: dict[tuple[RequestId, ...], list[tuple[float, float, float, float]]] = {}
        boxes = [self.page(first + index) for index in range(len(block.pages))]
        before: tuple[RequestId, ...] | None = None
        for (x, y, wide, high), holders in zip(boxes, block.pages, strict=True):
            found = runs.setdefault(holders, [])
            if found and holders == before and found[-1][1] == y:
                found[-1] = (found[-1][0], y, x + wide - found[-1][0], high)
            else:
                found.append((x, y, wide, high))
            before = holders
        for holders, pieces in runs.items():
            yield self._runs(row, holders, pieces)
        step = boxes[1][0] - boxes[0][0] if len(boxes) > 1 else 0.0
        gap = step - boxes[0][2]
        columns = sorted({x for x, *_ in boxes})[1:]
        top, bottom = boxes[0][1], boxes[-1][1] + boxes[-1][3]
        yield svg.path(svg.lines(((x - gap / 2, top), (x - gap / 2, bottom)) for x in columns), class_="kv-slots")

    def _runs(self, row: int, holders: Sequence[RequestId], pieces: Sequence[tuple[float, float, float, float]]) -> str:
        if not holders:
            return svg.path(svg.boxes(pieces), class_="kv-free", data_tip=f"superblock {row}: free pages")
        names = [name(each) for each in holders]
        fills = [colour(self.arena.orders.get(each, 0)) for each in holders[:_MOST_STRIPES]]
        bands = [
            svg.path(
                svg.boxes((x, y + i * high / len(fills), wide, high / len(fills)) for x, y, wide, high in pieces),
                fill=fill,
            )
            for i, fill in enumerate(fills)
        ]
        who = f"{', '.join(names)} (shared)" if len(names) > 1 else names[0]
        return svg.tag("g", *bands, data_request=" ".join(names), data_tip=f"superblock {row}: pages of {who}")

    def _ring(self, row: int, owner: RequestId) -> str:
        (x, y), (wide, high) = self.at(row), self.cell
        fill = colour(self.arena.orders.get(owner, 0))
        ink = text_on(fill)
        radius = min(24.0, (high - _HEAD - 12) / 2, wide / 2 - 8)
        label = shown(name(owner), max(1, int(radius / 3.4)))
        return svg.tag(
            "g",
            svg.rect(x, y, wide, high, rx=5, fill=fill),
            svg.text(x + _PAD, y + 12, str(row), class_="kv-chip", fill=ink),
            svg.tag("circle", cx=x + wide / 2, cy=y + high / 2 + 4, r=radius, fill="none", stroke=ink, stroke_width=3),
            svg.text(x + wide / 2, y + high / 2 + 8, label, class_="kv-chip kv-middle", fill=ink),
            data_request=name(owner),
            data_tip=f"superblock {row}: the ring of {name(owner)}",
        )

    def _page(self, number: int, holders: Sequence[RequestId]) -> str:
        x, y, wide, high = self.page(number)
        if not holders:
            return svg.rect(x, y, wide, high, rx=2, class_="kv-free", data_tip=f"page {number}: free")
        names = [name(each) for each in holders]
        fills = [colour(self.arena.orders.get(each, 0)) for each in holders[:_MOST_STRIPES]]
        stripe = high / len(fills)
        drawn = [svg.rect(x, y + i * stripe, wide, stripe, fill=fill) for i, fill in enumerate(fills)]
        label = names[0] if len(names) == 1 else f"×{len(names)}"
        if wide > len(label) * 7 + 2 and high > 12:
            words = {"class_": "kv-chip kv-middle", "fill": text_on(fills[0])}
            if len(names) > 1:
                half = len(label) * 3.8 + 2
                drawn.append(svg.rect(x + wide / 2 - half, y + high / 2 - 7, 2 * half, 14, rx=3, class_="kv-badge"))
                words = {"class_": "kv-badge-text kv-middle"}
            drawn.append(svg.text(x + wide / 2, y + high / 2 + 4, label, **words))
        who = f"{', '.join(names)} (shared)" if len(names) > 1 else names[0]
        return svg.tag("g", *drawn, data_request=" ".join(names), data_tip=f"page {number}: {who}")

    def _arrow(self, moves: Sequence[tuple[int, int]]) -> str:
        """One arrow between two superblocks, from where pages were (dashed) to where they are now (outlined)."""
        marks, ends = [], []
        for look, pages in (("kv-ghost", [one for one, _ in moves]), ("kv-touched", [other for _, other in moves])):
            found = [self.page(page) for page in pages]
            marks += [svg.rect(x - 1, y - 1, w + 2, h + 2, rx=3, class_=look) for x, y, w, h in found]
            ends.append(
                (
                    sum(x + w / 2 for x, _, w, _ in found) / len(found),
                    sum(y + h / 2 for _, y, _, h in found) / len(found),
                )
            )
        (x0, y0), (x1, y1) = ends
        reach = math.hypot(x1 - x0, y1 - y0) or 1.0
        cx, cy = (x0 + x1) / 2, (y0 + y1) / 2 - min(40.0, 10 + reach * 0.12)
        d = f"M{_point(x0, y0)}Q{_point(cx, cy)} {_point(x1, y1)}"
        return svg.tag(
            "g",
            *marks,
            svg.path(d, class_="kv-halo"),
            svg.path(d, class_="kv-copy"),
            svg.path(svg.arrow_head((x1, y1), (x1 - cx, y1 - cy), 10), class_="kv-copy-head"),
            class_="kv-link",
        )


def _point(x: float, y: float) -> str:
    return f"{svg.number(x)} {svg.number(y)}"
