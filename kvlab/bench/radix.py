"""`kvlab bench radix`: what the radix tree costs, one operation at a time, and how much memory its books take."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kvlab.bench.paired import Spread
from kvlab.bench.provenance import provenance
from kvlab.errors import positive
from kvlab.memory.radix_tree import RadixTree

SEQUENCES: Final = 1000
TOKENS: Final = 2000
SHARED: Final = (0, 1024)
PAGES: Final = (1, 16, 64)
WINDOW: Final = 128
REPEATS: Final = 9

Ints = npt.NDArray[np.int32]
Samples = dict[tuple[str, int], list[float]]


@dataclass(frozen=True)
class Row:
    """One operation: median and interquartile range of one call, in seconds, over repeats of `SEQUENCES` calls."""

    name: str
    case: dict[str, int]
    median_s: float
    iqr_s: float

    def as_json(self) -> dict[str, Any]:
        """The row of `--json`."""
        return {"case": self.case, "name": self.name, "median_s": self.median_s, "iqr_s": self.iqr_s, "ratio": {}}


@dataclass(frozen=True)
class Memory:
    """Bytes of a tree, as Python and NumPy allocate them."""

    case: dict[str, int]
    bytes: int

    def as_json(self) -> dict[str, Any]:
        """The row of `--json`."""
        return {"case": self.case, "name": "memory", "bytes": {"tree": self.bytes}}


def sequences(page: int, shared: int, count: int = SEQUENCES, tokens: int = TOKENS) -> tuple[list[Ints], list[Ints]]:
    """Random sequences of whole pages whose first `shared` tokens are the same, and pages for each."""
    random = np.random.default_rng(0)
    length = tokens // page * page
    prefix = random.integers(0, 50_000, shared, np.int32)
    ids = [np.concatenate([prefix, random.integers(0, 50_000, length - shared, np.int32)]) for _ in range(count)]
    each = length // page
    return ids, [np.arange(start, start + each, dtype=np.int32) for start in range(0, count * each, each)]


def run(page: int, shared: int, ids: list[Ints], pages: list[Ints], order: list[int], samples: Samples) -> None:
    """Build a tree, use it and empty it; seconds of one call are added to the samples of each operation.

    Locks are taken on matches made before, as an admission does; the second round locks inside the nodes, which
    splits them.
    """
    tree, clock, count = RadixTree(page, WINDOW), perf_counter, len(ids)

    def note(name: str, taken: float, split: int = 0) -> None:
        samples.setdefault((name, split), []).append(taken / count)

    started = clock()
    for own, own_pages in zip(ids, pages, strict=True):
        tree.insert(own, own_pages)
    note("insert", clock() - started)
    started = clock()
    for index in order:
        tree.match(ids[index])
    note("match", clock() - started)
    inside = (shared + (len(ids[0]) - shared) // 2) // page * page
    for split, end in ((0, len(ids[0])), (1, inside)):
        found = [tree.match(ids[index][:end]) for index in order]
        started = clock()
        for match in found:
            tree.unlock(tree.lock_match(match))
        note("lock_unlock", clock() - started, split)
    started = clock()
    for _ in range(count):
        tree.evict_swa(page)
    note("evict_swa", clock() - started)
    started = clock()
    for _ in range(count):
        tree.evict_full(page)
    note("evict", clock() - started)


def bench(repeats: int = REPEATS, progress: Callable[[str], None] | None = None) -> Iterator[Row]:
    """Every operation at every page size, with and without a shared prefix, round after round."""
    cases = [(page, shared, *sequences(page, shared)) for page in PAGES for shared in SHARED]
    order = np.random.default_rng(1).permutation(SEQUENCES).tolist()
    samples: list[Samples] = [{} for _ in cases]
    collects = gc.isenabled()
    gc.disable()
    try:
        for turn in range(-1, positive("repeats", repeats)):
            for own, (page, shared, ids, pages) in zip(samples, cases, strict=True):
                run(page, shared, ids, pages, order, own if turn >= 0 else {})
                gc.collect()
            if progress is not None and turn >= 0:
                progress(f"{turn + 1} of {repeats} rounds")
    finally:
        if collects:
            gc.enable()
    for own, (page, shared, ids, _) in zip(samples, cases, strict=True):
        for (name, split), found in own.items():
            case = {"page": page, "shared": shared, "tokens": len(ids[0])}
            if name == "lock_unlock":
                case["split"] = split
            yield Row(name, case, median(found), Spread.of(found).iqr)


def memory() -> Iterator[Memory]:
    """A million cached tokens in 1,000 sequences; 50,000 requests that share 1,024 tokens and have 20 of their own."""
    for page in PAGES:
        ids, pages = sequences(page, 0, 1000, 1000)
        cached = sum(map(len, ids))
        size = _size(page, lambda ids=ids, pages=pages: zip(ids, pages, strict=True))  # type: ignore[misc]
        yield Memory({"page": page, "cached_tokens": cached, "sequences": 1000, "shared": 0}, size)
    random = np.random.default_rng(2)
    prefix, pages_of = random.integers(0, 50_000, 1024, np.int32), np.arange(1044, dtype=np.int32)

    def sharing() -> Iterator[tuple[Ints, Ints]]:
        for _ in range(50_000):
            yield np.concatenate([prefix, random.integers(0, 50_000, 20, np.int32)]), pages_of

    yield Memory({"page": 1, "cached_tokens": 1_001_024, "sequences": 50_000, "shared": 1024}, _size(1, sharing))


def _size(page: int, source: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tree = RadixTree(page, WINDOW)
        for ids, pages in source():
            tree.insert(ids, pages)
        del ids, pages
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def as_json(rows: list[Row], sizes: list[Memory], repeats: int) -> dict[str, Any]:
    """The object of `kvlab bench radix --json`."""
    return {
        "bench": "radix",
        "provenance": {"device": "cpu", **provenance(), "repeats": repeats},
        "rows": [*(row.as_json() for row in rows), *(size.as_json() for size in sizes)],
    }


def text(rows: list[Row], sizes: list[Memory]) -> str:
    """The measurement as lines to read."""
    lines = []
    for row in rows:
        case = ", ".join(f"{name} {value:,}" for name, value in row.case.items())
        lines.append(f"{row.name:12}{row.median_s * 1e6:8.2f} us  +- {row.iqr_s * 1e6:5.2f}  {case}")
    for size in sizes:
        case = ", ".join(f"{name} {value:,}" for name, value in size.case.items())
        lines.append(f"memory      {size.bytes / 1e6:8.2f} MB            {case}")
    return "\n".join(lines)
