"""The logs of the lessons, made by hand: what a policy would have written."""

import pytest

from kvlab.events import EventLog, to_ranges


def opened(policy: str, capacity: int, block_size: int) -> EventLog:
    log = EventLog()
    log.write("header", policy, (("full", capacity, block_size, 131_072, to_ranges(range(capacity // block_size))),))
    return log


@pytest.fixture
def two_requests() -> EventLog:
    """A: 37 tokens in blocks 7, 1, 3, then one at a time to 49, which takes block 5. B is between."""
    log = opened("Paged", 256, 16)
    log.write("admit", "A", 37, 49, 0)
    log.write("grow", "A", "full", to_ranges([7, 1, 3]))
    log.step([("A", 37)])
    log.write("admit", "B", 20, 40, 0)
    log.write("grow", "B", "full", to_ranges([4, 0]))
    log.step([("A", 1), ("B", 20)])
    for _ in range(10):
        log.step([("A", 1), ("B", 1)])
    log.write("grow", "A", "full", ((5, 6),))
    log.step([("A", 1), ("B", 1)])
    log.write("release", "A", "finished")
    log.step([("B", 1)])
    return log


@pytest.fixture
def four_samples() -> EventLog:
    """A prompt of 1,000 tokens (62 full blocks and 8 tokens), four samples, three copies, the last writer in place."""
    log = opened("Paged", 128 * 16, 16)
    log.write("admit", "A", 1000, 1200, 0)
    log.write("grow", "A", "full", ((0, 63),))
    log.step([("A", 1000)])
    for child in "BCD":
        log.write("fork", "A", child)
    log.step()
    for writer, target in (("A", 63), ("B", 64), ("C", 65)):
        log.write("copy", writer, "full", 62, 62, target)
        log.step([(writer, 1)])
    log.step([("D", 1)])
    log.step([(each, 1) for each in "ABCD"])
    return log


@pytest.fixture
def four_reservations() -> EventLog:
    """Article 003's four requests, each with 4,096 slots reserved."""
    log = opened("ContiguousMax", 4 * 4096, 1)
    lengths = {"A": (200, 100, 450), "B": (1200, 300, 1800), "C": (50, 20, 300), "D": (800, 600, 1500)}
    for row, (rid, (prompt, generated, final)) in enumerate(lengths.items()):
        log.write("admit", rid, prompt, final, 0)
        log.write("region", rid, "full", 4096 * row, 4096, 4096)
        log.step([(rid, prompt + generated)])
    return log


@pytest.fixture
def two_holes() -> EventLog:
    """4,096 slots with chunks of 1,024, 512 and 2,048; then the one of 512 leaves."""
    log = opened("Contiguous", 4096, 1)
    start = 0
    for rid, size in (("A", 1024), ("B", 512), ("C", 2048)):
        log.write("admit", rid, size, size, 0)
        log.write("region", rid, "full", start, size, size)
        log.step([(rid, size)])
        start += size
    log.write("release", "B", "finished")
    log.step()
    return log


@pytest.fixture
def swapped_and_preempted() -> EventLog:
    """B goes to the host and comes back, A is preempted and computed again."""
    log = opened("Paged", 256, 16)
    for rid, block in (("A", 2), ("B", 9)):
        log.write("admit", rid, 10, 30, 0)
        log.write("grow", rid, "full", ((block, block + 1),))
        log.step([(rid, 10)])
    log.write("swap_out", "B", "full", ((0, 1),))
    log.step([("A", 1)])
    log.write("swap_in", "B", "full", ((4, 5),))
    log.write("release", "A", "preempted")
    log.step([("B", 1)])
    log.write("admit", "A", 11, 30, 0)
    log.write("grow", "A", "full", ((2, 3),))
    log.step([("A", 11), ("B", 1)])
    return log
