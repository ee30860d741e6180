"""`kvlab bench pool`: what the paged memory manager costs, in pure Python, one operation at a time."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, Final

from kvlab.bench import prefix
from kvlab.bench.paired import Spread
from kvlab.bench.provenance import provenance
from kvlab.errors import positive
from kvlab.memory.block_pool import BlockPool
from kvlab.memory.block_table import BlockTable
from kvlab.policies.paged import Paged
from kvlab.policies.prefix import PagedPrefix
from kvlab.shapes import ModelShape
from kvlab.simulate.saturation import SaturatedServer
from kvlab.workload import Request

BLOCK_SIZE: Final = 16
POOL_BLOCKS: Final = 20_000
REPEATS: Final = 101
CALLS: Final = 20
"""Calls in one sample, where a call is short."""

# Seconds of one operation, measured over as many as make the clock's own cost small.
Timed = Callable[[], float]


@dataclass(frozen=True)
class Row:
    """One operation: median and interquartile range of one call, in seconds."""

    name: str
    case: dict[str, int]
    median_s: float
    iqr_s: float
    repeats: int

    def as_json(self) -> dict[str, Any]:
        """The row of `--json`."""
        return {"case": self.case, "name": self.name, "median_s": self.median_s, "iqr_s": self.iqr_s, "ratio": {}}


def _append(pool: BlockPool, tokens: int) -> Timed:
    def timed() -> float:
        table = BlockTable(pool, BLOCK_SIZE)
        append = table.append
        started = perf_counter()
        for _ in range(tokens):
            append()
        taken = perf_counter() - started
        table.release()
        return taken / tokens

    return timed


def _admit(pool: BlockPool, tokens: int) -> Timed:
    def timed() -> float:
        tables = []
        started = perf_counter()
        for _ in range(CALLS):
            table = BlockTable(pool, BLOCK_SIZE)
            table.append(tokens)
            tables.append(table)
        taken = perf_counter() - started
        for table in tables:
            table.release()
        return taken / CALLS

    return timed


def _fork(pool: BlockPool, tokens: int) -> Timed:
    parent = BlockTable(pool, BLOCK_SIZE)
    parent.append(tokens)

    def timed() -> float:
        started = perf_counter()
        children = [parent.fork() for _ in range(CALLS)]
        taken = perf_counter() - started
        for child in children:
            child.release()
        return taken / CALLS

    return timed


def _free(pool: BlockPool, tokens: int) -> Timed:
    def timed() -> float:
        tables = [BlockTable(pool, BLOCK_SIZE) for _ in range(CALLS)]
        for table in tables:
            table.append(tokens)
        started = perf_counter()
        for table in tables:
            table.release()
        return (perf_counter() - started) / CALLS

    return timed


def _policy_step(requests: int) -> Timed:
    """`extend` and `commit` where a block is full and they are called at all."""
    policy = Paged(ModelShape.preset("llama-3.1-8b").groups(), POOL_BLOCKS * BLOCK_SIZE, block_size=BLOCK_SIZE)

    def timed() -> float:
        for rid in range(requests):
            policy.admit(Request(rid, 10 * BLOCK_SIZE, BLOCK_SIZE))
            policy.extend(rid, 10 * BLOCK_SIZE)
            policy.commit(rid, range(10 * BLOCK_SIZE))
        started = perf_counter()
        for rid in range(requests):
            extension = policy.extend(rid, 1)
            policy.commit(rid, range(1 + extension.quiet))
        taken = perf_counter() - started
        for rid in range(requests):
            policy.release(rid, "finished")
        return taken / requests

    return timed


def _simulated_decode(requests: int) -> Timed:
    """A simulated token of a server whose requests only decode: a call of the policy every 16 tokens."""
    groups = ModelShape.preset("llama-3.1-8b").groups()

    def timed() -> float:
        policy = Paged(groups, requests * 2048, block_size=BLOCK_SIZE)
        queue = (Request(rid, 2 + rid % 61, 1900, conversation=rid) for rid in range(10**9))
        server = SaturatedServer(policy, queue)
        server.advance(1)
        before = server.tokens
        started = perf_counter()
        server.advance(1700)
        return (perf_counter() - started) / (server.tokens - before)

    return timed


def operations() -> list[tuple[str, dict[str, int], Timed]]:
    """Name, case and clock of every row."""
    pool = BlockPool(POOL_BLOCKS)
    size = {"block_size": BLOCK_SIZE}
    prompt = {**size, "tokens": 1024}
    return [
        ("append", {**size, "tokens": 1024}, _append(pool, 1024)),
        ("admit", {**size, "tokens": 1024}, _admit(pool, 1024)),
        ("fork", {**size, "tokens": 1024}, _fork(pool, 1024)),
        ("fork", {**size, "tokens": 100_000}, _fork(pool, 100_000)),
        ("free", {**size, "tokens": 1024}, _free(pool, 1024)),
        ("free", {**size, "tokens": 1088}, _free(pool, 1088)),
        ("policy_step", {**size, "tokens": 16, "requests": 60}, _policy_step(60)),
        ("simulated_decode", {**size, "tokens": 1, "requests": 60}, _simulated_decode(60)),
        ("prefix_hash", prompt, prefix.register(1024, BLOCK_SIZE)),
        ("prefix_lookup", {**prompt, "hit": 1024, "hashed": 1}, prefix.lookup(1024, BLOCK_SIZE, hit=True, hashed=True)),
        (
            "prefix_lookup",
            {**prompt, "hit": 1024, "hashed": 0},
            prefix.lookup(1024, BLOCK_SIZE, hit=True, hashed=False),
        ),
        ("prefix_lookup", {**prompt, "hit": 0, "hashed": 0}, prefix.lookup(1024, BLOCK_SIZE, hit=False, hashed=False)),
        ("prefill", {**prompt, "prefix_cache": 0}, prefix.prefill(Paged, 1024, BLOCK_SIZE)),
        ("prefill", {**prompt, "prefix_cache": 1, "hit": 0}, prefix.prefill(PagedPrefix, 1024, BLOCK_SIZE)),
        ("prefix_step", {**size, "tokens": 16, "requests": 60}, prefix.decode(160, BLOCK_SIZE, 60)),
    ]


def bench(repeats: int = REPEATS, report: Callable[[int, int], None] | None = None) -> Iterator[Row]:
    """Every operation in turn, `repeats` times round, so that a disturbance of the machine meets all of them."""
    rows = operations()
    samples: list[list[float]] = [[] for _ in rows]
    collects = gc.isenabled()
    gc.disable()
    try:
        for turn in range(-2, positive("repeats", repeats)):
            for found, (_, _, timed) in zip(samples, rows, strict=True):
                seconds = timed()
                if turn >= 0:
                    found.append(seconds)
            gc.collect()
            if report is not None and turn >= 0:
                report(turn + 1, repeats)
    finally:
        if collects:
            gc.enable()
    for (name, case, _), found in zip(rows, samples, strict=True):
        yield Row(name, case, median(found), Spread.of(found).iqr if len(found) > 1 else 0.0, repeats)


def as_json(rows: list[Row]) -> dict[str, Any]:
    """The object of `kvlab bench pool --json`."""
    repeats = rows[0].repeats
    return {
        "bench": "pool",
        "provenance": {"device": "cpu", **provenance(), "repeats": repeats},
        "rows": [row.as_json() for row in rows],
    }
