"""Attention steps to test routes with: real stores in which every slot that no request owns holds NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from kvlab.attention.reading import own, readable
from kvlab.attention.reference import exact
from kvlab.attention.step import Step, Takes
from kvlab.attention.store import FP8, KVStore
from kvlab.policies.layout import Layout, Region, Ring, Table

Kind = Literal["table", "ring", "region", "slab"]
LAYOUT = {"table": Table, "ring": Ring, "region": Region, "slab": Region}


@dataclass(frozen=True)
class Case:
    """Everything a step is made from; `requests` are (tokens before the step, tokens of the step)."""

    requests: tuple[tuple[int, int], ...]
    kind: Kind = "table"
    block_size: int = 16
    kv_heads: int = 2
    group: int = 2
    head_dim: int = 32
    window: int | None = None
    softcap: float | None = None
    dtype: torch.dtype = torch.float32
    fp8: bool = False
    spread: float = 4.0
    seed: int = 0
    shared: int | None = None
    """The store is a view into memory whose rows are so many heads longer than its blocks; None: it has its own."""

    @property
    def lengths(self) -> list[int]:
        return [past + new for past, new in self.requests]

    def contents(self) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Queries `[tokens, q_heads, head_dim]` and per request K and V `[length, kv_heads, head_dim]`; the largest
        logit is about `spread`."""
        random = torch.Generator().manual_seed(self.seed)
        tokens = sum(new for _, new in self.requests)
        queries = torch.randn(tokens, self.kv_heads * self.group, self.head_dim, generator=random)
        kv = torch.randn(2, sum(self.lengths), self.kv_heads, self.head_dim, generator=random)
        queries = (queries * self.spread / 2.5).to(self.dtype)  # a logit's deviation is that of a query's value
        kv = kv.to(FP8 if self.fp8 else self.dtype).to(self.dtype)
        pairs = [(keys, values) for keys, values in zip(*(each.split(self.lengths) for each in kv), strict=True)]
        return queries, pairs

    def build(self, order: int = 0) -> tuple[Step, KVStore]:
        """The step over a store in which `order` shuffles where the requests lie."""
        queries, pairs = self.contents()
        starts = np.cumsum([0, *(new for _, new in self.requests)]).tolist()
        store, layouts = self.place(np.random.default_rng(order))
        store.keys[:-1], store.values[:-1] = torch.nan, torch.nan
        news = []
        for (past, _), layout, (keys, values) in zip(self.requests, layouts, pairs, strict=True):
            store.write(keys[layout.start : layout.end], values[layout.start : layout.end], layout.slots())
            news.append((keys[past:], values[past:]))
        none = queries.new_zeros(0, self.kv_heads, self.head_dim)
        keys, values = (torch.cat([none, *(pair[i] for pair in news)]) for i in (0, 1))
        scale = self.head_dim**-0.5
        step = Step(queries, keys, values, starts, self.lengths, layouts, scale, self.window, self.softcap)
        return step, store

    def start(self, past: int) -> int:
        """First position that a request's first query reads."""
        return 0 if self.window is None else max(0, past - self.window + 1)

    def place(self, random: np.random.Generator) -> tuple[KVStore, list[Layout]]:
        """A store with room to spare, and where the requests lie in it."""
        match self.kind:
            case "table":
                return self._tables(random)
            case "ring":
                return self._rings(random)
            case "region":
                return self._regions(random)
            case "slab":
                return self._slabs(random)

    def _store(self, blocks: int, size: int) -> KVStore:
        dtype = FP8 if self.fp8 else self.dtype
        if self.shared is None:
            return KVStore(max(1, blocks) * size, size, self.kv_heads, self.head_dim, dtype=dtype)
        half = self.kv_heads * size * self.head_dim
        apart = 2 * half + self.shared * size * self.head_dim
        count = max(1, blocks) + 1
        memory = torch.full((count * apart + 3,), torch.nan).to(dtype)
        shape, strides = (count, self.kv_heads, size, self.head_dim), (apart, size * self.head_dim, self.head_dim, 1)
        keys, values = (memory.as_strided(shape, strides, 3 + each) for each in (0, half))
        keys[-1], values[-1] = 0, 0
        return KVStore.over(keys, values)

    def _tables(self, random: np.random.Generator) -> tuple[KVStore, list[Layout]]:
        needed = [-(-length // self.block_size) for length in self.lengths]
        blocks = sum(needed) + 3
        free = random.permutation(blocks).tolist()
        layouts: list[Layout] = []
        for (past, new), count in zip(self.requests, needed, strict=True):
            start = self.start(past)
            dead = start // self.block_size
            # Entries before the window name no block any more: reading them would be an error.
            table = [-1] * dead + [free.pop() for _ in range(count - dead)]
            layouts.append(Table(table, self.block_size, start, past + new))
        return self._store(blocks, self.block_size), layouts

    def _rings(self, random: np.random.Generator) -> tuple[KVStore, list[Layout]]:
        size = self.window or max([1, *self.lengths])
        rings = random.permutation(len(self.requests) + 2)
        layouts = [
            Ring(int(ring) * size, size, max(0, past - size), past)
            for (past, _), ring in zip(self.requests, rings, strict=False)
        ]
        return self._store(len(rings), size), list(layouts)

    def _regions(self, random: np.random.Generator) -> tuple[KVStore, list[Layout]]:
        layouts: dict[int, Layout] = {}
        first = int(random.integers(4))
        for request in random.permutation(len(self.requests)).tolist():
            past, new = self.requests[request]
            layouts[request] = Region(first, self.start(past), past + new)
            first += past + new + int(random.integers(5))
        return self._store(first + 3, 1), [layouts[request] for request in range(len(self.requests))]

    def _slabs(self, random: np.random.Generator) -> tuple[KVStore, list[Layout]]:
        size = max([1, *self.lengths]) + 3
        slabs = random.permutation(len(self.requests) + 2)
        layouts = [
            Region(int(slab) * size, self.start(past), past + new)
            for (past, new), slab in zip(self.requests, slabs, strict=False)
        ]
        return self._store(len(slabs), size), list(layouts)


def dense(case: Case) -> Tensor:
    """The answer in float64 from the contents alone, one query and one head at a time: no store, no layout."""
    queries, pairs = case.contents()
    output, row = torch.empty(queries.shape, dtype=torch.float64), 0
    for (past, new), (keys, values) in zip(case.requests, pairs, strict=True):
        for position in range(past, past + new):
            first = 0 if case.window is None else max(0, position - case.window + 1)
            for head in range(queries.shape[1]):
                k, v = (each[first : position + 1, head // case.group].double() for each in (keys, values))
                logits = k @ queries[row, head].double() * case.head_dim**-0.5
                if case.softcap is not None:
                    logits = case.softcap * torch.tanh(logits / case.softcap)
                output[row, head] = torch.softmax(logits, 0) @ v
            row += 1
    return output


def assert_close(step: Step, store: KVStore, output: Tensor, requests: Sequence[int] | None = None) -> None:
    """Every request's output within the tolerance of its dtype of the float64 answer.

    float32: (2e-6 + 4 eps max|logit|) max|v|. 16 bits: 2e-2 max|v| (bf16), 4e-3 max|v| (fp16).
    """
    assert output.dtype == step.queries.dtype
    assert output.shape == step.queries.shape
    for request in range(step.requests) if requests is None else requests:
        answer = exact(step, store, request)
        found = output[own(step, request)].double()
        logit, value = largest(step, store, request)
        allowed = {
            torch.float32: 2e-6 + 4 * torch.finfo(torch.float32).eps * logit, torch.bfloat16: 2e-2, torch.float16: 4e-3
        }[step.queries.dtype]  # fmt: skip
        error = float((found - answer).abs().max())
        assert error <= allowed * value, f"request {request}: error {error:.3g}, allowed {allowed * value:.3g}"


def largest(step: Step, store: KVStore, request: int) -> tuple[float, float]:
    """Largest absolute logit (before the soft-cap) and value among what a request reads."""
    layout = step.layouts[request]
    keys, values = store.read(layout.slots()[step.first_readable(request) - layout.start :])
    if isinstance(layout, Ring):
        keys = torch.cat([keys.to(step.keys.dtype), step.keys[own(step, request)]])
        values = torch.cat([values.to(step.values.dtype), step.values[own(step, request)]])
    logits = torch.einsum("qhgd,khd->qkhg", step.grouped(request).double(), keys.double()) * step.scale
    return float(logits[readable(step, request)].abs().max()), float(values.double().abs().max())


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@st.composite
def cases(draw: st.DrawFn, takes: Takes, *, windows: bool = True) -> Case:
    """Steps that a route takes: ragged, around block and window boundaries, of every dtype and spread."""
    kinds: list[Kind] = [kind for kind, layout in LAYOUT.items() if layout in takes.layouts]
    kind = draw(st.sampled_from(kinds))
    size = draw(st.sampled_from([1, 2, 3, 8, 16, 32, 64]))
    window = draw(st.none() | st.sampled_from([1, 2, size, size + 1, 7, 16, 33])) if windows else None
    edge = window or size
    length = st.sampled_from([1, 2, max(1, edge - 1), edge, edge + 1, 2 * edge, 2 * size + 1]) | st.integers(1, 90)
    new = st.just(1) | (st.integers(1, 40) if takes.many_queries else st.nothing())
    requests = draw(
        st.lists(st.tuples(length, new).map(lambda pair: (max(0, pair[0] - pair[1]), pair[1])), min_size=1, max_size=5)
    )
    multiple = takes.head_dim_multiple
    return Case(
        tuple(requests),
        kind=kind,
        block_size=size,
        kv_heads=draw(st.integers(1, 3)),
        group=draw(st.sampled_from([1, 2, 4])),
        head_dim=multiple if multiple > 1 else draw(st.sampled_from([1, 8, 20, 64])),
        window=window,
        softcap=draw(st.none() | st.sampled_from([5.0, 50.0])),
        dtype=draw(st.sampled_from(DTYPES)),
        fp8=FP8 in takes.stored and draw(st.booleans()),
        spread=draw(st.sampled_from([0.0, 1.0, 30.0, 2000.0])),
        seed=draw(st.integers(0, 2**16)),
        shared=draw(st.none() | st.integers(0, 3)) if kind in ("table", "ring") else None,
    )
