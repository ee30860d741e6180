"""Checks, quizzes and two pictures of lesson 02: blocks and block tables."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from kvlab.course.checks import Trial, exercise
from kvlab.course.quiz import Option, Quiz
from kvlab.errors import InvalidInput, OutOfMemory, StaleHandle
from kvlab.events import Event, EventLog, Replay, to_ranges
from kvlab.memory.block_pool import BlockPool, Handle
from kvlab.memory.block_table import BlockTable
from kvlab.simulate.examples import BLOCK_SIZE, request_a
from kvlab.viz import Picture, Player, block_tables, pages, pool_grid
from kvlab.viz.arrange import arrange
from kvlab.viz.captions import captions

_HALF: Final = 366.0

ZERO_WASTE: Final = Quiz(
    "02-zero-waste",
    "A server runs 40 requests in blocks of 16 slots. How much of the memory that it handed out can be empty?",
    (
        Option(
            "None. Blocks are handed out as tokens arrive, so every slot handed out holds a token.",
            why="Paged memory does not have zero waste. What arrives as needed is a block, not a token, and the last "
            "block of a request is rarely full.",
        ),
        Option(
            "At most 15 slots altogether, because only one block of the pool can be partly filled.",
            why="Each request has a last block of its own: nobody else writes into it.",
        ),
        Option(
            "At most 15 slots for each request.",
            why="Only the last block of a request can be partly empty, and it holds at least one token.",
            correct=True,
        ),
        Option(
            "What the longest answers need: the server must keep room for them.",
            why="That is reservation, lesson 01. Here nothing is set aside before it is needed.",
        ),
    ),
)

SMALLER_BLOCKS: Final = Quiz(
    "02-smaller-blocks",
    "Halve the block and the empty slots of the last blocks are halved. Why not go on, down to blocks of one token?",
    (
        Option(
            "One should: smaller blocks are always better.",
            why="They are better in memory only. Each block is also a table entry to look up and a separate piece of "
            "work for the GPU.",
        ),
        Option(
            "The block tables would take the memory that the empty slots gave back.",
            why="An entry has 4 bytes and a token 128 KiB here. Tables never matter for memory: see the lines above "
            "the chart.",
        ),
        Option(
            "Each block is a separate piece of work for the attention kernel, and tiny pieces leave the GPU idle.",
            why="So the size is a compromise between memory and speed, and it depends on the kernel and on the "
            "lengths: the default of vLLM is 16, the default page of SGLang is one token.",
            correct=True,
        ),
        Option(
            "A pool of one-token blocks falls into holes: external fragmentation comes back.",
            why="No size does that while all blocks are equal: every free block fits every request.",
        ),
    ),
)


class Table(Protocol):
    """What exercise 1 asks for."""

    tokens: int
    blocks: list[int]

    def append(self, count: int = 1) -> object:
        """Room for `count` more tokens."""


@exercise(
    "A block only when the last one is full",
    hint="How many blocks do `tokens + count` tokens fill, rounded up, and how many does the table hold already? Ask "
    "the pool for the difference before anything in the table changes.",
)
def check_append(trial: Trial, table_class: Callable[[BlockPool, int], Table]) -> None:
    """`table_class(pool, block_size)`, then `append(count)`: blocks as needed, all or nothing."""
    table = table_class(request_a().pool, BLOCK_SIZE)
    trial.trying("append(37) on an empty table; the pool hands out 7, 1, 3, 0, ...")
    table.append(37)
    _compare(trial, table, 37, [7, 1, 3])
    for tokens in range(38, 49):
        trial.trying(f"append(37), then append(1) up to {tokens} tokens")
        table.append(1)
        _compare(trial, table, tokens, [7, 1, 3])
    trial.trying("append(1) on a table of 48 tokens in 3 full blocks")
    table.append(1)
    _compare(trial, table, 49, [7, 1, 3, 0])
    rng = random.Random(2)
    for block_size in (1, 4, 16):
        pools = (BlockPool(200), BlockPool(200))
        ours, oracle = table_class(pools[0], block_size), BlockTable(pools[1], block_size)
        for count in (rng.randint(1, 12) for _ in range(16)):
            trial.trying(f"append({count}) on a table of {oracle.tokens} tokens in blocks of {block_size}")
            ours.append(count)
            oracle.append(count)
            _compare(trial, ours, oracle.tokens, oracle.blocks)
            trial.equal("free blocks in the pool", pools[0].free_blocks, pools[1].free_blocks)
    pool = BlockPool(4)
    table = table_class(pool, BLOCK_SIZE)
    table.append(37)
    trial.expected = "OutOfMemory"
    trial.refuses(OutOfMemory, table.append, 37)
    trial.trying("append(37) that needs 2 blocks while 1 is free: it is refused and must change nothing")
    _compare(trial, table, 37, [0, 1, 2])
    trial.equal("free blocks in the pool", pool.free_blocks, 1)


def _compare(trial: Trial, table: Table, tokens: int, blocks: list[int]) -> None:
    trial.equal("tokens", table.tokens, tokens)
    trial.equal("blocks", table.blocks, blocks)


@exercise(
    "The slot of a position",
    hint="`divmod(position, block_size)` gives the entry and the offset in its block. `pool.resolve(handle)` gives "
    "the block of a handle, or raises.",
)
def check_slot(trial: Trial, slot: Callable[[BlockPool, Sequence[Handle], int, int], int]) -> None:
    """`slot(pool, handles, position, block_size)` -> the oracle's slot, or `StaleHandle`."""
    request = BlockTable(request_a().pool, BLOCK_SIZE)
    request.append(37)
    _same_slots(trial, slot, request)
    rng = random.Random(3)
    for block_size in (16, 4, 1):
        pool = BlockPool(96)
        tables = [BlockTable(pool, block_size) for _ in range(3)]
        for _ in range(6):
            for table in tables:
                table.append(rng.randint(1, max(1, 2 * block_size)))
        for table in tables:
            _same_slots(trial, slot, table)
    handles = [request.pool.handle(block) for block in request.blocks]
    request.release()
    _is_refused(trial, slot, request.pool, handles, "block 1 was freed")
    BlockTable(request.pool, BLOCK_SIZE).append(48)
    _is_refused(trial, slot, request.pool, handles, "block 1 was freed, and another request holds it now")


def _same_slots(trial: Trial, slot: Callable[..., int], table: BlockTable) -> None:
    handles = [table.pool.handle(block) for block in table.blocks]
    for position in range(table.tokens):
        trial.expected = str(table.slot(position))
        found = trial.call(slot, table.pool, handles, position, table.block_size)
        trial.equal("", found, table.slot(position))


def _is_refused(
    trial: Trial, slot: Callable[..., int], pool: BlockPool, handles: Sequence[Handle], because: str
) -> None:
    trial.expected = f"StaleHandle: {because}"
    found, refused = None, False
    try:
        found = trial.call(slot, pool, handles, 20, BLOCK_SIZE)
    except StaleHandle:
        refused = True
    trial.holds(trial.expected, refused, found)


def draw_table(table: Table, pool: BlockPool, block_size: int, name: str = "A") -> Picture:
    """A block table of anybody's making beside its pool, as it is now.

    Raises `InvalidInput` if it names something that is no block of the pool.
    """
    blocks = list(table.blocks)
    if not all(isinstance(block, int) and 0 <= block < pool.blocks for block in blocks):
        raise InvalidInput(f"a table's blocks are ids from 0 to {pool.blocks - 1}, not {blocks!r}; see the check above")
    log = EventLog()
    log.write("header", "Paged", (("full", pool.blocks * block_size, block_size, 1, to_ranges(range(pool.blocks))),))
    log.write("admit", name, table.tokens, table.tokens, 0)
    if blocks:
        log.write("grow", name, "full", to_ranges(blocks))
    log.step([(name, table.tokens)])
    replay = Replay(log)
    return Picture(pages(replay.state(-1), replay.events(len(replay) - 1)))


def side_by_side(logs: Mapping[str, Iterable[Event]], start: int = 0) -> Player:
    """Runs of equal length next to each other, frame by frame: each its pool, and below it its tables.

    Raises `InvalidInput` if the runs differ in their number of frames.
    """
    replays = {name: Replay(log) for name, log in logs.items()}
    lengths = {len(replay) for replay in replays.values()}
    if len(lengths) != 1:
        raise InvalidInput(f"runs of equal length are needed, not of {sorted(lengths)} frames")
    said = [captions(replay) for replay in replays.values()]
    frames = []
    for frame, words in enumerate(zip(*said, strict=True)):
        seen = [(name, replay.state(frame), replay.events(frame)) for name, replay in replays.items()]
        pools = [replace(pool_grid(now, events, width=_HALF), title=f"{name}: memory") for name, now, events in seen]
        tables = [replace(block_tables(now, events), title=f"{name}: tables") for name, now, events in seen]
        alone = "; ".join(f"{name}: {each}" for name, each in zip(replays, words, strict=True))
        frames.append(([*pools, *tables], f"Both: {words[0]}" if len(set(words)) == 1 else alone))
    tallest = [max(drawings[i].height for drawings, _ in frames) for i in range(2 * len(replays))]
    sizes = [(_HALF, height) for height in tallest]
    drawn = ((arrange(drawings, sizes, columns=len(replays)), words) for drawings, words in frames)
    return Player.from_drawings(drawn, start=start)
