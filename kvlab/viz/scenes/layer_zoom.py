"""The blocks at the edge of a window, large: the one that goes, the one that must stay, the one that is read whole."""

from __future__ import annotations

from collections.abc import Iterator

from kvlab.errors import positive
from kvlab.viz import svg
from kvlab.viz.palette import colour, text_on
from kvlab.viz.scenes.layer_kv import LayerKV

HEIGHT = 120.0
_LEFT, _RIGHT, _TOP, _BAR, _GAP = 104.0, 750.0, 44.0, 40.0, 8.0
_BLOCKS = 3


def boundary(kv: LayerKV, block_tokens: int, y: float) -> Iterator[str]:
    """Three blocks of one layer: the one that holds the first readable position, the one before and the one after."""
    positive("block_tokens", block_tokens)
    last = max(0, (kv.end - 1) // block_tokens)
    middle = min(kv.readable // block_tokens, last)
    first = max(0, min(middle - 1, last - _BLOCKS + 1))
    width = (_RIGHT - _LEFT - (_BLOCKS - 1) * _GAP) / _BLOCKS
    yield svg.text(0, y + 14, f"layer {kv.layer}", class_="kv-head")
    yield svg.text(_LEFT - 10, y + _TOP + 24, "block", class_="kv-quiet kv-end")
    for place in range(_BLOCKS):
        block = first + place
        x = _LEFT + place * (width + _GAP)
        if block <= last and kv.end:
            edge = block == middle and kv.readable > 0
            yield from _block(kv, block, block_tokens, x, y + _TOP, width, edge)
    yield svg.text(_LEFT, y + 14, _said(kv, middle, block_tokens), class_="kv-ink")


def _block(kv: LayerKV, block: int, size: int, x: float, y: float, width: float, edge: bool) -> Iterator[str]:
    start, stop = block * size, min((block + 1) * size, kv.end)
    slot = width / size
    yield svg.rect(x, y, width, _BAR, rx=3, class_="kv-free")
    held, readable = max(start, kv.held), max(start, kv.readable, kv.held)
    dead_width = (min(readable, stop) - held) * slot
    if dead_width > 0:
        left = x + (held - start) * slot
        yield svg.rect(left, y, dead_width, _BAR, class_="kv-queue") + svg.path(
            svg.hatch(left, y, dead_width, _BAR, "\\", 8), class_="kv-slots"
        )
    if stop > readable:
        fill = colour(0)
        left, live_width = x + (readable - start) * slot, (stop - readable) * slot
        yield svg.rect(left, y, live_width, _BAR, fill=fill)
        words = f"{stop - readable:,} live"
        if live_width > len(words) * 7 + 8:
            yield svg.text(left + live_width / 2, y + 24.5, words, class_="kv-chip kv-middle", fill=text_on(fill))
    if kv.held >= stop:
        yield svg.text(x + width / 2, y + 24.5, "freed", class_="kv-quiet kv-middle")
    elif dead_width > 60:
        words = f"{min(readable, stop) - held:,} dead"
        middle, half = x + (held - start) * slot + dead_width / 2, len(words) * 3.6 + 5
        yield svg.rect(middle - half, y + 11, 2 * half, 18, rx=3, class_="kv-plate")
        yield svg.text(middle, y + 24.5, words, class_="kv-ink kv-middle")
    if edge:
        yield svg.rect(x - 1.5, y - 1.5, width + 3, _BAR + 3, rx=4, class_="kv-touched")
    label = f"{block}: {start:,} to {(block + 1) * size - 1:,}"
    yield svg.text(x, y - 6, label, class_="kv-strong" if edge else "kv-quiet")


def _said(kv: LayerKV, middle: int, size: int) -> str:
    if kv.lost:
        return f"Too much was freed: {kv.lost:,} position{'s' * (kv.lost != 1)} inside the window can no longer be read"
    if not kv.readable:
        return "The window has room for all tokens: nothing is dead yet"
    dead = kv.readable - max(kv.held, middle * size)
    if dead:
        return (
            f"Position {kv.readable:,} is the first that can be read; block {middle} stays "
            f"although {dead:,} of its tokens {'is' if dead == 1 else 'are'} dead"
        )
    return f"Position {kv.readable:,} is the first that can be read: it is the first of block {middle}"
