"""Forks: shared where the parent is in memory, queued behind it otherwise."""

import pytest
from support.cases import GLOBAL
from support.scheduled import add, over_blocks, preempted, ran, rids, step

from kvlab.errors import UnknownRequest
from kvlab.events import EventLog, Replay
from kvlab.policies.contiguous import ContiguousOracle
from kvlab.scheduling.scheduler import Scheduler
from kvlab.workload import Request


def test_a_fork_shares_its_parents_blocks_and_runs_from_where_the_parent_is() -> None:
    scheduler = over_blocks(8)
    parent = add(scheduler, "a", 6)
    step(scheduler)
    step(scheduler)
    child = parent.fork("b")
    scheduler.fork("a", child)
    (one,), (other,) = scheduler.policy.layout("a"), scheduler.policy.layout("b")
    assert one.blocks == other.blocks
    assert child.computed == parent.computed == 7
    assert ran(step(scheduler)) == {"a": 1, "b": 1}
    (one,), (other,) = scheduler.policy.layout("a"), scheduler.policy.layout("b")
    assert [mine == yours for mine, yours in zip(one.blocks, other.blocks, strict=True)] == [True, False]
    assert [move.why for move in scheduler.policy.drain_moves()] == ["copy-on-write"]


def test_a_fork_in_the_middle_of_a_quiet_run_ends_it_on_both_sides() -> None:
    scheduler = over_blocks(8, size=16)
    parent = add(scheduler, "a", 6, 30)
    for _ in range(4):
        step(scheduler)
    scheduler.fork("a", parent.fork("b"))
    assert [sequence.limit for sequence in scheduler.running] == [9, 9]
    assert ran(step(scheduler)) == {"a": 1, "b": 1}


def test_a_fork_runs_after_its_parent_and_before_later_requests() -> None:
    scheduler = over_blocks(20)
    parent = add(scheduler, "a", 3)
    add(scheduler, "z", 3)
    step(scheduler)
    children = [parent.fork(rid) for rid in "bc"]
    for child in children:
        scheduler.fork("a", child)
    scheduler.fork("b", children[0].fork("d"))
    assert list(ran(step(scheduler))) == ["a", "b", "d", "c", "z"]
    scheduler.fork("a", parent.fork("e"), share=False)
    assert list(ran(step(scheduler))) == ["a", "b", "d", "c", "z", "e"], "it joins last"
    assert rids(scheduler.running) == ["a", "b", "d", "c", "e", "z"], "but has its place before z"


def test_without_sharing_the_child_queues_and_is_computed_itself() -> None:
    scheduler = over_blocks(8)
    parent = add(scheduler, "a", 6)
    step(scheduler)
    child = parent.fork("b")
    scheduler.fork("a", child, share=False)
    assert child.computed == 0
    assert rids(scheduler.waiting) == ["b"]
    assert ran(step(scheduler)) == {"a": 1, "b": 7}
    (one,), (other,) = scheduler.policy.layout("a"), scheduler.policy.layout("b")
    assert not set(one.blocks) & set(other.blocks)


def test_where_forking_must_copy_and_there_is_no_room_the_child_queues_behind_its_parent() -> None:
    log = EventLog()
    policy = ContiguousOracle((GLOBAL,), 24, max_model_tokens=24, placement="first-fit", log=log)
    scheduler = Scheduler(policy, token_budget=16, max_running=4, log=log)
    parent = add(scheduler, "a", 6, 8)
    step(scheduler)
    add(scheduler, "z", 2, 2)
    child = parent.fork("b")
    scheduler.fork("a", child)
    assert child.computed == 0
    assert rids(scheduler.waiting) == ["b", "z"]
    assert ran(step(scheduler)) == {"a": 1}
    scheduler.finish("a")
    assert ran(step(scheduler)) == {"b": 7, "z": 2}
    told = Replay(log).state(-1).requests
    assert (told["b"].status, told["b"].tokens) == ("running", 7)


@pytest.mark.parametrize("host", [0, 4])
def test_a_fork_of_one_that_is_not_in_memory_queues(host: int) -> None:
    scheduler = over_blocks(4, host=host, preemption="swap" if host else "recompute")
    add(scheduler, "a", 8)
    parent = add(scheduler, "b", 8)
    step(scheduler)
    assert [rid for rid, _ in preempted(step(scheduler))] == ["b"]
    child = parent.fork("c")
    scheduler.fork("b", child)
    assert child.computed == 0
    assert "c" in rids(scheduler.waiting)
    scheduler.finish("a")
    scheduler.finish("b")
    assert ran(step(scheduler)) == {"c": 9}


def test_the_fork_of_an_unknown_request_is_refused() -> None:
    scheduler = over_blocks(4)
    with pytest.raises(UnknownRequest, match="request 'a' is not being served; 0 sequences are"):
        scheduler.fork("a", Request("b", 3, 3))
    assert len(scheduler) == 0
