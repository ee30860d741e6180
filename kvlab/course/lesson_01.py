"""Checks and quizzes of lesson 01: contiguous reservations and what they waste."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from kvlab.course.checks import Trial, exercise
from kvlab.course.quiz import Option, Quiz
from kvlab.simulate import orca, orca_runs
from kvlab.simulate.examples import FOUR_REQUESTS, MAX_MODEL_TOKENS, four_reserved, split_holes
from kvlab.viz.drawing import text_table

Holes = list[tuple[int, int]]

MERGING: Final = Quiz(
    "01-merging",
    "A server's free list merges every two holes that touch. Is external fragmentation gone?",
    (
        Option(
            "Yes. After merging, free memory is in as few pieces as it can be, so what is free can be used.",
            why="As few as it can be is still more than one. The two holes of 512 touch a region in use, not each "
            "other, so there is nothing to merge.",
        ),
        Option(
            "No. Two holes with a region in use between them stay two holes until that region goes.",
            why="Merging undoes a cut between neighbours. It moves nothing, and a region in use stays where it is.",
            correct=True,
        ),
        Option(
            "Only if the allocator takes the smallest hole that fits instead of the first.",
            why="Another choice of hole moves the gaps around. Any rule that keeps regions contiguous and in place can "
            "be left with free memory in pieces.",
        ),
    ),
)

ORACLE: Final = Quiz(
    "01-oracle",
    "Orca (Oracle) knows every output length before the request starts. Why does over half of its memory hold no "
    "token?",
    (
        Option(
            "Some of its lengths are wrong, so the ends of its regions are never used.",
            why="That would be internal fragmentation, and it has none: every slot that it asks for is written in the "
            "end.",
        ),
        Option(
            "It holds the whole region from the first token on, and regions have to be placed.",
            why="Slots for later tokens wait while the request runs (reserved), and rounding and holes cost the rest "
            "(external). Knowing the length helps with neither.",
            correct=True,
        ),
        Option(
            "Too few requests arrive to fill it.",
            why="Then that memory would be free. The chart shows no free part: what holds no token is promised to "
            "running requests or lost to placing their regions.",
        ),
    ),
)

_OTHERS: Final = ((37, 0, 300, 512), (37, 263, 300, 512), (90, 10, 512, 512), (1, 1, 2, 2048))
"""Just prefilled, finished in this step, a region that fits exactly, the shortest request."""


def beside_published(what: str, published: Mapping[str, float], term: str, *, digits: int) -> str:
    """A table of text, one row a system: the published value, then the modelled ones of the three length sets.

    `term` is an attribute of `OrcaRun`, averaged over the recorded orders of arrival.
    """
    sets = list(orca.length_sets())
    head = (what, "published", *(f"modelled, {name.removeprefix('ShareGPT, ')}" for name in sets))
    rows = [
        (system, value, *(getattr(orca_runs.average(name, system), term) for name in sets))
        for system, value in published.items()
    ]
    return (
        text_table([head, *((system, *(f"{value:.{digits}f}" for value in values)) for system, *values in rows)]) + "\n"
    )


@exercise(
    "What each slot is for",
    hint="Three runs of slots, one after the other: up to the tokens so far, from there to the final length, from "
    "there to the end of the region.",
)
def check_classify(trial: Trial, classify: Callable[[int, int, int, int], Sequence[int]]) -> None:
    """`classify(prompt, generated, final, reserved)` -> (used, later, never), in slots."""
    requests = [(*each, MAX_MODEL_TOKENS) for each in FOUR_REQUESTS]
    totals = [0, 0, 0]
    for prompt, generated, final, reserved in (*requests, *_OTHERS):
        expected = (prompt + generated, final - prompt - generated, reserved - final)
        trial.expected = "used, later, never"
        found = trial.call(classify, prompt, generated, final, reserved)
        trial.holds("three counts: used, later, never", _items(found) == 3, found)
        for term, ours, theirs in zip(("used", "later", "never"), found, expected, strict=True):
            trial.equal(term, ours, theirs)
        trial.equal("used + later + never", sum(found), reserved)
        if reserved == MAX_MODEL_TOKENS:
            totals = [total + slots for total, slots in zip(totals, found, strict=True)]
    policy = four_reserved()
    usage = policy.usage()["full"]
    booked = [size // policy.bytes_per_token for size in (usage.live, usage.reserved, usage.internal)]
    trial.trying("your counts of the four requests, added up, against the server's books")
    trial.equal("used, later, never", totals, booked)


@exercise(
    "A free list without touching holes",
    hint="Keep the list of merged holes. A hole that starts where the last merged one ends makes that one longer; any "
    "other hole begins a new entry.",
)
def check_coalesce(trial: Trial, coalesce: Callable[[Holes], Sequence[Any]]) -> None:
    """`coalesce(holes)`: (start, size) pairs by address -> the same slots, no two holes touching."""
    simple: tuple[tuple[Holes, Holes], ...] = (
        ([(0, 512), (512, 256)], [(0, 768)]),
        ([(0, 512)], [(0, 512)]),
        ([(0, 512), (512, 512), (1024, 512)], [(0, 1536)]),
        ([(0, 64), (128, 64), (192, 64)], [(0, 64), (128, 128)]),
        ([], []),
    )
    for holes, merged in simple:
        _coalesces(trial, coalesce, holes, merged)
    apart = [(hole.start, hole.size) for hole in split_holes().holes()]
    found = _coalesces(trial, coalesce, apart, apart)
    trial.holds("two holes that do not touch stay two, and neither takes 1,024", max(size for _, size in found) < 1024)
    rng = np.random.default_rng(1)
    for _ in range(20):
        cuts = [0, *sorted(int(cut) for cut in rng.choice(np.arange(1, 64), 9, replace=False)), 64]
        free = [bool(each) for each in rng.integers(0, 2, 10)]
        pieces = [(a, b - a) for (a, b), is_free in zip(pairwise(cuts), free, strict=True) if is_free]
        _coalesces(trial, coalesce, pieces, _runs(pieces))


def _coalesces(trial: Trial, coalesce: Callable[[Holes], Sequence[Any]], holes: Holes, merged: Holes) -> Holes:
    trial.expected = str(merged)
    found = trial.call(coalesce, holes)
    pairs = found is not None and _items(found) is not None and all(_items(each) == 2 for each in found)
    trial.holds("a list of (start, size) pairs", pairs, found)
    result = [(start, size) for start, size in found]
    touching = [(a, b) for a, b in pairwise(result) if a[0] + a[1] == b[0]]
    trial.holds("no two holes that touch", not touching, result)
    trial.equal("free slots", sum(size for _, size in result), sum(size for _, size in holes))
    trial.equal("", result, merged)
    return result


def _items(found: object) -> int | None:
    """How many elements a list or tuple has; None for anything else."""
    return len(found) if isinstance(found, list | tuple | np.ndarray) else None


def _runs(pieces: Holes) -> Holes:
    """The slots of `pieces` as maximal runs, the plainest way."""
    slots = {slot for start, size in pieces for slot in range(start, start + size)}
    starts = sorted(slot for slot in slots if slot - 1 not in slots)
    stops = sorted(slot + 1 for slot in slots if slot + 1 not in slots)
    return [(start, stop - start) for start, stop in zip(starts, stops, strict=True)]
