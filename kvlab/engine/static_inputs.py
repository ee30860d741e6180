"""What a graph of a step is given: made on the host in the graph's shapes, padding included, then copied to the device.

A request is a row of `queries` tokens. Padded tokens write to the pad slot and stand at their request's last position,
padded requests at position 0 of the pad block, so that every query has a key to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kvlab.attention.gather_plan import GatherPlan, gather_plan
from kvlab.attention.step import Step
from kvlab.attention.store import KVStore
from kvlab.device.buckets import Buckets
from kvlab.engine.batch import Batch
from kvlab.engine.config import DecoderConfig
from kvlab.engine.static_shapes import Part, Shape
from kvlab.errors import InvalidInput
from kvlab.policies.layout import Layout, Region, Table


class GroupInputs(NamedTuple):
    """The places of one layer group, B requests of Q tokens. `written` `[B * Q * kv_heads]`: `KVStore.rows` of the
    tokens. `first` `[B]`: the position of the first slot that is gathered. The rest is a `GatherPlan`'s.
    """

    written: Tensor
    first: Tensor
    rows: Tensor
    edges: Tensor
    filled: Tensor

    def plan(self, positions: Tensor, kv_heads: int, block_size: int, window_tokens: int | None) -> GatherPlan:
        """The plan of `Gather.compute`, its mask made here on the device from `positions` `[B, Q]`."""
        requests = self.first.shape[0]
        tokens = self.rows.shape[0] // (requests * kv_heads) * block_size
        key = (self.first.unsqueeze(1) + torch.arange(tokens, device=positions.device)).view(requests, 1, 1, tokens)
        query = positions.view(requests, 1, -1, 1)
        allowed = key <= query
        if window_tokens is not None:
            allowed = allowed & (key > query - window_tokens)
        return GatherPlan(self.rows, allowed, self.edges, self.filled)


class Inputs(NamedTuple):
    """A part of a step: `token_ids` `[B * Q]`, `positions` `[B, Q]`, the places by layer group, and the tokens whose
    logits are computed `taken` `[asked]` with the rows of the answer where they go, `put` `[asked]`."""

    token_ids: Tensor
    positions: Tensor
    taken: Tensor
    put: Tensor
    groups: tuple[GroupInputs, ...]

    def to(self, device: torch.device) -> Inputs:
        """The inputs on a device."""
        groups = tuple(GroupInputs(*(each.to(device) for each in group)) for group in self.groups)
        token_ids, positions, taken, put = (each.to(device) for each in self[:4])
        return Inputs(token_ids, positions, taken, put, groups)


class Group(NamedTuple):
    """A layer group: the store of any of its layers (they are alike), how many there are, and their window."""

    store: KVStore
    layers: int
    window_tokens: int | None

    def width(self, shape: Shape) -> int:
        """Blocks that are gathered for each request: all of its context, or what a window can straddle."""
        size = self.store.block_size
        every = -(-shape.context // size)
        if self.window_tokens is None:
            return every
        return min(every, (self.window_tokens + shape.queries + size - 3) // size + 1)

    def step(self, config: DecoderConfig, batch: Batch, index: int, requests: Sequence[int]) -> Step:
        """What some requests of a batch ask of this group, number `index`, without operands.

        Raises `InvalidInput` on a ring, which has no static form yet.
        """
        none = torch.empty(0, dtype=config.dtype)
        counts = [batch.starts[request + 1] - batch.starts[request] for request in requests]
        layouts = [_table(batch.groups[index].layouts[request]) for request in requests]
        return Step(
            none, none, none, [0, *accumulate(counts)], [batch.lengths[request] for request in requests], layouts,
            config.scale, self.window_tokens, config.softcap,
        )  # fmt: skip


def inputs(batch: Batch, part: Part, groups: Sequence[Group], steps: Sequence[Step], asked: int, unused: int) -> Inputs:
    """The inputs of one part of a batch, on the host; `steps` are the part's, one a group.

    `asked` rows of logits are computed; those that nobody wants go to row `unused`. Raises `InvalidInput` where the
    batch wants more.
    """
    (many, queries, _), requests = part
    token_ids, positions = np.zeros((2, many, queries), np.int64)
    taken, put = np.zeros(asked, np.int64), np.full(asked, unused)
    at = 0
    for row, request in enumerate(requests):
        start, stop = batch.starts[request], batch.starts[request + 1]
        token_ids[row, : stop - start] = batch.token_ids[start:stop]
        positions[row] = batch.positions[stop - 1]
        positions[row, : stop - start] = batch.positions[start:stop]
        low, high = batch.row_starts[request], batch.row_starts[request + 1]
        if at + high - low > asked:
            raise InvalidInput(
                f"a part of {many} x {queries} tokens gives {asked} rows of logits, not {at + high - low}"
            )
        taken[at : at + high - low] = batch.rows[low:high] - start + row * queries
        put[at : at + high - low] = range(low, high)
        at += high - low
    return Inputs(
        torch.from_numpy(token_ids.reshape(-1)),
        torch.from_numpy(positions),
        torch.from_numpy(taken),
        torch.from_numpy(put),
        tuple(_placed(batch, part, index, group, steps[index]) for index, group in enumerate(groups)),
    )


def _placed(batch: Batch, part: Part, index: int, group: Group, step: Step) -> GroupInputs:
    (many, queries, _), requests = part
    store, size = group.store, group.store.block_size
    slots = np.full((many, queries), store.pad_slot)
    first = np.zeros(many, np.int64)
    for row, request in enumerate(requests):
        start, stop = batch.starts[request], batch.starts[request + 1]
        slots[row, : stop - start] = batch.groups[index].slots[start:stop]
        first[row] = step.first_readable(row) // size * size
    plan = gather_plan(step, store, _exactly(many), _exactly(group.width(part.shape)))
    written = store.rows(torch.from_numpy(slots.reshape(-1)))
    return GroupInputs(written, torch.from_numpy(first), plan.rows, plan.edges, plan.filled)


def _table(layout: Layout) -> Table:
    """A region is a table of consecutive blocks of one slot."""
    if isinstance(layout, Table):
        return layout
    if isinstance(layout, Region):
        return Table(range(layout.first_slot, layout.first_slot + layout.end), 1, layout.start, layout.end)
    raise InvalidInput("a ring has no static form yet; use a policy of tables or regions on this device")


def _exactly(count: int) -> Buckets:
    return Buckets(count, first=count)
