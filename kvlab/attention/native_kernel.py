"""The native route's kernel: decode attention that walks segments of KV where they lie, without copying them.

A *segment* is a run of tokens whose rows are evenly spaced: a block of a table, a contiguous region, a piece of a ring.
A *row* is one query (all its heads) over consecutive segments, or over a part of them when a long context is split
between threads. Threads take (row, KV head) pairs. Keys are scored in tiles of 64, so that small blocks share one
softmax; the softmax is online: every tile brings the earlier sums to its maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
from numba import njit, prange

from kvlab.attention import simd, simd_ends
from kvlab.attention.simd import prefetch, scores, softmax, values
from kvlab.attention.simd_ends import give_out, take_in

TILE: Final = 64
PIECE: Final = 4
"""Keys scored, and asked for ahead, at once: more outstanding loads than that make the others wait."""
LOG2E: Final = math.log2(math.e)


@njit(boundscheck=False)
def walk(
    q, query, k, v, stored, segments, rows, row, within, row_stride, chunks, scale, softcap, sums, state, group,
    pairs,
):  # fmt: skip
    """One row and KV head: unnormalised `sums` `[every * dim]`; `state` holds, per query head, the running maximum,
    the running sum, the rescale factor, and 1 where nothing is to be rescaled."""
    heads, dim = len(group), 32 * len(pairs)
    every = chunks * heads
    factor = np.float32(LOG2E) if softcap > 0 else np.float32(LOG2E) * scale
    weights = np.empty(every * TILE, np.float32)
    state[:every], state[every : 2 * every] = np.float32(-1e30), np.float32(0)
    state[3 * every :] = np.float32(1)
    at, skip, left = rows[row, 1], rows[row, 2], rows[row, 3]
    while left > 0:
        begin, begin_skip, keys = at, skip, 0
        while keys < TILE and left > 0:
            count = min(segments[at, 1] - skip, TILE - keys, left, PIECE)
            first = segments[at, 0] + within + skip * row_stride
            left -= count
            skip += count
            if skip == segments[at, 1]:
                at, skip = at + 1, 0
            if row_stride == dim:
                prefetch(v, first, stored, count * dim)
                if left > 0:
                    ahead = min(segments[at, 1] - skip, PIECE)
                    prefetch(k, segments[at, 0] + within + skip * row_stride, stored, ahead * dim)
            for chunk in range(chunks):
                h = chunk * heads
                place = h * TILE + keys
                scores(q, query + h * dim, k, first, stored, count, row_stride, weights, place, TILE, group, pairs)
            keys += count
        padded = (keys + 15) // 16 * 16
        for h in range(every):
            weights[h * TILE + keys : h * TILE + padded] = -np.inf
            if softcap > 0:
                for i in range(h * TILE, h * TILE + keys):
                    weights[i] = softcap * np.float32(math.tanh(weights[i] * scale / softcap))
        for chunk in range(chunks):
            h = chunk * heads
            softmax(weights, h * TILE, padded, TILE, factor, state, h, every + h, 2 * every + h, group)
        done, rescale = 0, 2 * every
        while done < keys:
            count = min(segments[begin, 1] - begin_skip, keys - done)
            first = segments[begin, 0] + within + begin_skip * row_stride
            for chunk in range(chunks):
                h = chunk * heads
                values(
                    weights, h * TILE + done, TILE, v, first, stored, count, row_stride, sums, h * dim,
                    state, rescale + h, group, pairs,
                )  # fmt: skip
            rescale = 3 * every
            done += count
            begin_skip += count
            if begin_skip == segments[begin, 1]:
                begin, begin_skip = begin + 1, 0


@njit(boundscheck=False)
def task(
    number, lanes, q, k, v, stored, segments, rows, row_stride, head_stride, kv_heads, chunks, scale, softcap,
    out, out_like, sums_out, maxima_out, totals_out, group, pairs,
):  # fmt: skip
    every, dim = chunks * len(group), 32 * len(pairs)
    # Threads take the tasks in equal runs: with a run for each thread's share of the heads, requests of different
    # lengths are shared out evenly.
    per_lane = kv_heads // lanes
    lane, rest = number // (len(rows) * per_lane), number % (len(rows) * per_lane)
    row, head = rest // per_lane, lane * per_lane + rest % per_lane
    sums, state = np.zeros(every * dim, np.float32), np.empty(4 * every, np.float32)
    place = (rows[row, 0] * kv_heads + head) * every
    walk(
        q, place * dim, k, v, stored, segments, rows, row, head * head_stride, row_stride, chunks, scale, softcap,
        sums, state, group, pairs,
    )  # fmt: skip
    if len(totals_out) == 0:
        for h in range(every):
            give_out(sums, h * dim, state[every + h], out, (place + h) * dim, out_like, stored, dim)
    else:
        part = (row * kv_heads + head) * every
        maxima_out[part : part + every] = state[:every]
        totals_out[part : part + every] = state[every : 2 * every]
        sums_out[part * dim : (part + every) * dim] = sums


@njit(boundscheck=False)
def join(number, sums, maxima, totals, query_parts, parts, heads, out, out_like, stored, pairs):
    dim = 32 * len(pairs)
    query, head = number // heads, number % heads
    mine = parts[query_parts[query] : query_parts[query + 1]]
    top = np.float32(-1e30)
    for row in mine:
        top = max(top, maxima[row * heads + head])
    total = np.float32(0)
    joined = np.zeros(dim, np.float32)
    for row in mine:
        at = row * heads + head
        factor = np.float32(1) if len(mine) == 1 else np.float32(2.0 ** (maxima[at] - top))
        total += totals[at] * factor
        for d in range(dim):
            joined[d] += sums[at * dim + d] * factor
    give_out(joined, 0, total, out, number * dim, out_like, stored, dim)


def _kernel(version: int) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """The kernels. `version` is in their closure so that the cache on disk forgets them when the micro-kernels change.
    Nothing else may be: a compiled function in there has another identity in each process, and no process would find
    what another compiled.

    K, V, queries and output are given as addresses, each kind of value by a number of its type: making arrays of
    tensors takes Python longer than a small step takes the kernel.
    """

    @njit(cache=True, boundscheck=False)
    def take(given, given_like, stored, q):
        """Fills `q` with the queries at the address `given`, as the kernel keeps them; False if one is not finite."""
        assert version
        return take_in(given, given_like, stored, len(q), q) == np.float32(0)

    @njit(parallel=True, cache=True, boundscheck=False)
    def attend(
        parallel, lanes, q, k, v, stored, segments, rows, row_stride, head_stride, kv_heads, chunks, scale, softcap,
        out, out_like, sums_out, maxima_out, totals_out, group, pairs,
    ):  # fmt: skip
        """Fills `out` `[queries, kv_heads, chunks * group, head_dim]`, an address, where each query is one row. Where
        queries are in parts, fills `sums_out` `[rows, kv_heads, chunks * group, head_dim]` with unnormalised sums, and
        `maxima_out` and `totals_out` `[rows, kv_heads, chunks * group]` (maxima in powers of two)."""
        assert version
        if parallel:
            for number in prange(len(rows) * kv_heads):
                task(
                    number, lanes, q, k, v, stored, segments, rows, row_stride, head_stride, kv_heads, chunks, scale,
                    softcap, out, out_like, sums_out, maxima_out, totals_out, group, pairs,
                )  # fmt: skip
        else:
            for number in range(len(rows) * kv_heads):
                task(
                    number, lanes, q, k, v, stored, segments, rows, row_stride, head_stride, kv_heads, chunks, scale,
                    softcap, out, out_like, sums_out, maxima_out, totals_out, group, pairs,
                )  # fmt: skip

    @njit(parallel=True, cache=True, boundscheck=False)
    def merge(parallel, sums, maxima, totals, query_parts, parts, heads, out, out_like, stored, pairs):
        """Joins the parts of each query by their maxima: `out` `[queries, heads, dim]`, an address.

        The parts of query i are the rows `parts[query_parts[i] : query_parts[i + 1]]`.
        """
        assert version
        if parallel:
            for number in prange((len(query_parts) - 1) * heads):
                join(number, sums, maxima, totals, query_parts, parts, heads, out, out_like, stored, pairs)
        else:
            for number in range((len(query_parts) - 1) * heads):
                join(number, sums, maxima, totals, query_parts, parts, heads, out, out_like, stored, pairs)

    return take, attend, merge


_SOURCES: Final = [Path(each).read_bytes() for each in (simd.__file__, simd_ends.__file__)]
take, attend, merge = _kernel(crc32(b"".join(_SOURCES)) | 1)
