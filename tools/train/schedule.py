"""The schedule depends on the share of the wall clock that has passed, so it ends where it should at any speed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """What holds until `until` (a share of the time): sequences of `length` tokens, `batch` of them a step."""

    until: float
    length: int
    batch: int


@dataclass(frozen=True)
class Schedule:
    """Warm up, stay, decay linearly to nothing; sequences grow towards the end.

    `warm_up` is a number of steps, `decay_from` a share of the time in [0, 1).
    """

    warm_up: int
    decay_from: float
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        ends = [stage.until for stage in self.stages]
        if not ends or ends != sorted(ends) or ends[-1] < 1:
            raise ValueError(f"stages must rise and the last must reach 1, not {ends}")

    def rate(self, step: int, share: float) -> float:
        """The factor on the peak learning rate, 0 to 1."""
        rising = min(1.0, (step + 1) / self.warm_up)
        falling = min(1.0, (1.0 - share) / (1.0 - self.decay_from))
        return max(0.0, min(rising, falling))

    def stage(self, share: float) -> Stage:
        """The stage at this share of the time."""
        return next((stage for stage in self.stages if share < stage.until), self.stages[-1])
