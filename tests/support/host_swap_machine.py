"""HostSwap: tables go to host memory and come back, against what they should read."""

import pickle
from collections import Counter
from itertools import count as numbers

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kvlab.errors import OutOfMemory
from kvlab.memory.block_pool import BlockPool
from kvlab.memory.block_table import BlockTable
from kvlab.memory.host_swap import HostSwap, HostTable
from kvlab.policies.base import Move
from support.contents import Contents
from support.machines import Counted

PICK = st.integers(0, 99)


class HostSwapMachine(Counted):
    """The model: the tokens of each table, on the device or on the host."""

    @initialize(blocks=st.integers(2, 10), host_blocks=st.integers(1, 10), size=st.sampled_from([1, 2, 4]))
    def fresh(self, blocks: int, host_blocks: int, size: int) -> None:
        self.pool = BlockPool(blocks)
        self.size = size
        self.swap = HostSwap(self.pool, host_blocks, size)
        self.tables: list[tuple[BlockTable, list[int]]] = []
        self.away: list[tuple[HostTable, list[int]]] = []
        self.contents = Contents()
        self.token = numbers()

    @precondition(lambda self: len(self.tables) + len(self.away) < 5)
    @rule(count=st.integers(0, 9))
    def begin(self, count: int) -> None:
        self.tables.append((BlockTable(self.pool, self.size), []))
        if count:
            self.append(-1, count)

    @precondition(lambda self: self.tables)
    @rule(pick=PICK, count=st.integers(1, 5))
    def append(self, pick: int, count: int) -> None:
        table, tokens = self.tables[pick % len(self.tables)]
        if table.blocks_needed(count) > self.pool.free_blocks:
            return
        copied = table.append(count)
        if copied is not None:
            self.contents.copy("device", copied.source * self.size, copied.target * self.size, copied.tokens)
        new = [next(self.token) for _ in range(count)]
        self.contents.write("device", table.slots(len(tokens), len(tokens) + count), new)
        tokens += new

    @precondition(lambda self: self.tables and len(self.tables) + len(self.away) < 5)
    @rule(pick=PICK)
    def fork(self, pick: int) -> None:
        table, tokens = self.tables[pick % len(self.tables)]
        self.tables.append((table.fork(), tokens.copy()))

    @precondition(lambda self: self.tables)
    @rule(pick=PICK)
    def end(self, pick: int) -> None:
        self.tables.pop(pick % len(self.tables))[0].release()

    @precondition(lambda self: self.tables)
    @rule(pick=PICK)
    def swap_out(self, pick: int) -> None:
        table, tokens = self.tables[pick % len(self.tables)]
        before = pickle.dumps((self.pool, self.swap, table))
        held, free = len(table.blocks), self.swap.host.free_blocks
        try:
            swapped, transfers = self.swap.swap_out(table)
        except OutOfMemory:
            assert held > free, "refused although there was room"
            assert pickle.dumps((self.pool, self.swap, table)) == before, "a refused swap changed something"
            return
        assert len(transfers) == free - self.swap.host.free_blocks, "one transfer for each block taken"
        for each in transfers:
            self.carry("device", each.source, "host", each.target, each.tokens)
        del self.tables[pick % len(self.tables)]
        assert (table.tokens, table.blocks) == (0, [])
        self.away.append((swapped, tokens))

    @precondition(lambda self: self.away)
    @rule(pick=PICK)
    def swap_in(self, pick: int) -> None:
        swapped, tokens = self.away[pick % len(self.away)]
        table = BlockTable(self.pool, self.size)
        before = pickle.dumps((self.pool, self.swap, table))
        needed, free = self.swap.blocks_back(swapped), self.pool.free_blocks
        if needed > free:
            with pytest.raises(OutOfMemory):
                self.swap.swap_in(swapped, table)
            assert pickle.dumps((self.pool, self.swap, table)) == before, "a refused swap changed something"
            return
        transfers = self.swap.swap_in(swapped, table)
        assert len(transfers) == needed == free - self.pool.free_blocks
        for each in transfers:
            self.carry("host", each.source, "device", each.target, each.tokens)
        del self.away[pick % len(self.away)]
        self.tables.append((table, tokens))

    @precondition(lambda self: self.away)
    @rule(pick=PICK)
    def give_up(self, pick: int) -> None:
        self.swap.forget(self.away.pop(pick % len(self.away))[0])

    def carry(self, source_pool: str, source: int, target_pool: str, target: int, tokens: int) -> None:
        assert 1 <= tokens <= self.size
        self.contents.move(Move(source_pool, source * self.size, target_pool, target * self.size, tokens, 0, ""))

    @invariant()
    def both_sides_read_back(self) -> None:
        self.pool.audit()
        self.swap.audit()
        on_device = Counter(block for table, _ in self.tables for block in table.blocks)
        on_host = Counter(block for table, _ in self.away for block in table.blocks)
        assert {b: n for b, n in enumerate(self.pool.references) if n} == on_device
        assert {b: n for b, n in enumerate(self.swap.host.references) if n} == on_host
        filled = {}
        for table, tokens in self.tables:
            table.audit()
            assert self.contents.read("device", table.slots(0, table.tokens)) == tokens
        for swapped, tokens in self.away:
            assert swapped.tokens == len(tokens)
            slots = [swapped.blocks[p // self.size] * self.size + p % self.size for p in range(len(tokens))]
            assert self.contents.read("host", slots) == tokens
            for index, block in enumerate(swapped.blocks):
                filled[block] = min(self.size, len(tokens) - index * self.size)
                assert filled[block] == self.size or on_host[block] == 1, "a partial block is shared on the host"
        assert self.swap.filled_slots == sum(filled.values())
