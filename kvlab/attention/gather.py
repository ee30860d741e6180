"""Gather, then attend: whole blocks are copied next to each other, and a dense operator reads the copy."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from kvlab.attention.checking import accept
from kvlab.attention.dense import Fused, attend, attend_request, bias, widening
from kvlab.attention.gather_plan import GatherPlan, RequestCopy, gather_plan, request_copy
from kvlab.attention.reading import own, span, stored_slots
from kvlab.attention.step import Bytes, Step, Takes, Trace
from kvlab.attention.store import KVStore, flat, heads_of
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
        return self.answer(step, store, trace)

    def answer(self, step: Step, store: KVStore, trace: Trace | None = None) -> tuple[Tensor, Bytes]:
        """The call itself, for a step that another route has accepted."""
        if trace is not None:
            for request in range(step.requests):
                trace(request, _copied_slots(step, request))
        if step.decodes and step.requests and step.only_tables:
            output, copied = self._decode(step, store)
        else:
            output, copied = self._one_by_one(step, store)
        return output, self.read(step, store, copied)

    def _decode(self, step: Step, store: KVStore) -> tuple[Tensor, int]:
        plan = self._plan(step, store)
        rows, tokens = plan.allowed.shape[0], plan.allowed.shape[-1]
        queries = pad_rows(step.queries, rows)
        output = self.compute(queries, store.keys, store.values, plan, step.scale, step.softcap, self.workspace)
        return output.narrow(0, 0, step.requests), rows * tokens

    def _plan(self, step: Step, store: KVStore) -> GatherPlan:
        """The plan on the store's device, once for all layers of a step."""
        device, (_, kv_heads, size, _) = store.keys.device, store.keys.shape
        return step.derived.once(
            ("gather", self.requests, self.blocks, kv_heads, size, store.block_rows, store.pad_block, device),
            lambda: gather_plan(step, store, self.requests, self.blocks, static=device.type != "cpu").to(device),
        )

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
        """The step in tensors alone, for a graph: queries `[B * Q, q_heads, head_dim]`, padded to the plan's rows, over
        a store's `keys` and `values`; the output likewise. Q is 1 in a decode step, and in prompt chunks and drafts
        what the plan's `allowed`, `[B, 1, Q, N * block_size]`, says."""
        _, kv_heads, _, head_dim = keys.shape
        rows, many = plan.allowed.shape[0], plan.allowed.shape[2]
        copies = []
        for name, stored in (("keys", keys), ("values", values)):
            copy = fetch(name, heads_of(stored), plan.rows, queries.dtype, workspace)
            copies.append(clear_edges(copy, plan.edges, plan.filled).view(rows, kv_heads, -1, head_dim))
        mask = bias(plan.allowed, queries.dtype)
        if many == 1:
            grouped = queries.reshape(rows, kv_heads, -1, head_dim)
            return attend(grouped, copies[0], copies[1], mask, scale, softcap, self.fused).flatten(1, 2)
        by_head = queries.reshape(rows, many, -1, head_dim).transpose(1, 2)
        if softcap is not None or self.fused is None:  # matrix products don't share K and V over a group by themselves
            copies = [copy.repeat_interleave(by_head.shape[1] // kv_heads, 1) for copy in copies]
        output = attend(by_head, copies[0], copies[1], mask, scale, softcap, self.fused)
        return output.transpose(1, 2).flatten(0, 1)

    def _one_by_one(self, step: Step, store: KVStore) -> tuple[Tensor, int]:
        output = torch.empty_like(step.queries)
        device, (_, kv_heads, size, _) = store.keys.device, store.keys.shape
        copied = 0
        for request in range(step.requests):
            key = ("copy", request, kv_heads, size, store.block_rows, device)
            copy = step.derived.once(key, partial(request_copy, step, store, request))
            keys, values = self._request(step, store, request, copy)
            output[own(step, request)] = attend_request(step, request, keys, values, self.fused)
            copied += copy.tokens
        return output, copied

    def _request(self, step: Step, store: KVStore, request: int, copy: RequestCopy) -> tuple[Tensor, Tensor]:
        """Copies of K and V of the readable positions, `[kv_heads, tokens, head_dim]` each, in the workspace."""
        _, kv_heads, _, head_dim = store.keys.shape
        ring = isinstance(step.layouts[request], Ring)
        copies = []
        for name, stored, new in (("keys", store.keys, step.keys), ("values", store.values, step.values)):
            taken = fetch(name, flat(stored, copy.run), copy.rows, step.queries.dtype, self.workspace)
            taken = taken.view(kv_heads, -1, head_dim)[:, copy.skip : copy.skip + copy.length]
            if ring:
                taken = torch.cat([taken, new[own(step, request)].transpose(0, 1)], 1)
            copies.append(taken)
        return copies[0], copies[1]

    def read(self, step: Step, store: KVStore, copied: int) -> Bytes:
        """The bytes of a call that copied the K and V of `copied` tokens."""
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
