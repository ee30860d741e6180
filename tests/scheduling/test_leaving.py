"""Leaving at any moment, and a step that was interrupted."""

import pytest
from support.scheduled import Spy, add, compute, over_blocks, preempted, ran, rids, step

from kvlab.errors import InvalidInput, UnknownRequest
from kvlab.events import EventLog, Replay
from kvlab.scheduling.scheduler import Scheduler


def crowded(log: EventLog | None = None) -> Scheduler:
    """a runs, b is on the host, c waits."""
    scheduler = over_blocks(4, host=4, preemption="swap", log=log)
    for rid in "abc":
        add(scheduler, rid, 8)
    step(scheduler)
    step(scheduler)
    assert (rids(scheduler.running), rids(scheduler.swapped), rids(scheduler.waiting)) == (["a"], ["b"], ["c"])
    return scheduler


@pytest.mark.parametrize("rid", ["a", "b", "c"])
def test_a_request_leaves_from_wherever_it_is(rid: str) -> None:
    log = EventLog()
    scheduler = crowded(log)
    scheduler.finish(rid, "aborted")
    scheduler.policy.audit()
    assert rid not in scheduler
    assert len(scheduler) == 2
    assert Replay(log).state(-1).requests[rid].status == "aborted"
    with pytest.raises(UnknownRequest, match=f"request '{rid}' is not being served; 2 sequences are"):
        scheduler.finish(rid)
    for each in {"a", "b", "c"} - {rid}:
        scheduler.finish(each)
    assert all(usage.owned == 0 for usage in scheduler.policy.usage().values())
    assert (scheduler.running, scheduler.swapped, scheduler.waiting) == ([], [], [])


def test_a_request_leaves_in_the_middle_of_a_quiet_run() -> None:
    scheduler = over_blocks(4, size=16)
    add(scheduler, "a", 3)
    step(scheduler)
    policy = scheduler.policy
    assert isinstance(policy, Spy)
    step(scheduler)
    policy.calls.clear()
    scheduler.finish("a")
    assert policy.calls == {"commit": 1, "release": 1}, "the policy is told what it had computed"
    scheduler.policy.audit()
    assert scheduler.policy.usage()["full"].owned == 0


@pytest.mark.parametrize("rid", ["a", "b", "c"])
def test_a_reason_that_is_none_is_refused_and_nothing_leaves(rid: str) -> None:
    scheduler = crowded()
    with pytest.raises(InvalidInput, match="released as finished or aborted or preempted, not 'tired'"):
        scheduler.finish(rid, "tired")
    assert rid in scheduler
    assert (rids(scheduler.running), rids(scheduler.swapped), rids(scheduler.waiting)) == (["a"], ["b"], ["c"])
    scheduler.finish(rid)


def test_an_interrupted_step_is_rolled_back_and_can_be_decided_again() -> None:
    log = EventLog()
    scheduler = over_blocks(8, log=log)
    a, b = add(scheduler, "a", 8), add(scheduler, "b", 3)
    step(scheduler)
    steps = sum(event[0] == "step" for event in log)
    decision = scheduler.decide()
    plan = scheduler.allocate(decision)
    assert len(scheduler.policy.layout("a")[0].blocks) == 3
    scheduler.abandon(plan)
    scheduler.policy.audit()
    assert len(scheduler.policy.layout("a")[0].blocks) == 2
    assert (a.computed, b.computed) == (8, 3)
    assert sum(event[0] == "step" for event in log) == steps, "a step that computed nothing is no frame"
    assert ran(step(scheduler)) == ran(plan)
    assert (a.computed, b.computed) == (9, 4)
    assert log.events[-1] == ("step", (("a", 1), ("b", 1)))
    assert Replay(log).state(-1).requests["a"].tokens == 9


def test_what_an_interrupted_step_had_computed_stays_and_is_in_the_log() -> None:
    log = EventLog()
    scheduler = over_blocks(8, log=log)
    a, b = add(scheduler, "a", 8), add(scheduler, "b", 8)
    step(scheduler)
    plan = scheduler.allocate(scheduler.decide())
    compute(scheduler, plan.granted[0])
    scheduler.abandon(plan)
    scheduler.policy.audit()
    assert (a.computed, b.computed) == (9, 8)
    told = Replay(log).state(-1).requests
    assert (told["a"].tokens, told["b"].tokens) == (9, 8)
    assert ran(step(scheduler)) == {"a": 1, "b": 1}


def test_an_interrupted_admission_and_preemption_stay() -> None:
    scheduler = over_blocks(4)
    for rid in "ab":
        add(scheduler, rid, 8)
    plan = scheduler.allocate(scheduler.decide())
    scheduler.abandon(plan)
    assert rids(scheduler.running) == ["a", "b"]
    assert ran(step(scheduler)) == {"a": 8, "b": 8}
    plan = scheduler.allocate(scheduler.decide())
    assert preempted(plan) == [("b", "recompute")]
    scheduler.abandon(plan)
    scheduler.policy.audit()
    assert rids(scheduler.waiting) == ["b"]
    assert ran(step(scheduler)) == {"a": 1}
