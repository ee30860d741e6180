"""Rings for the sliding layers and pages for the global ones, out of one arena."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from kvlab.errors import InvalidInput, NeverFits, OutOfMemory, UnknownRequest, positive, require
from kvlab.events import EventLog, to_ranges
from kvlab.memory.arena import Arena, PageMove
from kvlab.memory.block_pool import BlockPool
from kvlab.memory.block_table import BlockTable
from kvlab.memory.host_swap import HostSwap, HostTable
from kvlab.policies.base import (
    Admission,
    Extension,
    Move,
    Overlay,
    PolicyBase,
    Pool,
    ReleaseReason,
    TokenList,
    Usage,
    checked_commit,
    checked_reason,
)
from kvlab.policies.layout import Layout, Ring, Slots, Table
from kvlab.policies.ring_books import RingBooks, RingHolding
from kvlab.shapes import LayerGroup
from kvlab.workload import Request, RequestId

NO_ROW: Final = -1


class HybridRing(PolicyBase[RingHolding]):
    """Each request holds one ring of the last W tokens for all its sliding layers, and a table of pages for its global
    layers; both come from one `Arena`, so neither has a share of its own.

    The budget is that of `capacity_tokens` tokens in all layers. A superblock is a ring rounded up to whole pages of
    `block_size` tokens (`pools()["page"]`); what a ring leaves of it is internal, what the budget leaves behind the
    last superblock external. With `host_tokens` requests can be swapped to a host that keeps as many tokens of pages,
    and of rings. `watermark_blocks` pages stay free at admission.

    A ring is written when tokens are committed, and only the accepted ones: an earlier write would overwrite keys that
    the step's own queries read. Its layout ends at the computed tokens, therefore. `Extension.slots` names the slots
    where they will lie; of more than W tokens only the last W do. A common permutation of K and V changes no attention,
    so a ring is never rotated back.

    Source: article 000 (ring-buffer KV on Gaudi 3).
    """

    def __init__(
        self,
        groups: Sequence[LayerGroup],
        capacity_tokens: int,
        *,
        block_size: int = 16,
        host_tokens: int = 0,
        watermark_blocks: int = 0,
        log: EventLog | None = None,
    ) -> None:
        sliding, paged, window = _split(groups)
        super().__init__([group_in(group, "ring" if group is sliding else "page") for group in groups], log)
        self.sliding, self.paged = sliding, paged
        self.window_tokens = window
        self.block_size = positive("block_size", block_size)
        self.capacity_tokens = positive("capacity_tokens", capacity_tokens)
        page_bytes, self.ring_bytes = block_size * paged.bytes_per_token, window * sliding.bytes_per_token
        pages_per_row = -(-self.ring_bytes // page_bytes)
        self.row_bytes = pages_per_row * page_bytes
        budget = capacity_tokens * self.bytes_per_token
        if budget < 2 * self.row_bytes:
            raise InvalidInput(
                f"{capacity_tokens} tokens are {budget} bytes; one ring takes {self.row_bytes} "
                f"({window} tokens of {sliding.bytes_per_token} bytes in whole pages), and its request's pages need "
                "a second superblock: raise the capacity"
            )
        self.arena = Arena(budget // self.row_bytes, pages_per_row)
        if not 0 <= watermark_blocks < self.arena.blocks:
            raise InvalidInput(f"watermark_blocks must be in [0, {self.arena.blocks}), not {watermark_blocks}")
        self.watermark_blocks = watermark_blocks
        if host_tokens < 0 or 0 < host_tokens < max(window, block_size):
            raise InvalidInput(f"host_tokens must be 0 or hold a ring of {window} and a page, not {host_tokens}")
        self.host_pages = HostSwap(self.arena, host_tokens // block_size, block_size) if host_tokens else None
        self.host_rings = BlockPool(host_tokens // window) if host_tokens else None
        self.can_swap = host_tokens > 0
        self._swapped: dict[RequestId, tuple[Request, HostTable, int]] = {}
        self.books = RingBooks(self.arena, sliding, paged, block_size, budget, self.row_bytes)
        if log is not None:
            log.write(
                "header", type(self).__name__,
                (("ring", self.arena.rows * window, window, sliding.bytes_per_token, ((0, self.arena.rows),)),
                 ("page", self.arena.blocks * block_size, block_size, paged.bytes_per_token,
                  to_ranges(self.arena.next_free()))),
            )  # fmt: skip

    def pools(self) -> dict[str, Pool]:
        """See `Policy.pools`: "ring" and "page" over the same bytes, and the host's of both where there is one."""
        rows, size = Overlay("arena", self.arena.rows), self.block_size
        found = {
            "ring": Pool(self.arena.rows * self.window_tokens, self.window_tokens, None, rows),
            "page": Pool(self.arena.blocks * size, size, self.arena.references, rows),
        }
        if self.host_pages is not None and self.host_rings is not None:
            found["host.ring"] = Pool(self.host_rings.blocks * self.window_tokens, self.window_tokens)
            found["host.page"] = Pool(self.host_pages.host.blocks * size, size)
        return found

    def slots_needed(self, request: Request) -> int:
        """See `Policy.slots_needed`: the ring counted as the pages that it takes the place of."""
        return (self.arena.pages_per_row + self._pages(request.known_tokens)) * self.block_size

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def admit(self, request: Request) -> Admission | None:
        """See `Policy.admit`: the ring is taken here, pages as the prompt is extended."""
        self._refuse_admitted(request.rid)
        arena = self.arena
        if self._pages(request.limit_tokens) > arena.blocks - arena.pages_per_row:
            raise NeverFits(
                f"request {request.rid!r} may reach {request.limit_tokens} tokens; beside its ring the arena holds "
                f"{(arena.blocks - arena.pages_per_row) * self.block_size} of the global layers"
            )
        watermark = self.watermark_blocks if self._held else 0
        if self.slots_needed(request) // self.block_size + watermark > arena.free_blocks:
            return None
        if self.log is not None:
            self.log.write("admit", request.rid, request.known_tokens, request.final_tokens, 0)
        request.computed = 0
        row = self._take_ring()
        self._held[request.rid] = RingHolding(request, BlockTable(arena, self.block_size), row)
        if self.log is not None:
            self.log.write("grow", request.rid, "ring", ((row, row + 1),))
        return Admission(0)

    def _refuse_admitted(self, rid: RequestId) -> None:
        super()._refuse_admitted(rid)
        if rid in self._swapped:
            raise InvalidInput(f"request {rid!r} is swapped out; swap it in or release it, or use another id")

    def _take_ring(self) -> int:
        row, moved = self.arena.take_ring()
        self._follow(moved)
        return row

    def _follow(self, moved: Sequence[PageMove]) -> None:
        """Copy what moved pages hold, and bring every table that names them up to date: a page may be shared.

        Tables are searched, not kept in a reverse map: evacuations are rare, appends are not."""
        if not moved:
            return
        filled: dict[int, int] = {}
        targets = {page.source: page.target for page in moved}
        for holding in self._held.values():
            for index, page in enumerate(holding.table.blocks):
                if page in targets:
                    used = min(self.block_size, holding.request.computed - index * self.block_size)
                    filled[page] = max(filled.get(page, 0), used)
            holding.table.relocate(targets)
        size = self.block_size
        for source, target in moved:
            if filled[source] > 0:
                self._move_tokens("page", source * size, target * size, filled[source], "evacuate")
            if self.log is not None:
                self.log.write("relocate", "page", source, target)

    def _move_tokens(self, pool: str, source: int, target: int, tokens: int, why: str, to: str | None = None) -> None:
        group = self.sliding if pool.endswith("ring") else self.paged
        self._moves.append(Move(pool, source, to or pool, target, tokens, tokens * group.bytes_per_token, why))

    def extend(self, rid: RequestId, count: int) -> Extension:
        """See `Policy.extend`: new pages and at most one copy-on-write; quiet to the end of the last page."""
        holding = self._holding(rid)
        holding.settled("extend")
        start, table = holding.committed, holding.table
        held = len(table.blocks)
        copied = table.append(count)
        if copied is not None:
            self.books.filled_slots += copied.tokens
            size = self.block_size
            self._move_tokens("page", copied.source * size, copied.target * size, copied.tokens, "copy-on-write")
        if self.log is not None:
            if copied is not None:
                self.log.write("copy", rid, "page", copied.entry, copied.source, copied.target)
            if len(table.blocks) > held:
                self.log.write("grow", rid, "page", to_ranges(table.blocks[held:]))
        holding.granted = start + count
        holding.limit = limit = len(table.blocks) * self.block_size
        return Extension(start, count, limit - holding.granted, lambda first, stop: self._slots(holding, first, stop))

    def _slots(self, holding: RingHolding, start: int, stop: int) -> tuple[Slots, ...]:
        ring = Ring(holding.row * self.window_tokens, self.window_tokens, start, stop)
        return tuple(
            ring.slots() if group.pool == "ring" else holding.table.slots(start, stop) for group in self.groups
        )

    def commit(self, rid: RequestId, token_ids: TokenList) -> None:
        """See `Policy.commit`."""
        holding = self._holding(rid)
        start, table = holding.committed, holding.table
        stop = checked_commit(holding, token_ids)
        if stop < holding.granted:
            held = len(table.blocks)
            table.truncate(stop)
            holding.limit = stop
            if self.log is not None and len(table.blocks) < held:
                self.log.write("trim", rid, "page", held - len(table.blocks))
        elif stop > holding.granted:
            table.tokens = stop
        self.books.filled_slots += stop - start
        holding.committed = holding.granted = holding.request.computed = stop

    def layout(self, rid: RequestId) -> tuple[Layout, ...]:
        """See `Policy.layout`: a ring of the W - 1 computed tokens that the next one reads, and a table of all."""
        holding = self._holding(rid)
        end, window = holding.request.computed, self.window_tokens
        ring = Ring(holding.row * window, window, self.sliding.first_readable(end), end)
        table = Table(holding.table.blocks, self.block_size, 0, end)
        return tuple(ring if group.pool == "ring" else table for group in self.groups)

    def fork(self, parent: RequestId, child: Request) -> None:
        """See `Policy.fork`: pages are shared, the ring is copied once. Raises `OutOfMemory` without room for it."""
        holding = self._holding(parent)
        self._refuse_admitted(child.rid)
        holding.settled("fork")
        row = self._take_ring()
        table = holding.table.fork()
        child.computed = holding.committed
        self._held[child.rid] = RingHolding(child, table, row, holding.committed)
        holding.limit = holding.committed
        window = self.window_tokens
        if holding.committed:
            self._move_tokens("ring", holding.row * window, row * window, min(window, holding.committed), "fork")
        if self.log is not None:
            self.log.write("fork", parent, child.rid)
            self.log.write("copy", child.rid, "ring", 0, holding.row, row)

    def release(self, rid: RequestId, reason: ReleaseReason) -> None:
        """See `Policy.release`; also gives up a swapped-out request."""
        checked_reason(reason)
        if rid in self._swapped:
            request, swapped, row = self._swapped.pop(rid)
            self._host()[0].forget(swapped)
            self._host()[1].free([row])
        else:
            request = self._leave(rid).request
        request.computed = 0
        if self.log is not None:
            self.log.write("release", rid, reason)

    def _leave(self, rid: RequestId) -> RingHolding:
        """Give back the device memory of a request."""
        holding = self._holding(rid)
        self.books.filled_slots -= self.books.own_slots(holding)
        holding.table.release()
        self.arena.give_ring(holding.row)
        del self._held[rid]
        return holding

    def _host(self) -> tuple[HostSwap, BlockPool]:
        if self.host_pages is None or self.host_rings is None:
            raise InvalidInput("this policy has no host memory; construct it with host_tokens")
        return self.host_pages, self.host_rings

    def swap_out(self, rid: RequestId) -> None:
        """See `Policy.swap_out`: ring and pages go, all or nothing."""
        (pages, rings), holding = self._host(), self._holding(rid)
        holding.settled("swap out")
        if not rings.can_allocate(1):
            raise OutOfMemory(f"swapping out needs a host ring; all {rings.blocks} are taken")
        own = self.books.own_slots(holding)
        swapped, transfers = pages.swap_out(holding.table)
        (row,) = rings.allocate()
        self.books.filled_slots -= own
        self.arena.give_ring(holding.row)
        del self._held[rid]
        self._swapped[rid] = (holding.request, swapped, row)
        size, window = self.block_size, self.window_tokens
        for each in transfers:
            self._move_tokens("page", each.source * size, each.target * size, each.tokens, "swap out", "host.page")
        if swapped.tokens:
            kept = min(window, swapped.tokens)
            self._move_tokens("ring", holding.row * window, row * window, kept, "swap out", "host.ring")
        if self.log is not None:
            self.log.write("swap_out", rid, "page", to_ranges(swapped.blocks))
            self.log.write("swap_out", rid, "ring", ((row, row + 1),))

    def swap_in(self, rid: RequestId) -> None:
        """See `Policy.swap_in`: pages still alive on the device are shared again, not copied."""
        pages, rings = self._host()
        if rid not in self._swapped:
            raise UnknownRequest(f"request {rid!r} is not swapped out; {len(self._swapped)} requests are")
        request, swapped, host_row = self._swapped[rid]
        needed = self.arena.pages_per_row + pages.blocks_back(swapped)
        if needed > self.arena.free_blocks:
            raise OutOfMemory(
                f"swapping in needs a ring and pages, {needed} pages in all; {self.arena.free_blocks} are free"
            )
        table = BlockTable(self.arena, self.block_size)
        transfers = pages.swap_in(swapped, table)
        size, window = self.block_size, self.window_tokens
        for each in transfers:
            self._move_tokens("host.page", each.source * size, each.target * size, each.tokens, "swap in", "page")
        self.books.filled_slots += sum(each.tokens for each in transfers)
        del self._swapped[rid]
        # The ring comes after the pages, which its evacuation may move.
        self._held[rid] = holding = RingHolding(request, table, NO_ROW, swapped.tokens)
        if self.log is not None:
            self.log.write("swap_in", rid, "page", to_ranges(table.blocks))
        holding.row = row = self._take_ring()
        rings.free([host_row])
        if swapped.tokens:
            kept = min(window, swapped.tokens)
            self._move_tokens("host.ring", host_row * window, row * window, kept, "swap in", "ring")
        if self.log is not None:
            self.log.write("swap_in", rid, "ring", ((row, row + 1),))

    def usage(self, pending_tokens: int | None = None) -> dict[str, Usage]:
        """See `Policy.usage`: one entry, "arena"; free pages become a ring by evacuation, so `pending_tokens` changes
        nothing. "host" where there is one."""
        found = {"arena": self.books.usage(self._held.values())}
        if self.host_pages is not None and self.host_rings is not None:
            found["host"] = self._host_usage(self.host_pages, self.host_rings)
        return found

    def _host_usage(self, pages: HostSwap, rings: BlockPool) -> Usage:
        page, ring = self.paged.bytes_per_token, self.sliding.bytes_per_token
        kept = sum(min(self.window_tokens, swapped.tokens) for _, swapped, _ in self._swapped.values())
        live = pages.filled_slots * page + kept * ring
        free = pages.host.free_blocks * self.block_size * page + rings.free_blocks * self.window_tokens * ring
        capacity = pages.host.blocks * self.block_size * page + rings.blocks * self.window_tokens * ring
        return Usage(live, 0, 0, capacity - live - free, 0, 0, free)

    def audit(self) -> None:
        """See `Policy.audit`."""
        self.books.audit(self._held.values())
        if self.host_pages is not None and self.host_rings is not None:
            self.host_pages.audit()
            self.host_rings.audit()
            on_host = Counter(block for _, swapped, _ in self._swapped.values() for block in swapped.blocks)
            counts = {block: count for block, count in enumerate(self.host_pages.host.references) if count}
            require(on_host == counts, "the swapped tables and the host's reference counts disagree")
            rows = [row for _, _, row in self._swapped.values()]
            require(
                len(set(rows)) == len(rows) == self.host_rings.blocks - self.host_rings.free_blocks,
                "the swapped requests and the host's rings disagree",
            )


def _split(groups: Sequence[LayerGroup]) -> tuple[LayerGroup, LayerGroup, int]:
    """The sliding group, the global one and the window. Raises `InvalidInput` unless there is one of each."""
    sliding = [group for group in groups if group.window_tokens is not None]
    paged = [group for group in groups if group.window_tokens is None]
    if len(sliding) != 1 or len(paged) != 1:
        raise InvalidInput(
            f"HybridRing takes one group of sliding layers and one of global ones, not {len(sliding)} and "
            f"{len(paged)}; a model without both is served by Paged"
        )
    window = sliding[0].window_tokens
    assert window is not None
    return sliding[0], paged[0], positive(f"window_tokens of {sliding[0].name}", window)


def group_in(group: LayerGroup, pool: str) -> LayerGroup:
    """The group in another pool."""
    return LayerGroup(group.name, pool, group.layers, group.window_tokens, group.bytes_per_token)
