"""Held sequences: they ask for nothing, and are the first to go."""

import pytest
from support.scheduled import add, over_blocks, preempted, ran, rids, step


def test_held_sequences_run_again_only_when_resumed() -> None:
    scheduler = over_blocks(8)
    for rid in "ab":
        add(scheduler, rid, 3)
    step(scheduler)
    scheduler.hold("a")
    assert ran(step(scheduler)) == {"b": 1}
    add(scheduler, "c", 2)
    scheduler.hold("c")
    assert ran(step(scheduler)) == {"b": 1}
    scheduler.resume("a")
    scheduler.resume("c")
    assert ran(step(scheduler)) == {"a": 1, "b": 1, "c": 2}


def test_held_sequences_go_first_the_latest_of_them_before_the_others() -> None:
    scheduler = over_blocks(6)
    for rid in "abc":
        add(scheduler, rid, 8)
    step(scheduler)
    scheduler.hold("a")
    scheduler.hold("b")
    plan = step(scheduler)
    assert preempted(plan) == [("b", "recompute")]
    assert ran(plan) == {"c": 1}
    assert rids(scheduler.running) == ["a", "c"]


@pytest.mark.parametrize("host", [0, 8])
def test_held_sequences_make_way_where_they_keep_everybody_out(host: int) -> None:
    scheduler = over_blocks(6, host=host, preemption="swap" if host else "recompute")
    for rid in "abc":
        add(scheduler, rid, 8)
    step(scheduler)
    for rid in "abc":
        scheduler.hold(rid)
    add(scheduler, "d", 11)
    plan = step(scheduler)
    assert [rid for rid, _ in preempted(plan)] == ["c", "b"]
    assert ran(plan) == {"d": 11}
    assert rids(scheduler.running) == ["a", "d"]


def test_nobody_makes_way_where_nobody_wants_to_run() -> None:
    scheduler = over_blocks(4)
    for rid in "ab":
        add(scheduler, rid, 8)
    step(scheduler)
    for rid in "ab":
        scheduler.hold(rid)
    plan = step(scheduler)
    assert not plan.preempted
    assert not plan.granted
    add(scheduler, "huge", 90)
    plan = step(scheduler)
    assert [refusal.request.rid for refusal in plan.refused] == ["huge"]
    assert not plan.preempted


def test_one_swapped_in_where_held_sequences_leave_no_room_to_grow_runs_when_one_of_them_has_gone() -> None:
    scheduler = over_blocks(4, host=4, preemption="swap")
    for rid in "ab":
        add(scheduler, rid, 8)
    step(scheduler)
    assert preempted(step(scheduler)) == [("b", "swap")]
    scheduler.finish("a")
    request = add(scheduler, "c", 7)
    scheduler.hold("b")
    step(scheduler)
    scheduler.hold("c")
    scheduler.resume("b")
    assert rids(scheduler.swapped) == ["b"]
    plan = step(scheduler)
    assert [each.rid for each in plan.swapped_in] == ["b"]
    assert preempted(plan) == [("c", "swap")]
    assert ran(plan) == {"b": 1}
    assert request.computed == 7
