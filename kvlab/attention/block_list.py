"""The metadata of flat_pa: one row a block, whoever it belongs to. Made on the host, fixed in shape.

Source: article 000; facts read off vllm-gaudi, August 2026.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from kvlab.attention.gather_plan import rounded
from kvlab.attention.reading import Span, span
from kvlab.attention.step import Step
from kvlab.attention.store import KVStore
from kvlab.device.buckets import Buckets
from kvlab.errors import InvalidInput
from kvlab.policies.layout import Table

WindowMode: TypeAlias = Literal["stock", "exact"]


class BlockList(NamedTuple):
    """N rows, one for each block that a step reads, then padding; B batch rows, then padding.

    `block_list` `[N]`: physical ids, the pad block where padded. `block_groups` `[N]`: the batch row, -1 where padded.
    `block_usage` `[N]`: slots filled, 1 where padded. `block_mapping` float32 `[N, B]`: one-hot groups, zero rows where
    padded. `block_bias` float32 `[N, block_size]`: -inf where a slot is not read. `edges` `[2 B * kv_heads]`: the first
    and last block of each request, as `row * kv_heads + head`; `filled` bool `[2 B * kv_heads, block_size, 1]`: which
    of their slots are read (see `clear_edges`).
    """

    block_list: Tensor
    block_groups: Tensor
    block_usage: Tensor
    block_mapping: Tensor
    block_bias: Tensor
    edges: Tensor
    filled: Tensor

    def to(self, device: torch.device) -> BlockList:
        """The list on a device."""
        return BlockList(*(each.to(device) for each in self))


def checked_mode(mode: WindowMode) -> WindowMode:
    """The window mode, if it is one."""
    if mode not in get_args(WindowMode):
        raise InvalidInput(f"window_mode is {' or '.join(get_args(WindowMode))}, not {mode!r}")
    return mode


def blocks_read(step: Step, request: int, mode: WindowMode) -> Span:
    """The blocks that flat_pa reads for a request.

    Exact: those with a readable position, the slots before it masked. Stock: the last `window // block_size` blocks
    of the table with no mask at their head, so up to a block less than the window.
    """
    layout = step.layouts[request]
    assert isinstance(layout, Table)
    first = step.first_readable(request)
    if mode == "stock" and step.window_tokens is not None:
        kept = step.window_tokens // layout.block_size
        if not kept:
            raise InvalidInput(
                f'window_mode="stock" reads window // block_size whole blocks: none of a window of '
                f'{step.window_tokens} in blocks of {layout.block_size}; use smaller blocks or window_mode="exact"'
            )
        first = max(0, -(-layout.end // layout.block_size) - kept) * layout.block_size
    return span(layout, first, layout.end)


def block_list(
    step: Step,
    store: KVStore,
    mode: WindowMode,
    requests: Buckets | None = None,
    blocks: Buckets | None = None,
    *,
    static: bool = True,
) -> BlockList:
    """The list of a decode step over tables, on the host.

    N and B are the step's own, or the buckets that hold them. Static: every shape follows from these two; else there
    are only as many edges as blocks that are partly read. Raises `InvalidInput` above the largest bucket.
    """
    found = [blocks_read(step, request, mode) for request in range(step.requests)]
    counts = [len(each.blocks) for each in found]
    batch, rows, size = rounded(step.requests, requests), rounded(sum(counts), blocks), store.block_size
    ends = np.cumsum(counts)
    first, last = ends - counts, ends - 1

    ids, groups = np.full(rows, store.pad_block), np.full(rows, -1)
    ids[: ends[-1]] = np.concatenate([each.blocks for each in found])
    groups[: ends[-1]] = np.repeat(np.arange(step.requests), counts)
    begin, usage = np.zeros(rows, np.int64), np.ones(rows, np.int64)
    usage[: ends[-1]] = size
    begin[first] = [each.skip for each in found]
    usage[last] = [(each.skip + each.tokens - 1) % size + 1 for each in found]
    slot = np.arange(size)
    read = (slot >= begin[:, None]) & (slot < usage[:, None])

    edges, heads = np.stack([first, last], 1).reshape(-1), store.kv_heads
    if static:  # two edges a batch row; clearing one twice does no harm
        edges = np.concatenate([edges, np.full(2 * (batch - step.requests), first[0])])
    else:
        edges = edges[~read[edges].all(1)]
    return BlockList(
        torch.from_numpy(ids),
        torch.from_numpy(groups),
        torch.from_numpy(usage),
        torch.from_numpy((groups[:, None] == np.arange(batch)).astype(np.float32)),
        torch.from_numpy(np.where(read, 0.0, -np.inf).astype(np.float32)),
        torch.from_numpy((edges[:, None] * heads + np.arange(heads)).reshape(-1)),
        torch.from_numpy(np.repeat(read[edges], heads, 0))[:, :, None],
    )
