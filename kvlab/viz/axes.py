"""An axis: round ticks over a range of values, and where each value lies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """Values [low, high] on pixels [start, stop] (which may run upwards)."""

    low: float
    high: float
    start: float
    stop: float
    step: float
    log: bool

    @classmethod
    def fit(cls, low: float, high: float, start: float, stop: float, *, log: bool = False) -> Axis:
        """Widen [low, high] to round ends: 1, 2 or 5 times a power of ten."""
        if log:
            return cls(_round(low, math.floor), _round(high, math.ceil), start, stop, 10.0, True)
        room = (high - low) or abs(high) or 1.0
        rough = room / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
        bottom, top = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
        return cls(bottom, top if top > bottom else bottom + step, start, stop, step, False)

    def at(self, value: float) -> float:
        """The pixel of a value."""
        if self.log:
            share = math.log10(value / self.low) / math.log10(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)

    def ticks(self) -> list[tuple[str, float]]:
        """(words, pixel) of each tick."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1, 2, 5) if len(powers) <= 4 else (1,)
            values = [m * 10.0**power for power in powers for m in steps]
            values = [value for value in values if self.low * 0.999 <= value <= self.high * 1.001]
        else:
            count = round((self.high - self.low) / self.step)
            values = [self.low + i * self.step for i in range(count + 1)]
        return [(self._words(value), self.at(value)) for value in values]

    def _words(self, value: float) -> str:
        if value == 0 or abs(value) >= 1:
            return f"{value:,.10g}" if abs(value) < 1e7 else f"{value:.3g}"
        return f"{value:.4g}"


def _round(value: float, towards: Callable[[float], int]) -> float:
    """The next 1, 2 or 5 times a power of ten below (`math.floor`) or above (`math.ceil`) a positive value."""
    power = 10.0 ** math.floor(math.log10(value))
    steps = [m * power for m in (1, 2, 5, 10)]
    if towards is math.floor:
        return max(step for step in steps if step <= value * 1.0001)
    return min(step for step in steps if step >= value * 0.9999)
