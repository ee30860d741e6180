"""The checks of lesson 02 accept right answers however they are written, and name the fault of wrong ones."""

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

import pytest

from kvlab.course.lesson_02 import (
    SMALLER_BLOCKS,
    ZERO_WASTE,
    check_append,
    check_slot,
    draw_table,
    side_by_side,
)
from kvlab.errors import InvalidInput, OutOfMemory, StaleHandle
from kvlab.events import EventLog
from kvlab.memory.block_pool import BlockPool, Handle
from kvlab.memory.block_table import BlockTable
from kvlab.simulate.examples import request_a, serve
from kvlab.workload import Request


class Small:
    """What stands around the exercise."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool, self.block_size = pool, block_size
        self.tokens = 0
        self.blocks: list[Any] = []


class Arithmetic(Small):
    def append(self, count: int = 1) -> None:
        needed = -(-(self.tokens + count) // self.block_size) - len(self.blocks)
        if needed > 0:
            self.blocks += self.pool.allocate(needed)
        self.tokens += count


class Asking(Small):
    def append(self, count: int = 1) -> None:
        more = max(0, count - (len(self.blocks) * self.block_size - self.tokens))
        wanted = ceil(more / self.block_size)
        if not self.pool.can_allocate(wanted):
            raise OutOfMemory("no room")
        for _ in range(wanted):
            self.blocks.extend(self.pool.allocate())
        self.tokens += count


class EachCallRoundedUp(Small):
    def append(self, count: int = 1) -> None:
        self.blocks += self.pool.allocate(-(-count // self.block_size))
        self.tokens += count


class OneBlockAhead(Small):
    def append(self, count: int = 1) -> None:
        needed = (self.tokens + count) // self.block_size + 1 - len(self.blocks)
        if needed:
            self.blocks += self.pool.allocate(needed)
        self.tokens += count


class CountsBeforeAsking(Small):
    def append(self, count: int = 1) -> None:
        self.tokens += count
        needed = -(-self.tokens // self.block_size) - len(self.blocks)
        if needed > 0:
            self.blocks += self.pool.allocate(needed)


class OneByOne(Small):
    def append(self, count: int = 1) -> None:
        while len(self.blocks) * self.block_size < self.tokens + count:
            self.blocks += self.pool.allocate()
        self.tokens += count


class Nested(Small):
    def append(self, count: int = 1) -> None:
        needed = -(-(self.tokens + count) // self.block_size) - len(self.blocks)
        if needed > 0:
            self.blocks.append(self.pool.allocate(needed))
        self.tokens += count


class Reserves(Small):
    def append(self, count: int = 1) -> None:
        if not self.blocks:
            self.blocks = self.pool.allocate(4)
        self.tokens += count


class SwallowsTheError(Small):
    def append(self, count: int = 1) -> None:
        needed = -(-(self.tokens + count) // self.block_size) - len(self.blocks)
        if needed > self.pool.free_blocks:
            return
        if needed > 0:
            self.blocks += self.pool.allocate(needed)
        self.tokens += count


@pytest.mark.parametrize("right", [Arithmetic, Asking])
def test_append_may_be_written_in_more_than_one_way(right: type[Small]):
    assert check_append(right).passed, check_append(right)


@pytest.mark.parametrize(
    ("wrong", "tried", "found"),
    [
        (EachCallRoundedUp, "append(1) up to 38 tokens", "blocks: [7, 1, 3, 0]"),
        (OneBlockAhead, "append(1) up to 48 tokens", "blocks: [7, 1, 3, 0]"),
        (CountsBeforeAsking, "must change nothing", "tokens: 74"),
        (OneByOne, "must change nothing", "blocks: [0, 1, 2, 3]"),
        (Nested, "append(37) on an empty table", "blocks: [[7, 1, 3]]"),
        (Reserves, "append(37) on an empty table", "blocks: [7, 1, 3, 0]"),
        (SwallowsTheError, "append(37)", "no error, but None"),
    ],
)
def test_a_wrong_append_is_named(wrong: type[Small], tried: str, found: str):
    check = check_append(wrong)
    assert not check.passed
    rows = dict(check.rows)
    assert tried in rows["tried"]
    assert found in rows["found"]


def slot_by_divmod(pool: BlockPool, handles: Sequence[Handle], position: int, block_size: int) -> int:
    entry, offset = divmod(position, block_size)
    return pool.resolve(handles[entry]) * block_size + offset


def slot_by_hand(pool: BlockPool, handles: Sequence[Handle], position: int, block_size: int) -> int:
    block, generation = handles[position // block_size]
    if pool.generations[block] != generation:
        raise StaleHandle("freed since")
    return position % block_size + block * block_size


def slot_unchecked(pool: BlockPool, handles: Sequence[Handle], position: int, block_size: int) -> int:
    return handles[position // block_size].block * block_size + position % block_size


def slot_if_anybody_holds_it(pool: BlockPool, handles: Sequence[Handle], position: int, block_size: int) -> int:
    block = handles[position // block_size].block
    if not pool.references[block]:
        raise StaleHandle("free")
    return block * block_size + position % block_size


def slot_without_the_block_size(pool: BlockPool, handles: Sequence[Handle], position: int, block_size: int) -> int:
    return pool.resolve(handles[position // block_size]) + position % block_size


def slot_swapped(pool: BlockPool, handles: Sequence[Handle], position: int, block_size: int) -> int:
    offset, entry = divmod(position, block_size)
    return pool.resolve(handles[entry]) * block_size + offset


def slot_as_if_contiguous(pool: BlockPool, handles: Sequence[Handle], position: int, block_size: int) -> int:
    return pool.resolve(handles[0]) * block_size + position


@pytest.mark.parametrize("right", [slot_by_divmod, slot_by_hand])
def test_slot_may_be_written_in_more_than_one_way(right: Callable[..., int]):
    assert check_slot(right).passed, check_slot(right)


@pytest.mark.parametrize(
    ("wrong", "expected", "found"),
    [
        (slot_unchecked, "StaleHandle: block 1 was freed", "20"),
        (slot_if_anybody_holds_it, "StaleHandle: block 1 was freed, and another request holds it now", "20"),
        (slot_without_the_block_size, "112", "7"),
        (slot_swapped, "113", "16"),
        (slot_as_if_contiguous, "16", "128"),
    ],
)
def test_a_wrong_slot_is_named(wrong: Callable[..., int], expected: str, found: str):
    check = check_slot(wrong)
    assert not check.passed
    rows = dict(check.rows)
    assert wrong.__name__ in rows["tried"]
    assert (rows["expected"], rows["found"]) == (expected, found)


def test_one_answer_of_each_quiz_names_its_misconception():
    whys = {
        item.name: [option.why for option in item.options if not option.correct]
        for item in (ZERO_WASTE, SMALLER_BLOCKS)
    }
    assert "does not have zero waste" in whys["02-zero-waste"][0]
    assert "better in memory only" in whys["02-smaller-blocks"][0]


def test_a_learners_table_is_drawn_as_it_is():
    table = BlockTable(request_a().pool, 16)
    table.append(49)
    assert draw_table(table, table.pool, 16).drawing.table[1] == ("A", "49", "7, 1, 3, 0", "15")


def test_an_empty_table_is_drawn_too():
    table = Arithmetic(BlockPool(12), 16)
    assert draw_table(table, table.pool, 16).drawing.table[1] == ("A", "-", "none (running)", "-")


@pytest.mark.parametrize("blocks", [[[7, 1, 3]], [12], [-1], [None]])
def test_a_table_that_names_no_block_is_refused(blocks: list[Any]):
    table = Arithmetic(BlockPool(12), 16)
    table.tokens, table.blocks = 3, blocks
    with pytest.raises(InvalidInput, match="ids from 0 to 11"):
        draw_table(table, table.pool, 16)


def run_of(frames: int) -> EventLog:
    log = EventLog()
    serve(request_a(log), Request("A", 20, 4), 20)
    for _ in range(frames):
        log.step()
    return log


def test_runs_side_by_side_have_a_caption_each_where_they_differ():
    preempted = EventLog([*run_of(1), ("release", "A", "preempted"), ("step", ())])
    player = side_by_side({"one": run_of(2), "two": preempted}, start=1)
    assert player.captions[1].startswith("Both: Z prefills 40 tokens into blocks 7, 1, 3")
    assert player.captions[-1] == "one: Nothing changes; two: A is preempted: blocks 7, 1 are free again"
    assert player.step == 1


def test_runs_of_different_length_are_refused():
    with pytest.raises(InvalidInput, match=r"equal length .*\[4, 6\]"):
        side_by_side({"one": run_of(1), "two": run_of(3)})
