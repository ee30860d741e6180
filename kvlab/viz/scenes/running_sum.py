"""The running sum of an online softmax as two bars: what it was, how far it shrank, what the block added."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvlab.viz import svg
from kvlab.viz.palette import colour, text_on
from kvlab.viz.scenes.taken import Taken, words

HEIGHT = 104.0
_LEFT, _RIGHT, _BAR = 64.0, 700.0, 24.0


def running_sum(taken: Sequence[Taken], count: int, top: float) -> list[str]:
    """The earlier sum above, the sum after the block below, and between them how far the earlier one shrank."""
    largest = max((each.total for each in taken if math.isfinite(each.total)), default=0.0)
    per_unit = (_RIGHT - _LEFT) / largest if largest > 0 else 0.0
    low = top + 72
    parts = [svg.text(0, top + 16, "sum", class_="kv-strong"), svg.text(0, top + 33, "before", class_="kv-quiet")]
    parts += [svg.text(0, low + 12, "sum", class_="kv-strong"), svg.text(0, low + 29, "after", class_="kv-quiet")]
    if not count:
        return [*parts, svg.text(_LEFT, low + 17, "0", class_="kv-ink")]
    earlier, shares = _shares(taken, count)
    last = taken[count - 1]
    if not earlier:
        parts.append(svg.text(_LEFT, top + 25, "0", class_="kv-ink"))
    if any(not math.isfinite(value) or value < 0 for value in (*earlier, *shares)):
        return [*parts, svg.text(_LEFT, low + 17, words(last.total), class_="kv-large")]
    if earlier:
        wide, narrow = sum(earlier) * per_unit, sum(earlier) * last.rescale * per_unit
        parts += _bar(earlier, top + 8, per_unit)
        corners = [(wide, top + 32.0), (narrow, low), (0.0, low), (0.0, top + 32.0)]
        d = "M" + "L".join(f"{svg.number(_LEFT + x)} {svg.number(y)}" for x, y in corners) + "z"
        parts.append(svg.path(d, class_="kv-waste"))
        edge = svg.lines([((_LEFT + wide, top + 32), (_LEFT + narrow, low))])
        parts.append(svg.path(edge, class_="kv-rule"))
        look = "kv-quiet" if last.rescale == 1 else "kv-warn"
        parts.append(svg.text(_LEFT + 8, top + 56, f"× {words(last.rescale)}", class_=look))
    return [*parts, *_bar(shares, low, per_unit)]


def _shares(taken: Sequence[Taken], count: int) -> tuple[list[float], list[float]]:
    """What each block has in the sum before and after the block `count - 1`."""
    before: list[float] = []
    shares: list[float] = []
    for each in taken[:count]:
        before = shares
        kept = [share * each.rescale for share in before]
        new = each.total - sum(kept)
        shares = [*kept, 0.0 if abs(new) < 1e-9 * abs(each.total) else new]
    return before, shares


def _bar(shares: Sequence[float], y: float, per_unit: float) -> list[str]:
    parts, x = [], _LEFT
    for entry, share in enumerate(shares):
        width = share * per_unit
        parts.append(svg.rect(x, y, width, _BAR, fill=colour(entry)))
        label = f"{words(share)}"
        if width > len(label) * 7.2 + 8:
            look = "kv-chip kv-middle"
            parts.append(svg.text(x + width / 2, y + 16, label, class_=look, fill=text_on(colour(entry))))
        x += width
    return [*parts, svg.text(x + 8, y + 17, f"= {words(sum(shares))}", class_="kv-strong")]
