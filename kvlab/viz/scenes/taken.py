"""A block that an online softmax took in: the numbers that its pictures are drawn from."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Taken:
    """One block as an accumulator took it in, in the numbers of the code that ran (they may be infinite or NaN).

    `scores` are those of the block's filled slots, `rescale` is the factor on the earlier sum, `total` the running
    sum of weights after the block, `output` what the values add up to, divided by that sum.
    """

    block: int
    scores: tuple[float, ...]
    old_max: float
    new_max: float
    rescale: float
    total: float
    output: tuple[float, ...]


def words(value: float) -> str:
    """A number as these pictures print it: three digits, and words for what is none."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
