"""Two pools as gauges on one scale: free + evictable + protected + request-owned is the capacity, at every moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvlab.errors import InvalidInput
from kvlab.events import Event, State
from kvlab.viz import svg
from kvlab.viz.drawing import Drawing
from kvlab.viz.palette import text_on
from kvlab.viz.scenes.legend import legend
from kvlab.viz.scenes.radix_tree_looks import FLIGHT, LIVE, OWN, bar, half_pixel, swatches
from kvlab.viz.scenes.radix_tree_state import FULL, SWA, Edge, Flight, edges_of

WIDTH = 760.0
_LEFT, _HIGH, _PITCH = 86.0, 24.0, 56.0
_FILL = {"live": LIVE, "own": OWN, "flight": FLIGHT}
Parts = dict[tuple[str, str], int]


def conservation(
    state: State, events: Sequence[Event] = (), *, window_tokens: int | None = None, flight: Flight | None = None
) -> Drawing:
    """The pools of a radix policy, one bar each: what the tree protects, what requests own, what can be evicted, free.

    Raises `InvalidInput` where the log has no pool "full".
    """
    found = edges_of(state, window_tokens, flight)
    bars: dict[str, Parts] = {pool: parts_of(state, found, pool) for pool in (FULL, SWA) if pool in state.pools}
    parts, height = gauges(state, bars, 0)
    key, key_height = legend(0, height + 6, WIDTH, swatches({kind for each in bars.values() for _, kind in each}))
    table: list[tuple[str, ...]] = [("pool", "protected", "request-owned", "evictable", "free", "slots")]
    for pool, each in bars.items():
        rows = [f"{_sum(each, group):,}" for group in ("protected", "request-owned", "evictable", "free")]
        table.append((pool, *rows, f"{sum(each.values()):,}"))
    said = [
        f"{pool} {sum(each.values()) - _sum(each, 'free'):,} of {sum(each.values()):,}" for pool, each in bars.items()
    ]
    return Drawing(
        WIDTH, height + 6 + key_height, (*parts, *key), f"Slots in use: {', '.join(said)}",
        "Two pools as bars on one scale, cut by who holds what.", tuple(table),
    )  # fmt: skip


def parts_of(state: State, edges: Sequence[Edge], pool: str) -> Parts:
    """(group, kind) -> slots of one pool, in the order in which they are drawn; they add up to its whole pages."""
    if pool not in state.pools:
        raise InvalidInput(f"the log has no pool {pool!r}; its header names {sorted(state.pools) or 'none'}")
    found: Parts = dict.fromkeys(
        [("protected", "live"), ("protected", "dead"), ("request-owned", "own"), ("request-owned", "dead"),
         ("request-owned", "flight"), ("request-owned", "empty"), ("evictable", "kept")], 0
    )  # fmt: skip
    for edge in edges:
        for span in edge.full if pool == FULL else edge.swa:
            group = "request-owned" if edge.owner else "evictable" if span.kind == "kept" else "protected"
            if span.kind != "tombstone":
                found[group, span.kind] += span.tokens
    geometry = state.pools[pool]
    found["free", "free"] = geometry.blocks * geometry.block_size - sum(found.values())
    return found


def _sum(parts: Parts, group: str) -> int:
    return sum(count for (each, _), count in parts.items() if each == group)


def gauges(state: State, bars: dict[str, Parts], y: float) -> tuple[list[str], float]:
    """The bars from `y` down, and the y under them."""
    most = max((sum(each.values()) for each in bars.values()), default=1)
    parts: list[str] = []
    for pool, each in bars.items():
        parts += _gauge(pool, each, (WIDTH - _LEFT - 2) / max(1, most), y)
        y += _PITCH
    return parts, y


def _gauge(pool: str, parts: Parts, scale: float, y: float) -> Iterator[str]:
    x, whole = _LEFT, sum(parts.values())
    yield svg.text(0, y + 12, f"{pool} pool" if pool == FULL else "SWA pool", class_="kv-head")
    yield svg.text(0, y + 27, f"{whole:,} slots", class_="kv-quiet")
    for (group, kind), count in parts.items():
        if not count:
            continue
        wide = half_pixel(x + count * scale) - x
        tip = f"{pool} pool: {count:,} slots {group}" + (f", {kind}" if kind not in ("kept", "free") else "")
        inner, words = [bar(kind, x, y, wide, _HIGH)], f"{count:,}"
        if wide > len(words) * 7 + 8:
            inner += _number(x + wide / 2, y + _HIGH / 2, words, kind)
        yield svg.tag("g", *inner, data_tip=tip)
        x += wide
    yield svg.rect(_LEFT, y, whole * scale, _HIGH, class_="kv-outline")
    sums = [f"{group} {_sum(parts, group):,}" for group in ("protected", "request-owned", "evictable", "free")]
    yield svg.text(_LEFT, y + _HIGH + 15, f"{' + '.join(sums)} = {whole:,}", class_="kv-quiet")


def _number(x: float, middle: float, words: str, kind: str) -> Iterator[str]:
    if kind in ("live", "own"):
        yield svg.text(x, middle + 4, words, class_="kv-chip kv-middle", fill=text_on(_FILL[kind]))
        return
    half = len(words) * 3.6 + 4
    if kind != "free":
        yield svg.rect(x - half, middle - 8, 2 * half, 16, rx=3, class_="kv-plate")
    yield svg.text(x, middle + 4.5, words, class_="kv-ink kv-middle")
