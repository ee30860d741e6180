"""Sequences of one prompt whose tokens a learner's own `write` puts into a real `BlockPool`: lesson 03 runs on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from kvlab.errors import require
from kvlab.events import EventLog, to_ranges
from kvlab.memory.block_pool import BlockPool
from kvlab.shapes import ModelShape
from kvlab.simulate.examples import BLOCK_SIZE

BLOCKS: Final = 512
NOTHING: Final = -1

Memory: TypeAlias = npt.NDArray[np.int32]
"""One number a slot in the place of its KV, `[blocks, BLOCK_SIZE]`; -1 where nothing was written."""
Write: TypeAlias = Callable[[BlockPool, Memory, list[int], int, int], object]
"""write(pool, memory, table, position, token): store `token` at `position` of the sequence with this block table."""


class Samples:
    """Sequences that share a prompt, stored by `write` in a real `BlockPool`: the first prefills it, then it is forked.

    `copies` counts the table entries that a write replaced, `log` can be drawn (a frame for each write of a round of
    one token, a frame for a longer run).
    """

    def __init__(self, write: Write, samples: int = 4, prompt: int = 1000, *, name: str = "s") -> None:
        self.write = write
        self._letter = name
        self.pool = BlockPool(BLOCKS)
        self.memory: Memory = np.full((BLOCKS, BLOCK_SIZE), NOTHING, np.int32)
        self.copies = 0
        geometry = ("full", BLOCKS * BLOCK_SIZE, BLOCK_SIZE, ModelShape.preset("llama-3.1-8b").bytes_per_token)
        self.log = EventLog([("header", "Samples", ((*geometry, to_ranges(range(BLOCKS))),))])
        self.texts = [list(range(prompt))]
        self.tables = [self.pool.allocate(-(-prompt // BLOCK_SIZE))]
        self._next = prompt
        self._drawn: list[list[int]] = [[]]
        padded = self.texts[0] + [NOTHING] * (-prompt % BLOCK_SIZE)
        self.memory[self.tables[0]] = np.reshape(padded, (-1, BLOCK_SIZE))
        self.log.write("admit", self._name(0), prompt, prompt, 0)
        self._frame([(0, prompt)])
        for _ in range(1, samples):
            self.fork(0)
        self.log.step()

    def fork(self, parent: int) -> None:
        """One more sequence, which continues sequence `parent` from here."""
        self.pool.touch(self.tables[parent])
        for each in (self.texts, self.tables, self._drawn):
            each.append(list(each[parent]))
        self.log.write("fork", self._name(parent), self._name(len(self.tables) - 1))

    def generate(self, tokens: int) -> None:
        """Every sample writes `tokens` tokens, taking turns."""
        for _ in range(tokens):
            for sample in range(len(self.tables)):
                self.put(sample)
                if tokens == 1:
                    self._frame([(sample, 1)])
        if tokens > 1:
            self._frame([(sample, tokens) for sample in range(len(self.tables))])

    def put(self, sample: int) -> None:
        """One sample writes its next token, a number that no other sample writes."""
        table, text = self.tables[sample], self.texts[sample]
        before = list(table)
        self.write(self.pool, self.memory, table, len(text), self._next)
        text.append(self._next)
        self._next += 1
        self.copies += sum(old != new for old, new in zip(before, table, strict=False))

    @property
    def blocks(self) -> int:
        """Blocks in use."""
        return self.pool.blocks - self.pool.free_blocks

    def misread(self) -> str:
        """What the first sample that does not find all its own tokens finds instead; empty if all do."""
        for sample, (table, text) in enumerate(zip(self.tables, self.texts, strict=True)):
            found = _read(self.memory, table, len(text))
            wrong = [position for position, token in enumerate(text) if found[position] != token]
            if wrong:
                token = found[wrong[0]]
                writers = [self._name(other) for other, own in enumerate(self.texts) if token in own]
                what = f"a token of {' and '.join(writers)}" if writers else "nothing"
                return f"{self._name(sample)} finds {what} at position {wrong[0]:,}, not its own"
        return ""

    def summary(self) -> str:
        """Copies, blocks and what the samples read back, in a line."""
        return f"{self.copies} copies, {self.blocks} blocks; {self.misread() or 'each finds its own tokens'}"

    def audit(self) -> None:
        """Check the pool's books, and its reference counts against the tables."""
        self.pool.audit()
        wrong = unbalanced(self.pool, self.tables)
        require(not wrong, wrong)

    def release(self) -> None:
        """Every sample finishes and gives its blocks back."""
        for table in self.tables:
            self.pool.free(table)
            table.clear()

    def _name(self, sample: int) -> str:
        return f"{self._letter}{sample + 1}"

    def _frame(self, written: list[tuple[int, int]]) -> None:
        """Log what became of the tables since the last frame, then who wrote how many tokens."""
        for sample, table in enumerate(self.tables):
            drawn = self._drawn[sample]
            for index, (old, new) in enumerate(zip(drawn, table, strict=False)):
                if old != new:
                    self.log.write("copy", self._name(sample), "full", index, old, new)
            if len(table) > len(drawn):
                self.log.write("grow", self._name(sample), "full", to_ranges(table[len(drawn) :]))
            elif len(table) < len(drawn):
                self.log.write("trim", self._name(sample), "full", len(drawn) - len(table))
            self._drawn[sample] = list(table)
        self.log.step([(self._name(sample), tokens) for sample, tokens in written])


def _read(memory: Memory, table: Sequence[int], tokens: int) -> list[int]:
    held = memory[list(table)].ravel().tolist()[:tokens]
    return held + [NOTHING] * (tokens - len(held))


def unbalanced(pool: BlockPool, tables: Sequence[Sequence[int]]) -> str:
    """The first block whose references are not the tables that name it, in words; empty if there is none."""
    named = Counter(block for table in tables for block in table)
    for block, references in enumerate(pool.references):
        if references != named[block]:
            return f"block {block} has {references} references, but {named[block]} tables name it"
    return ""


def copy_on_write(pool: BlockPool, memory: Memory, table: list[int], position: int, token: int) -> None:
    """The course's own `write`."""
    index, offset = divmod(position, BLOCK_SIZE)
    if index == len(table):
        table += pool.allocate()
    elif pool.references[table[index]] > 1:
        shared, (own,) = table[index], pool.allocate()
        memory[own] = memory[shared]
        table[index] = own
        pool.free([shared])
    memory[table[index], offset] = token
