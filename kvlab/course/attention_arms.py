"""What lesson 04 measures: a batch of decoding requests whose KV is read in blocks of any size, or as slabs.

`python -m kvlab.course.attention_arms FOLDER` records the runs that the lesson shows beside the live ones (the
course's folder is kvlab/data/stored_runs; use a quiet machine, it takes about half a minute).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from kvlab.attention import KVStore, Route, Step, get_route
from kvlab.attention.native_plain import paged_attention
from kvlab.bench.paired import measure
from kvlab.course.stored_run import record_run
from kvlab.errors import InvalidInput, positive
from kvlab.policies.layout import Layout, Region, Table

Arms: TypeAlias = dict[str, Callable[[], object]]
CONTIGUOUS: Final = None
BLOCK_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_PATTERN_TOKENS: Final = 1024


class DecodeBatch:
    """Decode steps of `batch` requests of `context` tokens, over one buffer of random bf16 K and V.

    A store in blocks of one size and a store of slabs are two numberings of the same bytes, so every way to lay the
    requests out reads this buffer and no other. It holds `turns` such batches, and each call of any arm reads the next
    one: with enough of them no call finds its KV in the processor's cache.
    """

    def __init__(
        self,
        batch: int = 16,
        context: int = 1024,
        *,
        turns: int = 8,
        kv_heads: int = 8,
        q_heads: int = 8,
        head_dim: int = 128,
    ) -> None:
        self.batch, self.context = positive("batch", batch), positive("context", context)
        self.kv_heads, self.q_heads, self.head_dim = kv_heads, q_heads, head_dim
        self.turns = positive("turns", turns)
        random = torch.Generator().manual_seed(0)
        pattern = torch.randn(2, _PATTERN_TOKENS, kv_heads * head_dim, generator=random).bfloat16()
        # One slab more than the requests need: the pad block of any store.
        repeats = -(-(turns * batch + 1) * context // _PATTERN_TOKENS)
        self._keys, self._values = (each.repeat(repeats, 1).view(-1) for each in pattern)
        self._queries = torch.randn(batch, q_heads, head_dim, generator=random).bfloat16()
        self._turn = cycle(range(turns))

    @property
    def call_bytes(self) -> int:
        """Bytes of K and V that one call reads."""
        return 2 * self.batch * self.context * self.kv_heads * self.head_dim * 2

    @property
    def kv_bytes(self) -> int:
        """Bytes of K and V of all turns."""
        return self.turns * self.call_bytes

    def laid_out(self, block_size: int | None, *, in_order: bool = False) -> tuple[list[Step], KVStore]:
        """A step for each turn and their store: over blocks of this size, or over slabs (`CONTIGUOUS`). Either lie
        in random order within the turn's part of the buffer, or one after the other.

        Raises `InvalidInput` for a size that does not divide the context.
        """
        size = self.context if block_size is None else positive("block_size", block_size)
        if self.context % size:
            raise InvalidInput(f"blocks of {size} do not divide a context of {self.context} tokens")
        per_turn = self.batch * self.context // size
        store = KVStore(size, size, self.kv_heads, self.head_dim, dtype=torch.bfloat16)
        shape = (self.turns * per_turn + 1, self.kv_heads, size, self.head_dim)
        store.keys, store.values = (each[: math.prod(shape)].view(shape) for each in (self._keys, self._values))
        random = np.random.default_rng(0)
        steps = []
        for first in range(0, self.turns * per_turn, per_turn):
            blocks = np.arange(first, first + per_turn)
            placed = blocks if in_order else random.permutation(blocks)
            steps.append(self._step(placed.reshape(self.batch, -1), block_size))
        return steps, store

    def _step(self, blocks: np.ndarray[Any, np.dtype[np.int64]], block_size: int | None) -> Step:
        layouts: list[Layout] = [
            Region(row[0] * self.context, 0, self.context)
            if block_size is None
            else Table(row, block_size, 0, self.context)
            for row in blocks.tolist()
        ]
        own = torch.zeros(self.batch, self.kv_heads, self.head_dim, dtype=torch.bfloat16)
        starts, lengths = range(self.batch + 1), [self.context] * self.batch
        return Step(self._queries, own, own, starts, lengths, layouts, self.head_dim**-0.5)

    def arms(self, route: str, layouts: Mapping[str, int | None], *, in_order: bool = False) -> Arms:
        """Calls of one route to measure, each run once already: name -> block size, or `CONTIGUOUS`."""
        called = get_route(route)
        made = {name: self._arm(called, *self.laid_out(size, in_order=in_order)) for name, size in layouts.items()}
        for arm in made.values():
            arm()
        return made

    def _arm(self, route: Route, steps: list[Step], store: KVStore) -> Callable[[], object]:
        return lambda: route(steps[next(self._turn)], store)


def block_size_arms(batch: DecodeBatch) -> Arms:
    """The same kernel over slabs (the baseline), over blocks of every size, and over blocks that are not scattered."""
    places = {"contiguous": CONTIGUOUS} | {f"blocks of {size}": size for size in BLOCK_SIZES}
    return batch.arms("native", places) | batch.arms("native", {"16, in order": 16}, in_order=True)


def route_arms(batch: DecodeBatch) -> Arms:
    """The native kernel over blocks of 16 (the baseline), torch's operator over slabs, and a gather of the blocks."""
    return {
        **batch.arms("native", {"native": 16}),
        **batch.arms("contiguous", {"SDPA": CONTIGUOUS}),
        **batch.arms("gather", {"gather": 16}),
    }


def readable_arms(batch: DecodeBatch) -> Arms:
    """The forms to read beside the fast one (the baseline), over the same blocks of 16; the plain kernel in float32."""
    (step, *_), store = batch.laid_out(16)
    tables = np.array([layout.blocks for layout in step.layouts if isinstance(layout, Table)])
    arrays = [each.float().numpy() for each in (step.queries, store.keys, store.values)]
    plain = partial(paged_attention, *arrays, tables, np.asarray(step.lengths), step.scale)
    plain()
    return {
        **batch.arms("native", {"native": 16}),
        "native_plain": plain,
        **batch.arms("gather", {"gather": 16}),
        **batch.arms("blockwise", {"blockwise": 16}),
    }


def record(folder: Path) -> list[Path]:
    """Measure everything and write the three stored runs into `folder`."""
    large, small = DecodeBatch(), DecodeBatch(2, 512, turns=1)
    written = []
    for name, arms in (
        ("attention_block_sizes", block_size_arms(large)),
        ("attention_routes", route_arms(large)),
        ("attention_readable", readable_arms(small)),
    ):
        path = folder / f"{name}.json"
        record_run(measure(arms, repeats=15), path)
        written.append(path)
    return written


if __name__ == "__main__":
    for path in record(Path(sys.argv[1])):
        sys.stdout.write(f"{path}\n")
