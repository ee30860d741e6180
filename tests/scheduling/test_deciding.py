"""Who runs: within the budget, first come first served, long prompts in chunks, and static batches."""

import pytest
from support.cases import GLOBAL
from support.scheduled import add, over_blocks, ran, rids, step

from kvlab.errors import InvalidInput, UnknownRequest
from kvlab.policies.contiguous import ContiguousOracle
from kvlab.policies.paged import Paged
from kvlab.scheduling.scheduler import Scheduler
from kvlab.workload import Request


def test_a_long_prompt_is_prefilled_over_several_steps_and_decoding_goes_on_beside_it() -> None:
    scheduler = over_blocks(40, token_budget=10)
    add(scheduler, "a", 4)
    add(scheduler, "b", 25)
    assert [ran(step(scheduler)) for _ in range(5)] == [
        {"a": 4, "b": 6}, {"a": 1, "b": 9}, {"a": 1, "b": 9}, {"a": 1, "b": 1}, {"a": 1, "b": 1},
    ]  # fmt: skip


def test_those_who_run_come_before_those_who_join_and_nobody_gets_more_than_is_left() -> None:
    scheduler = over_blocks(40, token_budget=8)
    for rid in "abc":
        add(scheduler, rid, 6)
    assert ran(step(scheduler)) == {"a": 6, "b": 2}
    assert ran(step(scheduler)) == {"a": 1, "b": 4, "c": 3}
    assert ran(step(scheduler)) == {"a": 1, "b": 1, "c": 3}


def test_at_most_max_running_sequences_run() -> None:
    scheduler = over_blocks(40, max_running=2)
    for rid in "abc":
        add(scheduler, rid, 3)
    assert [list(ran(step(scheduler))) for _ in range(2)] == [["a", "b"], ["a", "b"]]
    scheduler.finish("a")
    assert list(ran(step(scheduler))) == ["b", "c"]


def test_forks_beyond_max_running_wait_in_memory_for_a_place() -> None:
    scheduler = over_blocks(40, max_running=2)
    request = add(scheduler, "a", 3)
    step(scheduler)
    for rid in "bc":
        scheduler.fork("a", request.fork(rid))
    assert list(ran(step(scheduler))) == ["a", "b"]
    scheduler.finish("a")
    assert list(ran(step(scheduler))) == ["b", "c"]


def test_a_small_request_does_not_overtake_a_large_one_that_has_to_wait() -> None:
    scheduler = over_blocks(6)
    add(scheduler, "a", 12)
    add(scheduler, "large", 16)
    add(scheduler, "small", 2)
    assert list(ran(step(scheduler))) == ["a"]
    assert rids(scheduler.waiting) == ["large", "small"]
    scheduler.finish("a")
    assert list(ran(step(scheduler))) == ["large", "small"]


def test_an_impossible_request_is_refused_for_good_and_the_next_is_served_in_the_same_step() -> None:
    scheduler = over_blocks(6)
    huge = add(scheduler, "huge", 20, 5)
    add(scheduler, "b", 3)
    plan = step(scheduler)
    assert [refusal.request for refusal in plan.refused] == [huge]
    assert "the whole pool holds 6 blocks" in plan.refused[0].reason
    assert list(ran(plan)) == ["b"]
    assert "huge" not in scheduler
    with pytest.raises(UnknownRequest):
        scheduler.finish("huge")


def test_only_impossible_requests_make_a_step_without_grants_that_is_progress_all_the_same() -> None:
    scheduler = over_blocks(2)
    for rid in "ab":
        add(scheduler, rid, 20)
    plan = step(scheduler)
    assert [refusal.request.rid for refusal in plan.refused] == ["a", "b"]
    assert not plan.granted
    assert len(scheduler) == 0


def test_deciding_changes_nothing() -> None:
    scheduler = over_blocks(40, token_budget=10)
    for rid in "ab":
        add(scheduler, rid, 8)
    step(scheduler)
    assert scheduler.decide() == scheduler.decide()
    assert rids([sequence for sequence, _ in scheduler.decide().running]) == ["a", "b"]


def test_a_static_batch_takes_nobody_in_until_the_last_has_finished() -> None:
    scheduler = over_blocks(40, max_running=2, batching="static")
    for rid in "abcd":
        add(scheduler, rid, 3)
    assert list(ran(step(scheduler))) == ["a", "b"]
    scheduler.finish("a")
    assert list(ran(step(scheduler))) == ["b"]
    scheduler.finish("b")
    assert list(ran(step(scheduler))) == ["c", "d"]


def test_drafts_count_within_the_budget() -> None:
    scheduler = over_blocks(40, token_budget=6, max_running=3)
    for rid in "abc":
        add(scheduler, rid, 2)
    step(scheduler)
    assert ran(step(scheduler, {"a": 2, "b": 1})) == {"a": 3, "b": 2, "c": 1}
    assert ran(step(scheduler, {"a": 3, "b": 5})) == {"a": 4, "b": 2}
    assert [sequence.request.rid for sequence, _ in scheduler.decide({"a": 9}).running] == ["a"]


def test_drafts_come_only_where_one_token_is_pending() -> None:
    scheduler = over_blocks(40, token_budget=8)
    add(scheduler, "a", 10)
    assert ran(step(scheduler, {"a": 3})) == {"a": 8}
    assert ran(step(scheduler, {"a": 3})) == {"a": 2}
    assert ran(step(scheduler, {"a": 3})) == {"a": 4}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"token_budget": 0}, "token_budget must be an integer of at least 1"),
        ({"max_running": 0}, "max_running must be an integer of at least 1"),
        ({"token_budget": 7, "max_running": 8}, "a budget of 7 tokens a step cannot give each of 8"),
        ({"preemption": "pause"}, "preemption is recompute or swap, not 'pause'"),
        ({"batching": "dynamic"}, "batching is continuous or static, not 'dynamic'"),
        ({"preemption": "swap"}, "Spy cannot swap"),
    ],
)
def test_a_bad_option_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        over_blocks(8, **options)


def test_a_policy_without_a_host_cannot_swap() -> None:
    contiguous = ContiguousOracle((GLOBAL,), 64, max_model_tokens=64)
    for policy in (contiguous, Paged((GLOBAL,), 64)):
        with pytest.raises(InvalidInput, match="cannot swap: give a paged policy host_tokens"):
            Scheduler(policy, preemption="swap")
    assert Scheduler(Paged((GLOBAL,), 64, host_tokens=64), preemption="swap").preemption == "swap"


def test_an_id_in_use_is_refused_and_free_again_when_the_request_has_gone() -> None:
    scheduler = over_blocks(8)
    first = add(scheduler, "a", 3)
    with pytest.raises(InvalidInput, match="request 'a' is being served already"):
        scheduler.add(Request("a", 2, 2))
    with pytest.raises(InvalidInput, match="request 'a' is being served already"):
        scheduler.fork("a", first.fork("a"))
    assert len(scheduler) == 1
    scheduler.finish("a")
    add(scheduler, "a", 5)
    assert ran(step(scheduler)) == {"a": 5}
