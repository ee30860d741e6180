"""The arena against the plainest model of a memory of pages, some of which are rings."""

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from support.machines import Bug, Counted, catches, keeps_its_invariants

from kvlab.errors import DoubleFree, InvalidInput, OutOfMemory
from kvlab.memory.arena import Arena, PageMove
from kvlab.memory.block_table import BlockTable

PICK = st.integers(0, 99)


class ArenaMachine(Counted):
    """The model: an owner list per page, and the rows that are rings. Tables hold tokens by identity, so that an
    evacuation that loses, mixes or forgets a page shows in what a table reads."""

    @initialize(rows=st.integers(1, 4), size=st.integers(1, 3))
    def fresh(self, rows: int, size: int) -> None:
        self.arena = Arena(rows, size)
        self.tables: list[tuple[BlockTable, list[int]]] = []
        self.rings: set[int] = set()
        self.memory: dict[int, int] = {}
        self.next = 0

    def held(self) -> set[int]:
        return {page for table, _ in self.tables for page in table.blocks}

    def free_pages(self) -> int:
        return self.arena.blocks - len(self.held()) - len(self.rings) * self.arena.pages_per_row

    @rule(count=st.integers(1, 2) | st.integers(1, 6))
    def open_a_table(self, count: int) -> None:
        table = BlockTable(self.arena, 1)
        if count > self.free_pages():
            with pytest.raises(OutOfMemory):
                table.append(count)
            return
        table.append(count)
        tokens = list(range(self.next, self.next + count))
        self.next += count
        self.memory |= dict(zip(table.blocks, tokens, strict=True))
        self.tables.append((table, tokens))

    @precondition(lambda self: self.tables)
    @rule(pick=PICK)
    def share(self, pick: int) -> None:
        table, tokens = self.tables[pick % len(self.tables)]
        self.tables.append((table.fork(), list(tokens)))

    @precondition(lambda self: self.free_pages())
    @rule(pick=PICK)
    def fill_with_pages_that_two_share_and_free_some(self, pick: int) -> None:
        """What makes an evacuation of shared pages likely: no row whole, holes in all of them."""
        fresh = []
        while self.free_pages():
            self.open_a_table(1)
            self.share(len(self.tables) - 1)
            fresh += self.tables[-2:]
        for index, pair in enumerate(zip(fresh[::2], fresh[1::2], strict=True)):
            if (index * 7 + pick) % 3:
                for table, _ in pair:
                    table.release()
        self.tables = [each for each in self.tables if each[0].blocks]

    @precondition(lambda self: self.tables)
    @rule(pick=PICK, keep=st.integers(0, 3))
    def close(self, pick: int, keep: int) -> None:
        table, tokens = self.tables[pick % len(self.tables)]
        table.truncate(min(keep, len(tokens)))
        del tokens[keep:]
        if not tokens:
            del self.tables[pick % len(self.tables)]

    @rule()
    def take_a_ring(self) -> None:
        before = self.held()
        if self.free_pages() < self.arena.pages_per_row:
            with pytest.raises(OutOfMemory):
                self.arena.take_ring()
            assert self.held() == before
            return
        whole = [
            row
            for row in range(self.arena.rows)
            if row not in self.rings and not {page // self.arena.pages_per_row for page in before} & {row}
        ]
        row, moves = self.arena.take_ring()
        assert row not in self.rings
        assert not (whole and moves), "a page moved although a row was whole"
        assert not whole or row == whole[0], "rings fill from the low end"
        self.rings.add(row)
        for source, target in moves:
            self.memory[target] = self.memory[source]
        for table, _ in self.tables:
            table.relocate({move.source: move.target for move in moves})

    @precondition(lambda self: self.rings)
    @rule(pick=PICK)
    def give_a_ring(self, pick: int) -> None:
        row = sorted(self.rings)[pick % len(self.rings)]
        self.arena.give_ring(row)
        self.rings.remove(row)

    @invariant()
    def everything_agrees(self) -> None:
        self.arena.audit()
        assert self.arena.free_blocks == self.free_pages() == len(self.arena.next_free())
        size = self.arena.pages_per_row
        assert not {page // size for page in self.held()} & self.rings, "a page lies in a ring"
        for table, tokens in self.tables:
            table.audit()
            assert [self.memory[page] for page in table.blocks] == tokens
        named = Counter(page for table, _ in self.tables for page in table.blocks)
        assert list(self.arena.references) == [named[page] for page in range(self.arena.blocks)]
        used = {page // size for page in self.held()}
        kinds = ["ring" if r in self.rings else "broken" if r in used else "whole" for r in range(self.arena.rows)]
        assert self.arena.row_kinds() == kinds

    @rule(count=st.integers(1, 24))
    def what_comes_next_is_what_was_announced(self, count: int) -> None:
        announced = self.arena.next_free()[:count]
        if self.arena.can_allocate(count):
            assert self.arena.allocate(count) == announced
            self.arena.free(announced)


def test_the_arena_is_its_model_for_ten_thousand_operations() -> None:
    keeps_its_invariants(ArenaMachine)


def an_evacuation_forgets_references(patch: pytest.MonkeyPatch) -> None:
    evacuate = Arena._evacuate

    def buggy(self: Arena, row: int) -> list[PageMove]:
        moves = evacuate(self, row)
        for move in moves:
            self._references[move.target] = 1
        return moves

    patch.setattr(Arena, "_evacuate", buggy)


def an_evacuation_leaves_the_generation(patch: pytest.MonkeyPatch) -> None:
    evacuate = Arena._evacuate

    def buggy(self: Arena, row: int) -> list[PageMove]:
        moves = evacuate(self, row)
        return [PageMove(move.target, move.source) for move in moves]

    patch.setattr(Arena, "_evacuate", buggy)


def a_free_row_stays_broken(patch: pytest.MonkeyPatch) -> None:
    shelve = Arena._shelve

    def buggy(self: Arena, freed: list[int]) -> None:
        whole = list(self._whole)
        shelve(self, freed)
        for row in [each for each in self._whole if each not in whole]:
            self._whole.remove(row)
            self._broken[row] = list(range(row * self.pages_per_row, (row + 1) * self.pages_per_row))

    patch.setattr(Arena, "_shelve", buggy)


def rings_come_from_the_high_end(patch: pytest.MonkeyPatch) -> None:
    take = Arena.take_ring

    def buggy(self: Arena) -> tuple[int, list[PageMove]]:
        self._whole = [-row for row in self._whole]
        try:
            row, moves = take(self)
        finally:
            self._whole = [-row for row in self._whole]
        return abs(row), moves

    patch.setattr(Arena, "take_ring", buggy)


@pytest.mark.parametrize(
    "bug",
    [
        an_evacuation_forgets_references,
        an_evacuation_leaves_the_generation,
        a_free_row_stays_broken,
        rings_come_from_the_high_end,
    ],
)
def test_the_machine_catches_a_planted_bug(bug: Bug) -> None:
    catches(ArenaMachine, bug)


def test_pages_prefer_the_fullest_broken_row_and_rows_break_from_the_high_end() -> None:
    arena = Arena(3, 4)
    first = arena.allocate(5)
    assert first == [8, 9, 10, 11, 4]
    arena.free([9, 10])
    assert arena.allocate(1) == [9], "row 2 holds two pages, row 1 one"
    assert arena.take_ring() == (0, [])


def test_the_emptiest_row_is_evacuated() -> None:
    arena = Arena(2, 4)
    pages = arena.allocate(8)
    arena.free([page for page in pages if page not in (4, 5, 2)])
    assert arena.row_kinds() == ["broken", "broken"]
    assert arena.take_ring() == (0, [PageMove(2, 6)])
    assert arena.row_kinds() == ["ring", "broken"]


def test_what_cannot_be_is_refused() -> None:
    arena = Arena(2, 3)
    with pytest.raises(InvalidInput, match="row 0 is no ring"):
        arena.give_ring(0)
    with pytest.raises(InvalidInput, match="at least 1"):
        arena.allocate(0)
    pages = arena.allocate(4)
    with pytest.raises(OutOfMemory, match="a ring takes a row of 3 pages, 2 are free"):
        arena.take_ring()
    with pytest.raises(DoubleFree):
        arena.free([pages[0], pages[0]])
    for rows, size in ((0, 3), (3, 0)):
        with pytest.raises(InvalidInput):
            Arena(rows, size)
