"""Colours of requests: Okabe and Ito's eight without black, and the text colour that is readable on each."""

from __future__ import annotations

from typing import Final

from kvlab.workload import RequestId

# Blue and orange first: the pair that stays apart for every kind of colour vision.
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442")
WARNING: Final = "#D55E00"
DARK_TEXT: Final = "#111111"
LIGHT_TEXT: Final = "#FFFFFF"


def colour(order: int) -> str:
    """The colour of the `order`-th request; the eighth starts again (a name or a hatch always stands beside it)."""
    return COLOURS[order % len(COLOURS)]


def text_on(fill: str) -> str:
    """Near-black or white, whichever contrasts more with `fill` (#RRGGBB)."""
    return max((DARK_TEXT, LIGHT_TEXT), key=lambda ink: contrast(ink, fill))


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two #RRGGBB colours, 1 to 21 (WCAG 2.2)."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(fill: str) -> float:
    channels = (int(fill[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def name(rid: RequestId) -> str:
    """How a request is called in pictures: 'A' is A, 3 is r3."""
    return rid if isinstance(rid, str) else f"r{rid}"
