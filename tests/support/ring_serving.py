"""A ring policy in use: one arena of rings and pages, whose accounting is worked out from the layouts alone."""

import pickle
from collections.abc import Iterable
from dataclasses import dataclass

from kvlab.errors import OutOfMemory
from kvlab.policies.base import Usage
from kvlab.policies.layout import Ring, Table
from kvlab.workload import Request, RequestId
from support.books import LIVE, Books, Owner
from support.cases import ArenaCase
from support.serving import Serving


@dataclass(frozen=True)
class ArenaBooks(Books):
    """Pages are free wherever no ring and no table lies: in one row or in many makes no difference."""

    case: ArenaCase

    @property
    def free_pages(self) -> int:
        """Pages of the arena that nobody holds."""
        page = self.case.pools["page"]
        held = len({slot // page.unit for slot in self.owned("page")})
        return page.slots // page.unit - held - len(self.owners) * self.case.pages_per_row

    def free_units(self, pool: str) -> int:
        return self.free_pages if pool == "page" else self.free_pages // self.case.pages_per_row

    def table(self, owner: Owner) -> Table:
        """The owner's table of pages."""
        (table,) = (layout for layout in owner.layouts if isinstance(layout, Table))
        return table

    def holders(self, block: int) -> int:
        return sum(block in self.table(owner).blocks for owner in self.owners.values())

    def pages_for(self, owner: Owner, stop: int) -> int:
        """Pages that growing to `stop` tokens takes, the copy of a shared last one included."""
        table = self.table(owner)
        copied = owner.computed % table.block_size > 0 and self.holders(table.blocks[-1]) > 1
        return -(-stop // table.block_size) - len(table.blocks) + copied

    def room_to_extend(self, owner: Owner, count: int) -> bool:
        return self.pages_for(owner, owner.computed + count) <= self.free_pages

    def quiet_after(self, owner: Owner) -> int:
        table = self.table(owner)
        return len(table.blocks) * table.block_size

    def room_to_fork(self, parent: Owner, child: Request) -> bool:
        return self.case.pages_per_row <= self.free_pages

    def room_to_admit(self, request: Request, hits: Iterable[int] = ()) -> bool:
        pages = -(-request.known_tokens // self.case.pools["page"].unit)
        watermark = self.case.watermark if self.owners else 0
        return self.case.pages_per_row + pages + watermark <= self.free_pages

    def arena(self) -> Usage:
        """The accounting identity of the one memory."""
        rings, pages = (Books.usage(self, pool, None) for pool in ("ring", "page"))
        page_bytes = self.case.pools["page"].unit * next(g.bytes_per_token for g in self.groups if g.pool == "page")
        row_bytes, held = self.case.pages_per_row * page_bytes, len(self.owners)
        taken = sum(rings[LIVE:4])
        return Usage(
            live=rings.live + pages.live,
            dead=rings.dead + pages.dead,
            reserved=rings.reserved + pages.reserved,
            internal=rings.internal + pages.internal + held * row_bytes - taken,
            cached=0,
            external=self.case.budget_bytes - self.case.rows * row_bytes,
            free=self.free_pages * page_bytes,
        )


class RingServing(Serving):
    """`Serving` over an arena."""

    case: ArenaCase

    def books(self) -> ArenaBooks:
        owners = {
            rid: Owner(sequence.request, sequence.computed, self.policy.layout(rid))
            for rid, sequence in self.admitted.items()
        }
        self.replay()
        return ArenaBooks(self.case, self.policy.groups, owners)

    def check(self, pending_tokens: int | None = None) -> None:
        self.policy.audit()
        books, usage = self.books(), self.policy.usage(pending_tokens)
        assert set(usage) == {"arena"} | ({"host"} if self.case.host else set())
        assert usage["arena"] == books.arena()
        rings = {
            layout.first_slot for owner in books.owners.values() for layout in owner.layouts if type(layout) is Ring
        }
        assert len(rings) == len(books.owners), "two requests share a ring"
        size, row = self.case.pools["page"].unit, self.case.pools["ring"].unit
        paged_rows = {slot // size // self.case.pages_per_row for slot in books.owned("page")}
        assert not paged_rows & {first // row for first in rings}, "a page lies in a ring"
        if self.case.host is not None:
            assert usage["host"].live == self.on_host()
        self.check_replay(books)

    def on_host(self) -> int:
        """Bytes that the host keeps: shared full pages once."""
        assert self.case.host is not None
        bytes_of = {group.pool: group.bytes_per_token for group in self.policy.groups}
        filled: dict[int, int] = {}
        for rid, sequence in self.swapped.items():
            for index, block in enumerate(self.state.requests[rid].host["page"]):
                filled[block] = min(self.case.host.unit, sequence.computed - index * self.case.host.unit)
        rings = sum(min(self.case.pools["ring"].unit, sequence.computed) for sequence in self.swapped.values())
        return sum(filled.values()) * bytes_of["page"] + rings * bytes_of["ring"]

    def swap_out(self, rid: RequestId) -> bool:
        request = self.admitted[rid].request
        before = pickle.dumps((self.policy, request))
        try:
            self.policy.swap_out(rid)
        except OutOfMemory:
            assert pickle.dumps((self.policy, request)) == before
            assert self.host_is_short(self.admitted[rid].computed), "refused although there was room"
            return False
        self.swapped[rid] = self.admitted.pop(rid)
        self.swapped[rid].room = 0
        return True

    def host_is_short(self, tokens: int) -> bool:
        """Whether the host may lack a ring or pages for so many tokens."""
        assert self.case.host is not None
        self.replay()
        used = {block for rid in self.swapped for block in self.state.requests[rid].host["page"]}
        pages = self.case.host.slots // self.case.host.unit - len(used)
        rings = self.case.host.slots // self.case.pools["ring"].unit - len(self.swapped)
        return rings == 0 or pages < -(-tokens // self.case.host.unit)

    def swap_in(self, rid: RequestId) -> bool:
        request = self.swapped[rid].request
        before, free = pickle.dumps((self.policy, request)), self.books().free_pages
        try:
            self.policy.swap_in(rid)
        except OutOfMemory:
            assert pickle.dumps((self.policy, request)) == before
            needed = self.case.pages_per_row - (-self.swapped[rid].computed // self.case.pools["page"].unit)
            assert free < needed, "refused although there was room"
            return False
        self.admitted[rid] = self.swapped.pop(rid)
        return True

    def check_replay(self, books: Books) -> None:
        told = {request.rid: request for request in self.state.running()}
        assert set(told) == set(self.admitted)
        assert {r.rid for r in self.state.requests.values() if r.status == "swapped"} == set(self.swapped)
        for rid, owner in books.owners.items():
            assert told[rid].tokens == owner.computed
            for layout in owner.layouts:
                if isinstance(layout, Ring):
                    assert told[rid].tables["ring"] == [layout.first_slot // layout.window_tokens]
                else:
                    assert isinstance(layout, Table)
                    assert told[rid].tables.get("page", []) == list(layout.blocks)
        assert self.state.policy == type(self.policy).__name__
        assert {name: (each.capacity, each.block_size) for name, each in self.state.pools.items()} == {
            name: (each.slots, each.unit) for name, each in self.case.pools.items()
        }
