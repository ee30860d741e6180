"""Decode steps to try a route on: random KV in shuffled blocks, and how far a route may be from the reference."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from kvlab.attention.reading import stored_slots
from kvlab.attention.step import Step
from kvlab.attention.store import KVStore
from kvlab.policies.layout import Layout, Table


class Geometry(NamedTuple):
    """Heads of a layer and tokens of a block."""

    q_heads: int
    kv_heads: int
    head_dim: int
    block_size: int


@dataclass(frozen=True)
class Case:
    """A step and the store it reads."""

    step: Step
    store: KVStore

    def to(self, device: torch.device) -> Case:
        """The same values on a device."""
        old, step = self.store, self.step
        store = KVStore(old.slots, old.block_size, old.kv_heads, old.head_dim, dtype=old.keys.dtype, device=device)
        store.keys.copy_(old.keys)
        store.values.copy_(old.values)
        queries, keys, values = (each.to(device) for each in (step.queries, step.keys, step.values))
        return Case(replace(step, queries=queries, keys=keys, values=values), store)


def decode_case(
    lengths: Sequence[int],
    geometry: Geometry,
    dtype: torch.dtype,
    *,
    window_tokens: int | None = None,
    softcap: float | None = None,
    stored: torch.dtype | None = None,
    spare_blocks: int = 2,
    seed: int = 0,
) -> Case:
    """One query for each request, on the CPU. `spare_blocks` belong to nobody and hold NaN. `stored` is the store's
    dtype where it is not the operands'."""
    draw, shuffle = torch.Generator().manual_seed(seed), random.Random(seed)
    q_heads, kv_heads, head_dim, size = geometry
    owned = sum(-(-length // size) for length in lengths)
    blocks = list(range(owned + spare_blocks))
    shuffle.shuffle(blocks)
    store = KVStore(len(blocks) * size, size, kv_heads, head_dim, dtype=stored or dtype)
    for tensor in (store.keys, store.values):
        tensor[: store.blocks] = torch.randn(store.blocks, *tensor.shape[1:], generator=draw).to(tensor.dtype)
        tensor[blocks[owned:]] = torch.tensor(torch.nan).to(tensor.dtype)
    tables, first = [], 0
    for length in lengths:
        last = first + -(-length // size)
        tables.append(Table(tuple(blocks[first:last]), size, 0, length))
        first = last

    def tokens(heads: int) -> Tensor:
        return torch.randn(len(lengths), heads, head_dim, generator=draw).to(dtype)

    queries, keys, values = tokens(q_heads), tokens(kv_heads), tokens(kv_heads)
    store.write(keys, values, last_slots(tables))
    starts = range(len(lengths) + 1)
    scale = head_dim**-0.5
    return Case(Step(queries, keys, values, starts, list(lengths), tables, scale, window_tokens, softcap), store)


def last_slots(layouts: Sequence[Layout]) -> Tensor:
    """Slot of the last position of each request, where a decode step writes, int64 `[requests]`."""
    return torch.tensor([int(layout.slots()[-1]) for layout in layouts])


def tolerance(case: Case) -> float:
    """How far from the float64 reference a route may be: (2e-6 + 4 eps max|logit|) max|v| in float32, 2e-2 max|v| in
    16 bits. The logits are those before a soft-cap."""
    step, store = case.step, case.store
    logit = value = 0.0
    for request in range(step.requests):
        keys, values = (each.double() for each in store.read(stored_slots(step, request)))
        queries = step.queries[request].double().view(store.kv_heads, step.group, -1)
        logit = max(logit, float(torch.einsum("hgd,khd->hgk", queries, keys).abs().max()) * step.scale)
        value = max(value, float(values.abs().max()))
    if step.queries.dtype == torch.float32:
        return (2e-6 + 4 * torch.finfo(torch.float32).eps * logit) * value
    return 2e-2 * value
