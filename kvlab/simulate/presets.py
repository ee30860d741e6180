"""The presets of `kvlab simulate` by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvlab.errors import InvalidInput
from kvlab.hardware import unknown
from kvlab.simulate import gaudi_ring
from kvlab.simulate.report import Row

Progress = Callable[[str], None]

PRESETS: Final[dict[str, Callable[[Progress], list[Row]]]] = {
    "gaudi-ring": gaudi_ring.rows,
}


def preset_rows(name: str, progress: Progress) -> list[Row]:
    """The rows of a preset; `progress` is told a line now and then. `InvalidInput` names the presets."""
    if name not in PRESETS:
        raise InvalidInput(unknown("preset", name, list(PRESETS)))
    return PRESETS[name](progress)
