"""Article 000's stock route: every block of the step is one row, and matrix products bring the rows together.

An engine whose matrix units cannot follow a block table first copies all blocks of all requests to one place; the
softmax is computed block by block and put together per request. Source: article 000; facts read off vllm-gaudi.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from kvlab.attention.block_list import BlockList, WindowMode, block_list, blocks_read, checked_mode
from kvlab.attention.checking import accept
from kvlab.attention.dense import capped, widening
from kvlab.attention.gather import pad_rows
from kvlab.attention.step import Bytes, Step, Takes, Trace
from kvlab.attention.store import KVStore, heads_of
from kvlab.attention.workspace import Workspace, clear_edges, fetch
from kvlab.device.buckets import Buckets
from kvlab.policies.layout import Table

POWERS_OF_TWO: Final = Buckets(1 << 30)


class FlatPA:
    """Decode steps over block tables, in static shapes: requests and blocks are rounded up to the next power of two
    unless other buckets are given.

    `window_mode="exact"` reads exactly the window: one block more where it straddles, its dead head masked, and no
    block that would be masked wholly. "stock" is what the article's engine did: the last `window // block_size` blocks
    whole, up to a block less than the window; its answers differ from `reference` unless the window ends with a block.

    Logits and weights are float32, 16-bit KV is widened. Bytes: `padded` are the tokens of all rows, the bucket's
    padding included; `physical` counts them read, written, read again, and the widening. The workspace stays on the
    route, so a route is for one thread.
    """

    takes = Takes(layouts=(Table,), many_queries=False)

    def __init__(
        self,
        window_mode: WindowMode = "exact",
        requests: Buckets | None = POWERS_OF_TWO,
        blocks: Buckets | None = POWERS_OF_TWO,
    ) -> None:
        self.window_mode = checked_mode(window_mode)
        self.requests = requests
        self.blocks = blocks
        self.workspace = Workspace()

    @property
    def name(self) -> str:
        """`flat_pa`, or `flat_pa_stock`."""
        return "flat_pa" if self.window_mode == "exact" else "flat_pa_stock"

    def __call__(self, step: Step, store: KVStore, trace: Trace | None = None) -> tuple[Tensor, Bytes]:
        """See `Route`."""
        accept(self, step, store)
        if not step.requests:
            return torch.empty_like(step.queries), Bytes(0, 0, 0)
        listed = self._listed(step, store)
        if trace is not None:
            for request in range(step.requests):
                trace(request, blocks_read(step, request, self.window_mode).slots(store.block_size))
        queries = pad_rows(step.queries, listed.block_mapping.shape[1])
        output = self.compute(queries, store.keys, store.values, listed, step.scale, step.softcap, self.workspace)
        padded = len(listed.block_list) * store.block_size * store.bytes_per_token
        physical = 3 * padded + widening(padded, store.keys.element_size())
        return output.narrow(0, 0, step.requests), Bytes(step.useful_tokens() * store.bytes_per_token, padded, physical)

    def _listed(self, step: Step, store: KVStore) -> BlockList:
        """The block list on the store's device, once for all layers of a step."""
        device, (_, kv_heads, size, _) = store.keys.device, store.keys.shape
        mode, requests, blocks = self.window_mode, self.requests, self.blocks
        return step.derived.once(
            ("block list", mode, requests, blocks, kv_heads, size, store.pad_block, device),
            lambda: block_list(step, store, mode, requests, blocks, static=device.type != "cpu").to(device),
        )

    def metadata(self, step: Step, store: KVStore) -> BlockList:
        """What `compute` needs to know of a step, on the host, in static shapes."""
        return block_list(step, store, self.window_mode, self.requests, self.blocks)

    def compute(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        listed: BlockList,
        scale: float,
        softcap: float | None = None,
        workspace: Workspace | None = None,
    ) -> Tensor:
        """The step in tensors alone, for a graph: `[B, q_heads, head_dim]` queries, padded to the list's B, over a
        store's `keys` and `values`; the output likewise."""
        _, kv_heads, size, head_dim = keys.shape
        mapping = listed.block_mapping
        batch, rows = len(queries), len(listed.block_list)
        # A head of a block at a time: torch copies a row of 32,768 values or more in a parallel region of its own.
        heads = torch.arange(kv_heads, device=keys.device)
        apart = keys.stride(0) // (size * head_dim)
        block_heads = (listed.block_list.unsqueeze(1) * apart + heads).view(-1)
        copies = []
        for name, stored in (("keys", keys), ("values", values)):
            copy = fetch(name, heads_of(stored), block_heads, torch.float32, workspace)
            copies.append(clear_edges(copy, listed.edges, listed.filled).view(rows, kv_heads, size, head_dim))
        block_keys, block_values = copies

        # Per block: queries of its request, logits [rows, kv_heads, group, size], and a softmax of its own.
        by_block = (mapping @ (queries.float() * scale).reshape(batch, -1)).view(rows, kv_heads, -1, head_dim)
        logits = capped(by_block @ block_keys.mT, softcap) + listed.block_bias.view(rows, 1, 1, -1)
        highest = logits.amax(-1)
        weights = torch.exp(logits - highest.unsqueeze(-1))
        sums = weights.sum(-1)
        outputs = weights @ block_values

        # Per request: scale each block from its own maximum to the largest of the request's, then add.
        alpha = torch.exp(highest - group_maximum(highest, listed.block_groups, batch))
        shares = (sums * alpha).view(rows, -1)
        total = (mapping @ (mapping.T @ shares)).maximum(shares).view_as(sums)
        scaled = outputs * (alpha / total).unsqueeze(-1)
        return (mapping.T @ scaled.view(rows, -1)).view(batch, -1, head_dim).to(queries.dtype)


def group_maximum(highest: Tensor, groups: Tensor, batch: int) -> Tensor:
    """The maximum over each row's group, `[rows, ...]`; padded rows (group -1) form a group of their own."""
    flat = highest.flatten(1)
    group = torch.where(groups < 0, batch, groups)
    largest = torch.full((batch + 1, flat.shape[1]), -torch.inf, dtype=flat.dtype, device=flat.device)
    largest = largest.scatter_reduce(0, group.unsqueeze(1).expand_as(flat), flat, "amax")
    return largest.index_select(0, group).view_as(highest)
