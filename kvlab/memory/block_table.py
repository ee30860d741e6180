"""A request's block table: which physical block holds which of its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvlab.errors import InvalidInput, OutOfMemory, StaleHandle, positive, require
from kvlab.memory.block_pool import BlockPool


class BlockCopy(NamedTuple):
    """Copy-on-write of one table entry: copy `tokens` slots of block `source` to `target` before the next write."""

    entry: int
    source: int
    target: int
    tokens: int


class BlockTable:
    """Logical block i, which holds tokens [i * block_size, (i + 1) * block_size), lives in `blocks[i]`.

        tokens   0 ........ 15 16 ....... 31 32 .... 36
        blocks   [     7     ] [     1     ] [   3   . . . ]      37 tokens, 11 empty slots in the last block

    Tables may share blocks (`fork`); a write into a shared block copies it first, and the last holder writes in
    place. Each entry remembers its block's generation, so a table that outlived a block is refused (`StaleHandle`).
    Source: PagedAttention, sections 4.3 and 4.4.
    """

    __slots__ = ("_generations", "block_size", "blocks", "pool", "tokens")

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = positive("block_size", block_size)
        self.tokens = 0
        self.blocks: list[int] = []
        self._generations: list[int] = []

    @property
    def empty_slots(self) -> int:
        """Slots of the last block that hold no token yet."""
        return len(self.blocks) * self.block_size - self.tokens

    def blocks_needed(self, count: int) -> int:
        """Free blocks that `append(count)` would take, the copy of a shared last block included."""
        needed = -(-(self.tokens + count) // self.block_size) - len(self.blocks)
        return needed + bool(self.tokens % self.block_size and self.pool.references[self.blocks[-1]] > 1)

    def append(self, count: int = 1) -> BlockCopy | None:
        """Make room for `count` more tokens; the copy to do before they are written, if the last block was shared.

        Raises `OutOfMemory`, `StaleHandle` or `InvalidInput` and changes nothing.
        """
        if count < 1:
            raise InvalidInput(f"asked to append {count} tokens; append at least 1")
        pool, blocks, tokens, size = self.pool, self.blocks, self.tokens, self.block_size
        held = len(blocks)
        needed = -(-(tokens + count) // size) - held
        used = tokens % size
        copied = None
        if held:
            last = blocks[-1]
            if pool.generations[last] != self._generations[-1]:
                raise StaleHandle(f"table entry {held - 1} names block {last}, which was freed; this table is stale")
            if used and pool.references[last] > 1:
                if needed + 1 > pool.free_blocks:
                    raise OutOfMemory(
                        f"needs {needed + 1} blocks (one to copy shared block {last}), "
                        f"{pool.free_blocks} are free; free some first"
                    )
                (target,) = pool.allocate()
                pool.free((last,))
                blocks[-1] = target
                self._generations[-1] = pool.generations[target]
                copied = BlockCopy(held - 1, last, target, used)
        if needed == 1:
            (block,) = pool.allocate()
            blocks.append(block)
            self._generations.append(pool.generations[block])
        elif needed:
            taken = pool.allocate(needed)
            blocks += taken
            generations = pool.generations
            self._generations += [generations[block] for block in taken]
        self.tokens = tokens + count
        return copied

    def truncate(self, tokens: int) -> Sequence[int]:
        """Keep the first `tokens` tokens. The blocks that nobody holds any more, last first."""
        if not 0 <= tokens <= self.tokens:
            raise InvalidInput(f"cannot keep {tokens} tokens of {self.tokens}")
        kept = -(-tokens // self.block_size)
        freed: Sequence[int] = ()
        if kept < len(self.blocks):
            self._refuse_stale(kept)
            freed = self.pool.free(self.blocks[: kept - 1 if kept else None : -1])
            del self.blocks[kept:]
            del self._generations[kept:]
        self.tokens = tokens
        return freed

    def fork(self) -> BlockTable:
        """Another table over the same blocks, each with one more reference; nothing is copied."""
        self._refuse_stale()
        child = BlockTable(self.pool, self.block_size)
        self.pool.touch(self.blocks)
        child.tokens = self.tokens
        child.blocks = self.blocks.copy()
        child._generations = self._generations.copy()
        return child

    def release(self) -> Sequence[int]:
        """Give every reference back, the last block first. The blocks that nobody holds any more, last first."""
        return self.truncate(0)

    def replace(self, blocks: Sequence[int], tokens: int) -> None:
        """Name other blocks, which the caller holds references to, for `tokens` tokens (a swap back in)."""
        if self.blocks or len(blocks) != -(-tokens // self.block_size):
            raise InvalidInput(f"an empty table and {tokens} tokens are needed for {len(blocks)} blocks")
        self.blocks = list(blocks)
        self._generations = [self.pool.generations[block] for block in blocks]
        self.tokens = tokens

    def relocate(self, moved: Mapping[int, int]) -> None:
        """Name other blocks for those that the pool has moved (old -> new); the tokens stay where they were in them."""
        for index, block in enumerate(self.blocks):
            target = moved.get(block)
            if target is not None:
                self.blocks[index] = target
                self._generations[index] = self.pool.generations[target]

    def slot(self, position: int) -> int:
        """The physical slot of the token at `position`. Raises `StaleHandle` if its block was freed since."""
        if not 0 <= position < self.tokens:
            raise InvalidInput(f"the table holds tokens 0 to {self.tokens - 1}, not {position}")
        index, offset = divmod(position, self.block_size)
        self._refuse_stale(index, index + 1)
        return self.blocks[index] * self.block_size + offset

    def slots(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Physical slots of the tokens at [start, stop), int64 `[stop - start]`."""
        if not 0 <= start <= stop <= len(self.blocks) * self.block_size:
            raise InvalidInput(f"the table reaches to {len(self.blocks) * self.block_size}, not [{start}, {stop})")
        first = start // self.block_size
        self._refuse_stale(first, -(-stop // self.block_size))
        positions = np.arange(start, stop)
        blocks = np.array(self.blocks[first : -(-stop // self.block_size)], np.int64)
        return blocks[positions // self.block_size - first] * self.block_size + positions % self.block_size

    def _refuse_stale(self, start: int = 0, stop: int | None = None) -> None:
        generations = self.pool.generations
        blocks, then = self.blocks[start:stop], self._generations[start:stop]
        now = [generations[block] for block in blocks]
        if now != then:
            index = next(i for i, (a, b) in enumerate(zip(now, then, strict=True)) if a != b)
            raise StaleHandle(
                f"table entry {start + index} names block {blocks[index]}, which was freed since "
                f"(generation {then[index]} then, {now[index]} now); this table is stale"
            )

    def audit(self) -> None:
        """Check the table against its pool; `InvariantViolation` names what is broken."""
        require(
            len(self.blocks) == -(-self.tokens // self.block_size),
            "a table holds more or fewer blocks than its tokens need",
        )
        require(len(self.blocks) == len(set(self.blocks)), "a table names a block twice")
        require(len(self.blocks) == len(self._generations), "a table lost a generation")
        for block, generation in zip(self.blocks, self._generations, strict=True):
            require(self.pool.references[block] > 0, f"a table names block {block}, which is free")
            require(self.pool.generations[block] == generation, f"a table names an earlier life of block {block}")
