"""Several BlockTables over one pool, against plain lists of tokens and the content of every slot."""

import copy
import pickle
from collections import Counter
from itertools import count as numbers

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kvlab.errors import InvalidInput, OutOfMemory, StaleHandle
from kvlab.memory.block_pool import BlockPool
from kvlab.memory.block_table import BlockTable
from support.contents import Contents
from support.machines import Counted

PICK = st.integers(0, 99)


class BlockTableMachine(Counted):
    """The model: what each table should read back, token by token."""

    @initialize(blocks=st.integers(1, 10), size=st.sampled_from([1, 2, 3, 4]))
    def fresh(self, blocks: int, size: int) -> None:
        self.pool = BlockPool(blocks)
        self.size = size
        self.tables: list[tuple[BlockTable, list[int]]] = []
        self.contents = Contents()
        self.token = numbers()

    def picked(self, pick: int) -> tuple[BlockTable, list[int]]:
        return self.tables[pick % len(self.tables)]

    def named(self) -> Counter[int]:
        return Counter(block for table, _ in self.tables for block in table.blocks)

    @precondition(lambda self: len(self.tables) < 5)
    @rule()
    def begin(self) -> None:
        self.tables.append((BlockTable(self.pool, self.size), []))

    @precondition(lambda self: self.tables)
    @rule(pick=PICK, count=st.integers(0, 9))
    def append(self, pick: int, count: int) -> None:
        table, tokens = self.picked(pick)
        partial = len(tokens) % self.size
        shared = bool(partial) and self.named()[table.blocks[-1]] > 1
        needed = -(-(len(tokens) + count) // self.size) - len(table.blocks) + shared
        before = pickle.dumps((self.pool, table))
        if count == 0 or needed > self.pool.free_blocks:
            with pytest.raises(OutOfMemory if count else InvalidInput):
                table.append(count)
            assert pickle.dumps((self.pool, table)) == before, "a refused append changed something"
            return
        assert table.blocks_needed(count) == needed
        last = table.blocks[-1] if partial else None
        free = self.pool.free_blocks
        copied = table.append(count)
        assert self.pool.free_blocks == free - needed
        assert (copied is not None) == shared, "a copy exactly when the last block is shared"
        if copied is not None:
            assert copied == (len(tokens) // self.size, last, table.blocks[copied.entry], partial)
            self.contents.copy("", copied.source * self.size, copied.target * self.size, copied.tokens)
        new = [next(self.token) for _ in range(count)]
        slots = table.slots(len(tokens), len(tokens) + count)
        assert slots.dtype == "int64"
        self.contents.write("", slots, new)
        tokens += new

    @precondition(lambda self: 0 < len(self.tables) < 5)
    @rule(pick=PICK)
    def fork(self, pick: int) -> None:
        table, tokens = self.picked(pick)
        free = self.pool.free_blocks
        child = table.fork()
        assert self.pool.free_blocks == free, "a fork takes no block"
        assert child.blocks == table.blocks
        assert child.blocks is not table.blocks
        self.tables.append((child, tokens.copy()))

    @precondition(lambda self: self.tables)
    @rule(pick=PICK, tokens=st.integers(-1, 40))
    def truncate(self, pick: int, tokens: int) -> None:
        table, known = self.picked(pick)
        if not 0 <= tokens <= len(known):
            with pytest.raises(InvalidInput):
                table.truncate(tokens)
            return
        dropped = table.blocks[-(-tokens // self.size) :][::-1]
        alone = [block for block in dropped if self.named()[block] == 1]
        assert list(table.truncate(tokens)) == alone
        del known[tokens:]

    @precondition(lambda self: self.tables)
    @rule(pick=PICK)
    def release(self, pick: int) -> None:
        table, _ = self.tables.pop(pick % len(self.tables))
        outlived = copy.copy(table)
        outlived.blocks, outlived._generations = table.blocks.copy(), table._generations.copy()
        freed = list(table.release())
        assert (table.tokens, table.blocks) == (0, [])
        if not freed:
            return
        before = pickle.dumps((self.pool, outlived))
        for use in (outlived.fork, outlived.release, lambda: outlived.slots(0, outlived.tokens)):
            with pytest.raises(StaleHandle):
                use()
        if outlived.blocks[-1] in freed:
            with pytest.raises(StaleHandle):
                outlived.append(1)
        assert pickle.dumps((self.pool, outlived)) == before, "a refused call on a stale table changed something"

    @invariant()
    def reads_back(self) -> None:
        self.pool.audit()
        named = self.named()
        assert {block: count for block, count in enumerate(self.pool.references) if count} == named
        for table, tokens in self.tables:
            table.audit()
            assert table.tokens == len(tokens)
            assert table.empty_slots == len(table.blocks) * self.size - len(tokens)
            assert self.contents.read("", table.slots(0, len(tokens))) == tokens
            if tokens:
                assert table.slot(len(tokens) - 1) == table.slots(len(tokens) - 1, len(tokens))[0]
