"""Attention over contiguous KV, as servers did it before paging: torch's operator reads each slab in place."""

from __future__ import annotations

from typing import NamedTuple

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
        if trace is not None:
            for request in range(step.requests):
                trace(request, stored_slots(step, request))
        slabs, together = step.derived.once(("slabs", store.keys.shape[1:]), lambda: _slabs(step, store))
        if together is not None:
            queries = step.queries.reshape(step.requests, store.kv_heads, step.group, store.head_dim)
            keys, values = together.of(store.keys), together.of(store.values)
            output = attend(queries, keys, values, None, step.scale, step.softcap).flatten(1, 2)
        else:
            output = torch.empty_like(step.queries)
            for request, slab in enumerate(slabs):
                keys, values = slab.of(store.keys), slab.of(store.values)
                output[own(step, request)] = attend_request(step, request, keys, values)
        useful = step.useful_tokens() * store.bytes_per_token
        copies = 0 if step.softcap is None else widening(useful, store.keys.element_size())
        return output, Bytes(useful, useful, useful + copies)


class _Slab(NamedTuple):
    """A view of K or V, by its shape, its strides and its first value."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    first: int

    def of(self, stored: Tensor) -> Tensor:
        """The view."""
        return stored.as_strided(self.shape, self.strides, stored.storage_offset() + self.first)


def _slabs(step: Step, store: KVStore) -> tuple[list[_Slab], _Slab | None]:
    """K and V of each request, `[kv_heads, tokens, head_dim]`, and for a decode step all of them, `[requests, kv_heads,
    tokens, head_dim]`, where one view of the store holds them."""
    slabs = []
    for request, layout in enumerate(step.layouts):
        assert isinstance(layout, Region)
        first = step.first_readable(request)
        keys, _ = view(store, layout.first_slot + first, layout.end - first)
        slabs.append(_Slab(keys.shape, keys.stride(), int(keys.storage_offset() - store.keys.storage_offset())))
    return slabs, _together(slabs) if step.decodes else None


def _together(slabs: list[_Slab]) -> _Slab | None:
    if not slabs:
        return None
    (shape, strides, first), firsts = slabs[0], [slab.first for slab in slabs]
    apart = firsts[1] - first if len(slabs) > 1 else 0
    if any(slab.shape != shape for slab in slabs) or apart < 0:
        return None
    if firsts != [first + apart * request for request in range(len(slabs))]:
        return None
    return _Slab((len(slabs), *shape), (apart, *strides), first)
