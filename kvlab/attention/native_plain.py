"""The native kernel in its plainest form: what lesson 04 reads. `native_kernel` computes the same, faster."""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange


@njit(parallel=True, cache=True)
def paged_attention(queries, keys, values, tables, lengths, scale):
    """Decode attention over blocks: one query a request, one pass over its blocks, no copy of K or V.

    `queries` `[requests, q_heads, head_dim]`, `keys` and `values` `[blocks, kv_heads, block_size, head_dim]`, all fp32;
    `tables` int `[requests, blocks a request]`; `lengths` int `[requests]`. Returns the output, shaped like `queries`.
    """
    requests, q_heads, dim = queries.shape
    _, kv_heads, block_size, _ = keys.shape
    group = q_heads // kv_heads
    output = np.empty_like(queries)
    for task in prange(requests * q_heads):
        request, head = task // q_heads, task % q_heads
        query, kv_head = queries[request, head], head // group
        maximum, total, sums = -np.inf, 0.0, np.zeros(dim)
        for position in range(lengths[request]):
            block = tables[request, position // block_size]
            slot = position % block_size
            score = 0.0
            for d in range(dim):
                score += query[d] * keys[block, kv_head, slot, d]
            score *= scale
            if score > maximum:
                rescale = math.exp(maximum - score)
                maximum, total, sums = score, total * rescale, sums * rescale
            weight = math.exp(score - maximum)
            total += weight
            for d in range(dim):
                sums[d] += weight * values[block, kv_head, slot, d]
        output[request, head] = sums / total
    return output
