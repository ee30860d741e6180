"""Where a request's KV lies, for an attention route to read: positions [start, end) of the sequence are live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Slots: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Table:
    """Position p lies in slot `blocks[p // block_size] * block_size + p % block_size`; a view, valid until the next
    call that names the request."""

    blocks: Sequence[int]
    block_size: int
    start: int
    end: int

    def slots(self) -> Slots:
        """Slots of the live positions in order, int64 `[end - start]`."""
        positions = np.arange(self.start, self.end)
        return np.asarray(self.blocks, np.int64)[positions // self.block_size] * self.block_size + (
            positions % self.block_size
        )


@dataclass(frozen=True, slots=True)
class Ring:
    """Position p lies in slot `first_slot + p % window_tokens`."""

    first_slot: int
    window_tokens: int
    start: int
    end: int

    def slots(self) -> Slots:
        """Slots of the live positions in order, int64 `[end - start]`."""
        return self.first_slot + np.arange(self.start, self.end) % self.window_tokens


@dataclass(frozen=True, slots=True)
class Region:
    """Position p lies in slot `first_slot + p`."""

    first_slot: int
    start: int
    end: int

    def slots(self) -> Slots:
        """Slots of the live positions in order, int64 `[end - start]`."""
        return self.first_slot + np.arange(self.start, self.end)


Layout: TypeAlias = Table | Ring | Region
