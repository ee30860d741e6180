"""The state machine of `RadixTree`: every answer, node, lock and eviction is that of the plainest model."""

import pickle
from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kvlab.errors import InvalidInput, StaleHandle
from kvlab.events import EventLog, State, apply
from kvlab.memory.radix_results import Lock, Match
from kvlab.memory.radix_snapshot import flat, nodes_of
from kvlab.memory.radix_tree import RadixTree
from support.machines import Counted
from support.radix_model import Cell, Name, RadixModel

PICK = st.integers(0, 999)
SALTS = [None, None, None, 1, "1"]


class RadixMachine(Counted):
    """Sequences over two tokens, so that they share much and branch often."""

    @initialize(size=st.sampled_from([1, 1, 2, 3]), window=st.sampled_from([None, 1, 2, 3, 5, 8]))
    def fresh(self, size: int, window: int | None) -> None:
        self.size, self.window = size, window
        self.log = EventLog()
        self.tree = RadixTree(size, window, log=self.log)
        self.model = RadixModel(size, window)
        self.pages = count(1)
        self.state = State()
        self.told = 0
        self.seen: list[tuple[object, list[int]]] = [(None, [])]
        self.matches: list[tuple[Match, object, list[int]]] = []
        self.locks: list[tuple[Lock, object, list[Name], list[Name]]] = []

    def tokens(self, pick: int, cut: int, more: list[int]) -> tuple[object, list[int]]:
        """A sequence seen before up to a cut, and something of its own."""
        salt, base = self.seen[pick % len(self.seen)]
        if pick % 7 == 6:
            salt = SALTS[pick % len(SALTS)]
        return salt, [*base[:cut], *more]

    @rule(
        pick=PICK, cut=st.integers(0, 40), more=st.lists(st.integers(0, 1), max_size=14), owned=PICK, dead=PICK,
        kept=st.none() | PICK,
    )  # fmt: skip
    def insert(self, pick: int, cut: int, more: list[int], owned: int, dead: int, kept: int | None) -> None:
        size, window = self.size, self.window or 0
        salt, ids = self.tokens(pick, cut, more)
        ids = ids[: len(ids) // size * size]
        pages = [next(self.pages) for _ in range(len(ids) // size)]
        found = len(self.model.path(salt, ids)) * size
        owned_from = owned % (found // size + 1) * size
        dead_to = self.dead(dead, len(ids))
        span = (0, 0)
        if kept is not None and dead_to:
            stop = (1 + kept % (dead_to // size)) * size
            span = max(0, (stop - window - kept % 3) // size * size), stop
        options = {"owned_from": owned_from, "dead_to": dead_to, "kept": span if span[1] else None}
        tail = span[0] if span[1] == dead_to else dead_to
        if owned_from < tail < len(ids) and len(ids) - tail < window:
            self.refused(InvalidInput, lambda: self.tree.insert(ids, pages, salt, **options))
            return
        done = self.tree.insert(ids, pages, salt, **options)
        there, canonical, duplicates, adopted = self.model.insert(salt, ids, pages, owned_from, dead_to, span)
        self.seen = [*self.seen[-20:], (salt, ids)]
        assert done.found == there
        if canonical is None:
            assert done.tokens == 0
            return
        assert done.tokens == len(ids)
        assert done.pages.tolist() == canonical
        assert done.duplicates.tolist() == duplicates
        assert dict(zip(done.takers.tolist(), done.givers.tolist(), strict=True)) == adopted

    def dead(self, pick: int, length: int) -> int:
        """Nothing, anything, or all but about a window."""
        if self.window is None or pick % 3 == 0:
            return 0
        if pick % 3 == 1:
            return pick % (length // self.size + 1) * self.size
        return max(0, length - self.window - pick % 2) // self.size * self.size

    @rule(pick=PICK, cut=st.integers(0, 40), more=st.lists(st.integers(0, 1), max_size=4))
    def match(self, pick: int, cut: int, more: list[int]) -> None:
        salt, ids = self.tokens(pick, cut, more)
        before = pickle.dumps(self.tree)
        for length in range(len(ids) + 1):
            found = self.tree.match(ids[:length], salt)
            assert (found.tokens, found.full_tokens, found.pages.tolist()) == self.model.match(salt, ids[:length])
        assert pickle.dumps(self.tree) == before, "a match changed something"

    @rule(pick=PICK, cut=st.integers(0, 40), more=st.lists(st.integers(0, 1), max_size=2), trim=st.booleans())
    def lock(self, pick: int, cut: int, more: list[int], trim: bool) -> None:
        salt, ids = self.tokens(pick, cut, more)
        usable, full, pages = self.model.match(salt, ids)
        if usable < full:
            self.refused(InvalidInput, lambda: self.tree.lock(ids[:full], salt, trim=trim))
        if full + self.size <= len(ids):
            self.refused(InvalidInput, lambda: self.tree.lock(ids[: full + self.size], salt))
        if self.size > 1:
            self.refused(InvalidInput, lambda: self.tree.lock([*ids[:usable], 0], salt))
        takes = self.tree.lock_takes(ids[:usable], salt, trim=trim)
        before = self.tree.full_evictable, self.tree.swa_evictable
        if pick % 2:
            lock = self.tree.lock(ids[:usable], salt, trim=trim)
        else:
            lock = self.tree.lock_match(self.tree.match(ids, salt), trim=trim)
        assert before == (self.tree.full_evictable + takes[0], self.tree.swa_evictable + takes[1])
        end, cells, swa = self.model.lock(salt, ids[:usable], trim)
        assert lock.tokens == usable
        assert lock.swa_from == (self.model.depth(swa[-1]) - self.size if swa else usable)
        assert self.tree.pages(lock).tolist() == pages
        self.locks.append((lock, end, cells, swa))

    @precondition(lambda self: self.locks)
    @rule(pick=PICK)
    def unlock(self, pick: int) -> None:
        lock, _, cells, swa = self.locks.pop(pick % len(self.locks))
        self.refused(StaleHandle, lambda: self.tree.unlock(lock._replace(swa_from=lock.swa_from + 1)))
        self.refused(StaleHandle, lambda: self.tree.unlock(lock._replace(tokens=lock.tokens + 1)))
        self.refused(InvalidInput, lambda: self.tree.unlock(None))
        self.tree.unlock(lock)
        self.model.unlock(cells, swa)
        self.refused(StaleHandle, lambda: self.tree.unlock(lock))

    @rule(pick=PICK, cut=st.integers(0, 40))
    def remember_a_match(self, pick: int, cut: int) -> None:
        salt, ids = self.tokens(pick, cut, [])
        self.matches = [*self.matches[-4:], (self.tree.match(ids, salt), salt, ids)]

    @precondition(lambda self: self.matches)
    @rule(pick=PICK, trim=st.booleans())
    def lock_an_old_match(self, pick: int, trim: bool) -> None:
        """It holds unless some of it was evicted since."""
        found, salt, ids = self.matches.pop(pick % len(self.matches))
        names, window = self.model.names(salt, ids[: found.tokens]), self.window or 0
        cells = [self.model.cells.get(name) for name in names]
        if found.pages.tolist() != [cell and cell.page for cell in cells] or not all(
            cell and cell.live for name, cell in zip(names, cells, strict=True) if len(name) - 2 > found.tokens - window
        ):
            self.refused(StaleHandle, lambda: self.tree.lock_match(found, trim=trim))
            return
        lock = self.tree.lock_match(found, trim=trim)
        self.locks.append((lock, *self.model.lock(salt, ids[: found.tokens], trim)))

    @rule(tokens=st.integers(-1, 9) | st.just(999))
    def evict_full(self, tokens: int) -> None:
        gone, model = self.tree.evict_full(tokens), self.model.evict_full(tokens)
        assert sorted(gone.full_pages.tolist()) == sorted(cell.page for cell in model)
        assert (gone.full_tokens, gone.swa_tokens) == (len(model) * self.size, self.live(model))
        assert not len(gone.swa_pages)

    @precondition(lambda self: self.window is not None)
    @rule(tokens=st.integers(-1, 9) | st.just(999))
    def evict_swa(self, tokens: int) -> None:
        gone, (full, swa) = self.tree.evict_swa(tokens), self.model.evict_swa(tokens)
        assert sorted(gone.full_pages.tolist()) == sorted(cell.page for cell in full)
        assert sorted(gone.swa_pages.tolist()) == sorted(cell.page for cell in swa)
        assert gone.full_tokens == len(full) * self.size
        assert gone.swa_tokens == self.live(full) + len(swa) * self.size

    @precondition(lambda self: self.locks and self.window is not None)
    @rule(pick=PICK, position=PICK)
    def bury_before(self, pick: int, position: int) -> None:
        lock, _, cells, _ = self.locks[pick % len(self.locks)]
        position = position % (lock.tokens // self.size + 1) * self.size
        gone = self.tree.bury_before(lock, position)
        assert sorted(gone.tolist()) == sorted(cell.page for cell in self.model.bury_before(cells, position))

    @precondition(lambda self: self.window is None)
    @rule()
    def no_window_no_eviction_of_it(self) -> None:
        self.refused(InvalidInput, lambda: self.tree.evict_swa(1))

    @rule()
    def snapshot(self) -> None:
        """A copy is the same tree, and the run goes on with it."""

        copied = pickle.loads(pickle.dumps(self.tree))
        copied.audit()
        assert flat(copied) | {"log": None} == flat(self.tree) | {"log": None}
        copied.log = self.log
        self.tree = copied
        self.matches = []  # they know the old tree's nodes

    def live(self, cells: list[Cell]) -> int:
        return sum(cell.live for cell in cells) * self.size

    def refused(self, error, call) -> None:
        before = pickle.dumps(self.tree)
        with pytest.raises(error):
            call()
        assert pickle.dumps(self.tree) == before, "a refused call changed something"

    @invariant()
    def agrees(self) -> None:
        tree, model = self.tree, self.model
        tree.audit()
        nodes = {}
        for node in nodes_of(tree):
            nodes[node.pages.tobytes()] = node.live, node.full_lock, node.swa_lock, node.start
        expected = {}
        for names in model.nodes():
            cells = [model.cells[name] for name in names]
            assert {(c.live, c.full_lock, c.swa_lock) for c in cells} == {
                (cells[0].live, cells[0].full_lock, cells[0].swa_lock)
            }
            pages = b"".join(cell.page.to_bytes(4, "little") for cell in cells)
            start = model.depth(names[0]) - self.size
            expected[pages] = cells[0].live, cells[0].full_lock, cells[0].swa_lock, start
        assert nodes == expected
        self.replay_agrees()

    def replay_agrees(self) -> None:
        for event in self.log.events[self.told :]:
            apply(self.state, event)
        self.told = len(self.log.events)
        told = {
            number: (span.start, span.pages, span.live, span.full_lock, span.swa_lock)
            for number, span in self.state.tree.items()
        }
        assert told == {
            node.number: (node.start, node.pages.tolist(), node.live, node.full_lock, node.swa_lock)
            for node in nodes_of(self.tree)
        }
