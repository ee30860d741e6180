"""BlockPool against plain lists."""

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kvlab.errors import DoubleFree, InvalidInput, OutOfMemory, StaleHandle
from kvlab.memory.block_pool import BlockPool, Handle
from support.machines import Counted

BLOCKS = st.lists(st.integers(-1, 12), max_size=6)


class BlockPoolMachine(Counted):
    """The model: the free blocks in the order they would be handed out, references and lives of each block."""

    @initialize(data=st.data(), blocks=st.integers(1, 12), reuse=st.sampled_from(["last-freed", "lowest-id"]))
    def fresh(self, data: st.DataObject, blocks: int, reuse: str) -> None:
        order = None
        if reuse == "last-freed":
            order = data.draw(st.none() | st.permutations(range(blocks)))
        self.pool = BlockPool(blocks, reuse=reuse, order=order)
        self.sorts = reuse == "lowest-id"
        self.free = list(order or range(blocks))
        self.references = [0] * blocks
        self.lives = [0] * blocks
        self.handles: list[Handle] = []

    def known(self, blocks: list[int]) -> bool:
        return all(0 <= block < self.pool.blocks for block in blocks)

    @rule(count=st.integers(-1, 13))
    def allocate(self, count: int) -> None:
        if count < 1:
            with pytest.raises(InvalidInput):
                self.pool.allocate(count)
        elif count > len(self.free):
            assert not self.pool.can_allocate(count)
            with pytest.raises(OutOfMemory, match=f"asked for {count} blocks, {len(self.free)} of"):
                self.pool.allocate(count)
        else:
            assert self.pool.can_allocate(count)
            assert self.pool.allocate(count) == self.free[:count]
            for block in self.free[:count]:
                self.references[block] = 1
            del self.free[:count]

    @rule(blocks=BLOCKS)
    def touch(self, blocks: list[int]) -> None:
        if not self.known(blocks):
            with pytest.raises(InvalidInput):
                self.pool.touch(blocks)
        elif any(not self.references[block] for block in blocks):
            with pytest.raises(StaleHandle):
                self.pool.touch(blocks)
        else:
            self.pool.touch(blocks)
            for block in blocks:
                self.references[block] += 1

    @rule(blocks=BLOCKS)
    def return_any(self, blocks: list[int]) -> None:
        self.return_references(blocks)

    @precondition(lambda self: len(self.free) < self.pool.blocks)
    @rule(data=st.data())
    def return_held(self, data: st.DataObject) -> None:
        held = [block for block, count in enumerate(self.references) for _ in range(count)]
        self.return_references(data.draw(st.lists(st.sampled_from(held), min_size=1, max_size=6)))

    def return_references(self, blocks: list[int]) -> None:
        if not self.known(blocks):
            with pytest.raises(InvalidInput):
                self.pool.free(blocks)
        elif any(self.references[block] < count for block, count in Counter(blocks).items()):
            with pytest.raises(DoubleFree, match="nothing was freed"):
                self.pool.free(blocks)
        else:
            freed = []
            for block in blocks:
                self.references[block] -= 1
                if not self.references[block]:
                    self.lives[block] += 1
                    self.free.insert(0, block)
                    freed.append(block)
            if self.sorts:
                self.free.sort()
            assert list(self.pool.free(blocks)) == freed

    @rule(block=st.integers(-1, 12))
    def take_a_handle(self, block: int) -> None:
        if 0 <= block < self.pool.blocks and self.references[block]:
            self.handles.append(self.pool.handle(block))
        else:
            with pytest.raises(StaleHandle):
                self.pool.handle(block)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def resolve(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(self.handles))
        if self.references[handle.block] and self.lives[handle.block] == handle.generation:
            assert self.pool.resolve(handle) == handle.block
        else:
            with pytest.raises(StaleHandle):
                self.pool.resolve(handle)

    @invariant()
    def agrees(self) -> None:
        self.pool.audit()
        assert self.pool.next_free() == self.free
        assert list(self.pool.references) == self.references
        assert list(self.pool.generations) == self.lives
        assert self.pool.free_blocks == len(self.free)
