"""A pool of equal blocks with reference counts and generations."""

from __future__ import annotations

import heapq
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from kvlab.errors import DoubleFree, InvalidInput, OutOfMemory, StaleHandle, positive, require

Reuse = Literal["last-freed", "lowest-id"]


class Handle(NamedTuple):
    """A block as it was when somebody got it: the same block handed out again has another generation."""

    block: int
    generation: int


class BlockPool:
    """Fixed blocks 0 .. blocks - 1, each free or held by one or more references.

    `reuse="last-freed"` hands out the block freed last (a stack), `"lowest-id"` the lowest free id (a heap). `order`
    is the order in which a fresh pool hands its blocks out (all ids, once each; default 0, 1, 2, ...).

    Every operation costs O(blocks asked for), times log(free) for the heap; none grows with the pool. A refused call
    changes nothing.

    Source: PagedAttention (Kwon et al. 2023) section 4.5; vLLM's block pool.
    """

    __slots__ = ("_free", "_generations", "_heap", "_references", "blocks")

    def __init__(self, blocks: int, *, reuse: Reuse = "last-freed", order: Sequence[int] | None = None) -> None:
        self.blocks = positive("blocks", blocks)
        if reuse not in ("last-freed", "lowest-id"):
            raise InvalidInput(f"reuse must be 'last-freed' or 'lowest-id', not {reuse!r}")
        self._heap = reuse == "lowest-id"
        if order is not None:
            if self._heap:
                raise InvalidInput("a lowest-id pool has its own order; leave out `order`")
            if sorted(order) != list(range(blocks)):
                raise InvalidInput(f"order must name each of the blocks 0 to {blocks - 1} once")
        # A stack pops from its end, so it is kept reversed; a sorted list is already a heap.
        handed_out = range(blocks) if order is None else order
        self._free: list[int] | array[int] = list(handed_out) if self._heap else array("i", reversed(handed_out))
        self._references = [0] * blocks
        self._generations = [0] * blocks

    @property
    def free_blocks(self) -> int:
        """How many blocks nobody holds."""
        return len(self._free)

    @property
    def cached_blocks(self) -> int:
        """How many of them keep content that can be found again; none here (see `CachingPool`)."""
        return 0

    @property
    def references(self) -> Sequence[int]:
        """References held to each block (0 = free); read only."""
        return self._references

    @property
    def generations(self) -> Sequence[int]:
        """How often each block has been freed; read only."""
        return self._generations

    def next_free(self) -> list[int]:
        """All free blocks in the order they would be handed out (a copy; for pictures and audits)."""
        return sorted(self._free) if self._heap else list(reversed(self._free))

    def can_allocate(self, count: int) -> bool:
        """Whether `allocate(count)` would succeed."""
        return count <= len(self._free)

    def allocate(self, count: int = 1) -> list[int]:
        """`count` free blocks, one reference each. Raises `OutOfMemory` when fewer are free."""
        free = self._free
        if not 0 < count <= len(free):
            if count <= 0:
                raise InvalidInput(f"asked for {count} blocks; ask for at least 1")
            raise OutOfMemory(f"asked for {count} blocks, {len(free)} of {self.blocks} are free; free some first")
        if isinstance(free, list):
            taken = [heapq.heappop(free) for _ in range(count)]
        elif count == 1:
            taken = [free.pop()]
        else:
            taken = free[: -count - 1 : -1].tolist()
            del free[-count:]
        references = self._references
        for block in taken:
            references[block] = 1
        return taken

    def touch(self, blocks: Sequence[int]) -> None:
        """One more reference to each block. Raises `StaleHandle` if one of them is free."""
        if 0 in self._counts(blocks):
            free = next(block for block in blocks if not self._references[block])
            raise StaleHandle(f"block {free} is not held by anybody, so it cannot be shared")
        references = self._references
        for block in blocks:
            references[block] += 1

    def free(self, blocks: Sequence[int]) -> Sequence[int]:
        """Return one reference to each block, in this order; the blocks that nobody holds any more.

        A block named twice returns two references. Raises `DoubleFree` if any block has fewer references than that.
        """
        references, counts = self._references, self._counts(blocks)
        if len(set(blocks)) != len(blocks):
            blocks, counts = self._merged(blocks)
        if counts and min(counts) < 1:
            over = blocks[counts.index(min(counts))]
            raise DoubleFree(
                f"block {over} has {references[over]} references and is returned more often; nothing was freed"
            )
        freed = blocks
        if max(counts, default=1) > 1:
            freed = [block for block, count in zip(blocks, counts, strict=True) if count == 1]
            for block, count in zip(blocks, counts, strict=True):
                references[block] = count - 1
        generations = self._generations
        for block in freed:
            references[block] = 0
            generations[block] += 1
        self._shelve(freed)
        return freed

    def _shelve(self, freed: Sequence[int]) -> None:
        """Put blocks that nobody holds any more, in the order they were freed, among the free ones."""
        if isinstance(self._free, list):
            for block in freed:
                heapq.heappush(self._free, block)
        else:
            self._free.extend(freed)

    def _counts(self, blocks: Sequence[int]) -> list[int]:
        references = self._references
        try:
            counts = [references[block] for block in blocks]
        except IndexError:
            counts = []
        if blocks and (not counts or min(blocks) < 0):
            raise InvalidInput(f"the pool has blocks 0 to {self.blocks - 1}, not {min(blocks)} to {max(blocks)}")
        return counts

    def _merged(self, blocks: Sequence[int]) -> tuple[list[int], list[int]]:
        """Each block once, where it returns last, with its references less those it returned before."""
        once = list(dict.fromkeys(reversed(blocks)))[::-1]
        returned = Counter(blocks)
        return once, [self._references[block] - returned[block] + 1 for block in once]

    def handle(self, block: int) -> Handle:
        """A handle to a held block, to be checked later with `resolve`."""
        if not (0 <= block < self.blocks and self._references[block]):
            raise StaleHandle(f"block {block} is free; there is nothing to hold on to")
        return Handle(block, self._generations[block])

    def resolve(self, handle: Handle) -> int:
        """The block of a handle; `StaleHandle` if it was freed since, `InvalidInput` if there is no such block."""
        block, generation = handle
        self._counts((block,))
        if self._generations[block] != generation or not self._references[block]:
            raise StaleHandle(
                f"block {block} was freed since this handle was made "
                f"(generation {generation} then, {self._generations[block]} now)"
            )
        return block

    def audit(self) -> None:
        """Check the books against each other; `InvariantViolation` names what is broken."""
        free = self.next_free()
        require(len(free) == len(set(free)), "a block is on the free list twice")
        require(all(0 <= block < self.blocks for block in free), "the free list names a block outside the pool")
        require(all(not self._references[block] for block in free), "a free block has references")
        require(min(self._references) >= 0, "a block has negative references")
        held = sum(1 for count in self._references if count)
        require(held + len(free) == self.blocks, f"{held} held + {len(free)} free blocks are not {self.blocks}")
        if self._heap:
            heap = self._free
            require(all(heap[(i - 1) // 2] <= heap[i] for i in range(1, len(heap))), "the free list is not a heap")
