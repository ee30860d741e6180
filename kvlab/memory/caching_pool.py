"""A pool whose free blocks may keep what they held, to be found again until they are needed for something else."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from kvlab.errors import InvalidInput, OutOfMemory, StaleHandle, require
from kvlab.events import EventLog
from kvlab.memory.block_pool import BlockPool
from kvlab.memory.hash_chain import Digest, Prefixes, short


class CachingPool(BlockPool):
    """A block is free, held, or cached: registered under a prefix and held by nobody, so that it may be evicted.

        next out                                                          last out
        [ free, last freed first ][ cached: tails before roots, longest unused first ]

    Cached blocks count as free. A block that is handed out again loses its prefix. Every operation costs O(blocks
    asked for). `log` is told of registrations and evictions in the pool `name`.

    Source: vLLM's block pool.
    """

    __slots__ = ("_cached", "_log", "_name", "evicted", "prefixes")

    def __init__(
        self, blocks: int, *, order: Sequence[int] | None = None, log: EventLog | None = None, name: str = "full"
    ) -> None:
        super().__init__(blocks, order=order)
        self.prefixes = Prefixes()
        self.evicted = 0
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._log = log
        self._name = name

    @property
    def free_blocks(self) -> int:
        """How many blocks nobody holds, cached ones included."""
        return len(self._free) + len(self._cached)

    @property
    def cached_blocks(self) -> int:
        """How many of them are cached."""
        return len(self._cached)

    def cached(self) -> list[int]:
        """The cached blocks in the order they would be evicted (a copy)."""
        return list(self._cached)

    def next_free(self) -> list[int]:
        """All free blocks in the order they would be handed out, the cached ones last (a copy)."""
        return [*super().next_free(), *self._cached]

    def can_allocate(self, count: int) -> bool:
        """Whether `allocate(count)` would succeed."""
        return count <= self.free_blocks

    def allocate(self, count: int = 1) -> list[int]:
        """See `BlockPool.allocate`; when no other block is left, cached ones are evicted."""
        free = len(self._free)
        if count <= free:
            return super().allocate(count)
        if count > self.free_blocks:
            raise OutOfMemory(
                f"asked for {count} blocks, {self.free_blocks} of {self.blocks} are free "
                f"({self.cached_blocks} of them cached); free some first"
            )
        taken = super().allocate(free) if free else []
        for _ in range(count - free):
            block, _ = self._cached.popitem(last=False)
            self.prefixes.forget(block)
            self._references[block] = 1
            taken.append(block)
            if self._log is not None:
                self._log.write("evict", self._name, block)
        self.evicted += count - free
        return taken

    def touch(self, blocks: Sequence[int]) -> None:
        """One more reference to each block, held or cached. Raises `StaleHandle` if one is neither."""
        references, cached = self._references, self._cached
        counts = self._counts(blocks)
        if 0 in counts:
            idle = [block for block, count in zip(blocks, counts, strict=True) if not count]
            for block in idle:
                if block not in cached:
                    raise StaleHandle(f"block {block} is neither held nor cached, so it cannot be shared")
            for block in idle:
                cached.pop(block, None)
        for block in blocks:
            references[block] += 1

    def register(self, blocks: Sequence[int], parent: Digest, ids: bytes) -> Digest:
        """Name held blocks, full of the tokens `ids` (int32 bytes) that follow `parent`. The last one's digest.

        Raises `InvalidInput` where a block is not held or has a prefix already.
        """
        entries = self.prefixes.entries
        if 0 in self._counts(blocks) or not entries.keys().isdisjoint(blocks):
            raise InvalidInput(f"blocks {list(blocks)} cannot be registered: one is free or registered already")
        last = self.prefixes.register(blocks, parent, ids)
        if self._log is not None:
            for block in blocks:
                digest, before, _ = entries[block]
                self._log.write("register", self._name, block, short(digest), short(before))
        return last

    def _shelve(self, freed: Sequence[int]) -> None:
        registered, cached = self.prefixes.entries, self._cached
        plain = []
        for block in freed:
            if block in registered:
                cached[block] = None
            else:
                plain.append(block)
        super()._shelve(plain)

    def audit(self) -> None:
        """See `BlockPool.audit`; the prefixes are hashed again."""
        super().audit()
        self.prefixes.audit()
        require(
            set(self._cached) == {block for block in self.prefixes.entries if not self._references[block]},
            "the cached blocks are not those that are registered and held by nobody",
        )
