"""One query over scattered blocks, as lesson 04 walks them: two functions to write, a memory that counts its reads."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import torch
from torch import Tensor

from kvlab.attention import KVStore, Step
from kvlab.attention.online_softmax import Seen, see
from kvlab.errors import InvalidInput
from kvlab.events import EventLog, Replay, State
from kvlab.policies.layout import Table
from kvlab.policies.paged import Paged
from kvlab.shapes import ModelShape
from kvlab.simulate.examples import BLOCK_SIZE, request_a, serve
from kvlab.viz.scenes.taken import Taken
from kvlab.workload import Request

TakeIn: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""take_in(m, l, acc, scores, values) -> m, l, acc: scalars m and l, acc `[dim]`, scores `[keys]`, values
`[keys, dim]`."""
Readable: TypeAlias = Callable[[int, int, int, int | None], Tensor]
"""readable(entry, block_size, length, window) -> bool `[block_size]`: which slots of a table's entry the query at
position length - 1 may read."""

HEAD_DIM: Final = 32
SCALE: Final = HEAD_DIM**-0.5
PICTURE_BLOCKS: Final = 8
PICTURE_BLOCK_SIZE: Final = 4
PICTURE_SCORES: Final = (0.5, 1.0, -0.5, 0.0, 1.5, 3.0, 0.0, 1.0, 2.0, 0.5, 2.5)


def take_in(m: Tensor, total: Tensor, acc: Tensor, scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One block into the accumulator: `kvlab.attention.online_softmax.see` for a single query."""
    seen = see(Seen(m.view(1, 1), total.view(1, 1), acc.view(1, -1)), scores[None], values)
    return seen.highest.view(()), seen.total.view(()), seen.weighted[0]


def readable(entry: int, block_size: int, length: int, window: int | None = None) -> Tensor:
    """The positions [length - window, length), or all below `length`, that lie in this entry of the table."""
    position = entry * block_size + torch.arange(block_size)
    return (position < length) & (position >= (0 if window is None else length - window))


class Memory:
    """One KV head of a store, block by block; it counts the reads of every slot."""

    def __init__(self, store: KVStore, head: int = 0) -> None:
        self.store, self.head = store, head
        self.reads: Counter[int] = Counter()

    def nothing(self) -> tuple[Tensor, Tensor, Tensor]:
        """The accumulator before the first block: m = -inf, l = 0, acc = 0."""
        zero = torch.zeros((), dtype=self.store.keys.dtype)
        return zero - torch.inf, zero, torch.zeros(self.store.head_dim, dtype=self.store.keys.dtype)

    def read(self, block: int, mask: Tensor | Sequence[bool]) -> tuple[Tensor, Tensor]:
        """K and V of the slots of a block that `mask` names, `[slots, head_dim]` each.

        Raises `InvalidInput` unless the mask has True or False for each slot of the block.
        """
        offsets = np.flatnonzero(as_mask(mask, self.store.block_size))
        self.reads.update((block * self.store.block_size + offsets).tolist())
        rows = torch.from_numpy(offsets)
        return self.store.keys[block, self.head, rows], self.store.values[block, self.head, rows]


def as_mask(mask: object, block_size: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """A learner's mask as an array. Raises `InvalidInput` unless it has True or False for each slot of a block."""
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.asarray(mask)
    if found.dtype != np.bool_ or found.shape != (block_size,):
        raise InvalidInput(f"a mask has True or False for each of the {block_size} slots of a block, not {mask!r}")
    return found


def walk(query: Tensor, memory: Memory, table: Table, readable: Readable, window: int | None = None) -> Tensor:
    """Attention of one query over a block table, `[head_dim]`: the walk of the lesson over kvlab's own `take_in`."""
    m, total, acc = memory.nothing()
    for entry, block in enumerate(table.blocks):
        mask = torch.from_numpy(as_mask(readable(entry, table.block_size, table.end, window), table.block_size))
        if mask.any():
            keys, values = memory.read(block, mask)
            m, total, acc = take_in(m, total, acc, SCALE * keys @ query, values)
    return acc / total


@dataclass(frozen=True)
class TwoRequests:
    """Lesson 02's A (37 tokens) and B (30), admitted by the real policy, about to decode; their KV in a store."""

    log: EventLog
    policy: Paged
    store: KVStore
    step: Step

    @property
    def state(self) -> State:
        """Where the log ends, for a picture."""
        return Replay(self.log).state(-1)

    @property
    def table(self) -> Table:
        """A's block table."""
        layout = self.step.layouts[0]
        assert isinstance(layout, Table)
        return layout

    @property
    def query(self) -> Tensor:
        """A's query, `[head_dim]`."""
        return self.step.queries[0, 0]

    def memory(self) -> Memory:
        """The store, its reads counted from 0."""
        return Memory(self.store)

    def wanted(self, window: int | None = None) -> list[int]:
        """The slots that A's query must read."""
        slots: list[int] = self.table.slots().tolist()
        return slots if window is None else slots[-window:]


def two_requests(*, poison: bool = True) -> TwoRequests:
    """A and B in the pool of lesson 02: one KV head, one query head, head_dim 32, float32.

    Slots that no token of theirs fills hold NaN; without `poison`, what an earlier request left in blocks 7, 1 and 3.
    """
    log = EventLog()
    policy = request_a(log)
    lengths = {"A": 37, "B": 30}
    for rid, tokens in lengths.items():
        serve(policy, Request(rid, tokens, 12), tokens)
        log.step([(rid, tokens)])
    store = KVStore(policy.pool.blocks * BLOCK_SIZE, BLOCK_SIZE, 1, HEAD_DIM, dtype=torch.float32)
    random = torch.Generator().manual_seed(4)
    left = torch.randn(2, *store.keys[:-1].shape, generator=random)
    for stored, old in ((store.keys, left[0]), (store.values, left[1])):
        stored[:-1] = torch.nan if poison else old
    last = []
    for rid, tokens in lengths.items():
        keys, values = torch.randn(2, tokens, 1, HEAD_DIM, generator=random)
        store.write(keys, values, policy.layout(rid)[0].slots())
        last.append((keys[-1:], values[-1:]))
    queries = 2 * torch.randn(2, 1, HEAD_DIM, generator=random)
    own = [torch.cat(each) for each in zip(*last, strict=True)]
    layouts = [policy.layout(rid)[0] for rid in lengths]
    step = Step(queries, own[0], own[1], [0, 1, 2], list(lengths.values()), layouts, SCALE)
    return TwoRequests(log, policy, store, step)


def picture_table() -> Table:
    """The block table of 11 tokens in a pool of 8 blocks of 4, handed out by the policy: 5, 2, 6."""
    groups = ModelShape.preset("llama-3.1-8b").groups()
    tokens = PICTURE_BLOCKS * PICTURE_BLOCK_SIZE
    policy = Paged(groups, tokens, block_size=PICTURE_BLOCK_SIZE, order=[5, 2, 6, 0, 1, 3, 4, 7])
    serve(policy, Request("A", len(PICTURE_SCORES), 4), len(PICTURE_SCORES))
    layout = policy.layout("A")[0]
    assert isinstance(layout, Table)
    return layout


def record(take_in: TakeIn) -> list[Taken]:
    """What `take_in` made of the picture's three blocks, for `accumulator_frames`.

    The factor on the earlier sum is read off the sums themselves, so it is what the code did, right or wrong.
    """
    table, random = picture_table(), torch.Generator().manual_seed(2)
    scores = torch.tensor(PICTURE_SCORES, dtype=torch.float64)
    values = torch.randn(len(scores), 4, generator=random, dtype=torch.float64)
    m, total, acc = scores.new_tensor(-torch.inf), scores.new_zeros(()), scores.new_zeros(4)
    taken = []
    size = PICTURE_BLOCK_SIZE
    for entry, block in enumerate(table.blocks):
        here = slice(entry * size, min((entry + 1) * size, table.end))
        old, before = float(m), float(total)
        m, total, acc = take_in(m, total, acc, scores[here], values[here])
        added = float(torch.exp(scores[here] - m).sum())
        kept = (float(total) - added) / before if before else math.exp(old - float(m)) if m > old else 0.0
        rescale = round(kept, 12) if math.isfinite(kept) else kept
        output = tuple((acc / total).tolist())
        taken.append(Taken(block, tuple(scores[here].tolist()), old, float(m), rescale, float(total), output))
    return taken


def compared(found: Tensor, expected: Tensor) -> str:
    """How an output stands to the reference's, in words: 'NaN', 'equals the reference' or 'another answer'.

    They are equal within 1e-5 of the largest value, rounding in float32.
    """
    if bool(torch.isnan(found).any()):
        return "NaN"
    largest = max(1.0, float(expected.abs().max()))
    return "equals the reference" if float((found - expected).abs().max()) <= 1e-5 * largest else "another answer"
