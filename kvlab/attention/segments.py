"""A step's layouts as segments of the store: what the native kernels walk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from kvlab.attention.step import Step
from kvlab.attention.store import KVStore
from kvlab.policies.layout import Layout, Ring, Table

Ints = npt.NDArray[np.int64]
SPLIT_TOKENS: Final = 1024
ENOUGH_TASKS: Final = 32


@dataclass(frozen=True)
class Segments:
    """Runs of evenly spaced tokens. `first` is the slot of each run's first token, `tokens` its length.

    Request r has the segments [starts[r], starts[r + 1]), in the order of its positions from `positions[r]` on (a full
    ring starts with its oldest token).
    """

    first: Ints
    tokens: Ints
    starts: Ints
    positions: Ints


@dataclass(frozen=True)
class Rows:
    """Queries over segments: row i is query `query[i]` over `tokens[i]` tokens from segment `segment[i]` on, less the
    `skip[i]` first ones of it. Several rows of one query are joined afterwards."""

    query: Ints
    segment: Ints
    skip: Ints
    tokens: Ints


def _runs(layout: Layout, block_size: int) -> tuple[Ints, Ints]:
    """(first slot, tokens) of each run of one layout's live positions."""
    if layout.end == layout.start:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if isinstance(layout, Ring):
        held = min(layout.end - layout.start, layout.window_tokens)
        oldest = (layout.end - held) % layout.window_tokens
        before_end = min(held, layout.window_tokens - oldest)
        firsts = [layout.first_slot + oldest, layout.first_slot][: 1 + (held > before_end)]
        return np.array(firsts), np.array([before_end, held - before_end][: len(firsts)])
    if isinstance(layout, Table):
        size = layout.block_size
        index = np.arange(layout.start // size, -(-layout.end // size))
        first = np.asarray(layout.blocks, np.int64)[index] * size
    else:
        size = block_size
        if size == 1:
            return np.array([layout.first_slot + layout.start]), np.array([layout.end - layout.start])
        # A region over a store in blocks: cut where the slots, not the positions, cross a block.
        begin, stop = layout.first_slot + layout.start, layout.first_slot + layout.end
        first = np.arange(begin // size, -(-stop // size)) * size
        tokens = np.minimum(first + size, stop) - np.maximum(first, begin)
        return np.maximum(first, begin), tokens
    tokens = np.full(len(index), size)
    tokens[-1] -= (index[-1] + 1) * size - layout.end
    first[0] += layout.start - index[0] * size
    tokens[0] -= layout.start - index[0] * size
    return first, tokens


def segments(step: Step, store: KVStore) -> Segments:
    """The segments of every request of the step."""
    if step.only_tables and step.requests:
        return _table_segments(step, store.block_size)
    runs = [_runs(layout, store.block_size) for layout in step.layouts]
    counts = [len(first) for first, _ in runs]
    return Segments(
        np.concatenate([first for first, _ in runs]),
        np.concatenate([tokens for _, tokens in runs]),
        np.concatenate(([0], np.cumsum(counts))),
        np.array([layout.end - int(tokens.sum()) for layout, (_, tokens) in zip(step.layouts, runs, strict=True)]),
    )


def _table_segments(step: Step, size: int) -> Segments:
    """One segment a table entry, for all requests at once."""
    blocks, starts = step.entries
    begin = np.array([layout.start for layout in step.layouts])
    end = np.array([layout.end for layout in step.layouts])
    first, tokens = blocks * size, np.full(len(blocks), size)
    tokens[starts[1:] - 1] -= -end % size
    first[starts[:-1]] += begin % size
    tokens[starts[:-1]] -= begin % size
    return Segments(first, tokens, starts, begin)


def rows(step: Step, found: Segments, kv_heads: int) -> Rows:
    """What each query reads of the store, long ones split so that there is work for every thread.

    The split depends on the step alone, never on the number of threads: results do not either.
    """
    if step.decodes:
        every = np.arange(step.requests)
        end = np.array([layout.end for layout in step.layouts])
        first = 0 if step.window_tokens is None else np.maximum(0, np.asarray(step.lengths) - step.window_tokens)
        return _split(every, every, np.maximum(found.positions, first), end, found, kv_heads)
    query, request = [], []
    low, high = [], []
    for each, layout in enumerate(step.layouts):
        count = step.query_tokens(each)
        first_query = step.lengths[each] - count
        for i in range(count):
            position = first_query + i
            begin = 0 if step.window_tokens is None else max(0, position - step.window_tokens + 1)
            query.append(step.starts[each] + i)
            request.append(each)
            low.append(max(begin, int(found.positions[each])))
            high.append(min(position + 1, layout.end))
    return _split(np.array(query), np.array(request), np.array(low), np.array(high), found, kv_heads)


def _split(query: Ints, request: Ints, low: Ints, high: Ints, found: Segments, kv_heads: int) -> Rows:
    length = np.maximum(0, high - low)
    if len(query) * kv_heads < ENOUGH_TASKS:
        parts = np.maximum(1, -(-length // SPLIT_TOKENS))
    else:
        parts = np.ones(len(query), np.int64)
    owner = np.repeat(np.arange(len(query)), parts)
    part = np.arange(len(owner)) - np.repeat(np.cumsum(parts) - parts, parts)
    begin = part * SPLIT_TOKENS
    tokens = np.where(parts[owner] > 1, np.minimum(SPLIT_TOKENS, length[owner] - begin), length[owner])
    # The segment that holds the row's first token: cumulative tokens, offset by the request's own beginning.
    ends = np.cumsum(found.tokens)
    before = np.concatenate(([0], ends))
    wanted = before[found.starts[request[owner]]] + low[owner] - found.positions[request[owner]] + begin
    segment = np.searchsorted(ends, wanted, side="right")
    return Rows(query[owner], segment, wanted - before[segment], tokens)
