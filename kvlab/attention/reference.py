"""The dense answer in float64, written as plainly as it can be: what every other route is compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from kvlab.attention.checking import accept
from kvlab.attention.reading import own, readable, stored_slots
from kvlab.attention.step import Bytes, Step, Takes, Trace
from kvlab.attention.store import KVStore
from kvlab.policies.layout import Ring


class Reference:
    """softmax(scale q k) v per request, with an explicit mask, from any layout. Slow on purpose.

    Bytes: `useful` and `padded` are the readable tokens; `physical` reads them as stored, writes them as float64 and
    reads those.
    """

    name = "reference"
    takes = Takes()

    def __call__(self, step: Step, store: KVStore, trace: Trace | None = None) -> tuple[Tensor, Bytes]:
        """See `Route`."""
        accept(self, step, store)
        output = torch.empty_like(step.queries)
        for request in range(step.requests):
            slots = stored_slots(step, request)
            if trace is not None:
                trace(request, slots)
            output[own(step, request)] = exact(step, store, request).to(output.dtype)
        tokens = step.useful_tokens()
        useful = tokens * store.bytes_per_token
        return output, Bytes(useful, useful, useful + 2 * tokens * 2 * store.kv_heads * store.head_dim * 8)


def exact(step: Step, store: KVStore, request: int) -> Tensor:
    """One request's output in float64, `[queries, q_heads, head_dim]`; the step is not checked."""
    keys, values = (each.double() for each in store.read(stored_slots(step, request)))
    rows = own(step, request)
    if isinstance(step.layouts[request], Ring):
        keys = torch.cat([keys, step.keys[rows].double()])
        values = torch.cat([values, step.values[rows].double()])
    queries = step.grouped(request).double()
    logits = torch.einsum("qhgd,khd->hgqk", queries, keys) * step.scale
    if step.softcap is not None:
        logits = step.softcap * torch.tanh(logits / step.softcap)
    logits = logits.masked_fill(~readable(step, request).to(logits.device), -torch.inf)
    return torch.einsum("hgqk,khd->qhgd", logits.softmax(-1), values).flatten(1, 2)
