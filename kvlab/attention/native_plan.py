"""What the native kernel needs to know of a step besides its operands: made once, shared by the layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvlab.attention.segments import Ints, Rows, Segments, rows, segments
from kvlab.attention.step import Bytes, Step
from kvlab.attention.store import KVStore
from kvlab.policies.layout import Ring


@dataclass(frozen=True)
class Pass:
    """One walk of the kernel.

    `segments` int64 `[segments, 2]`: place of the first value, tokens. `rows` int64 `[rows, 4]`: query, segment, skip,
    tokens (see `Rows`).
    """

    segments: Ints
    rows: Ints


@dataclass(frozen=True)
class Joins:
    """The rows of both passes by query: those of query i are `parts[starts[i] : starts[i + 1]]`."""

    parts: Ints
    starts: Ints


@dataclass(frozen=True)
class NativePlan:
    """The walk over the store and, where there are rings, the one over the step's own tokens; `joins` is None where
    each query is one row. `held` and `reads` say the same of the store in tokens."""

    stored: Pass
    own: Pass | None
    joins: Joins | None
    tokens: int
    bytes: Bytes
    held: Segments
    reads: Rows


def native_plan(step: Step, store: KVStore) -> NativePlan:
    """The plan of a step over a store with these blocks, heads and dtype."""
    heads, dim, size = store.kv_heads, store.head_dim, store.block_size
    slot, block, _ = strides(store)
    held = segments(step, store)
    reads = rows(step, held, heads)
    stored = _pass(held.first // size * block + held.first % size * slot, held.tokens, reads)
    own = None
    if any(isinstance(layout, Ring) for layout in step.layouts):
        starts = np.asarray(step.starts, np.int64)
        own = _pass(starts[:-1] * heads * dim, np.diff(starts), _own_rows(step))
    queries = np.concatenate([each.rows[:, 0] for each in (stored, own) if each is not None])
    joins = None
    if own is not None or len(queries) != step.starts[-1]:
        parts = np.argsort(queries, kind="stable")
        joins = Joins(parts, np.searchsorted(queries[parts], np.arange(step.starts[-1] + 1)))
    tokens = int(stored.rows[:, 3].sum()) + (0 if own is None else int(own.rows[:, 3].sum()))
    read = tokens * store.bytes_per_token
    useful = step.useful_tokens() * store.bytes_per_token
    return NativePlan(stored, own, joins, tokens, Bytes(useful, read, read), held, reads)


def strides(store: KVStore) -> tuple[int, int, int]:
    """Values from a token to the next within a run, from a block to the next, from a head to the next."""
    block, head, slot, _ = store.keys.stride()
    return (block, block, store.head_dim) if store.block_size == 1 else (slot, block, head)


def _pass(first: Ints, tokens: Ints, reads: Rows) -> Pass:
    return Pass(
        np.ascontiguousarray(np.stack([first, tokens], 1), np.int64),
        np.ascontiguousarray(np.stack([reads.query, reads.segment, reads.skip, reads.tokens], 1), np.int64),
    )


def _own_rows(step: Step) -> Rows:
    """Each query of a ring over the step's own tokens up to itself."""
    query, segment, skip, tokens = [], [], [], []
    for request, layout in enumerate(step.layouts):
        if isinstance(layout, Ring):
            for i in range(step.query_tokens(request)):
                first = 0 if step.window_tokens is None else max(0, i + 1 - step.window_tokens)
                query.append(step.starts[request] + i)
                segment.append(request)
                skip.append(first)
                tokens.append(i + 1 - first)
    return Rows(*(np.array(each, np.int64) for each in (query, segment, skip, tokens)))
