"""Measuring arms side by side: interleaved, so that what disturbs the machine disturbs all of them alike."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles

from kvlab.errors import InvalidInput


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it, in the unit of the samples."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: list[float]) -> "Spread":
        """The spread of at least two samples."""
        low, _, high = quantiles(samples, n=4, method="inclusive")
        return cls(median(samples), low, high)

    @property
    def iqr(self) -> float:
        """The distance between the quartiles."""
        return self.high - self.low


@dataclass(frozen=True)
class Paired:
    """What was measured: per arm, the seconds of every repeat. The first arm is the baseline."""

    samples_s: Mapping[str, list[float]]

    def __post_init__(self) -> None:
        counts = {len(samples) for samples in self.samples_s.values()}
        if len(self.samples_s) < 2 or len(counts) != 1 or min(counts) < 5:
            raise InvalidInput(
                "a paired measurement needs two arms or more and five repeats or more, as many for each arm; "
                f"got { ({name: len(samples) for name, samples in self.samples_s.items()}) }"
            )

    @property
    def baseline(self) -> str:
        """The arm the others are compared with."""
        return next(iter(self.samples_s))

    def time_s(self, arm: str) -> Spread:
        """The time of one arm, in seconds."""
        return Spread.of(self.samples_s[arm])

    def ratio(self, arm: str) -> Spread:
        """How many times as long as the baseline `arm` takes, repeat by repeat."""
        base = self.samples_s[self.baseline]
        return Spread.of([own / other for own, other in zip(self.samples_s[arm], base, strict=True)])


def measure(arms: Mapping[str, Callable[[], object]], *, repeats: int = 15, warmup: int = 2) -> Paired:
    """Time the arms `repeats` times, one after the other in each repeat; the first arm is the baseline.

    Every second repeat runs the arms in reverse order, so that none always profits from a warm cache.
    Raises `InvalidInput` for fewer than two arms or five repeats.
    """
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(-warmup, repeats):
        for name in list(arms) if turn % 2 else list(arms)[::-1]:
            started_s = time.perf_counter()
            arms[name]()
            if turn >= 0:
                samples[name].append(time.perf_counter() - started_s)
    return Paired(samples)
