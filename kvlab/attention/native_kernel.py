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
from typing import Final
from zlib import crc32

import numpy as np
from numba import njit, prange

from kvlab.attention import simd
from kvlab.attention.simd import prefetch, scores, softmax, values

TILE: Final = 64
PIECE: Final = 16
"""Keys scored, and asked for ahead, at once; 64 were slower on every layout."""
LOG2E: Final = math.log2(math.e)


def _kernel(version: int) -> tuple[Callable[..., None], Callable[..., None]]:
    """The two kernels. `version` is in their closure so that the cache on disk forgets them when `simd` changes."""

    @njit(parallel=True, cache=True, boundscheck=False)
    def attend(
        q, k, v, seg_first, seg_tokens, row_query, row_seg, row_skip, row_tokens, row_stride, head_stride, kv_heads,
        chunks, scale, softcap, sums_out, maxima_out, totals_out, group, pairs,
    ):  # fmt: skip
        """Fills `sums_out` `[rows, kv_heads, chunks * group, head_dim]` with unnormalised sums, and `maxima_out` and
        `totals_out` `[rows, kv_heads, chunks * group]` (maxima in powers of two)."""
        assert version
        heads, dim = len(group), 32 * len(pairs)
        every = chunks * heads
        rows = len(row_query)
        for task in prange(rows * kv_heads):
            row, head = task // kv_heads, task % kv_heads
            weights = np.empty(every * TILE, np.float32)
            sums = np.zeros(every * dim, np.float32)
            # Per query head: running maximum, running sum, rescale factor, and 1 where nothing is to be rescaled.
            state = np.empty(4 * every, np.float32)
            state[:every], state[every : 2 * every] = np.float32(-1e30), np.float32(0)
            state[3 * every :] = np.float32(1)
            query = (row_query[row] * kv_heads + head) * every * dim
            within = head * head_stride
            at, skip, left = row_seg[row], row_skip[row], row_tokens[row]
            while left > 0:
                begin, begin_skip, keys = at, skip, 0
                while keys < TILE and left > 0:
                    count = min(seg_tokens[at] - skip, TILE - keys, left, PIECE)
                    first = seg_first[at] + within + skip * row_stride
                    left -= count
                    skip += count
                    if skip == seg_tokens[at]:
                        at, skip = at + 1, 0
                    if row_stride == dim:
                        prefetch(v, first, count * dim)
                        if left > 0:
                            ahead = min(seg_tokens[at] - skip, PIECE)
                            prefetch(k, seg_first[at] + within + skip * row_stride, ahead * dim)
                    for chunk in range(chunks):
                        h = chunk * heads
                        scores(
                            q,
                            query + h * dim,
                            k,
                            first,
                            count,
                            row_stride,
                            weights,
                            h * TILE + keys,
                            TILE,
                            group,
                            pairs,
                        )
                    keys += count
                padded = (keys + 15) // 16 * 16
                for h in range(every):
                    weights[h * TILE + keys : h * TILE + padded] = -np.inf
                    if softcap > 0:
                        for i in range(h * TILE, h * TILE + keys):
                            weights[i] = np.float32(softcap * math.tanh(weights[i] / softcap))
                for chunk in range(chunks):
                    h = chunk * heads
                    softmax(weights, h * TILE, padded, TILE, scale, state, h, every + h, 2 * every + h, group)
                done, rescale = 0, 2 * every
                while done < keys:
                    count = min(seg_tokens[begin] - begin_skip, keys - done)
                    first = seg_first[begin] + within + begin_skip * row_stride
                    for chunk in range(chunks):
                        h = chunk * heads
                        values(
                            weights, h * TILE + done, TILE, v, first, count, row_stride, sums, h * dim,
                            state, rescale + h, group, pairs,
                        )  # fmt: skip
                    rescale = 3 * every
                    done += count
                    begin_skip += count
                    if begin_skip == seg_tokens[begin]:
                        begin, begin_skip = begin + 1, 0
            out = task * every
            for h in range(every):
                maxima_out[out + h], totals_out[out + h] = state[h], state[every + h]
            sums_out[out * dim : (out + every) * dim] = sums

    @njit(parallel=True, cache=True, boundscheck=False)
    def merge(sums, maxima, totals, query_parts, parts, order, heads, dim, out):
        """Joins the parts of each query by their maxima: `out` `[queries, heads, dim]`, in the caller's lane order.

        The parts of query i are the rows `parts[query_parts[i] : query_parts[i + 1]]`.
        """
        assert version
        for task in prange((len(query_parts) - 1) * heads):
            query, head = task // heads, task % heads
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
            for d in range(dim):
                out[task * dim + order[d]] = joined[d] / total

    return attend, merge


attend, merge = _kernel(crc32(Path(simd.__file__).read_bytes()) | 1)
