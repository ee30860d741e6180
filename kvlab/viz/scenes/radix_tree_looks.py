"""How KV of each condition is drawn in every scene of the radix tree, and the words for it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Final

from kvlab.viz import svg
from kvlab.viz.palette import COLOURS

LIVE: Final = COLOURS[0]
OWN: Final = COLOURS[5]
FLIGHT: Final = COLOURS[1]

WORDS: Final = {
    "live": "locked, can be read",
    "own": "the request's own, not in the tree",
    "flight": "chunk in flight",
    "dead": "dead: pinned, no window reaches it",
    "kept": "unlocked, can be evicted",
    "tombstone": "tombstone: SWA KV freed",
    "empty": "slot without a token",
    "free": "free",
}


def bar(kind: str, x: float, y: float, width: float, height: float) -> str:
    """A span of one kind in its box."""
    if kind in ("live", "own"):
        return svg.rect(x, y, width, height, fill=LIVE if kind == "live" else OWN)
    if kind == "dead":
        lines = svg.path(svg.hatch(x, y, width, height, "\\", 9), class_="kv-slots")
        return svg.rect(x, y, width, height, class_="kv-queue") + lines
    if kind in ("kept", "flight"):
        tint, turn = (LIVE, "/") if kind == "kept" else (FLIGHT, "\\")
        faint = "kv-arrow kv-faint" if kind == "kept" else "kv-arrow"
        lines = svg.path(svg.hatch(x, y, width, height, turn, 13), class_=faint, stroke=tint)
        return svg.rect(x, y, width, height, fill=tint, class_="kv-tint") + lines
    look = {"tombstone": "kv-free", "empty": "kv-cell", "free": "kv-free"}[kind]
    return svg.rect(x, y, width, height, class_=look)


def stone(x: float, base: float, height: float = 12) -> str:
    """A gravestone standing on (x, base): the mark of a tombstone."""
    half = height * 0.38
    n = svg.number
    d = f"M{n(x - half)} {n(base)}v{n(half - height)}a{n(half)} {n(half)} 0 0 1 {n(2 * half)} 0v{n(height - half)}z"
    top = base - height * 0.62
    cross = svg.lines([((x, top - 2), (x, top + 4)), ((x - 2, top), (x + 2, top))])
    return svg.path(d, class_="kv-queue") + svg.path(cross, class_="kv-slots")


def padlock(x: float, y: float, look: str = "kv-badge") -> str:
    """A padlock 8 wide and 11 high whose upper left corner is (x, y)."""
    n = svg.number
    outer = f"M{n(x)} {n(y + 11)}v-6h1v-1a3 3 0 0 1 6 0v1h1v6z"
    inner = f"M{n(x + 2.6)} {n(y + 5)}h2.8v-1a1.4 1.4 0 0 0 -2.8 0z"
    return svg.path(outer + inner, class_=look, fill_rule="evenodd")


def half_pixel(x: float) -> float:
    """A place on a grid of half pixels: a frame of a reel writes fewer digits."""
    return round(2 * x) / 2


def ruler(scale: int, y: float, left: float, span: float) -> Iterator[str]:
    """Ticks and numbers of positions 0 to `scale` under [left, left + span]."""
    step = 2 ** max(0, round(math.log2(scale / 4)))
    marks = [(p, left + p / scale * span) for p in [*range(0, max(1, scale - step // 2), step), scale]]
    yield svg.path(svg.lines(((x, y), (x, y + 4)) for _, x in marks), class_="kv-rule")
    for position, x in marks:
        side = "kv-middle" if 0 < position < scale else "kv-end" if position else ""
        yield svg.text(x, y + 16, f"{position:,}", class_=f"kv-quiet {side}".strip())
    yield svg.text(0, y + 16, "position", class_="kv-quiet")


def swatches(kinds: Collection[str]) -> Iterator[tuple[str, str]]:
    """The legend's items for the kinds that occur."""
    for kind, words in WORDS.items():
        if kind in kinds:
            mark = stone(8, 12, 11) if kind == "tombstone" else ""
            yield bar(kind, 0.5, 0.5, 15, 11) + mark, words
