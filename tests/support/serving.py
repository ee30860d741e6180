"""A policy in use: every call is made as an engine makes it, and everything it answers is held against the models."""

import pickle
import random
from collections.abc import Callable, Iterable
from itertools import count as numbers

import pytest

from kvlab.errors import InvalidInput, KvlabError, OutOfMemory
from kvlab.events import EventLog, State, apply
from kvlab.memory.hash_chain import short
from kvlab.policies.base import Admission, ReleaseReason
from kvlab.policies.layout import Region, Ring, Slots, Table
from kvlab.policies.prefix import PagedPrefix
from kvlab.workload import Request, RequestId
from support.books import Books, Owner, host_usage
from support.cases import ArenaCase, PolicyCase, RadixCase
from support.contents import Contents, slot_at

KNOWN_POOLS = ("full", "rings", "swa", "host", "ring", "page", "host.ring", "host.page")


class Sequence:
    """What the tests know of a request: its tokens by identity, and how many it may write before the next call."""

    def __init__(self, request: Request, tokens: Iterable[int] = ()) -> None:
        self.request = request
        self.tokens = list(tokens)
        self.fresh: list[int] = []
        self.ids: list[int] = []
        self.written = 0
        self.extended = 0
        self.room = 0
        self.slots: tuple[Slots, ...] = ()

    @property
    def computed(self) -> int:
        """Tokens whose KV is in memory."""
        return len(self.tokens) + self.written

    @property
    def settled(self) -> bool:
        """Nothing extended or computed waits for a commit."""
        return not self.extended and not self.written


class Serving:
    """A policy, the content of its memory, its books and the replay of its log."""

    def __new__(cls, case: PolicyCase) -> "Serving":
        """Radix and ring policies have books of their own."""
        from support.radix_serving import RadixServing
        from support.ring_serving import RingServing

        kinds = {RadixCase: RadixServing, ArenaCase: RingServing}
        return super().__new__(kinds.get(type(case), cls))

    def __init__(self, case: PolicyCase) -> None:
        self.case = case
        self.log = EventLog()
        self.policy = case.build(self.log)
        self.contents = Contents()
        self.admitted: dict[RequestId, Sequence] = {}
        self.swapped: dict[RequestId, Sequence] = {}
        self.state = State()
        self._replayed = 0
        self._token = numbers()
        self._drawn = random.Random(0)
        self._content: dict[object, int] = {}
        self._registered_at: dict[int, int] = {}

    def books(self) -> Books:
        """The plainest accounting of this moment."""
        owners = {
            rid: Owner(sequence.request, sequence.computed, self.policy.layout(rid))
            for rid, sequence in self.admitted.items()
        }
        self.replay()
        return Books(self.case, self.policy.groups, owners, self.state.registered.get("full", ()))

    def content(self, request: Request, ids: Iterable[int], after: list[int]) -> list[int]:
        """What the KV of `ids` is, by identity. With a prefix cache it follows from the salt and all tokens up to
        there, so that equal prefixes have equal content; without one every token is a new one."""
        if not self.policy.reads_tokens:
            return [next(self._token) for _ in ids]
        found: list[int] = []
        last: object = after[-1] if after else (type(request.salt), request.salt)
        for each in ids:
            last = self._content.setdefault((last, each), len(self._content))
            found.append(last)
        return found

    def more(self, sequence: Sequence, count: int) -> None:
        """The next `count` tokens that a sequence writes: those known, then drawn from a small vocabulary."""
        request, start = sequence.request, len(sequence.tokens) + len(sequence.ids)
        stop = start + count
        if request._tokens is None:
            ids = request.token_ids(start, stop).tolist()
        else:
            ids = request.token_ids(min(start, request.known_tokens), min(stop, request.known_tokens)).tolist()
            ids += [self._drawn.randrange(3) for _ in range(count - len(ids))]
        sequence.fresh += self.content(request, ids, sequence.tokens + sequence.fresh)
        sequence.ids += ids

    def hits(self, request: Request) -> list[int]:
        """The blocks that an admission should find: the first registered one that holds what the prompt needs next."""
        if not self.policy.reads_tokens:
            return []
        self.replay()
        size, known = self.case.pools["full"].unit, request.known_tokens
        content = self.content(request, request.token_ids(0, known).tolist(), [])
        registered = sorted(self.state.registered.get("full", ()), key=self._registered_at.__getitem__)
        found: list[int] = []
        for start in range(0, (known - 1) // size * size, size):
            wanted = content[start : start + size]
            holding = (b for b in registered if self.contents.read("full", range(b * size, (b + 1) * size)) == wanted)
            block = next(holding, None)
            if block is None:
                break
            found.append(block)
        return found

    def refused(self, error: type[KvlabError], call: Callable[[], object], *requests: Request) -> None:
        """The call raises `error`, and every bit of the policy, its log and the requests is as before."""
        before = pickle.dumps((self.policy, requests))
        with pytest.raises(error) as raised:
            call()
        assert str(raised.value), "an error without a message"
        assert pickle.dumps((self.policy, requests)) == before, "a refused call changed something"

    def admit(self, request: Request) -> Admission | None:
        """Admit; where the policy says no, there is no room and nothing changed."""
        hits = self.hits(request)
        room, before = self.books().room_to_admit(request, hits), pickle.dumps((self.policy, request))
        if isinstance(self.policy, PagedPrefix):
            assert self.policy.peek(request) == len(hits) * self.policy.block_size
            assert pickle.dumps((self.policy, request)) == before, "a look at the cache changed something"
        admission = self.policy.admit(request)
        assert (admission is not None) == room, "admitted without room, or refused with room"
        if admission is None:
            assert pickle.dumps((self.policy, request)) == before, "a refused admission changed something"
        else:
            cached = len(hits) * self.case.pools["full"].unit if hits else 0
            assert admission.cached_tokens == request.computed == cached, "the hit is not the longest cached prefix"
            ids = request.token_ids(0, cached).tolist() if cached else []
            self.admitted[request.rid] = Sequence(request, self.content(request, ids, []))
            if hits:
                assert [list(layout.blocks) for layout in self.policy.layout(request.rid)] == [hits] * len(
                    self.policy.groups
                )
        return admission

    def extend(self, rid: RequestId, count: int) -> bool:
        """Extend by `count`, if there is room; else see that it is refused."""
        sequence, books = self.admitted[rid], self.books()
        if not books.room_to_extend(books.owners[rid], count):
            self.refused(OutOfMemory, lambda: self.policy.extend(rid, count), sequence.request)
            return False
        extension = self.policy.extend(rid, count)
        assert (extension.start, extension.count) == (len(sequence.tokens), count)
        after = self.books()
        assert extension.quiet == after.quiet_after(after.owners[rid]) - sequence.computed - count
        sequence.slots = extension.slots()
        assert [(len(slots), slots.dtype) for slots in sequence.slots] == [(count, "int64")] * len(self.policy.groups)
        sequence.extended, sequence.room = count, count + extension.quiet
        return True

    def flush(self) -> None:
        """One step of the device: first the moves, in order, then the writes of what was extended."""
        for move in self.policy.drain_moves():
            assert move.tokens > 0
            assert move.bytes % move.tokens == 0
            assert {move.source_pool, move.target_pool} <= set(KNOWN_POOLS)
            self.contents.move(move)
        assert self.policy.drain_moves() == [], "a drained move came again"
        for sequence in self.admitted.values():
            if len(sequence.fresh) < sequence.extended:
                self.more(sequence, sequence.extended - len(sequence.fresh))
                layouts = self.policy.layout(sequence.request.rid)
                for group, layout, slots in zip(self.policy.groups, layouts, sequence.slots, strict=True):
                    # A ring takes accepted tokens only: a draft would overwrite keys that are still read.
                    if not isinstance(layout, Ring):
                        self.contents.write(group.pool, slots, sequence.fresh)

    def _accept(self, sequence: Sequence, until: int) -> None:
        """Write everything up to `until` tokens after the committed ones; the first `extended` are written already."""
        rid, committed = sequence.request.rid, len(sequence.tokens)
        self.more(sequence, max(0, until - len(sequence.fresh)))
        for group, layout in zip(self.policy.groups, self.policy.layout(rid), strict=True):
            first = sequence.written if isinstance(layout, Ring) else max(sequence.written, sequence.extended)
            for index in range(first, until):
                slot = slot_at(layout, committed + index)
                assert 0 <= slot < self.case.pools[group.pool].slots
                self.contents.write(group.pool, [slot], [sequence.fresh[index]])

    def quiet(self, rid: RequestId, count: int) -> None:
        """A quiet run: the caller advances the length, and no call is made."""
        self.flush()
        sequence = self.admitted[rid]
        assert sequence.written + count <= sequence.room
        self._accept(sequence, sequence.written + count)
        sequence.written += count
        sequence.request.computed += count
        self.log.step([(rid, count)])
        self.check_contents()

    def commit(self, rid: RequestId, count: int) -> None:
        """Commit the tokens since the last commit: at least those computed, at most those with room."""
        self.flush()
        sequence = self.admitted[rid]
        assert sequence.written <= count <= sequence.room
        self._accept(sequence, count)
        start = len(sequence.tokens)
        ids = sequence.ids[:count] if self.policy.reads_tokens else range(start, start + count)
        self.policy.commit(rid, ids)
        assert sequence.request.computed == start + count
        self.check_slots(rid, start, count)
        self.log.step([(rid, count - sequence.written)])
        sequence.tokens += sequence.fresh[:count]
        sequence.room -= count
        if count < sequence.extended:
            sequence.room = 0
            self.refused(InvalidInput, lambda: self.policy.commit(rid, range(1)), sequence.request)
        made = sequence.ids[max(0, sequence.request.known_tokens - start) : count]
        sequence.request.generated(len(made) if sequence.request._tokens is None else made)
        sequence.fresh, sequence.written, sequence.extended, sequence.slots = [], 0, 0, ()
        sequence.ids = []
        self.check_contents()

    def check_slots(self, rid: RequestId, start: int, count: int) -> None:
        """What was committed lies where the extension said."""
        said = self.admitted[rid].slots
        for group, layout, slots in zip(self.policy.groups, self.policy.layout(rid), said, strict=False):
            for index in range(max(0, group.first_readable(start + count) - start), min(count, len(slots))):
                assert slots[index] == slot_at(layout, start + index), "the extension said another slot"

    def fork(self, parent: RequestId, child: RequestId, output: int = 0) -> bool:
        """Fork, if there is room; else see that it is refused. The quiet runs of both sides end.

        The child makes `output` tokens, or as many as its parent where that is less than it has or more than it may.
        """
        sequence, books = self.admitted[parent], self.books()
        request = sequence.request.fork(child)
        if max(1, request.known_tokens - request.prompt_tokens) <= output <= request.max_tokens:
            request.output_tokens = output
        if not books.room_to_fork(books.owners[parent], request):
            self.refused(OutOfMemory, lambda: self.policy.fork(parent, request), sequence.request, request)
            return False
        self.policy.fork(parent, request)
        assert request.computed == sequence.computed
        self.admitted[child] = Sequence(request, sequence.tokens)
        sequence.room = 0
        for each in (parent, child):
            self.refused(InvalidInput, lambda each=each: self.policy.commit(each, range(1)))
        return True

    def release(self, rid: RequestId, reason: ReleaseReason) -> Request:
        """Give everything back."""
        self.policy.release(rid, reason)
        sequence = self.admitted.pop(rid, None) or self.swapped.pop(rid)
        assert sequence.request.computed == 0
        return sequence.request

    def swap_out(self, rid: RequestId) -> bool:
        """Swap out, if the host has room; blocks that it holds a copy of already need none."""
        before = pickle.dumps((self.policy, self.admitted[rid].request))
        needed = -(-self.admitted[rid].computed // self.case.pools["full"].unit)
        try:
            self.policy.swap_out(rid)
        except OutOfMemory:
            assert pickle.dumps((self.policy, self.admitted[rid].request)) == before
            assert self.host_blocks_free() < needed, "refused although there was room"
            return False
        self.swapped[rid] = self.admitted.pop(rid)
        self.swapped[rid].room = 0
        return True

    def swap_in(self, rid: RequestId) -> bool:
        """Swap in, if there is room."""
        before = pickle.dumps((self.policy, self.swapped[rid].request))
        needed = -(-self.swapped[rid].computed // self.case.pools["full"].unit)
        free = self.books().free_units("full")
        try:
            self.policy.swap_in(rid)
        except OutOfMemory:
            assert pickle.dumps((self.policy, self.swapped[rid].request)) == before
            assert free < needed, "refused although there was room"
            return False
        self.admitted[rid] = self.swapped.pop(rid)
        assert self.admitted[rid].request.computed == self.admitted[rid].computed
        return True

    def host_blocks_free(self) -> int:
        """From the books of the host."""
        assert self.case.host is not None
        self.replay()
        used = {block for rid in self.swapped for block in self.state.requests[rid].host["full"]}
        return self.case.host.slots // self.case.host.unit - len(used)

    def check(self, pending_tokens: int | None = None) -> None:
        """The audit, the books and the log's replay all agree."""
        self.policy.audit()
        self.replay()
        books = self.books()
        usage = self.policy.usage(pending_tokens)
        assert set(usage) == set(self.case.pools) | ({"host"} if self.case.host else set())
        for pool in self.case.pools:
            assert usage[pool] == books.usage(pool, pending_tokens), f"the books of pool {pool!r}"
        if self.case.host:
            tables = [(self.state.requests[rid].host["full"], each.computed) for rid, each in self.swapped.items()]
            scale = sum(group.bytes_per_token for group in self.policy.groups)
            assert usage["host"] == host_usage(self.case.host, tables, scale)
        self.check_replay(books)
        if isinstance(self.policy, PagedPrefix):
            entries = self.policy.pool.prefixes.entries
            told = {block: (short(entry.digest), short(entry.parent)) for block, entry in entries.items()}
            assert self.state.registered.get("full", {}) == told, "the log tells of other registered blocks"
            assert self.state.cached("full") == self.policy.pool.cached(), "another order of eviction"

    def check_contents(self) -> None:
        """Every admitted request reads back exactly its own tokens, through its layouts."""
        for rid, sequence in self.admitted.items():
            tokens = sequence.tokens + sequence.fresh[: sequence.written]
            for group, layout in zip(self.policy.groups, self.policy.layout(rid), strict=True):
                assert (layout.start, layout.end) == (group.first_readable(len(tokens)), len(tokens))
                read = self.contents.read(group.pool, layout.slots())
                assert read == tokens[layout.start :], f"request {rid!r} reads other tokens in {group.name!r}"

    def replay(self) -> None:
        """Bring the replayed state up to the end of the log."""
        while self._replayed < len(self.log.events):
            event = self.log.events[self._replayed]
            apply(self.state, event)
            if event[0] == "register":
                self._registered_at[event[2]] = self._replayed
            self._replayed += 1

    def check_replay(self, books: Books) -> None:
        """The log tells the same tables, regions and lengths as the policy."""
        told = {request.rid: request for request in self.state.running()}
        assert set(told) == set(self.admitted)
        assert self.case.host or list(told) == list(self.admitted), "the log tells another order of admission"
        assert {r.rid for r in self.state.requests.values() if r.status == "swapped"} == set(self.swapped)
        for rid, owner in books.owners.items():
            request = told[rid]
            assert request.tokens == owner.computed
            for group, layout in zip(self.policy.groups, owner.layouts, strict=True):
                match layout:
                    case Table():
                        assert request.tables.get(group.pool, []) == list(layout.blocks)
                    case Ring():
                        assert request.regions.get(group.pool, (None,))[0] == layout.first_slot
                    case Region():
                        assert self.case.asked is not None
                        asked, taken = self.case.asked(owner.request), self.case.taken(owner.request)
                        assert request.regions.get(group.pool) == (layout.first_slot, asked, taken)
        for rid, sequence in self.swapped.items():
            assert self.state.requests[rid].tokens == sequence.computed
        assert self.state.policy == type(self.policy).__name__
        assert set(self.state.pools) == set(self.case.pools)
        for pool, size in self.case.pools.items():
            geometry = self.state.pools[pool]
            scale = sum(group.bytes_per_token for group in self.policy.groups if group.pool == pool)
            block_size = size.unit if pool == "full" and self.case.asked is None else 1
            assert (geometry.capacity, geometry.block_size, geometry.bytes_per_token) == (size.slots, block_size, scale)
            named = self.state.holders(pool)
            assert all(len(rids) == books.holders(block) for block, rids in named.items())
            filled = self.state.filled(pool)
            for owner in books.owners.values():
                layout = owner.layouts[0]
                if isinstance(layout, Table) and pool == "full":
                    for index, block in enumerate(layout.blocks):
                        assert filled[block] >= min(size.unit, max(0, owner.computed - index * size.unit))
