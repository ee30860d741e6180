"""CachingPool: cached blocks are free, found again, and evicted last of all, tails before roots."""

from collections.abc import Callable

import pytest

from kvlab.errors import DoubleFree, InvalidInput, InvariantViolation, OutOfMemory, StaleHandle
from kvlab.events import EventLog
from kvlab.memory.caching_pool import CachingPool
from kvlab.memory.hash_chain import root, short

EIGHT = bytes(range(32))


def used(blocks: int = 6, log: EventLog | None = None) -> CachingPool:
    """Blocks 0 and 1 cached, 2 freed without a prefix, the others fresh."""
    pool = CachingPool(blocks, log=log)
    assert pool.allocate(3) == [0, 1, 2]
    pool.register([0, 1], root(None), EIGHT)
    assert list(pool.free([2, 1, 0])) == [2, 1, 0]
    return pool


def test_free_blocks_come_first_then_the_cached_from_tail_to_root() -> None:
    pool = used()
    assert pool.next_free() == [2, 3, 4, 5, 1, 0]
    assert pool.cached() == [1, 0]
    assert (pool.free_blocks, pool.cached_blocks) == (6, 2)
    assert pool.can_allocate(6)
    assert not pool.can_allocate(7)
    assert pool.allocate(5) == [2, 3, 4, 5, 1]
    assert (pool.cached(), pool.evicted) == ([0], 1)
    assert set(pool.prefixes.entries) == {0}
    pool.audit()


def test_a_touched_block_is_held_again_and_goes_to_the_back_when_it_is_freed() -> None:
    pool = used()
    old = pool.generations[1]
    pool.touch([1])
    handle = pool.handle(1)
    assert handle.generation == old
    assert pool.next_free() == [2, 3, 4, 5, 0]
    pool.touch([1, 0])
    assert (pool.references[0], pool.references[1], pool.cached_blocks) == (1, 2, 0)
    pool.free([0])
    pool.free([1, 1])
    assert pool.cached() == [0, 1]
    with pytest.raises(StaleHandle):
        pool.resolve(handle)
    pool.audit()


def test_a_cached_block_touched_twice_in_one_call_has_two_references() -> None:
    pool = used()
    pool.touch([1, 1])
    assert pool.references[1] == 2
    pool.audit()


def test_refused_calls_change_nothing() -> None:
    pool = used()
    pool.touch([0])
    before = (pool.next_free(), list(pool.references), list(pool.generations), dict(pool.prefixes.entries))
    calls: list[tuple[type[Exception], Callable[[], object]]] = [
        (OutOfMemory, lambda: pool.allocate(6)),
        (InvalidInput, lambda: pool.allocate(0)),
        (InvalidInput, lambda: pool.allocate(-1)),
        (StaleHandle, lambda: pool.touch([1, 0, 3])),
        (InvalidInput, lambda: pool.touch([1, 6])),
        (DoubleFree, lambda: pool.free([0, 1])),
        (InvalidInput, lambda: pool.register([0], root(None), EIGHT[:4])),
        (InvalidInput, lambda: pool.register([3], root(None), EIGHT[:4])),
        (InvalidInput, lambda: pool.register([6], root(None), EIGHT[:4])),
    ]
    for error, call in calls:
        with pytest.raises(error):
            call()
        assert (pool.next_free(), list(pool.references), list(pool.generations), dict(pool.prefixes.entries)) == before
    pool.audit()


def test_the_message_of_a_full_pool_counts_what_is_cached() -> None:
    with pytest.raises(OutOfMemory, match=r"asked for 9 blocks, 6 of 6 are free \(2 of them cached\)"):
        used().allocate(9)


def test_registrations_and_evictions_are_logged_in_order() -> None:
    log = EventLog()
    pool = used(3, log)
    pool.allocate(3)
    digests = [event[3] for event in log if event[0] == "register"]
    assert list(log) == [
        ("register", "full", 0, digests[0], short(root(None))),
        ("register", "full", 1, digests[1], digests[0]),
        ("evict", "full", 1),
        ("evict", "full", 0),
    ]


def test_the_given_order_is_kept() -> None:
    assert CachingPool(3, order=[2, 0, 1]).next_free() == [2, 0, 1]


def held_and_cached(pool: CachingPool) -> None:
    pool._references[1] = 1


def cached_without_a_prefix(pool: CachingPool) -> None:
    pool._cached[2] = None
    pool._free.remove(2)


def free_with_a_prefix(pool: CachingPool) -> None:
    del pool._cached[1]
    pool._free.append(1)


def twice_free(pool: CachingPool) -> None:
    pool._free.append(1)


@pytest.mark.parametrize("breakage", [held_and_cached, cached_without_a_prefix, free_with_a_prefix, twice_free])
def test_the_audit_sees(breakage: Callable[[CachingPool], None]) -> None:
    pool = used()
    pool.audit()
    breakage(pool)
    with pytest.raises(InvariantViolation):
        pool.audit()
