"""PagedAttention's memory manager: blocks on demand, reference counts, copy-on-write, recompute or swap to host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvlab.errors import InvalidInput, NeverFits, UnknownRequest, positive, require
from kvlab.events import EventLog, to_ranges
from kvlab.memory.block_pool import BlockPool, Reuse
from kvlab.memory.block_table import BlockTable
from kvlab.memory.host_swap import HostSwap, HostTable
from kvlab.policies.base import (
    Admission,
    Extension,
    PolicyBase,
    Pool,
    ReleaseReason,
    TokenList,
    Usage,
    checked_commit,
    checked_reason,
)
from kvlab.policies.layout import Layout, Table
from kvlab.policies.table_books import TableBooks, TableHolding
from kvlab.shapes import LayerGroup
from kvlab.workload import Request, RequestId


class Paged(PolicyBase[TableHolding]):
    """One pool of blocks; a block id is the same slots in every layer of every group.

    `capacity_tokens` slots make `capacity_tokens // block_size` blocks; a remainder is slack (external). With
    `host_tokens`, requests can be swapped to a host pool of that size. `watermark_blocks` stay free at admission, so
    that running requests can grow. `order` and `reuse` are those of `BlockPool`.

    Source: Kwon et al. 2023, sections 4.2 to 4.5.
    """

    def __init__(
        self,
        groups: Sequence[LayerGroup],
        capacity_tokens: int,
        *,
        block_size: int = 16,
        host_tokens: int = 0,
        watermark_blocks: int = 0,
        reuse: Reuse = "last-freed",
        order: Sequence[int] | None = None,
        log: EventLog | None = None,
    ) -> None:
        super().__init__(groups, log)
        self.block_size = positive("block_size", block_size)
        self.capacity_tokens = positive("capacity_tokens", capacity_tokens)
        if block_size > capacity_tokens:
            raise InvalidInput(f"a block of {block_size} tokens does not fit in a pool of {capacity_tokens}")
        if host_tokens < 0 or 0 < host_tokens < block_size:
            raise InvalidInput(f"host_tokens must be 0 or hold a block of {block_size}, not {host_tokens}")
        self.pool = self._new_pool(capacity_tokens // block_size, reuse, order)
        if not 0 <= watermark_blocks < self.pool.blocks:
            raise InvalidInput(f"watermark_blocks must be in [0, {self.pool.blocks}), not {watermark_blocks}")
        self.watermark_blocks = watermark_blocks
        self.host_tokens = host_tokens
        self.host = HostSwap(self.pool, host_tokens // block_size, block_size) if host_tokens else None
        self.can_swap = self.host is not None
        self._swapped: dict[RequestId, tuple[Request, HostTable]] = {}
        self.books = TableBooks(self.groups, self.pool, block_size, capacity_tokens)
        if log is not None:
            order_now = to_ranges(self.pool.next_free())
            log.write(
                "header",
                type(self).__name__,
                (("full", capacity_tokens, block_size, self.bytes_per_token, order_now),),
            )

    def _new_pool(self, blocks: int, reuse: Reuse, order: Sequence[int] | None) -> BlockPool:
        return BlockPool(blocks, reuse=reuse, order=order)

    def pools(self) -> dict[str, Pool]:
        """See `Policy.pools`: "full", and "host" where requests can be swapped."""
        size = self.block_size
        found = {"full": Pool(self.pool.blocks * size, size, self.pool.references)}
        if self.host is not None:
            found["host"] = Pool(self.host.host.blocks * size, size)
        return found

    def slots_needed(self, request: Request) -> int:
        """See `Policy.slots_needed`: whole blocks for the tokens known so far."""
        return -(-request.known_tokens // self.block_size) * self.block_size

    def admit(self, request: Request) -> Admission | None:
        """See `Policy.admit`: blocks are taken as the prompt is extended, not here."""
        self._refuse_for_good(request)
        if self.slots_needed(request) // self.block_size + self._watermark() > self.pool.free_blocks:
            return None
        return self._enter(request, BlockTable(self.pool, self.block_size))

    def _refuse_for_good(self, request: Request) -> None:
        self._refuse_admitted(request.rid)
        if -(-request.limit_tokens // self.block_size) > self.pool.blocks:
            raise NeverFits(
                f"request {request.rid!r} may reach {request.limit_tokens} tokens; "
                f"the whole pool holds {self.pool.blocks} blocks of {self.block_size}"
            )

    def _enter(self, request: Request, table: BlockTable) -> Admission:
        request.computed = table.tokens
        self._held[request.rid] = TableHolding(request, table, len(self.groups), table.tokens)
        if self.log is not None:
            self.log.write("admit", request.rid, request.known_tokens, request.final_tokens, table.tokens)
        return Admission(table.tokens)

    def _refuse_admitted(self, rid: RequestId) -> None:
        super()._refuse_admitted(rid)
        if rid in self._swapped:
            raise InvalidInput(f"request {rid!r} is swapped out; swap it in or release it, or use another id")

    def _watermark(self) -> int:
        return self.watermark_blocks if self._held else 0

    def extend(self, rid: RequestId, count: int) -> Extension:
        """See `Policy.extend`: new blocks and at most one copy-on-write; quiet to the end of the last block."""
        holding = self._holding(rid)
        start, table = holding.committed, holding.table
        if holding.granted != start or holding.request.computed != start:
            holding.settled("extend")
        held = len(table.blocks)
        copied = table.append(count)
        if copied is not None:
            self.books.filled_slots += copied.tokens
            self._move_block("full", copied.source, "full", copied.target, copied.tokens, "copy-on-write")
        if self.log is not None:
            if copied is not None:
                self.log.write("copy", rid, "full", copied.entry, copied.source, copied.target)
            if len(table.blocks) > held:
                self.log.write("grow", rid, "full", to_ranges(table.blocks[held:]))
        holding.granted = start + count
        holding.limit = limit = len(table.blocks) * self.block_size
        return Extension(start, count, limit - holding.granted, holding.slots)

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
                self.log.write("trim", rid, "full", held - len(table.blocks))
        elif stop > holding.granted:
            table.tokens = stop
        self.books.filled_slots += stop - start
        holding.committed = holding.granted = holding.request.computed = stop

    def layout(self, rid: RequestId) -> tuple[Layout, ...]:
        """See `Policy.layout`: the same table for every group, live from the group's window on."""
        holding = self._holding(rid)
        end = holding.request.computed
        return tuple(
            Table(holding.table.blocks, self.block_size, group.first_readable(end), end) for group in self.groups
        )

    def fork(self, parent: RequestId, child: Request) -> None:
        """See `Policy.fork`: the child shares every block; the first write into a shared one copies it."""
        holding = self._holding(parent)
        self._refuse_admitted(child.rid)
        holding.settled("fork")
        table = holding.table.fork()
        child.computed = holding.committed
        self._held[child.rid] = TableHolding(child, table, len(self.groups), holding.committed)
        holding.limit = holding.committed
        if self.log is not None:
            self.log.write("fork", parent, child.rid)

    def release(self, rid: RequestId, reason: ReleaseReason) -> None:
        """See `Policy.release`; also gives up a swapped-out request."""
        checked_reason(reason)
        if rid in self._swapped:
            request, swapped = self._swapped.pop(rid)
            self._host().forget(swapped)
        else:
            holding = self._holding(rid)
            own = self.books.own_slots(holding)
            holding.table.release()
            self.books.filled_slots -= own
            del self._held[rid]
            request = holding.request
        request.computed = 0
        if self.log is not None:
            self.log.write("release", rid, reason)

    def _host(self) -> HostSwap:
        if self.host is None:
            raise InvalidInput("this policy has no host memory; construct it with host_tokens")
        return self.host

    def swap_out(self, rid: RequestId) -> None:
        """See `Policy.swap_out`: every block goes, all or nothing."""
        host, holding = self._host(), self._holding(rid)
        holding.settled("swap out")
        own = self.books.own_slots(holding)
        swapped, transfers = host.swap_out(holding.table)
        self.books.filled_slots -= own
        del self._held[rid]
        self._swapped[rid] = (holding.request, swapped)
        for each in transfers:
            self._move_block("full", each.source, "host", each.target, each.tokens, "swap out")
        if self.log is not None:
            self.log.write("swap_out", rid, "full", to_ranges(swapped.blocks))

    def swap_in(self, rid: RequestId) -> None:
        """See `Policy.swap_in`: blocks still alive on the device are shared again, not copied."""
        host = self._host()
        if rid not in self._swapped:
            raise UnknownRequest(f"request {rid!r} is not swapped out; {len(self._swapped)} requests are")
        request, swapped = self._swapped[rid]
        table = BlockTable(self.pool, self.block_size)
        transfers = host.swap_in(swapped, table)
        del self._swapped[rid]
        self._held[rid] = TableHolding(request, table, len(self.groups), swapped.tokens)
        self.books.filled_slots += sum(each.tokens for each in transfers)
        for each in transfers:
            self._move_block("host", each.source, "full", each.target, each.tokens, "swap in")
        if self.log is not None:
            self.log.write("swap_in", rid, "full", to_ranges(table.blocks))

    def _move_block(self, source_pool: str, source: int, target_pool: str, target: int, tokens: int, why: str) -> None:
        self._move(source_pool, source * self.block_size, target_pool, target * self.block_size, tokens, why)

    def usage(self, pending_tokens: int | None = None) -> dict[str, Usage]:
        """See `Policy.usage`; a block fits anywhere, so `pending_tokens` changes nothing."""
        found = {"full": self.books.usage(self._held.values())}
        if self.host is not None:
            found["host"] = self._host_usage(self.host)
        return found

    def _host_usage(self, host: HostSwap) -> Usage:
        scale, size = self.bytes_per_token, self.block_size
        held = (host.host.blocks - host.host.free_blocks) * size
        slack = self.host_tokens - host.host.blocks * size
        return Usage(
            live=host.filled_slots * scale, dead=0, reserved=0, internal=(held - host.filled_slots) * scale, cached=0,
            external=slack * scale, free=host.host.free_blocks * size * scale,
        )  # fmt: skip

    def audit(self) -> None:
        """See `Policy.audit`."""
        self.books.audit(self._held.values())
        if self.host is not None:
            self.host.audit()
            on_host = Counter(block for _, swapped in self._swapped.values() for block in swapped.blocks)
            host_counts = {block: count for block, count in enumerate(self.host.host.references) if count}
            require(on_host == host_counts, "the swapped tables and the host's reference counts disagree")
