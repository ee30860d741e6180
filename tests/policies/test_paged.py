"""Paged: what construction refuses, the watermark, and that the audit sees what is broken."""

from collections.abc import Callable

import pytest
from support.cases import GLOBAL, SLIDING

from kvlab.errors import InvalidInput, InvariantViolation
from kvlab.events import EventLog
from kvlab.policies.base import Usage
from kvlab.policies.paged import Paged
from kvlab.workload import Request


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 0}, "block_size must be an integer of at least 1"),
        ({"block_size": -4}, "block_size"),
        ({"block_size": 65}, "a block of 65 tokens does not fit in a pool of 64"),
        ({"capacity_tokens": 0}, "capacity_tokens"),
        ({"host_tokens": -1}, "host_tokens must be 0 or hold a block of 4"),
        ({"host_tokens": 3}, "host_tokens must be 0 or hold a block of 4"),
        ({"watermark_blocks": 16}, r"watermark_blocks must be in \[0, 16\)"),
        ({"watermark_blocks": -1}, "watermark_blocks"),
        ({"reuse": "oldest"}, "reuse must be"),
        ({"order": [0, 1]}, "order must name each"),
    ],
)
def test_a_bad_construction_is_refused(change: dict[str, object], message: str) -> None:
    options: dict[str, object] = {"capacity_tokens": 64, "block_size": 4}
    with pytest.raises(InvalidInput, match=message):
        Paged((GLOBAL,), **(options | change))


def test_the_watermark_keeps_blocks_for_running_requests_but_lets_the_first_in() -> None:
    policy = Paged((GLOBAL,), 64, block_size=4, watermark_blocks=10)
    assert policy.admit(Request("a", 40, 9)) is not None
    policy.extend("a", 40)
    policy.commit("a", range(40))
    assert policy.admit(Request("b", 4, 9)) is None
    policy.release("a", "finished")
    assert policy.admit(Request("b", 4, 9)) is not None


def test_the_given_order_is_the_order_of_the_first_blocks_and_is_in_the_log() -> None:
    log = EventLog()
    policy = Paged((GLOBAL,), 20, block_size=4, order=[3, 1, 4, 0, 2], log=log)
    policy.admit(Request("a", 12, 4))
    policy.extend("a", 12)
    assert log.events[0] == ("header", "Paged", (("full", 20, 4, 8, ((3, 4), (1, 2), (4, 5), (0, 1), (2, 3))),))
    assert log.events[-1] == ("grow", "a", "full", ((3, 4), (1, 2), (4, 5)))


def test_two_groups_share_the_blocks_and_the_window_leaves_dead_bytes() -> None:
    policy = Paged((GLOBAL, SLIDING), 64, block_size=4)
    request = Request("a", 12, 4)
    policy.admit(request)
    assert [len(slots) for slots in policy.extend("a", 12).slots()] == [12, 12]
    policy.commit("a", range(12))
    usage = policy.usage()["full"]
    assert (usage.live, usage.dead) == (12 * 8 + 4 * 12, 8 * 12)


def broken_length(policy: Paged) -> None:
    policy._held["a"].request.computed += 50


def broken_count(policy: Paged) -> None:
    policy.books.filled_slots += 1


def broken_reference(policy: Paged) -> None:
    policy.pool.touch(policy._held["a"].table.blocks[:1])


def broken_table(policy: Paged) -> None:
    policy._held["a"].table.blocks.pop()


def broken_terms(policy: Paged) -> None:
    policy.books.usage = lambda held: Usage(64 * 8, 0, 0, 0, 0, 0, 0)


def broken_host(policy: Paged) -> None:
    assert policy.host is not None
    policy.host.host.allocate()


def broken_pair(policy: Paged) -> None:
    assert policy.host is not None
    policy.host._on_host.clear()


BREAKAGES = [
    broken_length,
    broken_count,
    broken_reference,
    broken_table,
    broken_terms,
    broken_host,
    broken_pair,
]


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_the_audit_sees(breakage: Callable[[Paged], None]) -> None:
    policy = Paged((GLOBAL,), 64, block_size=4, host_tokens=32)
    for rid in "ab":
        policy.admit(Request(rid, 10, 4))
        policy.extend(rid, 10)
        policy.commit(rid, range(10))
    policy.swap_out("b")
    policy.audit()
    breakage(policy)
    with pytest.raises(InvariantViolation):
        policy.audit()


def test_a_block_holds_sixteen_tokens_unless_said_otherwise() -> None:
    assert Paged((GLOBAL,), 64).block_size == 16


def test_a_deep_family_of_forks_costs_no_deep_stack_and_gives_everything_back() -> None:
    policy = Paged((GLOBAL,), 120_000, block_size=16)
    request = Request(0, 100_000, 10)
    policy.admit(request)
    policy.extend(0, 100_000)
    policy.commit(0, range(100_000))
    for rid in range(1, 100):
        policy.fork(rid - 1, Request(rid, 100_000, 10))
    assert policy.usage()["full"].live == 100_000 * 8
    for rid in range(100):
        policy.release(rid, "finished")
    assert policy.usage()["full"].owned == 0
