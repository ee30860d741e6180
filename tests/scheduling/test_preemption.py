"""A pool that runs dry: who goes, how, and who comes back."""

from support.cases import GLOBAL
from support.scheduled import add, over_blocks, preempted, ran, rids, step

from kvlab.errors import OutOfMemory
from kvlab.events import EventLog, Replay
from kvlab.policies.base import Extension
from kvlab.policies.paged import Paged
from kvlab.scheduling.scheduler import Scheduler
from kvlab.scheduling.sequence import Status
from kvlab.workload import Request, RequestId


def test_the_latest_goes_whole_and_is_computed_again_from_its_first_token() -> None:
    scheduler = over_blocks(6)
    a, b, c = (add(scheduler, rid, 7) for rid in "abc")
    assert ran(step(scheduler)) == {"a": 7, "b": 7, "c": 7}
    assert ran(step(scheduler)) == {"a": 1, "b": 1, "c": 1}
    plan = step(scheduler)
    assert preempted(plan) == [("c", "recompute")]
    assert ran(plan) == {"a": 1, "b": 1}
    assert (c.computed, c.known_tokens) == (0, 9)
    assert rids(scheduler.waiting) == ["c"]
    scheduler.finish("a")
    plan = step(scheduler)
    assert ran(plan) == {"b": 1, "c": 9}
    assert plan.admitted == [(c, 0)]
    assert (a.computed, b.computed, c.computed) == (0, 10, 9)


def test_a_preempted_request_comes_back_before_those_that_came_later() -> None:
    scheduler = over_blocks(6)
    for rid in "abc":
        add(scheduler, rid, 7)
    step(scheduler)
    add(scheduler, "d", 1)
    step(scheduler)
    assert preempted(step(scheduler)) == [("c", "recompute")]
    assert rids(scheduler.waiting) == ["c", "d"]
    assert list(ran(step(scheduler))) == ["a", "b"], "d would fit, but it is not its turn"


def test_a_step_that_preempted_admits_nobody() -> None:
    scheduler = over_blocks(6)
    for rid in "ab":
        add(scheduler, rid, 8)
    step(scheduler)
    add(scheduler, "c", 7)
    step(scheduler)
    assert rids(scheduler.running) == ["a", "b"]
    for _ in range(3):
        step(scheduler)
    add(scheduler, "small", 1)
    plan = step(scheduler)
    assert preempted(plan) == [("b", "recompute")]
    assert not plan.admitted
    assert list(ran(step(scheduler))) == ["a"]


def test_one_that_finds_no_room_and_is_the_latest_preempts_itself() -> None:
    scheduler = over_blocks(4)
    add(scheduler, "a", 6)
    add(scheduler, "b", 8)
    step(scheduler)
    plan = step(scheduler)
    assert preempted(plan) == [("b", "recompute")]
    assert ran(plan) == {"a": 1}


def test_swapping_moves_the_kv_and_nothing_is_computed_again() -> None:
    scheduler = over_blocks(6, host=6, preemption="swap")
    _, _, c = (add(scheduler, rid, 7) for rid in "abc")
    step(scheduler)
    step(scheduler)
    plan = step(scheduler)
    assert preempted(plan) == [("c", "swap")]
    assert (c.computed, c.known_tokens) == (8, 9)
    assert rids(scheduler.swapped) == ["c"]
    scheduler.finish("a")
    plan = step(scheduler)
    assert plan.swapped_in == [c]
    assert not plan.admitted
    assert ran(plan) == {"b": 1, "c": 1}
    assert {move.why for move in scheduler.policy.drain_moves()} == {"swap out", "swap in"}


def test_those_on_the_host_come_back_in_their_order_and_before_those_that_wait() -> None:
    scheduler = over_blocks(8, host=8, preemption="swap")
    for rid in "abcd":
        add(scheduler, rid, 8)
    step(scheduler)
    assert preempted(step(scheduler)) == [("d", "swap"), ("c", "swap")]
    assert rids(scheduler.swapped) == ["c", "d"]
    add(scheduler, "e", 1)
    assert rids(scheduler.decide().joining) == ["c", "d", "e"]
    scheduler.finish("a")
    plan = step(scheduler)
    assert [request.rid for request in plan.swapped_in] == ["c", "d"]
    assert ran(plan) == {"b": 1, "c": 1}, "d is back, and has no room to grow"
    assert not plan.admitted, "e has to wait for d"


def test_where_the_host_is_full_the_next_is_recomputed() -> None:
    scheduler = over_blocks(8, host=2, preemption="swap")
    for rid in "abcd":
        add(scheduler, rid, 8)
    step(scheduler)
    plan = step(scheduler)
    assert preempted(plan) == [("d", "swap"), ("c", "recompute")]
    assert (rids(scheduler.swapped), rids(scheduler.waiting)) == (["d"], ["c"])


def test_one_swapped_back_in_that_has_no_room_to_grow_stays_and_runs_when_there_is() -> None:
    scheduler = over_blocks(6, host=6, preemption="swap")
    add(scheduler, "a", 13, 3)
    add(scheduler, "b", 8)
    step(scheduler)
    assert preempted(step(scheduler)) == [("b", "swap")]
    plan = step(scheduler)
    assert [request.rid for request in plan.swapped_in] == ["b"]
    assert ran(plan) == {"a": 1}
    assert rids(scheduler.running) == ["a", "b"]
    scheduler.finish("a")
    assert ran(step(scheduler)) == {"b": 1}


class Promising(Paged):
    """Says that there is room, and then there is none for more than `most` tokens."""

    most = 4

    def extend(self, rid: RequestId, count: int) -> Extension:
        if count > self.most:
            raise OutOfMemory("the room was promised to somebody else")
        return super().extend(rid, count)


def test_one_admitted_into_room_that_is_not_there_leaves_as_it_came() -> None:
    log = EventLog()
    policy = Promising((GLOBAL,), 64, block_size=4, log=log)
    scheduler = Scheduler(policy, token_budget=16, max_running=4, log=log)
    for rid, prompt in (("a", 4), ("b", 5), ("c", 1)):
        add(scheduler, rid, prompt)
    plan = step(scheduler)
    assert ran(plan) == {"a": 4}
    assert [request.rid for request, _ in plan.admitted] == ["a"]
    assert rids(scheduler.waiting) == ["b", "c"], "and nobody comes in out of turn"
    assert policy.admitted() == [plan.granted[0].request]
    assert Replay(log).state(-1).requests["b"].tokens == 0
    policy.most = 5
    assert ran(step(scheduler)) == {"a": 1, "b": 5, "c": 1}


def test_the_statuses_are_those_of_the_places() -> None:
    scheduler = over_blocks(4, host=4, preemption="swap")
    for rid in "abc":
        add(scheduler, rid, 8)
    step(scheduler)
    step(scheduler)
    found = {each.request.rid: each.status for each in [*scheduler.running, *scheduler.swapped, *scheduler.waiting]}
    assert found == {"a": Status.RUNNING, "b": Status.SWAPPED, "c": Status.WAITING}
    assert repr(scheduler.running[0]) == f"Sequence({Request('a', 8, 8)!r}, running)".replace("0 of 8", "9 of 10")
