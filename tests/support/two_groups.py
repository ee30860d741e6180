"""A policy of two layer groups in two pools, written for the contract test alone.

Global layers keep the whole sequence in blocks; sliding layers keep a ring of `window` slots a request, taken from a
pool of rings and held from admission to release.
"""

from kvlab.errors import NeverFits, OutOfMemory, require
from kvlab.events import EventLog, to_ranges
from kvlab.memory.block_pool import BlockPool
from kvlab.memory.block_table import BlockTable
from kvlab.policies.base import (
    Admission,
    Extension,
    Holding,
    Move,
    PolicyBase,
    Pool,
    ReleaseReason,
    TokenList,
    Usage,
    checked_commit,
    checked_reason,
)
from kvlab.policies.layout import Layout, Ring, Slots, Table
from kvlab.shapes import LayerGroup
from kvlab.workload import Request, RequestId

WINDOW = 6
GROUPS = (
    LayerGroup("global", "full", (0, 3), None, 16),
    LayerGroup("sliding", "rings", (1, 2), WINDOW, 24),
)


class RingHolding(Holding):
    """A holding with its block table and its ring."""

    __slots__ = ("ring", "table")

    def __init__(self, request: Request, table: BlockTable, ring: int, committed: int = 0) -> None:
        super().__init__(request, committed)
        self.table = table
        self.ring = ring


class TwoGroups(PolicyBase[RingHolding]):
    """Global layers paged, sliding layers in rings."""

    def __init__(self, blocks: int, block_size: int, rings: int, log: EventLog | None = None) -> None:
        super().__init__(GROUPS, log)
        self.block_size = block_size
        self.pool = BlockPool(blocks)
        self.rings = BlockPool(rings)
        if log is not None:
            log.write(
                "header", "TwoGroups",
                (("full", blocks * block_size, block_size, 16, to_ranges(self.pool.next_free())),
                 ("rings", rings * WINDOW, 1, 24, ())),
            )  # fmt: skip

    def pools(self) -> dict[str, Pool]:
        return {
            "full": Pool(self.pool.blocks * self.block_size, self.block_size, self.pool.references),
            "rings": Pool(self.rings.blocks * WINDOW, WINDOW),
        }

    def slots_needed(self, request: Request) -> int:
        return -(-request.known_tokens // self.block_size) * self.block_size

    def admit(self, request: Request) -> Admission | None:
        self._refuse_admitted(request.rid)
        if -(-request.limit_tokens // self.block_size) > self.pool.blocks:
            raise NeverFits(f"request {request.rid!r} is larger than the pool of {self.pool.blocks} blocks")
        if not self.rings.free_blocks or self.slots_needed(request) // self.block_size > self.pool.free_blocks:
            return None
        (ring,) = self.rings.allocate()
        request.computed = 0
        self._held[request.rid] = RingHolding(request, BlockTable(self.pool, self.block_size), ring)
        if self.log is not None:
            self.log.write("admit", request.rid, request.known_tokens, request.final_tokens, 0)
            self.log.write("region", request.rid, "rings", ring * WINDOW, WINDOW, WINDOW)
        return Admission(0)

    def extend(self, rid: RequestId, count: int) -> Extension:
        holding = self._holding(rid)
        holding.settled("extend")
        table, start = holding.table, holding.committed
        held = len(table.blocks)
        copied = table.append(count)
        if copied is not None:
            size = self.block_size
            self._moves.append(
                Move(
                    "full", copied.source * size, "full", copied.target * size, copied.tokens,
                    copied.tokens * 16, "copy-on-write",
                )
            )  # fmt: skip
        if self.log is not None:
            if copied is not None:
                self.log.write("copy", rid, "full", copied.entry, copied.source, copied.target)
            if len(table.blocks) > held:
                self.log.write("grow", rid, "full", to_ranges(table.blocks[held:]))
        holding.granted = start + count
        holding.limit = len(table.blocks) * self.block_size

        def slots_of(first: int, stop: int) -> tuple[Slots, ...]:
            return table.slots(first, stop), Ring(holding.ring * WINDOW, WINDOW, first, stop).slots()

        return Extension(start, count, holding.limit - holding.granted, slots_of)

    def layout(self, rid: RequestId) -> tuple[Layout, ...]:
        holding = self._holding(rid)
        end = holding.request.computed
        return (
            Table(holding.table.blocks, self.block_size, 0, end),
            Ring(holding.ring * WINDOW, WINDOW, GROUPS[1].first_readable(end), end),
        )

    def commit(self, rid: RequestId, token_ids: TokenList) -> None:
        holding = self._holding(rid)
        stop, table = checked_commit(holding, token_ids), holding.table
        if stop < holding.granted:
            held = len(table.blocks)
            table.truncate(stop)
            holding.limit = stop
            if self.log is not None and len(table.blocks) < held:
                self.log.write("trim", rid, "full", held - len(table.blocks))
        table.tokens = stop
        holding.committed = holding.granted = holding.request.computed = stop

    def fork(self, parent: RequestId, child: Request) -> None:
        holding = self._holding(parent)
        self._refuse_admitted(child.rid)
        holding.settled("fork")
        if not self.rings.free_blocks:
            raise OutOfMemory(f"forking {parent!r} needs a ring and none of {self.rings.blocks} is free")
        (ring,) = self.rings.allocate()
        child.computed = holding.limit = holding.committed
        self._held[child.rid] = RingHolding(child, holding.table.fork(), ring, holding.committed)
        if holding.committed:
            tokens = min(WINDOW, holding.committed)
            self._moves.append(
                Move("rings", holding.ring * WINDOW, "rings", ring * WINDOW, tokens, tokens * 24, "fork")
            )
        if self.log is not None:
            self.log.write("fork", parent, child.rid)
            self.log.write("region", child.rid, "rings", ring * WINDOW, WINDOW, WINDOW)

    def release(self, rid: RequestId, reason: ReleaseReason) -> None:
        holding = self._holding(rid)
        checked_reason(reason)
        holding.table.release()
        self.rings.free([holding.ring])
        del self._held[rid]
        holding.request.computed = 0
        if self.log is not None:
            self.log.write("release", rid, reason)

    def usage(self, pending_tokens: int | None = None) -> dict[str, Usage]:
        slots: dict[int, tuple[bool, bool]] = {}
        live = dead = reserved = 0
        for holding in self._held.values():
            request = holding.request
            computed, final = request.computed, max(request.computed, request.final_tokens)
            for position in range(len(holding.table.blocks) * self.block_size):
                slot = holding.table.blocks[position // self.block_size], position % self.block_size
                key = slot[0] * self.block_size + slot[1]
                filled, promised = slots.get(key, (False, False))
                slots[key] = filled or position < computed, promised or position < final
            live += min(computed, WINDOW - 1)
            dead += computed >= WINDOW
            reserved += min(final, WINDOW) - min(computed, WINDOW)
        filled_slots = sum(filled for filled, _ in slots.values())
        promised_slots = sum(promised and not filled for filled, promised in slots.values())
        used = self._paged_usage(filled_slots, promised_slots, len(slots) - filled_slots - promised_slots)
        rings = len(self._held) * WINDOW
        return {
            "full": used,
            "rings": Usage(
                live * 24, dead * 24, reserved * 24, (rings - live - dead - reserved) * 24, 0, 0,
                self.rings.free_blocks * WINDOW * 24,
            ),
        }  # fmt: skip

    def _paged_usage(self, filled: int, promised: int, unused: int) -> Usage:
        return Usage(filled * 16, 0, promised * 16, unused * 16, 0, 0, self.pool.free_blocks * self.block_size * 16)

    def audit(self) -> None:
        self.pool.audit()
        self.rings.audit()
        for holding in self._held.values():
            holding.table.audit()
            require(
                holding.committed <= holding.request.computed <= max(holding.limit, holding.committed),
                f"request {holding.request.rid!r} has more tokens computed than it may write",
            )
        require(self.rings.free_blocks == self.rings.blocks - len(self._held), "a ring was lost")
