"""The pages of a radix policy: how tables take, give back, drop and exchange them, and what the log is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvlab.errors import OutOfMemory
from kvlab.events import EventLog, to_ranges
from kvlab.memory.radix_tree import RadixTree
from kvlab.memory.two_pools import NO_PAGE, TwoPools
from kvlab.policies.base import PolicyBase, Pool
from kvlab.policies.radix_books import FULL, SWA, RadixBooks, RadixHolding
from kvlab.workload import RequestId


class RadixStats(NamedTuple):
    """Totals: prompt tokens asked for and found at admission; prompt chunks inserted, and those of them that freed dead
    SWA KV (chunk islands); inserts of what a running request generates (decode islands); tokens evicted from each
    pool."""

    queried_tokens: int
    hit_tokens: int
    chunk_inserts: int
    chunk_islands: int
    decode_islands: int
    evicted_full_tokens: int
    evicted_swa_tokens: int

    @property
    def hit_rate(self) -> float:
        """Found / asked for; 0 before the first admission."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else 0.0


class RadixPages(PolicyBase[RadixHolding]):
    """Two pools, a tree of cached prefixes over them, and the tables of the requests. Sizes in tokens."""

    page_size: int
    full_tokens: int
    swa_tokens: int
    window_tokens: int | None

    def _lay_out(self, log: EventLog | None) -> None:
        """Make the pools, the tree and the books from the sizes."""
        page = self.page_size
        swa_pages = None if self.window_tokens is None else self.swa_tokens // page
        capacities = {FULL: self.full_tokens} | ({} if swa_pages is None else {SWA: self.swa_tokens})
        self.memory = TwoPools(page, self.full_tokens // page, swa_pages, log=log)
        self.tree = RadixTree(page, self.window_tokens, log=log)
        self.books = RadixBooks(self.groups, self.tree, self.memory, capacities)
        self._totals = RadixStats(0, 0, 0, 0, 0, 0, 0)
        if log is not None:
            rows = [(FULL, self.full_tokens, page, self.books.scales[FULL], to_ranges(self.memory.full.next_free()))]
            if self.memory.swa is not None:
                order = to_ranges(self.memory.swa.next_free())
                rows.append((SWA, self.swa_tokens, page, self.books.scales[SWA], order))
            log.write("header", type(self).__name__, tuple(rows))

    def pools(self) -> dict[str, Pool]:
        """See `Policy.pools`: "full", and "swa" where there are sliding layers."""
        pages = {FULL: self.memory.full} | ({} if self.memory.swa is None else {SWA: self.memory.swa})
        return {
            name: Pool(each.blocks * self.page_size, self.page_size, each.references) for name, each in pages.items()
        }

    @property
    def stats(self) -> RadixStats:
        """What the cache has been good for so far."""
        return self._totals

    def _count(self, **more: int) -> None:
        self._totals = self._totals._replace(**{name: getattr(self._totals, name) + n for name, n in more.items()})

    # Taking and giving back

    def _take(self, count: int, doing: str) -> list[int]:
        """Pages of both pools, what is cached evicted for them. Raises `OutOfMemory` and evicts nothing."""
        memory, tree, page = self.memory, self.tree, self.page_size
        full, swa = memory.full.free_blocks, count if memory.swa is None else memory.swa.free_blocks
        if full + tree.full_evictable // page < count or (
            memory.swa is not None and swa + tree.swa_evictable // page < count
        ):
            raise OutOfMemory(
                f"{doing} needs {count} pages; the full pool has {full} free and {tree.full_evictable // page} "
                f"evictable, the SWA pool {swa} and {tree.swa_evictable // page}; release or preempt a request"
            )
        if full < count:
            gone = tree.evict_full((count - full) * page)
            memory.free(gone.full_pages.tolist())
            self._count(evicted_full_tokens=gone.full_tokens, evicted_swa_tokens=gone.swa_tokens)
        if memory.swa is not None and memory.swa.free_blocks < count:
            gone = tree.evict_swa((count - memory.swa.free_blocks) * page)
            memory.free_swa(gone.swa_pages.tolist())
            memory.free(gone.full_pages.tolist())
            self._count(evicted_full_tokens=gone.full_tokens, evicted_swa_tokens=gone.swa_tokens)
        return memory.allocate(count)

    def _trim(self, holding: RadixHolding, tokens: int) -> None:
        """Give back the pages behind the first `tokens` tokens."""
        kept = self._ceil(tokens) // self.page_size
        if kept == len(holding.pages):
            return
        self.memory.free(holding.pages[kept:][::-1], holding.generations[kept:][::-1])
        if self.log is not None:
            for pool in self.books.capacities:
                self.log.write("trim", holding.request.rid, pool, len(holding.pages) - kept)
        del holding.pages[kept:], holding.generations[kept:], holding.swa[kept:]

    def _free_behind(self, holding: RadixHolding, position: int, kept: tuple[int, int] | None = None) -> None:
        """Free the request's own SWA KV before `position`, but for the kept span."""
        first, last = kept or (position, position)
        start = holding.own_swa_from
        for a, b in ((start, min(first, position)), (max(start, last), position)):
            if a < b:
                cut = slice(a // self.page_size, b // self.page_size)
                self.memory.free_swa(holding.pages[cut], holding.generations[cut])
        if start < position:
            holding.evicted = position
            self._drop_entries(holding, start, position)

    def _drop_entries(self, holding: RadixHolding, start: int, stop: int) -> None:
        """The SWA table has nothing to read at [start, stop) any more."""
        first, last = start // self.page_size, stop // self.page_size
        if first >= last or self.memory.swa is None:
            return
        holding.swa[first:last] = [NO_PAGE] * (last - first)
        if self.log is not None:
            self.log.write("drop", holding.request.rid, SWA, first, last - first)

    def _point_at(self, holding: RadixHolding, own: int, found: int, pages: list[int]) -> None:
        """Let the table name the tree's pages for [own, found) and free the duplicates that it named."""
        if found <= own:
            return
        cut = slice(own // self.page_size, found // self.page_size)
        count = cut.stop - cut.start
        duplicates, generations = holding.pages[cut], holding.generations[cut]
        holding.pages[cut] = pages[:count]
        holding.generations[cut] = self.memory.generations(pages[:count])
        holding.swa[cut] = self.memory.swa_pages(pages[:count])
        self.memory.free(duplicates, generations)
        if self.log is not None:
            rid = holding.request.rid
            self.log.write("point", rid, FULL, cut.start, to_ranges(pages[:count]))
            self._log_swa_entries(rid, holding.swa, cut.start, cut.stop)

    # Told to the log

    def _log_grown(self, holding: RadixHolding, first: int, dead: int = 0) -> None:
        """Table entries from `first` on are new; the first `dead` of the SWA table name nothing."""
        assert self.log is not None
        rid = holding.request.rid
        self.log.write("grow", rid, FULL, to_ranges(holding.pages[first:]))
        if self.memory.swa is not None:
            if dead:
                self.log.write("skip", rid, SWA, dead)
            if first + dead < len(holding.swa):
                self.log.write("grow", rid, SWA, to_ranges(holding.swa[first + dead :]))

    def _log_swa_entries(self, rid: RequestId, table: Sequence[int], first: int, last: int) -> None:
        """The SWA table's entries [first, last) are others now, or none."""
        assert self.log is not None
        if self.memory.swa is None:
            return
        at = first
        while at < last:
            end = at + 1
            while end < last and (table[end] == NO_PAGE) == (table[at] == NO_PAGE):
                end += 1
            if table[at] == NO_PAGE:
                self.log.write("drop", rid, SWA, at, end - at)
            else:
                self.log.write("point", rid, SWA, at, to_ranges(table[at:end]))
            at = end

    def _floor(self, tokens: int) -> int:
        return tokens // self.page_size * self.page_size

    def _ceil(self, tokens: int) -> int:
        return -(-tokens // self.page_size) * self.page_size
