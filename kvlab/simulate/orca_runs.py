"""Recorded runs of the paper's utilisation setting: three length sets, four systems, five orders of arrival.

Lesson 01 shows all of them, which would take minutes to simulate there. The file is written by

    python -m kvlab.simulate.orca_runs

and a test runs some rows again and compares. Everything in it is modelled; nothing is measured or published.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from statistics import mean
from typing import Final

import numpy as np

from kvlab.errors import InvalidInput
from kvlab.simulate.orca import CAPACITY_TOKENS, length_sets, systems
from kvlab.simulate.saturation import saturate

STEPS: Final = 300_000
WARMUP_STEPS: Final = 5_000
SEEDS: Final = range(5)
TERMS: Final = ("tokens", "reserved", "internal", "external", "free", "in_flight")
_DATA: Final = "data/orca_runs.csv"


@dataclass(frozen=True)
class OrcaRun:
    """One system on one length set, averaged over time: shares in % of all slots, then requests in flight.

    `lengths` and `system` are keys of `length_sets()` and `systems()`; `seed` shuffles the requests.
    """

    lengths: str
    system: str
    seed: int
    tokens: float
    reserved: float
    internal: float
    external: float
    free: float
    in_flight: float

    @property
    def tokens_held(self) -> float:
        """Tokens that a running request holds, averaged over requests and steps."""
        return self.tokens / 100 * CAPACITY_TOKENS / self.in_flight

    def shares(self) -> dict[str, float]:
        """The terms that are not zero, as a chart takes them."""
        return {term: value for term in TERMS[:-1] if (value := getattr(self, term))}


def run(lengths: str, system: str, seed: int = 0, steps: int = STEPS) -> OrcaRun:
    """Simulate one row. Raises `InvalidInput` when there is no such length set or system."""
    for kind, name, known in (("length set", lengths, length_sets()), ("system", system, systems())):
        if name not in known:
            raise InvalidInput(f"there is no {kind} {name!r}; there are {', '.join(known)}")
    found = saturate(systems()[system](), length_sets()[lengths], steps=steps, warmup_steps=WARMUP_STEPS, seed=seed)
    names = {"live": "tokens"} | {term: term for term in TERMS[1:-1]}
    shares = {ours: round(100 * found.shares[theirs], 4) for theirs, ours in names.items()}
    return OrcaRun(lengths, system, seed, **shares, in_flight=round(found.requests_in_flight, 4))


def read_runs(path: Path | Traversable) -> tuple[OrcaRun, ...]:
    """What `record` wrote."""
    with path.open(encoding="utf-8") as handle:
        rows = csv.DictReader(line for line in handle if not line.startswith("#"))
        return tuple(
            OrcaRun(r["lengths"], r["system"], int(r["seed"]), *(float(r[term]) for term in TERMS)) for r in rows
        )


@cache
def stored() -> tuple[OrcaRun, ...]:
    """The recorded runs that ship with kvlab, each of `STEPS` steps."""
    return read_runs(files("kvlab").joinpath(_DATA))


def average(lengths: str, system: str) -> OrcaRun:
    """The mean over the recorded seeds; its `seed` is how many there are."""
    runs = _of(lengths, system)
    return OrcaRun(lengths, system, len(runs), *(mean(getattr(each, term) for each in runs) for term in TERMS))


def spread(lengths: str, system: str) -> dict[str, float]:
    """Each term's largest minus its smallest value over the recorded seeds."""
    values = {term: [getattr(each, term) for each in _of(lengths, system)] for term in TERMS}
    return {term: max(found) - min(found) for term, found in values.items()}


def _of(lengths: str, system: str) -> Sequence[OrcaRun]:
    runs = [each for each in stored() if (each.lengths, each.system) == (lengths, system)]
    if not runs:
        raise InvalidInput(f"no recorded run of {system!r} on {lengths!r}")
    return runs


def record(path: Path, steps: int = STEPS) -> None:
    """Run everything and write the file (a few minutes at `STEPS` steps)."""
    runs = [run(lengths, system, seed, steps) for lengths in length_sets() for system in systems() for seed in SEEDS]
    with path.open("w", encoding="utf-8", newline="") as handle:
        handle.write(
            f"# Modelled by `python -m kvlab.simulate.orca_runs`, {steps:,} steps ({WARMUP_STEPS:,} of them warm-up), "
            f"numpy {np.__version__}; shares in % of all slots\n"
        )
        table = csv.DictWriter(handle, [field.name for field in fields(OrcaRun)], lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(each) for each in runs)


if __name__ == "__main__":
    record(Path(str(files("kvlab").joinpath(_DATA))))
