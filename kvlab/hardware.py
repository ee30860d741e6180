"""Machines as a clock sees them: bandwidth, peak, memory and fixed costs, each with its source."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

import yaml

from kvlab.errors import InvalidInput

_SHARES: Final = ("weights_share", "attention_share", "gather_share")


class Constant(NamedTuple):
    """A number of a machine and where it comes from."""

    value: float
    source: str

    @property
    def calibrated(self) -> bool:
        """Whether it was fitted, and not stated by the vendor or measured."""
        return self.source.startswith("calibrated")


@dataclass(frozen=True, slots=True)
class Hardware:
    """One accelerator, or this CPU. Bytes, bytes/s, FLOP/s (dense, 16-bit), seconds.

    The shares say which part of `bandwidth` is reached: by the weights (with all of a layer that is not attention), by
    attention over contiguous KV, and by a gather, whose reads and writes both count. `gather_share` is None where
    attention reads blocks in place. `gather_s` is the fixed cost of one gather, `step_s` of one step.
    """

    name: str
    title: str
    memory_bytes: Constant
    bandwidth: Constant
    matrix_flops: Constant
    weights_share: Constant
    attention_share: Constant
    gather_share: Constant | None
    gather_s: Constant
    step_s: Constant

    def __post_init__(self) -> None:
        for name, constant in self.constants().items():
            low = 0.0 if name.endswith("_s") else math.ulp(0.0)
            high = 1.0 if name in _SHARES else math.inf
            if not (low <= constant.value <= high and math.isfinite(constant.value)):
                raise InvalidInput(f"{name} of {self.name} is {constant.value}; it must lie in ({low:g}, {high:g}]")

    def constants(self) -> dict[str, Constant]:
        """Every number by its name."""
        found = {name: getattr(self, name) for name in _NUMBERS}
        return {name: constant for name, constant in found.items() if constant is not None}


_NUMBERS: Final = ("memory_bytes", "bandwidth", "matrix_flops", *_SHARES, "gather_s", "step_s")


def machine(name: str) -> Hardware:
    """The machine called `name` (`machines()` lists them); `InvalidInput` names the closest ones."""
    known = _machines()
    if name not in known:
        raise InvalidInput(unknown("machine", name, list(known)))
    return known[name]


def machines() -> list[str]:
    """Names of the machines that ship with kvlab."""
    return sorted(_machines())


def unknown(what: str, name: str, known: list[str]) -> str:
    """Say that there is no `what` of this name, which ones come close, and which there are."""
    close = get_close_matches(name.lower(), known, n=2, cutoff=0.5)
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    return f"no {what} is called {name!r}; {meant}there are {', '.join(sorted(known))}"


def this_cpu(
    bandwidth_bytes_per_s: float, matrix_flops: float, *, memory_bytes: float, step_s: float = 0.0
) -> Hardware:
    """This CPU, with what was measured on it: read bandwidth, matrix FLOP/s, and the fixed cost of an engine's step.

    Shares are 1: what was measured is what is reached. Attention reads blocks in place.
    """
    measured = "measured on this machine"
    return Hardware(
        "cpu",
        "this CPU",
        Constant(memory_bytes, measured),
        Constant(bandwidth_bytes_per_s, measured),
        Constant(matrix_flops, measured),
        Constant(1.0, measured),
        Constant(1.0, measured),
        None,
        Constant(0.0, "attention reads blocks in place"),
        Constant(step_s, measured),
    )


@cache
def _machines() -> dict[str, Hardware]:
    raw = yaml.safe_load(files("kvlab").joinpath("data/hardware.yaml").read_text())
    return {name: _from_entry(name, entry) for name, entry in raw.items()}


def _from_entry(name: str, entry: Mapping[str, Any]) -> Hardware:
    numbers = {
        each: None if entry[each] is None else Constant(float(entry[each][0]), entry[each][1]) for each in _NUMBERS
    }
    return Hardware(name, entry["title"], **numbers)  # type: ignore[arg-type]
