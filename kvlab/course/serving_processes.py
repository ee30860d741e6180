"""The three kinds of process of a server of today, drawn: lesson 05."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kvlab.viz import Drawing, svg
from kvlab.viz.palette import colour

_WIDTH: Final = 760.0
_HEIGHT: Final = 200.0


class _Box(NamedTuple):
    x: float
    y: float
    width: float
    height: float
    title: str
    does: Sequence[str]
    notes: Sequence[str]
    order: int

    @property
    def right(self) -> float:
        return self.x + self.width


_API = _Box(52, 8, 172, 190, "API server",
            ("HTTP in and out", "text to token ids,", "token ids to text"),
            ("one, or a few",), 5)  # fmt: skip
_CORE = _Box(312, 8, 196, 190, "engine core",
             ("scheduler: who runs,", "how many tokens", "KV cache manager:", "block pool, block tables"),
             ("one a copy of the model", "lessons 02, 03, 05, 06"), 1)  # fmt: skip
_WORKERS = tuple(
    _Box(600, 8 + 100 * number, 160, 90, f"worker, GPU {number}",
         ("model runner",), ("weights, KV blocks", "one a GPU · lesson 04"), 2)
    for number in range(2)
)  # fmt: skip


def processes() -> Drawing:
    """API server, engine core and workers of vLLM's V1 engine, and what they tell each other.

    Source: vLLM's architecture overview.
    """
    parts = [svg.text(0, 84, "users", class_="kv-ink"), *_both_ways(0, 52, 96, ("",), ("",))]
    for box in (_API, _CORE, *_WORKERS):
        parts += _drawn(box)
    parts += _both_ways(_API.right, _CORE.x, 78, ("token ids",), ("new tokens",))
    parts += _both_ways(_CORE.right, _WORKERS[0].x, 30, ("{A: 1, C: 16}",), ("sampled",))
    parts += _both_ways(_CORE.right, _WORKERS[1].x, 130, ("{A: 1, C: 16}",), ("sampled",))
    return Drawing(
        _WIDTH,
        _HEIGHT,
        tuple(parts),
        "Three kinds of process serve one model",
        "API server, engine core and GPU workers, with what passes between them.",
        (
            ("process", "how many", "what it does", "what it sends on"),
            ("API server", "one, or a few", "HTTP; text to token ids and back", "token ids to the engine core"),
            ("engine core", "one a copy of the model", "scheduler; block pool and block tables",
             "the plan of each step, with block tables, to every worker"),
            ("worker", "one a GPU", "runs the model over its KV blocks", "sampled tokens to the engine core"),
        ),
    )  # fmt: skip


def _drawn(box: _Box) -> Iterator[str]:
    yield svg.rect(box.x, box.y, box.width, box.height, rx=6, class_="kv-cell")
    yield svg.rect(box.x, box.y, box.width, 5, rx=2.5, fill=colour(box.order))
    yield svg.text(box.x + 12, box.y + 25, box.title, class_="kv-strong")
    for number, line in enumerate(box.does):
        yield svg.text(box.x + 12, box.y + 45 + 18 * number, line, class_="kv-ink")
    for number, line in enumerate(reversed(box.notes)):
        yield svg.text(box.x + 12, box.y + box.height - 10 - 15 * number, line, class_="kv-quiet")


def _both_ways(left: float, right: float, y: float, there: Sequence[str], back: Sequence[str]) -> Iterator[str]:
    """An arrow to the right with words over it, 24 below it one to the left with words under it."""
    start, end, middle = left + 4, right - 4, (left + right) / 2
    for at, tip, tail, way in ((y, end, start, 1.0), (y + 24, start, end, -1.0)):
        yield svg.path(svg.lines([((tail, at), (tip - way * 6, at))]), class_="kv-fits")
        yield svg.path(svg.arrow_head((tip, at), (way, 0)), class_="kv-badge")
    for line in filter(None, there):
        yield svg.text(middle, y - 7, line, class_="kv-quiet kv-middle")
    for line in filter(None, back):
        yield svg.text(middle, y + 40, line, class_="kv-quiet kv-middle")
