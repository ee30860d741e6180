"""A strip for each layer of a hybrid model: what it keeps of one request, what of that is dead, what was freed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from kvlab.errors import InvalidInput
from kvlab.events import Event, State
from kvlab.shapes import LayerGroup
from kvlab.viz import svg
from kvlab.viz.drawing import Drawing, Table
from kvlab.viz.palette import colour, text_on
from kvlab.viz.scenes.layer_kv import LayerKV, alike, bands, layers_in
from kvlab.viz.scenes.layer_zoom import HEIGHT as ZOOM_HEIGHT
from kvlab.viz.scenes.layer_zoom import boundary
from kvlab.viz.scenes.legend import legend, solid
from kvlab.viz.scenes.pool_grid import spans
from kvlab.viz.scenes.sizes import size_words
from kvlab.workload import RequestId

WIDTH = 760.0
_LEFT, _TOP = 104.0, 22.0
_STRIPS, _THICKEST = 372.0, 22.0
_SPAN = WIDTH - _LEFT - 10
LIVE = colour(0)
_Box: TypeAlias = tuple[float, float, float, float]


def layer_strips(
    layers: Sequence[LayerKV], *, scale_tokens: int | None = None, block_tokens: int | None = None
) -> Drawing:
    """One strip a layer from position 0 on the left: live solid, dead grey and hatched, freed left open.

    `scale_tokens` is the length that fills the width (the longest layer by default; give it where a player grows).
    With `block_tokens`, the first sliding layer's block at the edge of the window is drawn large below. A bar at the
    bottom adds up the bytes of all layers. Raises `InvalidInput` without layers or if a layer is longer than the scale.
    """
    if not layers:
        raise InvalidInput("there are no layers to draw")
    end = max(kv.end for kv in layers)
    scale = max(1, end) if scale_tokens is None else scale_tokens
    if end > scale:
        raise InvalidInput(f"a layer has {end:,} tokens; scale_tokens={scale:,} cannot show them")
    pitch = min(_THICKEST, _STRIPS / len(layers))
    bottom = _TOP + pitch * len(layers)
    parts = [*_ground(layers, pitch), *_bands(layers, pitch, scale), *_over(layers, pitch, scale)]
    y = bottom + 34
    edge = next((kv for kv in layers if kv.sliding), None)
    if block_tokens is not None and edge is not None:
        parts += boundary(edge, block_tokens, y)
        y += ZOOM_HEIGHT
    parts += _total(layers, y)
    key, key_height = legend(0, y + 62, WIDTH, _swatches(layers))
    return Drawing(
        WIDTH,
        y + 62 + key_height,
        (*parts, *key),
        _title(layers),
        "A strip for each layer: the tokens that it keeps in memory, from the first on the left to the newest.",
        _table(layers),
    )


def request_layers(
    state: State,
    events: Sequence[Event] = (),
    *,
    rid: RequestId,
    groups: Sequence[LayerGroup],
    scale_tokens: int | None = None,
) -> Drawing:
    """The strips of one request of a replayed state (see `layers_in`): a scene, once `rid` and `groups` are bound."""
    sliding = next((group for group in groups if group.window_tokens is not None), None)
    block = state.pools[sliding.pool].block_size if sliding and sliding.pool in state.pools else None
    return layer_strips(layers_in(state, rid, groups), scale_tokens=scale_tokens, block_tokens=block)


def _ground(layers: Sequence[LayerKV], pitch: float) -> Iterator[str]:
    """What never changes: the labels, and the look of a dead token under everything that is not dead."""
    yield svg.text(_LEFT - 10, _TOP - 8, "layer", class_="kv-quiet kv-end")
    height = pitch * len(layers)
    yield svg.rect(_LEFT, _TOP, _SPAN, height, class_="kv-queue")
    yield svg.path(svg.hatch(_LEFT, _TOP, _SPAN, height, "\\", 8), class_="kv-slots")
    if pitch >= 11:
        for row, kv in enumerate(layers):
            words = f"{kv.layer} {'sliding' if kv.sliding else 'global'}"
            yield svg.text(_LEFT - 10, _TOP + (row + 0.5) * pitch + 4, words, class_=_label(kv))
        return
    for kv, first, stop in bands(layers):
        y = _TOP + (first + stop) / 2 * pitch + 3.5
        if not kv.sliding:
            number = str(kv.layer) if stop == first + 1 else f"{kv.layer}-{layers[stop - 1].layer}"
            yield svg.text(_LEFT - 10, y, f"global {number}", class_=_label(kv))
        elif stop - first > 2:
            yield svg.text(_LEFT - 10, y, f"{stop - first} sliding", class_=_label(kv))


def _label(kv: LayerKV) -> str:
    return "kv-quiet kv-end" if kv.sliding else "kv-head kv-end"


def _bands(layers: Sequence[LayerKV], pitch: float, scale: int) -> Iterator[str]:
    """What is not dead, painted over the ground. All layers' common part is one box: a frame of a reel stays small."""
    common = max(max(kv.held, kv.readable) for kv in layers)
    kinds: dict[str, list[_Box]] = {"later": [], "freed": [], "live": [], "lost": []}
    for kv, first, stop in bands(layers):
        y, height = _TOP + first * pitch, (stop - first) * pitch
        for kind, start, end in (
            ("later", kv.end, scale),
            ("freed", 0, min(kv.held, kv.readable)),
            ("live", max(kv.held, kv.readable), min(common, kv.end)),
            ("live", common, kv.end),
            ("lost", kv.readable, kv.held),
        ):
            if end > start:
                kinds[kind].append((_LEFT + start / scale * _SPAN, y, (end - start) / scale * _SPAN, height))
    if kinds["later"]:
        yield svg.path(svg.boxes((x, y - 1, w + 1, h + 2) for x, y, w, h in _merged(kinds["later"])), class_="kv-paper")
    if kinds["live"]:
        yield svg.path(svg.boxes(_merged(kinds["live"])), fill=LIVE)
    if kinds["freed"]:
        yield svg.path(svg.boxes(kinds["freed"]), class_="kv-free")
    if kinds["lost"]:
        yield svg.path(svg.boxes(kinds["lost"]), class_="kv-paper")
        yield svg.path(svg.boxes(kinds["lost"]), class_="kv-ghost")


def _merged(found: Sequence[_Box]) -> list[_Box]:
    """Boxes of one column that touch, as one."""
    columns: dict[tuple[float, float], list[_Box]] = {}
    for x, y, width, height in found:
        column = columns.setdefault((x, width), [])
        if column and abs(column[-1][1] + column[-1][3] - y) < 0.01:
            column[-1] = (x, column[-1][1], width, y + height - column[-1][1])
        else:
            column.append((x, y, width, height))
    return [box for column in columns.values() for box in column]


def _over(layers: Sequence[LayerKV], pitch: float, scale: int) -> Iterator[str]:
    """Lines between the strips, and the ruler of positions."""
    rows = range(1, len(layers))
    cuts = svg.lines(((_LEFT, _TOP + row * pitch), (_LEFT + _SPAN, _TOP + row * pitch)) for row in rows)
    if cuts:
        yield svg.path(cuts, class_="kv-slots")
    bottom = _TOP + pitch * len(layers)
    step = 2 ** max(0, round(math.log2(scale / 4)))
    marks = [(p, _LEFT + p / scale * _SPAN) for p in [*range(0, scale - step // 2, step), scale]]
    yield svg.path(svg.lines(((x, bottom + 3), (x, bottom + 7)) for _, x in marks), class_="kv-rule")
    for position, x in marks:
        side = "kv-middle" if 0 < position < scale else "kv-end" if position else ""
        yield svg.text(x, bottom + 19, f"{position:,}", class_=f"kv-quiet {side}".strip())
    yield svg.text(_LEFT - 10, bottom + 19, "position", class_="kv-quiet kv-end")


def _total(layers: Sequence[LayerKV], y: float) -> Iterator[str]:
    """The bytes of all layers: what stays open would be held if nothing had been freed."""
    live, dead, freed = _bytes(layers)
    whole = live + dead + freed
    held = live + dead
    yield svg.text(0, y + 14, f"all {len(layers)} layers", class_="kv-head")
    words = f"{size_words(held)} in memory"
    if dead and live:
        words += f", {size_words(dead)} of it dead"
    if freed:
        words += f"; {size_words(whole)} if nothing were freed"
    yield svg.text(_LEFT, y + 14, words, class_="kv-ink")
    top, high = y + 22, 26.0
    yield svg.rect(_LEFT, top, _SPAN, high, rx=3, class_="kv-free")
    if not whole:
        return
    wide = live / whole * _SPAN
    yield svg.rect(_LEFT, top, wide, high, fill=LIVE)
    share = f"{100 * live / whole:.0f} %"
    if wide > 50:
        yield svg.text(_LEFT + wide / 2, top + 17, share, class_="kv-chip kv-middle", fill=text_on(LIVE))
    if dead:
        left, room = _LEFT + wide, dead / whole * _SPAN
        yield svg.rect(left, top, room, high, class_="kv-queue") + svg.path(
            svg.hatch(left, top, room, high, "\\", 8), class_="kv-slots"
        )
        share = f"{100 * dead / whole:.0f} % dead"
        if room > 90:
            middle, half = left + room / 2, len(share) * 3.6 + 5
            yield svg.rect(middle - half, top + 4, 2 * half, 18, rx=3, class_="kv-plate")
            yield svg.text(middle, top + 17, share, class_="kv-ink kv-middle")


def _bytes(layers: Sequence[LayerKV]) -> tuple[int, int, int]:
    live = sum(kv.live * kv.bytes_per_token for kv in layers)
    dead = sum(kv.dead * kv.bytes_per_token for kv in layers)
    return live, dead, sum(kv.freed * kv.bytes_per_token for kv in layers)


def _swatches(layers: Sequence[LayerKV]) -> Iterator[tuple[str, str]]:
    yield solid(LIVE), "can be read"
    dead = svg.rect(0, 0, 16, 12, class_="kv-queue") + svg.path(svg.hatch(0, 0, 16, 12, "\\", 5), class_="kv-slots")
    yield dead, "dead: in memory, no query can read it"
    yield svg.rect(0.5, 0.5, 15, 11, class_="kv-free"), "freed"
    if any(kv.lost for kv in layers):
        yield svg.rect(1, 1, 14, 10, class_="kv-ghost"), "freed too early"


def _title(layers: Sequence[LayerKV]) -> str:
    end = max(kv.end for kv in layers)
    sliding = [kv for kv in layers if kv.sliding]
    said = f"{end:,} token{'s' * (end != 1)}"
    if not sliding:
        return f"{said}: all {len(layers)} layers read all of them"
    one = max(sliding, key=lambda kv: (kv.lost, kv.dead, kv.freed))
    who = f"{len(sliding)} of {len(layers)} layers"
    if one.lost:
        return f"{said}: {who} have lost {one.lost:,} that their window still covers"
    if one.dead and one.freed:
        return f"{said}: {who} have freed {one.freed:,}; {one.dead:,} dead one{'s stay' if one.dead > 1 else ' stays'}"
    if one.freed:
        return f"{said}: {who} have freed the {one.freed:,} that they can never read again"
    if one.dead:
        return f"{said}: in {who}, {one.dead:,} {'is' if one.dead == 1 else 'are'} dead"
    return f"{said}: inside every window, nothing is dead yet"


def _table(layers: Sequence[LayerKV]) -> Table:
    rows = [
        (
            spans([layers[row].layer for row in rows]),
            "sliding" if kv.sliding else "global",
            f"{kv.live:,}",
            f"{kv.dead:,}",
            f"{kv.freed:,}",
            size_words((kv.live + kv.dead) * kv.bytes_per_token * len(rows)),
        )
        for kv, rows in alike(layers)
    ]
    return (("layers", "kind", "live tokens", "dead", "freed", "in memory"), *rows)
