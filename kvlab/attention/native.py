"""The route `native`: a Numba kernel that walks tables, regions and rings where they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numba
import numpy as np
import torch
from torch import Tensor

from kvlab.attention.checking import SERIAL, accept
from kvlab.attention.gather import Gather
from kvlab.attention.native_kernel import LOG2E, attend, merge
from kvlab.attention.segments import Rows, Segments, rows, segments
from kvlab.attention.simd import PAIR, lane_order
from kvlab.attention.step import Bytes, Step, Takes, Trace
from kvlab.attention.store import FP8, KVStore
from kvlab.errors import InvalidInput
from kvlab.policies.layout import Ring

BITS: Final = {torch.bfloat16: torch.uint16, torch.float16: torch.int16, torch.float32: torch.float32, FP8: torch.uint8}
KINDS: Final = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", FP8: "fp8"}


SHORT_CHUNK: Final = 8
"""Queries of a request up to which each reads the KV on its own; longer chunks are bound by arithmetic."""


class Native:
    """Decode and short chunks on the CPU: no copy of KV, one read of it per query, threads over (query, KV head).

    Takes every layout, head_dim a multiple of 32, any number of query heads per KV head. A request with more than 8
    queries (a prompt chunk) is bound by arithmetic: its KV is gathered once and left to the matrix units (`Gather`).

    The kernel is compiled once per (stored dtype, query heads per load, head_dim) and cached on disk, beside the
    package or in NUMBA_CACHE_DIR, which several users may share; `announce` is told before a call that may compile.
    """

    name = "native"
    takes = Takes(head_dim_multiple=PAIR)

    def __init__(self, announce: Callable[[str], None] | None = None) -> None:
        self._announce = announce
        self._ready: set[tuple[str, int, int]] = set()
        self._chunks = Gather()

    def __call__(self, step: Step, store: KVStore, trace: Trace | None = None) -> tuple[Tensor, Bytes]:
        """See `Route`."""
        accept(self, step, store)
        if step.queries.device.type != "cpu":
            raise InvalidInput(f"native runs on the CPU; the queries are on {step.queries.device}; use gather")
        if not step.requests:
            return torch.empty_like(step.queries), Bytes(0, 0, 0)
        long = [request for request in range(step.requests) if step.query_tokens(request) > SHORT_CHUNK]
        if not long:
            return self._walk(step, store, trace)
        if len(long) == step.requests:
            return self._chunks(step, store, trace)
        short = [request for request in range(step.requests) if step.query_tokens(request) <= SHORT_CHUNK]
        output, total = torch.empty_like(step.queries), Bytes(0, 0, 0)
        for requests, route in ((long, self._chunks), (short, self._walk)):
            told = None if trace is None else lambda i, slots, names=requests: trace(names[i], slots)
            part, tokens = step.only(requests)
            output[tokens], read = route(part, store, told)
            total = Bytes(*(a + b for a, b in zip(total, read, strict=True)))
        return output, total

    def _walk(self, step: Step, store: KVStore, trace: Trace | None) -> tuple[Tensor, Bytes]:
        kind, dim, heads = KINDS[store.keys.dtype], store.head_dim, store.kv_heads
        group = next(size for size in (4, 3, 2, 1) if step.group % size == 0)
        self._tell(kind, group, dim)
        numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))

        held = segments(step, store)
        passes = [(store.keys, store.values, held, rows(step, held, heads), _strides(store))]
        if any(isinstance(layout, Ring) for layout in step.layouts):
            new = Segments(*_own_tokens(step))
            operands = (step.keys.to(store.keys.dtype), step.values.to(store.keys.dtype))
            passes.append((*operands, new, _own_rows(step), (heads * dim, heads * dim, dim)))
        parts = np.concatenate([reads.query for _, _, _, reads, _ in passes])
        every = heads * step.group
        sums = np.empty(len(parts) * every * dim, np.float32)
        maxima, totals = np.empty(len(parts) * every, np.float32), np.empty(len(parts) * every, np.float32)
        order = lane_order(kind, dim)
        queries = np.take(_in_pieces(step.queries, torch.float32).numpy(), order, axis=2).reshape(-1)
        cap = step.softcap or 0.0
        begin = 0
        for keys, values, where, reads, (slot, block, head) in passes:
            end = begin + len(reads.query)
            attend(
                queries * np.float32(step.scale) if cap else queries, _bits(keys), _bits(values),
                _offsets(where.first, store, slot, block) if keys is store.keys else where.first * slot, where.tokens,
                reads.query, reads.segment, reads.skip, reads.tokens, slot, head, heads, step.group // group,
                np.float32(LOG2E * (1.0 if cap else step.scale)), np.float32(cap),
                sums[begin * every * dim :], maxima[begin * every :], totals[begin * every :],
                (0,) * group, (0,) * (dim // PAIR),
            )  # fmt: skip
            begin = end
        out = np.empty(step.queries.numel(), np.float32)
        by_query = np.argsort(parts, kind="stable")
        bounds = np.searchsorted(parts[by_query], np.arange(len(step.queries) + 1))
        merge(sums, maxima, totals, bounds, by_query, order, every, dim, out)
        if trace is not None:
            _trace(step, held, passes[0][3], trace)
        read = int(sum(reads.tokens.sum() for _, _, _, reads, _ in passes)) * store.bytes_per_token
        useful = step.useful_tokens() * store.bytes_per_token
        output = _in_pieces(torch.from_numpy(out), step.queries.dtype).view(step.queries.shape)
        return output, Bytes(useful, read, read)

    def _tell(self, kind: str, group: int, dim: int) -> None:
        key = (kind, group, dim)
        if key not in self._ready:
            self._ready.add(key)
            if self._announce is not None:
                self._announce(
                    f"native: loading the kernel for {kind}, {group} heads at once, head_dim {dim}; "
                    "where it is not in the cache yet, compiling takes about 5 s"
                )


def _in_pieces(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in another dtype, converted in pieces too small for torch's threads.

    After a parallel operation those stay awake for a while, on the cores that the kernel's threads need.
    """
    converted = torch.empty(tensor.shape, dtype=dtype)
    target, source = converted.view(-1), tensor.reshape(-1)
    for at in range(0, len(source), SERIAL):
        target[at : at + SERIAL].copy_(source[at : at + SERIAL])
    return converted


def _bits(tensor: Tensor) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
    flat: np.ndarray[tuple[int], np.dtype[np.generic]] = tensor.view(BITS[tensor.dtype]).reshape(-1).numpy()
    return flat


def _strides(store: KVStore) -> tuple[int, int, int]:
    """Values from a token to the next within a run, from a block to the next, from a head to the next."""
    dim, heads, size = store.head_dim, store.kv_heads, store.block_size
    return (heads * dim, heads * dim, dim) if size == 1 else (dim, heads * size * dim, size * dim)


def _offsets(first: np.ndarray, store: KVStore, slot: int, block: int) -> np.ndarray:
    offsets: np.ndarray = first // store.block_size * block + first % store.block_size * slot
    return offsets


def _own_tokens(step: Step) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    starts = np.asarray(step.starts, np.int64)
    counts = np.diff(starts)
    return starts[:-1], counts, np.arange(step.requests + 1), np.asarray(step.lengths, np.int64) - counts


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


def _trace(step: Step, held: Segments, reads: Rows, trace: Trace) -> None:
    starts: Sequence[int] = step.starts
    slots = np.concatenate([np.arange(a, a + n) for a, n in zip(held.first, held.tokens, strict=True)])
    before = np.concatenate(([0], np.cumsum(held.tokens)))
    for request in range(step.requests):
        mine = (reads.query >= starts[request]) & (reads.query < starts[request + 1])
        begins = before[reads.segment[mine]] + reads.skip[mine]
        spans = [slots[a : a + n] for a, n in zip(begins, reads.tokens[mine], strict=True)]
        trace(request, np.unique(np.concatenate(spans)))
