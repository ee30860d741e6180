"""The line under a drawing that says what its colours and hatches mean."""

from __future__ import annotations

from collections.abc import Iterable

from kvlab.viz import svg

_SWATCH = 16


def legend(x: float, y: float, width: float, items: Iterable[tuple[str, str]]) -> tuple[tuple[str, ...], float]:
    """Swatch and words for each item, wrapped to `width`; returns the parts and the height they take.

    An item is (swatch, words), where the swatch is drawn in the box 0, 0, 16, 12.
    """
    parts, left, top = [], x, y
    for swatch, words in items:
        room = _SWATCH + 6 + len(words) * 7 + 20
        if left > x and left + room > x + width:
            left, top = x, top + 20
        moved = svg.tag("g", swatch, transform=f"translate({svg.number(left)} {svg.number(top + 2)})")
        parts.append(moved + svg.text(left + _SWATCH + 6, top + 12, words, class_="kv-ink"))
        left += room
    return tuple(parts), top - y + 20


def solid(fill: str) -> str:
    """A swatch in one data colour."""
    return svg.rect(0, 0, 16, 12, rx=2, fill=fill)


def tinted(fill: str) -> str:
    """A swatch in the tint of a data colour, outlined: an empty slot."""
    return svg.rect(0.5, 0.5, 15, 11, rx=2, fill=fill, stroke=fill, class_="kv-tint")


def hatched(kind: str, look: str = "kv-hatch", background: str = "kv-free") -> str:
    """A swatch with a hatch."""
    return svg.rect(0.5, 0.5, 15, 11, class_=background) + svg.path(svg.hatch(0, 0, 16, 12, kind, 5), class_=look)
