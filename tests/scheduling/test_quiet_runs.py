"""Quiet runs, in which the policy is not called, and drafts, which may end them."""

from support.cases import GLOBAL
from support.scheduled import Spy, add, over_blocks, ran, step

from kvlab.policies.contiguous import ContiguousOracle
from kvlab.policies.prefix import PagedPrefix
from kvlab.scheduling.scheduler import Scheduler


def test_no_call_of_the_policy_is_made_within_a_quiet_run() -> None:
    scheduler = over_blocks(8, size=16)
    policy = scheduler.policy
    assert isinstance(policy, Spy)
    request = add(scheduler, "a", 10, 40)
    step(scheduler)
    policy.calls.clear()
    for expected in range(11, 16):
        step(scheduler)
        assert request.computed == expected
    assert policy.calls == {}
    assert policy._holding("a").committed == 10
    step(scheduler)
    assert policy.calls == {"commit": 1}, "the run ends with its block, and is told"
    assert policy._holding("a").committed == 16
    step(scheduler)
    assert policy.calls == {"commit": 2, "extend": 1}
    assert policy._holding("a").committed == 17


def test_a_chunk_of_a_prompt_may_be_quiet_too() -> None:
    scheduler = over_blocks(8, size=16, token_budget=8)
    policy = scheduler.policy
    assert isinstance(policy, Spy)
    request = add(scheduler, "a", 15)
    assert [ran(step(scheduler)) for _ in range(2)] == [{"a": 8}, {"a": 7}]
    assert request.computed == 15
    assert policy.calls == {"admit": 1, "extend": 1, "commit": 1}


def test_what_a_quiet_run_has_filled_is_found_in_the_cache_at_once() -> None:
    policy = PagedPrefix((GLOBAL,), 64, block_size=4)
    scheduler = Scheduler(policy, token_budget=32, max_running=4)
    parent = add(scheduler, "a", 5)
    for _ in range(4):
        step(scheduler)
    assert parent.computed == 8
    child = parent.fork("b")
    assert policy.peek(child) == 8
    scheduler.fork("a", child, share=False)
    plan = step(scheduler)
    assert plan.admitted == [(child, 8)]
    assert ran(plan) == {"a": 1, "b": 1}


def test_accepted_drafts_stay_and_the_others_are_rolled_back() -> None:
    scheduler = over_blocks(8)
    request = add(scheduler, "a", 3, 20)
    step(scheduler)
    assert ran(step(scheduler, {"a": 4}, right=2)) == {"a": 5}
    assert (request.computed, request.known_tokens) == (6, 7)
    assert len(scheduler.policy.layout("a")[0].blocks) == 2
    assert ran(step(scheduler, {"a": 4}, right=0)) == {"a": 5}
    assert (request.computed, request.known_tokens) == (7, 8)
    assert len(scheduler.policy.layout("a")[0].blocks) == 2, "the block that only drafts needed is given back"


def test_drafts_go_before_anybody_is_preempted() -> None:
    scheduler = over_blocks(4)
    for rid in "ab":
        add(scheduler, rid, 7)
    step(scheduler)
    plan = step(scheduler, {"a": 3, "b": 3}, right=3)
    assert ran(plan) == {"a": 1, "b": 1}
    assert not plan.preempted


def test_drafts_beyond_a_reservation_are_not_granted() -> None:
    scheduler = Scheduler(ContiguousOracle((GLOBAL,), 64, max_model_tokens=64), token_budget=32, max_running=4)
    add(scheduler, "a", 4, 4)
    step(scheduler)
    assert ran(step(scheduler, {"a": 5}, right=5)) == {"a": 1}
