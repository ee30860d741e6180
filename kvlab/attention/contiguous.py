"""Attention over contiguous KV, as servers did it before paging: torch's operator reads each slab in place."""

from __future__ import annotations

import torch
from torch import Tensor

from kvlab.attention.checking import accept
from kvlab.attention.dense import attend, attend_request, widening
from kvlab.attention.reading import own, stored_slots, view
from kvlab.attention.step import Bytes, Step, Takes, Trace
from kvlab.attention.store import KVStore
from kvlab.policies.layout import Region


class Contiguous:
    """SDPA on views of the store; no K or V is copied.

    A region lies in a store with blocks of one token, or inside one block (a slab for each request, its heads one after
    the other, is the faster form). Decoding requests of one length at even distances are read by one call, others one
    by one.

    Bytes: useful = padded = physical, the readable tokens. With a soft-cap, which SDPA does not know, KV of 16 bits is
    widened to float32 first, and `physical` counts that copy, written and read.
    """

    name = "contiguous"
    takes = Takes(layouts=(Region,), stored=(torch.float32, torch.bfloat16, torch.float16))

    def __call__(self, step: Step, store: KVStore, trace: Trace | None = None) -> tuple[Tensor, Bytes]:
        """See `Route`."""
        accept(self, step, store)
        slabs = [_slab(step, store, request) for request in range(step.requests)]
        if trace is not None:
            for request in range(step.requests):
                trace(request, stored_slots(step, request))
        together = _one_view(slabs) if step.decodes else None
        if together is not None:
            queries = step.queries.reshape(step.requests, store.kv_heads, step.group, store.head_dim)
            output = attend(queries, *together, None, step.scale, step.softcap).flatten(1, 2)
        else:
            output = torch.empty_like(step.queries)
            for request, (keys, values) in enumerate(slabs):
                output[own(step, request)] = attend_request(step, request, keys, values)
        useful = step.useful_tokens() * store.bytes_per_token
        copies = 0 if step.softcap is None else widening(useful, store.keys.element_size())
        return output, Bytes(useful, useful, useful + copies)


def _slab(step: Step, store: KVStore, request: int) -> tuple[Tensor, Tensor]:
    layout, first = step.layouts[request], step.first_readable(request)
    assert isinstance(layout, Region)
    return view(store, layout.first_slot + first, layout.end - first)


def _one_view(slabs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor] | None:
    """K and V of all requests, `[requests, kv_heads, tokens, head_dim]`, where one view of the store holds them."""
    if not slabs:
        return None
    offsets = [keys.storage_offset() for keys, _ in slabs]
    apart = offsets[1] - offsets[0] if len(offsets) > 1 else 0
    if any(keys.shape != slabs[0][0].shape for keys, _ in slabs) or apart < 0:
        return None
    if offsets != [offsets[0] + apart * request for request in range(len(slabs))]:
        return None
    keys, values = (each.as_strided((len(slabs), *each.shape), (apart, *each.stride())) for each in slabs[0])
    return keys, values
