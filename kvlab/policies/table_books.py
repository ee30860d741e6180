"""The accounting of block tables: who fills, shares, has passed and will still write which slots of one pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from kvlab.errors import require
from kvlab.memory.block_pool import BlockPool
from kvlab.memory.block_table import BlockTable
from kvlab.policies.base import Holding, Usage
from kvlab.policies.layout import Slots
from kvlab.shapes import LayerGroup
from kvlab.workload import Request


class TableHolding(Holding):
    """A holding with its block table."""

    __slots__ = ("groups", "table")

    def __init__(self, request: Request, table: BlockTable, groups: int, committed: int = 0) -> None:
        super().__init__(request, committed)
        self.table = table
        self.groups = groups

    def slots(self, start: int, stop: int) -> tuple[Slots, ...]:
        """Slots of positions [start, stop), the same for every group."""
        return (self.table.slots(start, stop),) * self.groups

    @property
    def blocks(self) -> Iterator[tuple[int, int]]:
        """(first position, block) of each table entry."""
        size = self.table.block_size
        return ((index * size, block) for index, block in enumerate(self.table.blocks))


class TableBooks:
    """Counts the bytes of a pool of blocks whose tables may share them. `filled_slots` are the slots that hold a
    committed token, each physical slot once; the policy keeps it up to date."""

    def __init__(self, groups: Sequence[LayerGroup], pool: BlockPool, block_size: int, capacity_tokens: int) -> None:
        self.groups = groups
        self.pool = pool
        self.block_size = block_size
        self.filled_slots = 0
        self._scale = sum(group.bytes_per_token for group in groups)
        self._slack = capacity_tokens - pool.blocks * block_size

    def own_slots(self, holding: TableHolding) -> int:
        """Committed slots in blocks that nobody else holds."""
        references, size, committed = self.pool.references, self.block_size, holding.committed
        counts = [references[block] for block in holding.table.blocks]
        if all(count == 1 for count in counts):
            return committed
        return sum(
            min(size, committed - index * size)
            for index, count in enumerate(counts)
            if count == 1 and committed > index * size
        )

    def usage(self, held: Collection[TableHolding]) -> Usage:
        """The terms now. A block fits anywhere, so only the slack behind the last block is external.

        Costs O(admitted requests); O(blocks held) while blocks are shared and a group has a window.
        """
        filled = self.filled_slots
        reserved = internal = named = 0
        shared_tails: dict[int, tuple[int, int]] = {}
        for holding in held:
            request, blocks = holding.request, holding.table.blocks
            named += len(blocks)
            filled += request.computed - holding.committed
            empty = len(blocks) * self.block_size - request.computed
            promised = min(empty, max(0, request.final_tokens - request.computed))
            if empty and self.pool.references[blocks[-1]] > 1:
                most = max(promised, shared_tails.get(blocks[-1], (0, 0))[0])
                shared_tails[blocks[-1]] = (most, empty)
            else:
                reserved += promised
                internal += empty - promised
        for promised, empty in shared_tails.values():
            reserved += promised
            internal += empty - promised
        shared = named > self.pool.blocks - self.pool.free_blocks
        dead = sum(
            group.bytes_per_token * (self._dead_shared(group, held) if shared else self._dead_alone(group, held))
            for group in self.groups
            if group.window_tokens is not None
        )
        scale, cached = self._scale, self.pool.cached_blocks
        return Usage(
            live=filled * scale - dead, dead=dead, reserved=reserved * scale, internal=internal * scale,
            cached=cached * self.block_size * scale, external=self._slack * scale,
            free=(self.pool.free_blocks - cached) * self.block_size * scale,
        )  # fmt: skip

    def _dead_alone(self, group: LayerGroup, held: Collection[TableHolding]) -> int:
        return sum(group.first_readable(holding.request.computed) for holding in held)

    def _dead_shared(self, group: LayerGroup, held: Collection[TableHolding]) -> int:
        """Slots that none of their sharers can read any more: what the reader furthest behind has left."""
        dead: dict[int, int] = {}
        for holding in held:
            passed = group.first_readable(holding.request.computed)
            for first, block in holding.blocks:
                behind = min(self.block_size, max(0, passed - first))
                dead[block] = min(behind, dead.get(block, behind))
        return sum(dead.values())

    def audit(self, held: Collection[TableHolding]) -> None:
        """Check tables, references and counts against each other; `InvariantViolation` names what is broken."""
        self.pool.audit()
        self.audit_tables(held)
        usage, recounted = self.usage(held), self._recounted(held)
        require(usage == recounted, f"the books say {usage}, slot by slot it is {recounted}")
        capacity = (self.pool.blocks * self.block_size + self._slack) * self._scale
        require(usage.capacity == capacity, f"{usage} does not add up to the pool")

    def audit_tables(self, held: Collection[TableHolding]) -> None:
        """Check the tables and the pool's references against each other."""
        named: Counter[int] = Counter()
        for holding in held:
            holding.table.audit()
            named.update(holding.table.blocks)
            computed, reach = holding.request.computed, len(holding.table.blocks) * self.block_size
            require(
                holding.committed <= computed <= max(holding.limit, holding.committed) <= reach,
                f"request {holding.request.rid!r} has {holding.committed} tokens committed, {computed} computed, a "
                f"limit of {holding.limit} and blocks for {reach}",
            )
        counts = {block: count for block, count in enumerate(self.pool.references) if count}
        require(named == counts, "the tables and the reference counts disagree")

    def _recounted(self, held: Collection[TableHolding]) -> Usage:
        filled: set[int] = set()
        promised: set[int] = set()
        owned: set[int] = set()
        readable: dict[str, set[int]] = {group.name: set() for group in self.groups}
        for holding in held:
            request = holding.request
            for first, block in holding.blocks:
                for position in range(first, first + self.block_size):
                    slot = block * self.block_size + position - first
                    owned.add(slot)
                    if position < request.computed:
                        filled.add(slot)
                        for group in self.groups:
                            if position >= group.first_readable(request.computed):
                                readable[group.name].add(slot)
                    elif position < request.final_tokens:
                        promised.add(slot)
        scale = self._scale
        live = sum(group.bytes_per_token * len(readable[group.name]) for group in self.groups)
        cached = self.pool.cached_blocks * self.block_size
        free = self.pool.blocks * self.block_size - len(owned) - cached
        return Usage(
            live=live, dead=len(filled) * scale - live, reserved=len(promised - filled) * scale,
            internal=len(owned - promised - filled) * scale, cached=cached * scale,
            external=self._slack * scale, free=free * scale,
        )  # fmt: skip
