"""What the two radix policies share: a tree of cached prefixes over two pools, and requests that lock their path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from kvlab.errors import InvalidInput, NeverFits, positive, require
from kvlab.events import EventLog
from kvlab.memory.radix_results import Match, token_array
from kvlab.memory.two_pools import NO_PAGE
from kvlab.policies.base import (
    Admission,
    Extension,
    Move,
    ReleaseReason,
    TokenList,
    Usage,
    checked_commit,
    checked_reason,
)
from kvlab.policies.layout import Layout, Table
from kvlab.policies.radix_books import FULL, SWA, RadixHolding, slots_of
from kvlab.policies.radix_pages import RadixPages
from kvlab.shapes import LayerGroup
from kvlab.workload import Request, RequestId


class RadixPolicy(RadixPages):
    """Pool "full" has `full_tokens` slots for the layers that read everything, pool "swa" `ratio` times as many for
    those with a window; pages of `page_size` tokens in both.

    Every committed prompt chunk goes into the tree, whose path the request then locks; what it generates goes in when
    it finishes. `chunk_tokens` is the longest prompt chunk that a step may bring: admission sees to it that
    max(chunk, window) + a page of the SWA pool can be had. A request behind whose own window lies SWA KV of its own
    gives it back page by page: up to t = floor(L - window - page), because the same prompt sent again can match no
    more than L - 1 of its tokens. Subclasses say what a commit does with the SWA KV before t.

    On a shape without sliding layers there is one pool, and this is a plain radix cache.
    Source: SGLang's RadixAttention with sliding windows; article 002.
    """

    reads_tokens = True

    def __init__(
        self,
        groups: Sequence[LayerGroup],
        full_tokens: int,
        *,
        ratio: float = 1.0,
        page_size: int = 16,
        chunk_tokens: int = 2048,
        log: EventLog | None = None,
    ) -> None:
        self.page_size = page = positive("page_size", page_size)
        self.chunk_tokens = positive("chunk_tokens", chunk_tokens)
        self.full_tokens = positive("full_tokens", full_tokens)
        self.window_tokens = _window(groups)
        super().__init__([_in_its_pool(group) for group in groups], log)
        if chunk_tokens < page:
            raise InvalidInput(f"a chunk of {chunk_tokens} tokens is smaller than a page of {page}")
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1:
            raise InvalidInput(f"ratio must lie in (0, 1], not {ratio!r}")
        if full_tokens < page:
            raise InvalidInput(f"a page of {page} tokens does not fit into a pool of {full_tokens}")
        self.swa_tokens = int(full_tokens * ratio) if self.window_tokens is not None else 0
        if self.window_tokens is not None and self.swa_tokens // page * page < self.window_tokens + page:
            raise InvalidInput(
                f"the SWA pool has {self.swa_tokens // page} pages of {page} tokens ({ratio} x {full_tokens}); a "
                f"window of {self.window_tokens} and a page need {self.window_tokens + page}: raise ratio or tokens"
            )
        self._lay_out(log)

    # What a subclass decides

    def _frontier(self, length: int) -> int:
        """Up to where SWA KV is dead for whoever has `length` (whole pages of) tokens committed."""
        return 0 if self.window_tokens is None else max(0, self._floor(length - self.window_tokens - self.page_size))

    def _chunk_dead_to(self, holding: RadixHolding, length: int) -> int:
        """Up to where a prompt chunk's insert frees the request's own SWA KV."""
        return 0

    def _kept(self, holding: RadixHolding, dead_to: int) -> tuple[int, int] | None:
        """A live span before `dead_to` that the insert keeps."""
        return None

    def _island_is_due(self, holding: RadixHolding, length: int) -> bool:
        """Whether generated text goes into the tree now."""
        return False

    def _trims(self) -> bool:
        """Whether an admission locks no more SWA KV than its window."""
        return False

    def _inserted(self, holding: RadixHolding, dead_to: int) -> None:
        """The holding has locked what it has just inserted."""

    # In

    def peek(self, request: Request) -> Match:
        """What an admission would find in the cache, and why not more; changes nothing."""
        return self.tree.match(request.token_ids(0, request.known_tokens - 1), request.salt)

    def slots_needed(self, request: Request) -> int:
        """See `Policy.slots_needed`: whole pages for the tokens known so far."""
        return self._ceil(request.known_tokens)

    def admit(self, request: Request) -> Admission | None:
        """See `Policy.admit`: the cached prefix is locked; pages are taken as the rest is extended.

        A hit whose lock leaves too little room (it keeps whole nodes of SWA KV) is done without.
        """
        self._refuse_admitted(request.rid)
        self._refuse_for_good(request)
        found = self.peek(request)
        if self._has_room(request, found.tokens):
            lock = self.tree.lock_match(found, trim=self._trims())
        elif found.tokens and self._has_room(request, 0):
            lock = self.tree.lock([])
        else:
            return None
        holding = RadixHolding(request, lock, self.page_size, request.known_tokens)
        holding.branch_at = found.full_tokens
        holding.remember(0, request.token_ids(0, lock.tokens))
        holding.pages = found.pages[: lock.tokens // self.page_size].tolist()
        holding.generations = [0] * len(holding.pages)
        dead = lock.swa_from // self.page_size
        holding.swa = [NO_PAGE] * dead + self.memory.swa_pages(holding.pages[dead:])
        request.computed = lock.tokens
        self._held[request.rid] = holding
        self._count(queried_tokens=request.known_tokens, hit_tokens=lock.tokens)
        if self.log is not None:
            self.log.write("admit", request.rid, request.known_tokens, request.final_tokens, lock.tokens)
            if holding.pages:
                self._log_grown(holding, 0, dead)
        return Admission(lock.tokens)

    def _refuse_for_good(self, request: Request) -> None:
        page, most = self.page_size, self._ceil(request.limit_tokens)
        if most > self.memory.full.blocks * page:
            raise NeverFits(
                f"request {request.rid!r} may reach {request.limit_tokens} tokens; "
                f"the full pool holds {self.memory.full.blocks} pages of {page}"
            )
        if self.memory.swa is not None and min(most, self._alone()) > self.memory.swa.blocks * page:
            raise NeverFits(
                f"request {request.rid!r} alone may need {min(most, self._alone())} tokens of SWA KV (a window of "
                f"{self.window_tokens}, a chunk of {self.chunk_tokens} locked and one in flight); the SWA pool holds "
                f"{self.memory.swa.blocks} pages of {page}"
            )

    def _alone(self) -> int:
        """SWA tokens with which a request that found nothing in the cache can always go on."""
        return self._ceil(self.window_tokens or 0) + 2 * self._ceil(self.chunk_tokens) + self.page_size

    def _has_room(self, request: Request, hit: int) -> bool:
        """Whether the request can come in with a hit of so many tokens, and its first chunk be computed.

        Where nobody else could make way later, a lock must leave all that the request can need.
        """
        page, tree = self.page_size, self.tree
        full, swa = tree.lock_takes(request.token_ids(0, hit), request.salt, trim=self._trims())
        room = self.memory.full.free_blocks * page + tree.full_evictable - full
        if room < self.slots_needed(request) - hit:
            return False
        if self.memory.swa is None or self.window_tokens is None:
            return True
        wanted = max(self._ceil(self.chunk_tokens), self._ceil(self.window_tokens)) + page
        if hit and not self._held:
            wanted = self._alone()
        wanted = min(wanted, self._ceil(request.limit_tokens) - hit)
        return self.memory.swa.free_blocks * page + tree.swa_evictable - swa >= wanted

    # A step

    def extend(self, rid: RequestId, count: int) -> Extension:
        """See `Policy.extend`: new pages in both pools, evicted from the cache where none is free; quiet to the end of
        the last page."""
        holding = self._holding(rid)
        holding.settled("extend")
        if count < 1:
            raise InvalidInput(f"asked to extend request {rid!r} by {count} tokens; extend by at least 1")
        start, held = holding.committed, len(holding.pages)
        if count > self.chunk_tokens and start < holding.prefill_tokens and self.memory.swa is not None:
            raise InvalidInput(
                f"a step brings {count} tokens of the prompt of request {rid!r}, but room is kept for chunks of "
                f"{self.chunk_tokens}; lower the scheduler's token budget or raise chunk_tokens"
            )
        needed = self._ceil(start + count) // self.page_size - held
        if needed > 0:
            pages = self._take(needed, f"extending request {rid!r} by {count} tokens")
            holding.pages += pages
            holding.generations += self.memory.generations(pages)
            holding.swa += self.memory.swa_pages(pages)
            if self.log is not None:
                self._log_grown(holding, held)
        holding.granted = start + count
        holding.limit = len(holding.pages) * self.page_size
        return Extension(start, count, holding.limit - holding.granted, partial(slots_of, holding, self.groups))

    def layout(self, rid: RequestId) -> tuple[Layout, ...]:
        """See `Policy.layout`: a table a group, the sliding ones live from the window on."""
        holding = self._holding(rid)
        end = holding.request.computed
        return tuple(holding.table(group, group.first_readable(end), end) for group in self.groups)

    def table(self, rid: RequestId, group: LayerGroup, start: int, stop: int) -> Table:
        """Where positions [start, stop) of a request lie in one group, extended ones too."""
        return self._holding(rid).table(group, start, stop)

    def commit(self, rid: RequestId, token_ids: TokenList) -> None:
        """See `Policy.commit`: full pages of a prompt chunk go into the tree; of generated text, when it is due."""
        holding = self._holding(rid)
        start, ids = holding.committed, token_array(token_ids)
        stop = checked_commit(holding, token_ids)
        holding.remember(start, ids)
        if stop < holding.granted:
            self._trim(holding, stop)
            holding.limit = stop
        holding.committed = holding.granted = holding.request.computed = stop
        whole = self._floor(stop)
        if whole <= self._floor(start):
            return
        if start < holding.prefill_tokens:
            dead_to = self._chunk_dead_to(holding, whole)
            self._count(chunk_inserts=1, chunk_islands=int(dead_to > holding.own_swa_from))
            self._stash(holding, whole, dead_to)
            return
        self._free_behind(holding, self._frontier(whole))
        if not self._island_is_due(holding, whole):
            return
        if self.tree.match(holding.ids(whole), holding.request.salt).full_tokens == whole:
            holding.island_at = whole  # said before: it goes on with its own KV, whose bits are those of its own run
            return
        self._stash(holding, whole, 0)
        self._count(decode_islands=1)

    def _stash(self, holding: RadixHolding, length: int, dead_to: int, *, relock: bool = True) -> None:
        """Put the first `length` committed tokens into the tree, in the order in which nothing is read after it was
        freed: dead SWA KV goes, insert, look that the insert can be matched, point the table at the tree's pages, free
        duplicates, lock the new end, unlock the old one."""
        own, page, request = holding.protected, self.page_size, holding.request
        if length <= own:
            if not relock:
                self.tree.unlock(holding.lock)
            return
        kept = self._kept(holding, dead_to)
        self._free_behind(holding, dead_to, kept)
        ids = holding.ids(length)
        dead = holding.evicted if holding.evicted > own else 0
        done = self.tree.insert(
            ids, holding.pages[: length // page], request.salt, owned_from=own, dead_to=dead, kept=kept
        )
        self.memory.adopt(done.takers.tolist(), done.givers.tolist())
        matched = self.tree.match(ids, request.salt).tokens
        require(matched == length, f"{length} tokens of {request.rid!r} were inserted, {matched} can be matched")
        self._point_at(holding, own, done.found, done.pages.tolist())
        old = holding.lock
        if relock:
            holding.lock = self.tree.lock(ids, request.salt)
            holding.island_at = length
            cut = slice(own // page, length // page)
            holding.generations[cut] = [0] * (length // page - own // page)
            self._drop_entries(holding, min(old.swa_from, own), min(holding.lock.swa_from, length))
        self.tree.unlock(old)
        if relock:
            self._inserted(holding, dead_to)

    # Out

    def fork(self, parent: RequestId, child: Request) -> None:
        """See `Policy.fork`: whole pages go into the tree, where both lock them; the rest of a page is copied.

        Raises `OutOfMemory` where there is no page for the copy, `InvalidInput` where the child's salt is another.
        """
        holding = self._holding(parent)
        self._refuse_admitted(child.rid)
        holding.settled("fork")
        if holding.request.salt != child.salt or type(holding.request.salt) is not type(child.salt):
            raise InvalidInput(
                f"request {child.rid!r} has the salt {child.salt!r} and cannot share the pages of {parent!r}, "
                f"whose salt is {holding.request.salt!r}; admit it instead"
            )
        length, page = holding.committed, self.page_size
        whole = self._floor(length)
        copies = self._take(1, f"forking request {parent!r}") if length > whole else []
        if whole > holding.protected:
            self._stash(holding, whole, 0)
        lock = self.tree.lock(holding.ids(whole), child.salt)
        forked = RadixHolding(child, lock, page, holding.prefill_tokens)
        forked.remember(0, holding.ids(length))
        cut, dead = whole // page, lock.swa_from // page
        forked.pages = holding.pages[:cut] + copies
        forked.swa = [NO_PAGE] * dead + self.memory.swa_pages(forked.pages[dead:])
        forked.generations = [0] * cut + self.memory.generations(copies)
        forked.island_at, forked.branch_at = holding.island_at, holding.branch_at
        forked.committed = forked.granted = forked.limit = child.computed = length
        holding.limit = length
        self._held[child.rid] = forked
        for pool, table in ((FULL, holding.pages), (SWA, holding.swa)) if copies else ():
            if pool in self.books.capacities:
                target = copies[0] if pool == FULL else forked.swa[-1]
                tokens = length - whole
                self._moves.append(
                    Move(pool, table[cut] * page, pool, target * page, tokens, tokens * self.books.scales[pool], "fork")
                )
        if self.log is not None:
            self.log.write("fork", parent, child.rid)
            if dead and self.memory.swa is not None:
                self.log.write("drop", child.rid, SWA, 0, dead)
            for pool, table, own in ((FULL, holding.pages, forked.pages), (SWA, holding.swa, forked.swa)):
                if copies and pool in self.books.capacities:
                    self.log.write("copy", child.rid, pool, cut, table[cut], own[cut])

    def release(self, rid: RequestId, reason: ReleaseReason) -> None:
        """See `Policy.release`: a finished request leaves its whole pages in the tree, unlocked; an aborted or
        preempted one what is there already, and its own pages are free."""
        holding = self._holding(rid)
        checked_reason(reason)
        whole = self._floor(holding.committed) if reason == "finished" else holding.protected
        self._stash(holding, whole, 0, relock=False)
        cut = whole // self.page_size
        self.memory.free(holding.pages[cut:][::-1], holding.generations[cut:][::-1])
        del self._held[rid]
        holding.request.computed = 0
        if self.log is not None:
            self.log.write("release", rid, reason)

    # The whole

    def usage(self, pending_tokens: int | None = None) -> dict[str, Usage]:
        """See `Policy.usage`; a page fits anywhere, so `pending_tokens` changes nothing."""
        return self.books.usage(self._held.values())

    def audit(self) -> None:
        """See `Policy.audit`."""
        self.books.audit(self._held.values())


def _window(groups: Sequence[LayerGroup]) -> int | None:
    windows = {group.window_tokens for group in groups}
    if None not in windows:
        raise InvalidInput("a radix policy needs a group of layers without a window: their KV is what a match walks")
    found = sorted(each for each in windows if each is not None)
    if len(found) > 1:
        raise InvalidInput(f"the sliding groups must have one window, not {found}")
    return positive("window_tokens", found[0]) if found else None


def _in_its_pool(group: LayerGroup) -> LayerGroup:
    return replace(group, pool=FULL if group.window_tokens is None else SWA)
