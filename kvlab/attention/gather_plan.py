"""What the gather route copies in a decode step: made on the host, so that the rest is tensors of fixed shapes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kvlab.attention.reading import Span, span, stored_slots
from kvlab.attention.step import Step
from kvlab.attention.store import KVStore
from kvlab.device.buckets import Buckets
from kvlab.policies.layout import Ring, Table


class GatherPlan(NamedTuple):
    """B rows of N blocks each, padding included.

    `rows` `[B * kv_heads * N]`: blocks of one head, `block * block_heads + head`, in the order that makes the copy
    `[B, kv_heads, N * block_size, head_dim]`. `allowed` bool `[B, 1, 1, N * block_size]`. `edges` `[edges]`: rows of
    the copy that are not filled, with `filled` bool `[edges, block_size, 1]` (see `clear_edges`).
    """

    rows: Tensor
    allowed: Tensor
    edges: Tensor
    filled: Tensor

    def to(self, device: torch.device) -> GatherPlan:
        """The plan on a device."""
        return GatherPlan(*(each.to(device) for each in self))


def spans(step: Step) -> list[Span]:
    """Per request of a step over tables, the blocks that hold its readable positions."""
    found = []
    for request, layout in enumerate(step.layouts):
        assert isinstance(layout, Table)
        found.append(span(layout, step.first_readable(request), layout.end))
    return found


def gather_plan(
    step: Step,
    store: KVStore,
    requests: Buckets | None = None,
    blocks: Buckets | None = None,
    *,
    static: bool = True,
) -> GatherPlan:
    """The plan of a decode step over tables, on the host.

    B and N are the step's own, or the buckets that hold them. Static: every shape follows from these two; else there
    are only as many edges as blocks that are partly read. A padded row reads one slot of the pad block, to have a
    softmax over something. Raises `InvalidInput` above the largest bucket.
    """
    found = spans(step)
    batch = rounded(step.requests, requests)
    width = rounded(max(len(each.blocks) for each in found), blocks)
    size, heads = store.block_size, store.kv_heads
    ids = np.full((batch, width), store.pad_block)
    begin, end = np.zeros(batch, np.int64), np.ones(batch, np.int64)
    for request, (own, skip, count) in enumerate(found):
        ids[request, : len(own)] = own
        begin[request], end[request] = skip, skip + count
    key = np.arange(width * size)
    allowed = (key >= begin[:, None]) & (key < end[:, None])

    row, edge = np.repeat(np.arange(batch), 2), np.stack([begin // size, (end - 1) // size], 1).reshape(-1)
    filled = allowed.reshape(batch, width, size)[row, edge]
    if not static:
        partial = ~filled.all(1)
        row, edge, filled = row[partial], edge[partial], filled[partial]
    head = np.arange(heads)
    rows = ids[:, None, :] * store.block_heads + head[:, None]
    edges = (row[:, None] * heads + head) * width + edge[:, None]
    return GatherPlan(
        torch.from_numpy(rows.reshape(-1)),
        torch.from_numpy(allowed)[:, None, None, :],
        torch.from_numpy(edges.reshape(-1)),
        torch.from_numpy(np.repeat(filled, heads, 0))[:, :, None],
    )


class RequestCopy(NamedTuple):
    """What is copied of one request: `rows` `[kv_heads * runs]` of a store seen as `[-1, run, head_dim]`, so that the
    copy is `[kv_heads, runs * run, head_dim]`; the positions to read are the `length` ones after the first `skip`.
    `tokens` counts what is copied, a ring's own tokens included."""

    rows: Tensor
    run: int
    skip: int
    length: int
    tokens: int


def request_copy(step: Step, store: KVStore, request: int) -> RequestCopy:
    """The copy of one request, its rows on the store's device: whole blocks of a table, else slot by slot."""
    layout, heads = step.layouts[request], np.arange(store.kv_heads)[:, None]
    if isinstance(layout, Table):
        blocks, skip, count = span(layout, step.first_readable(request), layout.end)
        rows, run, tokens = blocks * store.block_heads + heads, store.block_size, len(blocks) * store.block_size
    else:
        block, offset = np.divmod(stored_slots(step, request), store.block_size)
        rows, run = block * store.block_rows + heads * store.block_size + offset, 1
        skip, count = 0, len(block)
        tokens = count + step.query_tokens(request) * isinstance(layout, Ring)
    where = torch.as_tensor(rows.reshape(-1), device=store.keys.device)
    return RequestCopy(where, run, skip, count, tokens)


def rounded(count: int, buckets: Buckets | None) -> int:
    """The bucket that holds `count`, or `count` itself. Raises `InvalidInput` above the largest bucket."""
    return count if buckets is None else buckets.bucket(count)
