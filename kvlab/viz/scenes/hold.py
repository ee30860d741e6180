"""What running requests hold of the SWA pool over time: dead and live tokens, a panel a policy on one scale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvlab.errors import InvalidInput
from kvlab.events import Event, Replay, State
from kvlab.viz import svg
from kvlab.viz.axes import Axis
from kvlab.viz.drawing import Drawing, Table
from kvlab.viz.scenes.legend import legend
from kvlab.viz.scenes.radix_tree_looks import LIVE, swatches
from kvlab.viz.scenes.radix_tree_state import SWA, edges_of
from kvlab.viz.words import shown

WIDTH = 760.0
_LEFT, _TOP = 86.0, 42.0
_SPAN = WIDTH - _LEFT - 12
_HIGH, _PITCH = 112.0, 150.0
_MOST_PANELS = 4
_MOST_ROWS = 24


@dataclass(frozen=True)
class Hold:
    """At one step: how many requests run, and the SWA tokens that they hold, each once: dead and live ones."""

    step: int
    running: int
    dead: int
    live: int

    def __post_init__(self) -> None:
        if min(self.step, self.running, self.dead, self.live) < 0:
            raise InvalidInput(f"a hold counts from 0: {self}")

    @property
    def tokens(self) -> int:
        """Dead and live."""
        return self.dead + self.live

    def each(self) -> float:
        """Tokens a running request; 0 where none runs."""
        return self.tokens / self.running if self.running else 0.0


def hold_in(state: State, step: int, window_tokens: int) -> Hold:
    """The hold of a replayed state. Raises `InvalidInput` where the log has no SWA pool."""
    if SWA not in state.pools:
        raise InvalidInput(f"the log has no pool {SWA!r} (it has {sorted(state.pools)}): there is nothing to hold")
    spans = [span for edge in edges_of(state, window_tokens) for span in edge.swa]
    dead = sum(span.tokens for span in spans if span.kind == "dead")
    live = sum(span.tokens for span in spans if span.kind in ("live", "own"))
    return Hold(step, len(state.running()), dead, live)


def holds_of(log: Iterable[Event], window_tokens: int) -> list[Hold]:
    """The hold after every step of a log."""
    return [hold_in(state, step, window_tokens) for step, state in enumerate(Replay(log).states())]


def hold(
    runs: Mapping[str, Sequence[Hold]], *, each: bool = False, need_tokens: int | None = None, title: str | None = None
) -> Drawing:
    """Dead hatched on top of live, step by step; all panels have one scale.

    With `each`, tokens a running request instead of the sum. `need_tokens` (such as window + page) is drawn as a line:
    what one request needs, or with the sum what all that run need. Raises `InvalidInput` for no panel or more than
    four, or an empty one.
    """
    if not 1 <= len(runs) <= _MOST_PANELS or not all(runs.values()):
        raise InvalidInput(f"a hold has one to {_MOST_PANELS} panels with at least one step, not {len(runs)}")
    points = [point for run in runs.values() for point in run]
    most = max(_scaled(point, each) for point in points)
    first, last = min(point.step for point in points), max(point.step for point in points) + 1
    parts: list[str] = []
    for row, (label, run) in enumerate(runs.items()):
        y = _TOP + row * _PITCH
        up = Axis.fit(0, max(most, need_tokens or 0, 1), y + _HIGH, y)
        parts += _panel(label, run, up, (first, last), each, need_tokens)
    bottom = _TOP + len(runs) * _PITCH - 20
    steps = Axis.fit(first, last, _LEFT, _LEFT + _SPAN)
    for words, _ in steps.ticks():
        step = float(words.replace(",", ""))
        if first <= step <= last:
            parts.append(svg.text(_x(step, first, last), bottom, words, class_="kv-quiet kv-middle"))
    parts.append(svg.text(0, bottom, "step", class_="kv-quiet"))
    kinds = {kind for kind in ("live", "dead") if any(getattr(point, kind) for point in points)}
    items = [(swatch, "live: a window reaches it" if "locked" in words else words) for swatch, words in swatches(kinds)]
    if need_tokens is not None:
        items.append((svg.path("M0 6h16", class_="kv-ghost"), f"needed: {need_tokens:,} a running request"))
    key, key_height = legend(0, bottom + 12, WIDTH, items)
    unit = "SWA tokens held by each running request" if each else "SWA tokens held"
    parts.append(svg.text(0, 12, unit, class_="kv-quiet"))
    return Drawing(
        WIDTH, bottom + 12 + key_height, (*parts, *key), title or _title(runs),
        "A panel a policy: what running requests hold of the SWA pool at each step, dead over live.",
        _table(runs),
    )  # fmt: skip


def mean_each(run: Sequence[Hold]) -> float:
    """Tokens a running request, over all steps in which one runs; 0 where none ever does."""
    running = sum(point.running for point in run)
    return sum(point.tokens for point in run) / running if running else 0.0


def _scaled(point: Hold, each: bool) -> float:
    return point.each() if each else point.tokens


def _x(step: float, first: int, last: int) -> float:
    return _LEFT + (step - first) / (last - first) * _SPAN


def _panel(
    label: str, run: Sequence[Hold], up: Axis, ends: tuple[int, int], each: bool, need: int | None
) -> Iterator[str]:
    bottom = up.start
    for words, y in up.ticks():
        yield svg.path(svg.lines([((_LEFT, y), (_LEFT + _SPAN, y))]), class_="kv-rule")
        yield svg.text(_LEFT - 8, y + 4, words, class_="kv-quiet kv-end")
    wide = _SPAN / (ends[1] - ends[0])
    boxes: dict[str, list[tuple[float, float, float, float]]] = {"live": [], "dead": []}
    tips = []
    for point in run:
        share = 1 / point.running if each and point.running else 1.0
        x, low = _x(point.step, *ends), bottom
        for kind, count in (("live", point.live), ("dead", point.dead)):
            high = bottom - up.at(count * share)
            if count:
                boxes[kind].append((x, low - high, wide, high))
            low -= high
        if point.tokens and len(run) <= 120:
            tip = f"{label}, step {point.step:,}: {point.running:,} running hold {point.tokens:,}, {point.dead:,} dead"
            tips.append(svg.rect(x, low, wide, bottom - low, fill_opacity=0, data_tip=tip))
    if boxes["live"]:
        yield svg.path(svg.boxes(boxes["live"]), fill=LIVE)
    if boxes["dead"]:
        yield svg.path(svg.boxes(boxes["dead"]), class_="kv-queue")
        cuts = "".join(svg.hatch(*box, "\\", 9) for box in boxes["dead"])
        yield svg.path(cuts, class_="kv-slots")
    yield from tips
    if need is not None:
        line = [(_x(p.step, *ends), up.at(need * (1 if each else p.running))) for p in run if p.running]
        path = "".join(
            f"{'L' if i else 'M'}{svg.number(x)} {svg.number(y)}h{svg.number(wide)}" for i, (x, y) in enumerate(line)
        )
        if path:
            yield svg.path(path, class_="kv-ghost")
    yield svg.text(
        _LEFT + 4, up.stop - 6, f"{shown(label, 24)}: {mean_each(run):,.0f} a request on average", class_="kv-strong"
    )


def _title(runs: Mapping[str, Sequence[Hold]]) -> str:
    said = [f"{shown(label, 24)} {mean_each(run):,.0f}" for label, run in runs.items()]
    return f"SWA tokens that a running request holds on average: {', '.join(said)}"


def _table(runs: Mapping[str, Sequence[Hold]]) -> Table:
    rows: list[tuple[str, ...]] = [("policy", "step", "running", "dead", "live", "hold")]
    for label, run in runs.items():
        every = -(-len(run) // _MOST_ROWS)
        for point in run[::every]:
            counts = (point.step, point.running, point.dead, point.live, point.tokens)
            rows.append((shown(label, 24), *(f"{count:,}" for count in counts)))
    return tuple(rows)
