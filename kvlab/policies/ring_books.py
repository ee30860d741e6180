"""The accounting of an arena: rings whose tokens run out of sight, and pages that tables may share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from kvlab.errors import require
from kvlab.memory.arena import Arena
from kvlab.memory.block_table import BlockTable
from kvlab.policies.base import Usage
from kvlab.policies.table_books import TableBooks, TableHolding
from kvlab.shapes import LayerGroup
from kvlab.workload import Request


class RingHolding(TableHolding):
    """A holding with its table of pages and the row of its ring."""

    __slots__ = ("row",)

    def __init__(self, request: Request, table: BlockTable, row: int, committed: int = 0) -> None:
        super().__init__(request, table, 1, committed)
        self.row = row


class RingBooks:
    """Counts the bytes of an arena. `filled_slots` are the page slots that hold a committed token, each physical slot
    once; the policy keeps it up to date. What a superblock has beyond its ring is internal while it is one."""

    def __init__(
        self, arena: Arena, sliding: LayerGroup, paged: LayerGroup, block_size: int, budget_bytes: int, row_bytes: int
    ) -> None:
        assert sliding.window_tokens is not None
        self.arena = arena
        self.sliding = sliding
        self.window_tokens = sliding.window_tokens
        self.row_bytes = row_bytes
        self.budget_bytes = budget_bytes
        self._pages = TableBooks((paged,), arena, block_size, arena.blocks * block_size)

    @property
    def filled_slots(self) -> int:
        """Page slots that hold a committed token."""
        return self._pages.filled_slots

    @filled_slots.setter
    def filled_slots(self, slots: int) -> None:
        self._pages.filled_slots = slots

    def own_slots(self, holding: RingHolding) -> int:
        """Committed slots in pages that nobody else holds."""
        return self._pages.own_slots(holding)

    def usage(self, held: Collection[RingHolding]) -> Usage:
        """The terms now, in bytes."""
        window, scale = self.window_tokens, self.sliding.bytes_per_token
        filled = live = reserved = 0
        for holding in held:
            computed = holding.request.computed
            filled += min(computed, window)
            live += computed - self.sliding.first_readable(computed)
            reserved += min(max(computed, holding.request.final_tokens), window) - min(computed, window)
        pages = self._pages.usage(held)
        return Usage(
            live=pages.live + live * scale,
            dead=(filled - live) * scale,
            reserved=pages.reserved + reserved * scale,
            internal=pages.internal + self.arena.rings * self.row_bytes - (filled + reserved) * scale,
            cached=0,
            external=self.budget_bytes - self.arena.rows * self.row_bytes,
            free=pages.free,
        )

    def audit(self, held: Collection[RingHolding]) -> None:
        """Check rings, tables and counts against each other; `InvariantViolation` names what is broken."""
        self.arena.audit()
        rows = [holding.row for holding in held]
        require(len(set(rows)) == len(rows), "two requests hold one ring")
        rings = [row for row, kind in enumerate(self.arena.row_kinds()) if kind == "ring"]
        require(sorted(rows) == rings, f"requests hold the rings {sorted(rows)}, the arena has {rings}")
        self._pages.audit_tables(held)
        require(
            self._pages.filled_slots == len(self._committed(held)),
            f"{self._pages.filled_slots} page slots are counted as filled, {len(self._committed(held))} are",
        )
        usage = self.usage(held)
        require(min(usage) >= 0, f"a term is negative: {usage}")
        require(usage.capacity == self.budget_bytes, f"{usage} does not add up to {self.budget_bytes} bytes")
        require(usage == self._recounted(held), f"the books say {usage}, slot by slot it is {self._recounted(held)}")

    def _committed(self, held: Collection[RingHolding]) -> set[int]:
        size = self._pages.block_size
        return {
            block * size + position - first
            for holding in held
            for first, block in holding.blocks
            for position in range(first, min(first + size, holding.committed))
        }

    def _recounted(self, held: Collection[RingHolding]) -> Usage:
        """Slot by slot, from the requests alone."""
        size, page, ring, window = (
            self._pages.block_size, self._pages.groups[0].bytes_per_token, self.sliding.bytes_per_token,
            self.window_tokens,
        )  # fmt: skip
        live: Counter[str] = Counter()
        slots: dict[int, str] = {}
        rank = {"filled": 2, "promised": 1, "unused": 0}
        for holding in held:
            computed, final = holding.request.computed, holding.request.final_tokens
            for first, block in holding.blocks:
                for position in range(first, first + size):
                    kind = "filled" if position < computed else "promised" if position < final else "unused"
                    slot = block * size + position - first
                    slots[slot] = max(kind, slots.get(slot, "unused"), key=rank.__getitem__)
            first = self.sliding.first_readable(computed)
            written = {position % window: position for position in range(max(0, computed - window), computed)}
            coming = {position % window for position in range(computed, min(final, computed + window))}
            live["ring live"] += sum(position >= first for position in written.values())
            live["ring dead"] += sum(position < first for position in written.values())
            live["ring reserved"] += len(coming - written.keys())
            live["ring unused"] += window - len(coming | written.keys())
        pages = Counter(slots.values())
        rings = len(held)
        unused = rings * (self.row_bytes - window * ring)
        return Usage(
            live=pages["filled"] * page + live["ring live"] * ring,
            dead=live["ring dead"] * ring,
            reserved=pages["promised"] * page + live["ring reserved"] * ring,
            internal=pages["unused"] * page + live["ring unused"] * ring + unused,
            cached=0,
            external=self.budget_bytes - self.arena.rows * self.row_bytes,
            free=(self.arena.blocks - rings * self.arena.pages_per_row) * size * page - len(slots) * page,
        )
