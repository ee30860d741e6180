"""Attention over scattered blocks in plain torch: the online softmax walks a request's blocks where they lie."""

from __future__ import annotations

import torch
from torch import Tensor

from kvlab.attention.checking import accept
from kvlab.attention.dense import bias, capped
from kvlab.attention.online_softmax import nothing, output, see
from kvlab.attention.reading import own, pieces, readable, stored_slots
from kvlab.attention.step import Bytes, Step, Takes, Trace
from kvlab.attention.store import KVStore


class Blockwise:
    """The form to read and to rebuild; `native` does the same in compiled code. Any layout; float32 inside.

    Bytes: useful = padded = physical, the readable tokens: only filled slots are read, and a block converted to float32
    stays in the cache.
    """

    name = "blockwise"
    takes = Takes()

    def __call__(self, step: Step, store: KVStore, trace: Trace | None = None) -> tuple[Tensor, Bytes]:
        """See `Route`."""
        accept(self, step, store)
        result = torch.empty_like(step.queries)
        for request in range(step.requests):
            if trace is not None:
                trace(request, stored_slots(step, request))
            result[own(step, request)] = _request(step, store, request).to(result.dtype)
        useful = step.useful_tokens() * store.bytes_per_token
        return result, Bytes(useful, useful, useful)


def _request(step: Step, store: KVStore, request: int) -> Tensor:
    """One request's output, `[queries, q_heads, head_dim]`, in float32."""
    queries = step.grouped(request).float().permute(1, 2, 0, 3)
    masked = None if queries.shape[2] == 1 else bias(readable(step, request).to(queries.device), torch.float32)
    seen, read = nothing(queries), 0
    for _, keys, values in pieces(step, store, request):
        logits = capped((queries @ keys.float().mT[:, None]) * step.scale, step.softcap)
        if masked is not None:
            logits = logits + masked[:, read : read + keys.shape[1]]
        seen = see(seen, logits, values.float()[:, None])
        read += keys.shape[1]
    return output(seen).permute(2, 0, 1, 3).flatten(1, 2)
