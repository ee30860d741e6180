"""A radix policy in use. Its models know pages and contents: no tree, no lock and no order of use.

What is cached follows from the log's pages and what the memory holds there; what is locked from the tables. So hits,
room and accounting are worked out again without the code that is tested.
"""

import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvlab.events import State
from kvlab.policies.base import Usage
from kvlab.policies.layout import Layout, Table
from kvlab.policies.radix_base import RadixPolicy
from kvlab.shapes import LayerGroup
from kvlab.workload import Request, RequestId
from support.books import Books, Owner
from support.contents import slot_at
from support.serving import Sequence, Serving


@dataclass(frozen=True)
class RadixBooks(Books):
    """The accounting of pages that requests hold or the tree caches."""

    state: State = field(default_factory=State)

    def slots(self, owner: Owner, group: LayerGroup, layout: Layout) -> Iterator[tuple[int, int]]:
        assert isinstance(layout, Table)
        for index, page in enumerate(layout.blocks):
            for offset in range(layout.block_size if page >= 0 else 0):
                position = index * layout.block_size + offset
                yield page * layout.block_size + offset, self.term(owner, group, position)

    def cached_pages(self, pool: str) -> set[int]:
        """Pages of the tree that no request holds."""
        size = self.case.pools[pool].unit
        held = {slot // size for slot in self.owned(pool)}
        tree = {page for span in self.state.tree.values() for page in span.pages}
        if pool == "swa":
            tree = {self.state.swa_of[page] for page in tree if page in self.state.swa_of}
        return tree - held

    def usage(self, pool: str, pending_tokens: int | None) -> Usage:
        found = super().usage(pool, None)
        cached = len(self.cached_pages(pool)) * self.case.pools[pool].unit
        cached *= sum(group.bytes_per_token for group in self.groups if group.pool == pool)
        return found._replace(cached=cached, free=found.free - cached)

    def room_to_extend(self, owner: Owner, count: int) -> bool:
        """Whatever is cached can make way."""
        (size,) = {pool.unit for pool in self.case.pools.values()}
        needed = -(-(owner.computed + count) // size) - len(owner.layouts[0].blocks)  # type: ignore[union-attr]
        return all(needed <= self.free_units(pool) for pool in self.case.pools)

    def room_to_fork(self, parent: Owner, child: Request) -> bool:
        (size,) = {pool.unit for pool in self.case.pools.values()}
        return not parent.computed % size or all(self.free_units(pool) for pool in self.case.pools)


class RadixServing(Serving):
    """`Serving` with a model of prefix hits in two pools."""

    policy: RadixPolicy

    @property
    def size(self) -> int:
        return self.case.pools["full"].unit

    def books(self) -> RadixBooks:
        owners = {
            rid: Owner(sequence.request, sequence.computed, self.policy.layout(rid))
            for rid, sequence in self.admitted.items()
        }
        self.replay()
        return RadixBooks(self.case, self.policy.groups, owners, state=self.state)

    def found(self, request: Request) -> tuple[list[int], int]:
        """(pages that hold the prompt's prefix, tokens that can be used): looked up by what lies in the pages."""
        self.replay()
        size, window, state = self.size, self.policy.window_tokens, self.state
        content = self.content(request, request.token_ids(0, request.known_tokens).tolist(), [])
        holds = {}
        for span in state.tree.values():
            for page in span.pages:
                held = tuple(self.contents.read("full", range(page * size, (page + 1) * size)))
                assert held not in holds, "two pages of the tree hold the same"
                holds[held] = page
                assert span.live == (page in state.swa_of) or window is None
                if page in state.swa_of:
                    first = state.swa_of[page] * size
                    assert tuple(self.contents.read("swa", range(first, first + size))) == held, "a phantom live page"
        pages: list[int] = []
        for start in range(0, (request.known_tokens - 1) // size * size, size):
            page = holds.get(tuple(content[start : start + size]))
            if page is None:
                break
            pages.append(page)
        usable = len(pages) * size
        while usable and window is not None:
            needed = range(max(0, usable - window) // size, usable // size)
            if all(pages[index] in state.swa_of for index in needed):
                break
            usable -= size
        return pages, usable

    def has_room(self, request: Request, pages: list[int]) -> bool:
        """Room for the prompt in the full pool and for a chunk, a window and a page in the other, if these pages are
        kept for it and the rest of the cache makes way."""
        size, books, policy = self.size, self.books(), self.policy
        hit = len(pages) * size
        held = books.cached_pages("full") & set(pages)
        if -(-request.known_tokens // size) - len(pages) + len(held) > books.free_units("full"):
            return False
        window = policy.window_tokens
        if window is None:
            return True
        kept = [self.state.swa_of[page] for page in self.locked(pages)]
        taken = len(books.cached_pages("swa") & set(kept))
        chunk = -(-max(policy.chunk_tokens, window) // size) + 1
        if hit and not self.admitted:
            chunk = -(-window // size) + 2 * -(-policy.chunk_tokens // size) + 1
        return min(chunk, -(-request.limit_tokens // size) - len(pages)) + taken <= books.free_units("swa")

    def locked(self, pages: list[int]) -> list[int]:
        """The pages whose SWA KV a lock on this path keeps."""
        window = self.policy.window_tokens
        assert window is not None
        if self.case.trims:
            return pages[max(0, len(pages) * self.size - window) // self.size :]
        spans = {span.pages[0]: len(span.pages) for span in self.state.tree.values()}
        kept: list[int] = []
        for index in reversed(range(len(pages))):
            if len(kept) * self.size >= window and kept[-1] in spans:
                break
            kept.append(pages[index])
        return kept

    def admit(self, request: Request):
        pages, usable = self.found(request)
        before = self.frozen(request)
        peek = self.policy.peek(request)
        assert (peek.tokens, peek.full_tokens) == (usable, len(pages) * self.size)
        assert peek.pages.tolist() == pages[: usable // self.size]
        hit = pages[: usable // self.size]
        expected = next((each for each in (hit, []) if self.has_room(request, each)), None)
        assert self.frozen(request) == before, "a look at the cache changed something"
        admission = self.policy.admit(request)
        if expected is None:
            assert admission is None, "admitted without room"
            assert self.frozen(request) == before, "a refused admission changed something"
            return None
        assert admission is not None, "refused with room"
        cached = len(expected) * self.size
        assert admission.cached_tokens == request.computed == cached
        ids = request.token_ids(0, cached).tolist()
        self.admitted[request.rid] = Sequence(request, self.content(request, ids, []))
        assert list(self.policy.layout(request.rid)[0].blocks) == expected
        return admission

    def frozen(self, request: Request) -> bytes:
        return pickle.dumps((self.policy, request))

    def check_slots(self, rid: RequestId, start: int, count: int) -> None:
        """A commit may find its tokens in the tree already: then the table names those slots, with the same content."""
        sequence = self.admitted[rid]
        tokens = sequence.tokens + sequence.fresh[:count]
        for group, layout in zip(self.policy.groups, self.policy.layout(rid), strict=True):
            for position in range(max(start, group.first_readable(start + count)), start + count):
                assert self.contents.read(group.pool, [slot_at(layout, position)]) == [tokens[position]]

    def check(self, pending_tokens: int | None = None) -> None:
        self.policy.audit()
        books = self.books()
        usage = self.policy.usage(pending_tokens)
        assert set(usage) == set(self.case.pools)
        for pool in self.case.pools:
            assert usage[pool] == books.usage(pool, pending_tokens), f"the books of pool {pool!r}"
        self.check_replay(books)

    def check_replay(self, books: Books) -> None:
        """The log tells the same tables, mapping and locks."""
        told = {request.rid: request for request in self.state.running()}
        assert list(told) == list(self.admitted)
        for rid, owner in books.owners.items():
            assert told[rid].tokens == owner.computed
            for group, layout in zip(self.policy.groups, owner.layouts, strict=True):
                table = [-1 if page is None else page for page in told[rid].tables.get(group.pool, [])]
                assert table == list(layout.blocks), f"the log tells another {group.pool} table of {rid!r}"
        pools = self.policy.memory
        assert self.state.swa_of == {page: own for page, own in enumerate(pools.swa_of) if own >= 0}
        locks = Counter({page: 0 for span in self.state.tree.values() for page in span.pages})
        for owner in books.owners.values():
            locks.update(page for page in owner.layouts[0].blocks if page in locks)
        for number, span in self.state.tree.items():
            assert {locks[page] for page in span.pages} == {span.full_lock}, f"node {number}: whose path is it?"
            assert span.swa_lock <= span.full_lock
        assert self.state.policy == type(self.policy).__name__
        for pool, size in self.case.pools.items():
            geometry = self.state.pools[pool]
            scale = sum(group.bytes_per_token for group in self.policy.groups if group.pool == pool)
            assert (geometry.capacity, geometry.block_size, geometry.bytes_per_token) == (size.slots, size.unit, scale)
