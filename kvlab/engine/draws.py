"""Random numbers by counter: which number a token uses is a matter of arithmetic, not of what was drawn before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

RUN: Final = 64  # weights summed at once when a cumulative sum is searched


class Draw(NamedTuple):
    """Which random number a row uses: nothing but these three decides it. `position` counts output tokens from 0."""

    seed: int
    sample: int
    position: int


def uniforms(draws: Sequence[Draw]) -> Doubles:
    """One number in [0, 1) for each draw, float64: the top 53 bits of a hash of (seed, sample, position)."""
    words: Words = np.array(draws, dtype=np.uint64).reshape(len(draws), 3)
    state = np.zeros(len(draws), np.uint64)
    for column in words.T:
        state = _mixed(state ^ column)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def derived_seed(seed: int, number: int) -> int:
    """A seed for request `number` of an engine with `seed`, for requests that bring none."""
    return int(_mixed(_mixed(np.array([seed], np.uint64)) ^ np.array([number], np.uint64))[0])


def first_above(weights: Floats, fractions: Doubles) -> npt.NDArray[np.int64]:
    """First index of each row `[rows, vocab]` whose cumulative weight exceeds `fractions` `[rows]`, in [0, 1), of all.

    Its weight is never 0. Sums are float64, first over runs of 64, then within the run that holds the crossing.
    """
    rows, vocab = weights.shape
    padded = np.pad(weights, ((0, 0), (0, -vocab % RUN))) if vocab % RUN else weights
    runs = padded.reshape(rows, -1, RUN)
    ends = np.cumsum(runs.sum(axis=-1, dtype=np.float64), axis=-1)
    target = (fractions * ends[:, -1])[:, None]
    run = np.count_nonzero(ends <= target, axis=-1)
    row = np.arange(rows)
    before = np.where(run > 0, ends[row, run - 1], 0.0)[:, None]
    inside = runs[row, run]
    place = np.count_nonzero(before + np.cumsum(inside, axis=-1, dtype=np.float64) <= target, axis=-1)
    # The two sums of a run may differ in the last bit; the crossing is in this run all the same.
    last = RUN - 1 - np.argmax(inside[:, ::-1] > 0, axis=-1)
    found: npt.NDArray[np.int64] = run * RUN + np.minimum(place, last)
    return found


def _mixed(state: Words) -> Words:
    """One step of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014)."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
