"""What a request reads: which positions each query may, and where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvlab.attention.step import Step
from kvlab.attention.store import KVStore
from kvlab.errors import InvalidInput
from kvlab.policies.layout import Region, Ring, Slots, Table

REGION_RUN = 128
"""Tokens of a region that are taken as one piece where the store has blocks of one token."""


def readable(step: Step, request: int) -> Tensor:
    """Which keys each query of a request may read, bool `[queries, keys]`.

    The keys stand at the positions [first_readable, length), the queries at the last ones of them. The query at
    position p reads [p - window_tokens + 1, p].
    """
    length = step.lengths[request]
    query = torch.arange(length - step.query_tokens(request), length)[:, None]
    key = torch.arange(step.first_readable(request), length)
    allowed = key <= query
    if step.window_tokens is not None:
        allowed &= key > query - step.window_tokens
    return allowed


def stored_slots(step: Step, request: int) -> Slots:
    """Slots of the readable positions that the store holds, in order; a ring's step is not among them."""
    layout = step.layouts[request]
    return layout.slots()[step.first_readable(request) - layout.start :]


def own(step: Step, request: int) -> slice:
    """Rows of a request in `queries`, `keys` and `values`."""
    return slice(step.starts[request], step.starts[request + 1])


class Span(NamedTuple):
    """Whole blocks that hold the positions [first, end): `skip` slots of the first block come before them."""

    blocks: npt.NDArray[np.int64]
    skip: int
    tokens: int

    def slots(self, block_size: int) -> Slots:
        """Every slot of the blocks."""
        return (self.blocks[:, None] * block_size + np.arange(block_size)).reshape(-1)


def span(table: Table, first: int, end: int) -> Span:
    """The blocks of a table that hold the positions [first, end)."""
    size = table.block_size
    blocks = np.asarray(table.blocks[first // size : -(-end // size)], np.int64)
    return Span(blocks, first % size, end - first)


class Piece(NamedTuple):
    """K and V of the positions [first, first + n): views `[kv_heads, n, head_dim]`, no copy."""

    first: int
    keys: Tensor
    values: Tensor


def pieces(step: Step, store: KVStore, request: int) -> Iterator[Piece]:
    """The readable K and V of a request in order of position, as the views that its layout allows.

    A table gives one piece a block, a ring two at most and then the step's own tokens, a region the parts of it that
    lie in one block each, or in a store with blocks of one token runs of `REGION_RUN`.
    """
    layout, size = step.layouts[request], store.block_size
    position = step.first_readable(request)
    while position < layout.end:
        match layout:
            case Table():
                slot = layout.blocks[position // size] * size + position % size
            case Ring():
                slot = layout.first_slot + position % size
            case Region():
                slot = layout.first_slot + position
        whole = REGION_RUN if isinstance(layout, Region) and size == 1 else size - slot % size
        count = min(layout.end - position, whole)
        yield Piece(position, *view(store, slot, count))
        position += count
    if isinstance(layout, Ring):
        rows = own(step, request)
        yield Piece(position, step.keys[rows].transpose(0, 1), step.values[rows].transpose(0, 1))


def view(store: KVStore, slot: int, count: int) -> tuple[Tensor, Tensor]:
    """K and V of `count` adjacent slots, `[kv_heads, count, head_dim]` each, without a copy.

    They lie in one block, or blocks hold one token each. Raises `InvalidInput` where no view can be had.
    """
    size = store.block_size
    if size == 1:
        return (
            store.keys[slot : slot + count, :, 0].transpose(0, 1),
            store.values[slot : slot + count, :, 0].transpose(0, 1),
        )
    block, offset = divmod(slot, size)
    if offset + count > size:
        raise InvalidInput(
            f"the slots [{slot}, {slot + count}) cross blocks of {size}, so no view holds them; keep contiguous "
            "regions in a store with blocks of one token, or one request a block"
        )
    return store.keys[block, :, offset : offset + count], store.values[block, :, offset : offset + count]
