"""One request's sliding-window KV as a strip, the same steps under several policies: what a chunk's commit leaves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kvlab.errors import InvalidInput
from kvlab.events import State
from kvlab.viz import svg
from kvlab.viz.drawing import Drawing, Table
from kvlab.viz.palette import name, text_on
from kvlab.viz.scenes.legend import legend
from kvlab.viz.scenes.radix_tree_looks import LIVE, bar, half_pixel, ruler, stone, swatches
from kvlab.viz.scenes.radix_tree_state import Flight, Span, first_read, strip_of
from kvlab.viz.words import shown
from kvlab.workload import RequestId

WIDTH = 760.0
_LEFT, _TOP = 86.0, 46.0
_SPAN = WIDTH - _LEFT - 12
_HIGH, _PITCH = 34.0, 96.0
_GAUGE, _GAUGE_PITCH = 20.0, 30.0
_MOST_ROWS = 4


_SAID = {
    "tombstone": "SWA KV freed",
    "kept": "live in the tree, not held by the request, can be evicted",
    "dead": "dead: the request holds them and no query can read them",
    "live": "the next query reads them",
    "flight": "chunk in flight",
}


def token_strip(
    states: Mapping[str, State],
    rid: RequestId,
    *,
    window_tokens: int,
    scale_tokens: int | None = None,
    prompt_tokens: int | None = None,
    flight: Flight | None = None,
) -> Drawing:
    """A row a policy: tombstones open, dead tokens grey, the tail that the next query reads bright; below, the hold.

    The hold is what the request keeps of the SWA pool: dead + live. `scale_tokens` fills the width (default: the
    request so far), `prompt_tokens` is where its own text begins, `flight` the tokens in computation. Raises
    `InvalidInput` for no row or more than four, for a log without an SWA pool, and where a strip is longer than the
    scale.
    """
    if not 1 <= len(states) <= _MOST_ROWS:
        raise InvalidInput(f"a token strip has one to {_MOST_ROWS} rows, not {len(states)}")
    in_flight = (flight or {}).get(rid, 0)
    strips = {
        label: _cut_at(strip_of(state, rid, window_tokens, in_flight), prompt_tokens) for label, state in states.items()
    }
    end = max((strip[-1].stop for strip in strips.values() if strip), default=0)
    scale = max(1, end) if scale_tokens is None else scale_tokens
    if end > scale:
        raise InvalidInput(f"request {rid!r} has {end:,} tokens; scale_tokens={scale:,} cannot show them")
    parts: list[str] = []
    for row, (label, strip) in enumerate(strips.items()):
        tokens = states[label].requests[rid].tokens if strip else 0
        reads = (first_read(tokens, window_tokens), tokens)
        parts += _row(label, strip, reads, _TOP + row * _PITCH, scale, prompt_tokens)
    y = _TOP + len(strips) * _PITCH - 18
    parts += ruler(scale, y, _LEFT, _SPAN)
    if prompt_tokens is not None and 0 < prompt_tokens < scale:
        parts += _prompt_end(prompt_tokens, scale, y)
    y += 40
    parts.append(svg.text(0, y - 4, "what it holds of the SWA pool: dead + live", class_="kv-head"))
    for row, (label, strip) in enumerate(strips.items()):
        parts += _gauge(label, strip, y + 6 + row * _GAUGE_PITCH, scale)
    y += 6 + len(strips) * _GAUGE_PITCH
    key, key_height = legend(0, y + 2, WIDTH, swatches({span.kind for strip in strips.values() for span in strip}))
    return Drawing(
        WIDTH, y + 2 + key_height, (*parts, *key), _title(strips, rid),
        "The tokens of one request from left to right, a row a policy, and bars of what it holds.", _table(strips),
    )  # fmt: skip


def hold_of(strip: Sequence[Span]) -> tuple[int, int]:
    """(dead, live) tokens that the request keeps."""
    return _sum(strip, "dead"), _sum(strip, "live")


def frontier_of(strip: Sequence[Span]) -> int:
    """Where the SWA KV that it holds begins after a tombstone; 0 where nothing was freed."""
    tombs = [index for index, span in enumerate(strip) if span.kind == "tombstone"]
    return next((span.start for span in strip[tombs[-1] + 1 :] if span.kind in ("dead", "live")), 0) if tombs else 0


def _cut_at(strip: Sequence[Span], prompt: int | None) -> list[Span]:
    """What can be evicted on both sides of the prompt's end, as two spans."""
    found: list[Span] = []
    for span in strip:
        if span.kind == "kept" and prompt is not None and span.start < prompt < span.stop:
            found.append(Span(span.kind, span.start, prompt))
            span = Span(span.kind, prompt, span.stop)
        found.append(span)
    return found


def _sum(strip: Sequence[Span], kind: str) -> int:
    return sum(span.tokens for span in strip if span.kind == kind)


def _x(position: float, scale: int) -> float:
    return half_pixel(_LEFT + position / scale * _SPAN)


def _row(
    label: str, strip: Sequence[Span], reads: tuple[int, int], y: float, scale: int, prompt: int | None
) -> Iterator[str]:
    yield svg.text(0, y + 21, shown(label, 12), class_="kv-strong")
    yield svg.rect(_LEFT, y, _SPAN, _HIGH, class_="kv-cell")
    for after, span in zip([None, *strip], strip, strict=False):
        x, wide = _x(span.start, scale), _x(span.stop, scale) - _x(span.start, scale)
        words = _island(span, after, prompt)
        tip = f"{label}: tokens {span.start:,} to {span.stop:,}, {words + ': ' if words else ''}{_SAID[span.kind]}"
        inner = [bar(span.kind, x, y, wide, _HIGH)]
        if span.kind == "tombstone" and wide > 16:
            inner.append(stone(x + wide / 2, y + _HIGH - 6, 20))
        yield svg.tag("g", *inner, data_tip=tip)
        if words and wide > 8:
            under = svg.lines([((x + 1, y + _HIGH + 4), (x + wide - 1, y + _HIGH + 4))])
            yield svg.path(under, class_="kv-thread", stroke=LIVE)
            if wide > len(words) * 6.2:
                yield svg.text(x + wide / 2, y + _HIGH + 17, words, class_="kv-quiet kv-middle")
    if not strip:
        yield svg.text(_LEFT + 10, y + 21, "not running", class_="kv-quiet")
        return
    yield from _window(reads, y, scale)
    t = frontier_of(strip)
    if t:
        x = _x(t, scale)
        yield svg.path(svg.lines([((x, y - 4), (x, y + _HIGH + 34))]), class_="kv-copy")
        side = "kv-end" if x > _LEFT + 60 else ""
        yield svg.text(x + (-5 if side else 5), y + _HIGH + 33, f"t = {t:,}", class_=f"kv-head {side}".strip())


def _window(reads: tuple[int, int], y: float, scale: int) -> Iterator[str]:
    """The bracket over what the next query reads."""
    start, stop = (_x(each, scale) for each in reads)
    n = svg.number
    if stop - start > 1:
        yield svg.path(f"M{n(start)} {n(y - 3)}v-5H{n(stop)}v5", class_="kv-fits")
    words = "the next query reads"
    right = max(stop, _LEFT + len(words) * 6.4)
    yield svg.text(right, y - 13, words, class_="kv-quiet kv-end")


def _island(span: Span, after: Span | None, prompt: int | None) -> str:
    """How a live span that the request does not hold is called, where a tombstone or the prompt lies before it."""
    if span.kind != "kept":
        return ""
    if prompt is not None and span.start >= prompt:
        return "decode islands"
    return "island" if after is not None and after.kind == "tombstone" else ""


def _gauge(label: str, strip: Sequence[Span], y: float, scale: int) -> Iterator[str]:
    dead, live = hold_of(strip)
    flight = _sum(strip, "flight")
    yield svg.text(0, y + 14, shown(label, 12), class_="kv-ink")
    yield svg.path(svg.lines([((_LEFT, y - 2), (_LEFT, y + _GAUGE + 2))]), class_="kv-rule")
    x = _LEFT
    for kind, count in (("dead", dead), ("live", live), ("flight", flight)):
        wide = half_pixel(count / scale * _SPAN)
        if count:
            yield bar(kind, x, y, wide, _GAUGE)
            words = f"{count:,}"
            if kind != "dead" and wide > len(words) * 7 + 4:
                yield from _number(x + wide / 2, y, words, plate=kind == "flight")
            x += wide
    words = f"{dead + live:,} held, {dead:,} of them dead"
    right = x + 8
    if right + len(words) * 7 > WIDTH:
        right = _LEFT + 8
        yield svg.rect(right - 4, y + 2, len(words) * 6.9 + 8, 16, rx=3, class_="kv-plate")
    yield svg.text(right, y + 14.5, words, class_="kv-head")


def _number(x: float, y: float, words: str, *, plate: bool) -> Iterator[str]:
    if not plate:
        yield svg.text(x, y + 14, words, class_="kv-chip kv-middle", fill=text_on(LIVE))
        return
    yield svg.rect(x - len(words) * 4 - 2, y + 3, len(words) * 8 + 4, 14, rx=3, class_="kv-plate")
    yield svg.text(x, y + 14, words, class_="kv-head kv-middle")


def _prompt_end(prompt: int, scale: int, y: float) -> Iterator[str]:
    x = _x(prompt, scale)
    yield svg.path(svg.lines([((x, 4), (x, y))]), class_="kv-dots", stroke="#8d96a0")
    yield svg.text(x - 6, 13, "prompt", class_="kv-quiet kv-end")
    yield svg.text(x + 6, 13, "its own text", class_="kv-quiet")


def _title(strips: Mapping[str, Sequence[Span]], rid: RequestId) -> str:
    said = [f"{label} {sum(hold_of(strip)):,}" for label, strip in strips.items()]
    tokens = max((span.stop for strip in strips.values() for span in strip if span.kind != "flight"), default=0)
    return f"{name(rid)}, {tokens:,} tokens; of their SWA KV it holds: {', '.join(said)}"


def _table(strips: Mapping[str, Sequence[Span]]) -> Table:
    rows: list[tuple[str, ...]] = [
        ("policy", "tombstones", "islands kept", "dead", "live", "hold", "in flight", "frontier")
    ]
    for label, strip in strips.items():
        dead, live = hold_of(strip)
        kinds = [f"{_sum(strip, kind):,}" for kind in ("tombstone", "kept")]
        counts = [f"{each:,}" for each in (dead, live, dead + live, _sum(strip, "flight"), frontier_of(strip))]
        rows.append((shown(label, 24), *kinds, *counts))
    return tuple(rows)
