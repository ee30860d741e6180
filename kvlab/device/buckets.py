"""Static shapes: sizes are rounded up to a bucket, so that a compiler meets each shape once.

What warms a device up and what rounds a step at run time must agree, or a step compiles in the middle of serving.
Here they cannot differ: `bucket` looks its answer up in `reachable`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from kvlab.errors import InvalidInput, positive


@dataclass(frozen=True)
class Buckets:
    """Sizes up to `limit`, which is the last bucket.

    `linear`: first, first + step, ... `exponential`: from `first` on, each doubling in `step` equal steps, so that
    padding costs at most a factor of 1 + 1 / step (two where step is 1) above `first`.
    """

    limit: int
    first: int = 1
    step: int = 1
    form: Literal["linear", "exponential"] = "exponential"

    def __post_init__(self) -> None:
        if positive("limit", self.limit) < positive("first", self.first):
            raise InvalidInput(f"buckets from {self.first} to {self.limit}: the first is above the limit")
        positive("step", self.step)
        if self.form not in ("linear", "exponential"):
            raise InvalidInput(f"buckets are linear or exponential, not {self.form!r}")

    def bucket(self, n: int) -> int:
        """The smallest bucket that holds `n`. Raises `InvalidInput` unless 1 <= n <= limit."""
        if not 1 <= n <= self.limit:
            raise InvalidInput(f"no bucket for {n}: they hold 1 to {self.limit}; split the step or raise the limit")
        return self._sizes[bisect_left(self._sizes, n)]

    def reachable(self, low: int = 1, high: int | None = None) -> Sequence[int]:
        """Every bucket of a size in [low, high], both included; high is the limit where it is not given."""
        last = self.limit if high is None else high
        return self._sizes[bisect_left(self._sizes, self.bucket(low)) : bisect_left(self._sizes, self.bucket(last)) + 1]

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        sizes = [self.first]
        if self.form == "linear":
            sizes += range(self.first + self.step, self.limit, self.step)
        else:
            doubled = self.first
            while sizes[-1] < self.limit:
                sizes += [doubled + -(-doubled * i // self.step) for i in range(1, self.step + 1)]
                doubled *= 2
        return tuple(sorted({size for size in sizes if size < self.limit} | {self.limit}))


def reachable_pairs(requests: Buckets, blocks: Buckets, blocks_per_request: int) -> list[tuple[int, int]]:
    """Every pair of buckets (requests, blocks in total) that a decode step can have.

    A request has 1 to `blocks_per_request` blocks; more blocks in total than `blocks.limit` are never scheduled.
    """
    positive("blocks_per_request", blocks_per_request)
    pairs: set[tuple[int, int]] = set()
    below = 0
    for size in requests.reachable():
        least, most = below + 1, min(size * blocks_per_request, blocks.limit)
        if least <= blocks.limit:
            pairs |= {(size, each) for each in blocks.reachable(least, most)}
        below = size
    return sorted(pairs)
