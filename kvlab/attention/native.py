"""The route `native`: a Numba kernel that walks tables, regions and rings where they lie."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Final, NamedTuple, TypeAlias

import numba
import numpy as np
import torch
from torch import Tensor

from kvlab.attention.checking import accept_but_nan, not_finite, refuse_nan
from kvlab.attention.gather import Gather
from kvlab.attention.native_kernel import attend, merge, take
from kvlab.attention.native_plan import NativePlan, native_plan, strides
from kvlab.attention.simd import PAIR
from kvlab.attention.step import Bytes, Step, Takes, Trace
from kvlab.attention.store import FP8, KVStore
from kvlab.errors import InvalidInput

Number: TypeAlias = np.uint16 | np.int16 | np.float32 | np.uint8
KINDS: Final = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", FP8: "fp8"}
LIKE: Final[dict[torch.dtype, Number]] = {
    torch.bfloat16: np.uint16(0), torch.float16: np.int16(0), torch.float32: np.float32(0), FP8: np.uint8(0)
}  # fmt: skip
"""A number of the type that stands for a dtype in `simd`."""
SHORT_CHUNK: Final = 8
"""Queries of a request up to which each reads the KV on its own; longer chunks are bound by arithmetic."""
SERIAL_WORK: Final = 1 << 20
"""Multiplications of a query's value with a key's up to which waking the other threads costs more than it gains."""


class _Form(NamedTuple):
    """The types by which a compiled kernel is chosen, and the turns it takes over a KV head's query heads."""

    given: Number
    stored: Number
    group: tuple[int, ...]
    pairs: tuple[int, ...]
    chunks: int


class Native:
    """Decode and short chunks on the CPU: no copy of KV, one read of it per query, threads over (query, KV head).

    Takes every layout, head_dim a multiple of 32, any number of query heads per KV head. A request with more than 8
    queries (a prompt chunk) is bound by arithmetic: its KV is gathered once and left to the matrix units (`Gather`).
    A small step is computed on one thread, with the same result bit for bit.

    The kernel is compiled once per (dtypes, query heads per load, head_dim) and cached on disk, beside the package or
    in NUMBA_CACHE_DIR, which several users may share; `announce` is told before a call that may compile. The scratch
    memory stays on the route, so a route is for one thread.
    """

    name = "native"
    takes = Takes(head_dim_multiple=PAIR)

    def __init__(self, announce: Callable[[str], None] | None = None) -> None:
        self._announce = announce
        self._forms: dict[tuple[torch.dtype, torch.dtype, int, int], _Form] = {}
        self._told: set[tuple[str, int, int]] = set()
        self._scratch: dict[str, np.ndarray[tuple[int], np.dtype[np.float32]]] = {}
        self._chunks = Gather()

    def __call__(self, step: Step, store: KVStore, trace: Trace | None = None) -> tuple[Tensor, Bytes]:
        """See `Route`."""
        accept_but_nan(self, step, store)
        if step.queries.device.type != "cpu":
            raise InvalidInput(f"native runs on the CPU; the queries are on {step.queries.device}; use gather")
        if not step.requests:
            return torch.empty_like(step.queries), Bytes(0, 0, 0)
        short, long = step.derived.once("short and long", lambda: _short_and_long(step))
        if not long:
            return self._walk(step, store, trace)
        refuse_nan(step)
        if not short:
            return self._chunks.answer(step, store, trace)
        output, total = torch.empty_like(step.queries), Bytes(0, 0, 0)
        for requests, route in ((long, self._chunks.answer), (short, self._walk)):
            told = None if trace is None else lambda i, slots, names=requests: trace(names[i], slots)
            part, tokens = step.only(requests)
            output[tokens], read = route(part, store, told)
            total = Bytes(*(a + b for a, b in zip(total, read, strict=True)))
        return output, total

    def _walk(self, step: Step, store: KVStore, trace: Trace | None) -> tuple[Tensor, Bytes]:
        keys, values, queries = store.keys, store.values, step.queries.contiguous()
        _, heads, size, dim = keys.shape
        if keys.stride()[1:] != (size * dim, dim, 1) or keys.stride() != values.stride():
            raise InvalidInput("native walks blocks that are contiguous in K and V; this store's are not")
        every = queries.shape[1] // heads
        form = self._form(queries.dtype, keys.dtype, every, dim)
        plan = step.derived.once(
            ("native", heads, size, dim, store.block_rows, keys.dtype), lambda: native_plan(step, store)
        )
        q = self._floats("queries", queries.numel())
        if not take(queries.data_ptr(), form.given, form.stored, q):
            raise not_finite()

        threads = _threads()
        parallel = threads > 1 and plan.tokens * queries.shape[1] * dim > SERIAL_WORK
        output = torch.empty_like(queries)
        slot, _, head = strides(store)
        passes = [(keys, values, plan.stored, slot, head)]
        if plan.own is not None:
            k, v = (each.to(keys.dtype).contiguous() for each in (step.keys, step.values))
            passes.append((k, v, plan.own, heads * dim, dim))
        parts = 0 if plan.joins is None else len(plan.joins.parts) * queries.shape[1]
        sums, maxima, totals = (
            self._floats(name, count) for name, count in (("sums", parts * dim), ("maxima", parts), ("totals", parts))
        )
        begin = 0
        for k, v, walked, row_stride, head_stride in passes:
            attend(
                parallel, gcd(heads, threads), q, k.data_ptr(), v.data_ptr(), form.stored, walked.segments, walked.rows,
                row_stride, head_stride, heads, form.chunks, np.float32(step.scale), np.float32(step.softcap or 0.0),
                output.data_ptr(), form.given, sums[begin * dim :], maxima[begin:], totals[begin:], form.group,
                form.pairs,
            )  # fmt: skip
            begin += len(walked.rows) * queries.shape[1]
        if plan.joins is not None:
            merge(
                parallel, sums, maxima, totals, plan.joins.starts, plan.joins.parts, queries.shape[1],
                output.data_ptr(), form.given, form.stored, form.pairs,
            )  # fmt: skip
        if trace is not None:
            _trace(step, plan, trace)
        return output, plan.bytes

    def _floats(self, name: str, count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        """Scratch memory, contents undefined."""
        held = self._scratch.get(name)
        if held is None or len(held) < count:
            held = self._scratch[name] = np.empty(1 << max(0, count - 1).bit_length(), np.float32)
        return held[:count]

    def _form(self, given: torch.dtype, stored: torch.dtype, every: int, dim: int) -> _Form:
        form = self._forms.get((given, stored, every, dim))
        if form is None:
            group = next(size for size in (4, 3, 2, 1) if every % size == 0)
            form = _Form(LIKE[given], LIKE[stored], (0,) * group, (0,) * (dim // PAIR), every // group)
            self._forms[given, stored, every, dim] = form
            self._tell(KINDS[stored], group, dim)
        return form

    def _tell(self, kind: str, group: int, dim: int) -> None:
        key = (kind, group, dim)
        if key not in self._told:
            self._told.add(key)
            if self._announce is not None:
                self._announce(
                    f"native: loading the kernel for {kind}, {group} heads at once, head_dim {dim}; "
                    "where it is not in the cache yet, compiling takes about 5 s"
                )


def _threads() -> int:
    """Numba's threads, as many as torch's where it has them."""
    wanted: int = min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)
    if numba.get_num_threads() != wanted:
        numba.set_num_threads(wanted)
    return wanted


def _short_and_long(step: Step) -> tuple[list[int], list[int]]:
    short = [request for request in range(step.requests) if step.query_tokens(request) <= SHORT_CHUNK]
    return short, [request for request in range(step.requests) if step.query_tokens(request) > SHORT_CHUNK]


def _trace(step: Step, plan: NativePlan, trace: Trace) -> None:
    starts, held, reads = step.starts, plan.held, plan.reads
    slots = np.concatenate([np.arange(a, a + n) for a, n in zip(held.first, held.tokens, strict=True)])
    before = np.concatenate(([0], np.cumsum(held.tokens)))
    for request in range(step.requests):
        mine = (reads.query >= starts[request]) & (reads.query < starts[request + 1])
        begins = before[reads.segment[mine]] + reads.skip[mine]
        spans = [slots[a : a + n] for a, n in zip(begins, reads.tokens[mine], strict=True)]
        trace(request, np.unique(np.concatenate(spans)))
