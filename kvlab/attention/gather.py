"""Gather, then attend: whole blocks are copied next to each other, and a dense operator reads the copy."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kvlab.attention.checking import accept
from kvlab.attention.dense import Fused, attend, attend_request, widening
from kvlab.attention.gather_plan import GatherPlan, gather_plan
from kvlab.attention.reading import own, span, stored_slots
from kvlab.attention.step import Bytes, Step, Takes, Trace
from kvlab.attention.store import KVStore
from kvlab.attention.workspace import Workspace, clear_edges, fetch
from kvlab.device.base import torch_sdpa
from kvlab.device.buckets import Buckets
from kvlab.policies.layout import Ring, Slots, Table


class Gather:
    """The route that every device can run: blocks are copied into a workspace, and a fused operator reads that.

    A decode step over tables is one batch, padded to its longest request. Other steps go request by request; rings and
    regions are copied slot by slot. With a window, only blocks that hold a readable position are copied.

    The buckets round the requests and the blocks of a row up to static shapes; without them nothing is rounded. `fused`
    is a device's `sdpa`; None computes with two matrix products. The workspace stays on the route (`Workspace`), so a
    route is for one thread.

    Bytes: `padded` are the tokens copied (whole blocks, the padding of the batch too). `physical` counts them read,
    written and read again; where they are converted (fp8; 16 bits with a soft-cap), the conversion's traffic too.
    """

    name = "gather"
    takes = Takes()

    def __init__(
        self, requests: Buckets | None = None, blocks: Buckets | None = None, fused: Fused | None = torch_sdpa
    ) -> None:
        self.requests = requests
        self.blocks = blocks
        self.fused = fused
        self.workspace = Workspace()

    def __call__(self, step: Step, store: KVStore, trace: Trace | None = None) -> tuple[Tensor, Bytes]:
        """See `Route`."""
        accept(self, step, store)
        if trace is not None:
            for request in range(step.requests):
                trace(request, _copied_slots(step, request))
        if step.decodes and step.requests and all(isinstance(layout, Table) for layout in step.layouts):
            output, copied = self._decode(step, store)
        else:
            output, copied = self._one_by_one(step, store)
        return output, self._bytes(step, store, copied)

    def _decode(self, step: Step, store: KVStore) -> tuple[Tensor, int]:
        plan = gather_plan(step, store, self.requests, self.blocks, static=store.keys.device.type != "cpu")
        rows, tokens = plan.allowed.shape[0], plan.allowed.shape[-1]
        queries = pad_rows(step.queries, rows)
        plan = plan.to(queries.device)
        output = self.compute(queries, store.keys, store.values, plan, step.scale, step.softcap, self.workspace)
        return output.narrow(0, 0, step.requests), rows * tokens

    def metadata(self, step: Step, store: KVStore) -> GatherPlan:
        """What `compute` needs to know of a decode step over tables, on the host, in static shapes."""
        return gather_plan(step, store, self.requests, self.blocks)

    def compute(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        plan: GatherPlan,
        scale: float,
        softcap: float | None = None,
        workspace: Workspace | None = None,
    ) -> Tensor:
        """The step in tensors alone, for a graph: `[B, q_heads, head_dim]` queries, padded to the plan's rows, over a
        store's `keys` and `values`; the output likewise."""
        _, kv_heads, size, head_dim = keys.shape
        copies = []
        for name, stored in (("keys", keys), ("values", values)):
            copy = fetch(name, stored.view(-1, size, head_dim), plan.rows, queries.dtype, workspace)
            copies.append(clear_edges(copy, plan.edges, plan.filled).view(len(queries), kv_heads, -1, head_dim))
        grouped = queries.reshape(len(queries), kv_heads, -1, head_dim)
        return attend(grouped, copies[0], copies[1], plan.allowed, scale, softcap, self.fused).flatten(1, 2)

    def _one_by_one(self, step: Step, store: KVStore) -> tuple[Tensor, int]:
        output = torch.empty_like(step.queries)
        copied = 0
        for request, layout in enumerate(step.layouts):
            keys, values = self._request(step, store, request)
            output[own(step, request)] = attend_request(step, request, keys, values, self.fused)
            copied += len(_copied_slots(step, request)) + step.query_tokens(request) * isinstance(layout, Ring)
        return output, copied

    def _request(self, step: Step, store: KVStore, request: int) -> tuple[Tensor, Tensor]:
        """Copies of K and V of the readable positions, `[kv_heads, tokens, head_dim]` each, in the workspace."""
        layout, heads = step.layouts[request], np.arange(store.kv_heads)[:, None]
        if isinstance(layout, Table):
            blocks, skip, count = span(layout, step.first_readable(request), layout.end)
            rows, run = blocks * store.kv_heads + heads, store.block_size
        else:
            block, offset = np.divmod(stored_slots(step, request), store.block_size)
            rows, run, skip, count = (block * store.kv_heads + heads) * store.block_size + offset, 1, 0, len(block)
        where = torch.as_tensor(rows.reshape(-1), device=store.keys.device)
        copies = []
        for name, stored, new in (("keys", store.keys, step.keys), ("values", store.values, step.values)):
            copy = fetch(name, stored.view(-1, run, store.head_dim), where, step.queries.dtype, self.workspace)
            copy = copy.view(store.kv_heads, -1, store.head_dim)[:, skip : skip + count]
            if isinstance(layout, Ring):
                copy = torch.cat([copy, new[own(step, request)].transpose(0, 1)], 1)
            copies.append(copy)
        return copies[0], copies[1]

    def _bytes(self, step: Step, store: KVStore, copied: int) -> Bytes:
        padded = copied * store.bytes_per_token
        computed = padded * step.queries.element_size() // store.keys.element_size()
        physical = 2 * padded + computed
        if store.keys.dtype != step.queries.dtype:
            physical += padded + computed
        if step.softcap is not None or self.fused is None:
            physical += widening(computed, step.queries.element_size())
        return Bytes(step.useful_tokens() * store.bytes_per_token, padded, physical)


def _copied_slots(step: Step, request: int) -> Slots:
    layout = step.layouts[request]
    if isinstance(layout, Table):
        return span(layout, step.first_readable(request), layout.end).slots(layout.block_size)
    return stored_slots(step, request)


def pad_rows(tensor: Tensor, rows: int) -> Tensor:
    """The tensor with zero rows after it, `rows` in all."""
    if len(tensor) == rows:
        return tensor
    return torch.cat([tensor, tensor.new_zeros(rows - len(tensor), *tensor.shape[1:])])
