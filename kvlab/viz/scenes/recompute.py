"""The picture of the KV cache: without it every step computes every token again, with it one new row a step."""

from __future__ import annotations

from collections.abc import Sequence

from kvlab.errors import InvalidInput, positive
from kvlab.viz import svg
from kvlab.viz.drawing import Drawing, Table
from kvlab.viz.palette import WARNING, colour
from kvlab.viz.scenes.legend import legend, solid

_PANEL = 316.0
_GAP = 56.0
_ROW_LABEL = 44.0
_TALLEST = 320.0
_NEW = colour(0)


def computed_tokens(prompt: int, steps: int) -> tuple[list[int], list[int]]:
    """Tokens computed in each step without and with a cache: [p, p + 1, ...] and [p, 1, 1, ...]."""
    positive("prompt", prompt), positive("steps", steps)
    return [prompt + step for step in range(steps)], [prompt] + [1] * (steps - 1)


def recompute_triangle(without_cache: Sequence[int], with_cache: Sequence[int], *, steps: int | None = None) -> Drawing:
    """Two triangles from two records of tokens computed in each step (step 0 is the prefill).

    Left: without a cache step t computes its whole sequence; all but its last token were computed before. Right:
    the tokens that the cache still holds are pale. `steps` draws only the first so many rows of the same picture.
    Raises `InvalidInput` where the records differ in length or a step computes more tokens than there are.
    """
    if len(without_cache) != len(with_cache) or not without_cache:
        raise InvalidInput(f"two records of equal length are needed, not {len(without_cache)} and {len(with_cache)}")
    for step, (whole, part) in enumerate(zip(without_cache, with_cache, strict=True)):
        if not 1 <= part <= whole:
            raise InvalidInput(f"step {step} computes {part} tokens with the cache and {whole} without")
    shown = len(without_cache) if steps is None else steps
    cell = min(20.0, _TALLEST / len(without_cache), (_PANEL - _ROW_LABEL) / max(without_cache))
    left = _panel(0, "without a cache", without_cache[:shown], without_cache[:shown], cell)
    right = _panel(_PANEL + _GAP, "with a cache", with_cache[:shown], without_cache[:shown], cell)
    bottom = 46 + cell * len(without_cache)
    totals = (sum(without_cache[:shown]), sum(with_cache[:shown]))
    parts = [*left, *right]
    for x, total in ((0.0, totals[0]), (_PANEL + _GAP, totals[1])):
        words = f"{total:,} token{'s' * (total != 1)} computed"
        parts.append(svg.text(x + _ROW_LABEL, bottom + 22, words, class_="kv-large"))
    items = [(solid(_NEW), "computed for the first time"), (_again(), "computed again"), (_kept(), "kept in the cache")]
    key, key_height = legend(0, bottom + 38, 2 * _PANEL + _GAP, items)
    return Drawing(
        2 * _PANEL + _GAP,
        bottom + 38 + key_height,
        (*parts, *key),
        f"{totals[0]:,} tokens computed without a KV cache, {totals[1]:,} with one",
        "One row a step, one square a token: computed for the first time, computed again, or kept in the cache.",
        _table(without_cache[:shown], with_cache[:shown]),
    )


def triangle_frames(without_cache: Sequence[int], with_cache: Sequence[int]) -> list[tuple[Drawing, str]]:
    """The picture growing by a step a frame, with captions: for `Player.from_drawings`."""
    frames = []
    for steps in range(1, len(without_cache) + 1):
        whole, part = without_cache[steps - 1], with_cache[steps - 1]
        if steps == 1:
            said = f"Prefill: both compute the {whole} tokens of the prompt"
        else:
            said = (
                f"Decode step {steps - 1}: without a cache {whole:,} tokens are computed, "
                f"{min(whole, without_cache[steps - 2]):,} of them again; with one, {part:,}"
            )
        frames.append((recompute_triangle(without_cache, with_cache, steps=steps), said))
    return frames


def _panel(x: float, title: str, computed: Sequence[int], lengths: Sequence[int], cell: float) -> list[str]:
    """One row a step. Of `lengths[t]` tokens the last `computed[t]` are computed, the first ones kept."""
    parts = [svg.text(x + _ROW_LABEL, 14, title, class_="kv-large")]
    parts.append(svg.text(x + _ROW_LABEL - 8, 36, "step", class_="kv-quiet kv-end"))
    parts.append(svg.text(x + _ROW_LABEL, 36, "token position →", class_="kv-quiet"))
    left, y = x + _ROW_LABEL, 44.0
    every = 1 if cell >= 11 else 5 if cell >= 3 else 20
    gap = 1.5 if cell >= 6 else 0.0
    for step, (count, length) in enumerate(zip(computed, lengths, strict=True)):
        before = lengths[step - 1] if step else 0
        first = length - count
        spans = (
            (0, first, "kept"),
            (first, max(first, min(before, length)), "again"),
            (max(first, min(before, length)), length, "new"),
        )
        for start, stop, kind in spans:
            if stop > start:
                parts.append(_row(left, y, start, stop, cell, gap, kind))
        if step % every == 0:
            parts.append(svg.text(left - 8, y + cell / 2 + 4, str(step), class_="kv-quiet kv-end"))
        y += cell
    return parts


def _row(left: float, y: float, start: int, stop: int, cell: float, gap: float, kind: str) -> str:
    squares = [(left + i * cell, y, cell - gap, cell - gap) for i in range(start, stop)]
    if not gap:
        squares = [(left + start * cell, y, (stop - start) * cell, cell + 0.8)]  # no seam between rows
    d = svg.boxes(squares)
    if kind == "kept":
        return svg.path(d, class_="kv-kept")
    drawn = svg.path(d, fill=WARNING if kind == "again" else _NEW)
    if kind == "again" and cell >= 6:
        marks = [((a + 3, b + h - 3), (a + w - 3, b + 3)) for a, b, w, h in squares]
        drawn += svg.path(svg.lines(marks), class_="kv-slots")
    return drawn


def _again() -> str:
    return solid(WARNING) + svg.path(svg.lines([((4, 10), (12, 2))]), class_="kv-slots")


def _kept() -> str:
    return svg.rect(0.5, 0.5, 15, 11, rx=2, class_="kv-kept")


def _table(without_cache: Sequence[int], with_cache: Sequence[int]) -> Table:
    rows = [(str(step), f"{a:,}", f"{b:,}") for step, (a, b) in enumerate(zip(without_cache, with_cache, strict=True))]
    return (
        ("step", "computed without a cache", "computed with one"),
        *rows,
        ("all", f"{sum(without_cache):,}", f"{sum(with_cache):,}"),
    )
