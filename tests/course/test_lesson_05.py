"""The checks of lesson 05 accept right answers however they are written, and name the fault of wrong ones."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from kvlab.course.checks import Check
from kvlab.course.lesson_05 import (
    HALF,
    POOL_FULL,
    check_next_step,
    check_preempt,
    compared,
    reference_next_step,
    requests,
)
from kvlab.course.serving_arms import ROOM_BLOCKS, TIGHT_BLOCKS, batch_arms, engine_of, preemption_arms, six
from kvlab.course.serving_processes import processes
from kvlab.course.small_server import SmallServer, job
from kvlab.course.stored_run import load_stored_run
from kvlab.errors import InvalidInput
from kvlab.events import Replay
from kvlab.memory.block_pool import BlockPool
from kvlab.viz import timeline


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def next_step_with(queue: Callable[..., Any]) -> Callable[..., Any]:
    """A `next_step` whose part for the queue is `queue(request, budget, free, pool, plan, refused)`, which gives
    the new budget and free blocks, or None to stop."""

    def next_step(budget, running, waiting, pool):
        plan, refused, free = {}, [], pool.free_blocks
        for request in running:
            plan[request.name] = min(request.pending, budget)
            budget -= plan[request.name]
        for request in waiting:
            left = queue(request, budget, free, pool, plan, refused)
            if left is None:
                break
            budget, free = left
        return plan, refused

    return next_step


def admit(request, budget, free, plan):
    plan[request.name] = min(request.pending, budget)
    return budget - plan[request.name], free - request.needs


def another_right_one(budget, running, waiting, pool):
    plan, refused, free, stopped = {}, [], pool.free_blocks, False
    for request in [*running, *waiting]:
        if request.most > pool.blocks:
            refused.append(request.name)
            continue
        need = 0 if request in running else request.needs
        stopped = stopped or (request in waiting and need > free) or budget <= 0
        if not stopped:
            tokens = request.pending if request.pending < budget else budget
            plan[request.name], budget, free = tokens, budget - tokens, free - need
    return plan, tuple(refused)


def overtakes(request, budget, free, pool, plan, refused):
    if request.most > pool.blocks:
        refused.append(request.name)
        return budget, free
    if budget == 0 or request.needs > free:
        return budget, free
    return admit(request, budget, free, plan)


def waits_for_the_impossible(request, budget, free, pool, plan, refused):
    return None if budget == 0 or request.needs > free else admit(request, budget, free, plan)


def looks_at_the_prompt_only(request, budget, free, pool, plan, refused):
    if request.needs > pool.blocks:
        refused.append(request.name)
        return budget, free
    return None if budget == 0 or request.needs > free else admit(request, budget, free, plan)


def refuses_what_does_not_fit_now(request, budget, free, pool, plan, refused):
    if request.needs > free:
        refused.append(request.name)
        return budget, free
    return None if budget == 0 else admit(request, budget, free, plan)


def forgets_the_blocks(request, budget, free, pool, plan, refused):
    if request.most > pool.blocks:
        refused.append(request.name)
        return budget, free
    if budget == 0 or request.needs > free:
        return None
    return admit(request, budget, free, plan)[0], free


def forgets_the_budget(request, budget, free, pool, plan, refused):
    if request.most > pool.blocks:
        refused.append(request.name)
        return budget, free
    if request.needs > free:
        return None
    plan[request.name] = request.pending
    return budget, free - request.needs


def all_or_nothing(request, budget, free, pool, plan, refused):
    if request.most > pool.blocks:
        refused.append(request.name)
        return budget, free
    return None if request.pending > budget or request.needs > free else admit(request, budget, free, plan)


def stops_at_a_refusal(request, budget, free, pool, plan, refused):
    if request.most > pool.blocks:
        refused.append(request.name)
        return None
    return None if budget == 0 or request.needs > free else admit(request, budget, free, plan)


def test_next_step_may_be_written_in_more_than_one_way():
    assert check_next_step(reference_next_step).passed
    assert check_next_step(another_right_one).passed, check_next_step(another_right_one)


@pytest.mark.parametrize(
    ("queue", "tried", "found"),
    [
        (overtakes, "waiting B (pending 28, needs 2, most 4), C (pending 20, needs 2", "'D': 10"),
        (waits_for_the_impossible, "waiting X", "plan: {'A': 1}"),
        (looks_at_the_prompt_only, "waiting X", "plan: {'A': 1}"),
        (refuses_what_does_not_fit_now, "waiting B (pending 28, needs 2, most 4), C (pending 20", "'D': 10"),
        (forgets_the_blocks, "waiting B (pending 28, needs 2, most 4), C (pending 20", "'C': 20"),
        (forgets_the_budget, "budget 16", "'B': 28"),
        (all_or_nothing, "budget 16", "plan: {'A': 1}"),
        (stops_at_a_refusal, "waiting X", "plan: {'A': 1}"),
    ],
)
def test_a_wrong_next_step_is_named(queue: Callable[..., Any], tried: str, found: str):
    named(check_next_step(next_step_with(queue)), tried, found)


def allocates_already(budget, running, waiting, pool):
    plan, refused = reference_next_step(budget, running, waiting, pool)
    for request in waiting:
        if request.name in plan:
            request.blocks = pool.allocate(request.needs)
    return plan, refused


def takes_from_the_queue(budget, running, waiting, pool):
    plan, refused = reference_next_step(budget, running, waiting, pool)
    waiting[:] = [request for request in waiting if request.name not in plan]
    return plan, refused


@pytest.mark.parametrize("wrong", [allocates_already, takes_from_the_queue])
def test_a_decision_that_changes_something_is_named(wrong: Callable[..., Any]):
    named(check_next_step(wrong), "budget 64", "something was taken or moved")


def test_a_plan_alone_is_no_answer():
    named(check_next_step(lambda *state: reference_next_step(*state)[0]), "budget 64", "{'A': 1, 'B': 28}")


def preempt(running, waiting, pool):
    last = running.pop()
    pool.free(last.blocks[::-1])
    last.blocks = []
    last.computed = 0
    waiting.insert(0, last)


def another_preempt(running, waiting, pool):
    victim = running[-1]
    while victim.blocks:
        pool.free([victim.blocks.pop()])
    victim.computed -= victim.computed
    waiting[:0] = [victim]
    del running[-1]


def the_oldest_goes(running, waiting, pool):
    running.reverse()
    preempt(running, waiting, pool)
    running.reverse()


def half_of_it(running, waiting, pool):
    last = running.pop()
    pool.free([last.blocks.pop()])
    last.computed = 16
    waiting.insert(0, last)


def keeps_its_list(running, waiting, pool):
    last = running.pop()
    pool.free(last.blocks)
    last.computed = 0
    waiting.insert(0, last)


def still_counts_as_computed(running, waiting, pool):
    last = running.pop()
    pool.free(last.blocks)
    last.blocks = []
    waiting.insert(0, last)


def starts_its_answer_anew(running, waiting, pool):
    preempt(running, waiting, pool)
    waiting[0].tokens = waiting[0].tokens[: waiting[0].prompt_tokens - 5]


def to_the_end_of_the_queue(running, waiting, pool):
    preempt(running, waiting, pool)
    waiting.append(waiting.pop(0))


def forgets_to_free(running, waiting, pool):
    last = running.pop()
    last.blocks, last.computed = [], 0
    waiting.insert(0, last)


@pytest.mark.parametrize("right", [preempt, another_preempt])
def test_preempt_may_be_written_in_more_than_one_way(right: Callable[..., Any]):
    assert check_preempt(right).passed, check_preempt(right)


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (the_oldest_goes, "running: ['B', 'C']"),
        (half_of_it, "free blocks (C had 2): 1"),
        (keeps_its_list, "C's blocks: [6, 7]"),
        (still_counts_as_computed, "C's tokens that are computed: 29"),
        (starts_its_answer_anew, "25 tokens"),
        (to_the_end_of_the_queue, "waiting: ['D', 'C']"),
        (forgets_to_free, "free blocks (C had 2): 0"),
    ],
)
def test_a_wrong_preempt_is_named(wrong: Callable[..., Any], found: str):
    named(check_preempt(wrong), "A, B and C run", found)


def named(check: Check, tried: str, found: str) -> None:
    assert not check.passed
    rows = dict(check.rows)
    assert tried in rows["tried"]
    assert found in rows["found"]


def test_nothing_that_runs_is_left_in_the_exercise_of_a_starter():
    assert not check_preempt(lambda running, waiting, pool: ...).passed
    assert not check_next_step(next_step_with(lambda *state: state[1:3])).passed


def served(preempting: Callable[..., Any], blocks: int) -> tuple[dict[str, str], SmallServer]:
    server = SmallServer(reference_next_step, preempting, blocks)
    return server.serve(*requests()), server


@pytest.mark.parametrize("blocks", range(5, 13))
def test_texts_do_not_depend_on_the_pool(blocks: int):
    texts, server = served(preempt, blocks)
    assert texts == served(preempt, 40)[0]
    assert server.pool.free_blocks == blocks
    server.pool.audit()


def test_memory_that_is_read_after_it_was_lost_gives_another_text():
    def forgetful(running, waiting, pool):
        preempt(running, waiting, pool)
        waiting[0].computed = 16  # its first block counts as computed and is another's by then

    assert served(forgetful, 8)[0]["C"] != served(preempt, 40)[0]["C"]


def test_the_log_of_the_small_server_is_that_of_a_real_one():
    _, server = served(preempt, 8)
    last = Replay(server.log).state(-1)
    assert {each.status for each in last.requests.values()} == {"finished"}
    assert timeline(server.log).title == "3 requests, 32 steps: 1 preemption, 29 tokens computed again"


def test_a_server_that_can_do_nothing_stops():
    idle = SmallServer(lambda *state: ({}, []), preempt, 8)
    assert set(idle.serve(*requests()).values()) == {""}
    stuck = SmallServer(reference_next_step, lambda *state: None, 8)
    assert stuck.serve(*requests()) != served(preempt, 40)[0]
    assert stuck.running


def test_a_request_that_outgrows_the_pool_preempts_itself_and_is_refused():
    def hopeful(budget, running, waiting, pool):
        plan = {request.name: 1 for request in running}
        if waiting and waiting[0].needs > pool.blocks:
            return plan, [waiting[0].name]
        return plan | {request.name: request.pending for request in waiting}, []

    server = SmallServer(hopeful, preempt, 4)
    assert len(server.serve([job("X", 20, 100)], [0])["X"]) == 4 * 16 + 1 - 20
    assert (server.running, server.waiting, server.pool.free_blocks) == ([], [], 4)


def test_a_plan_beyond_the_tokens_of_a_request_is_refused():
    greedy = SmallServer(lambda budget, running, waiting, pool: ({"A": 99}, []), preempt, 8)
    with pytest.raises(InvalidInput, match="cannot compute 99 more tokens of A"):
        greedy.serve([job("A", 20, 4)], [0])


def test_a_request_counts_its_blocks():
    a = job("A", 33, 16)
    assert (a.pending, a.needs, a.most, a.text) == (33, 3, 4, "")
    assert BlockPool(4).blocks >= a.most


def test_texts_are_compared_line_by_line():
    assert compared({"A": "xy", "B": "z"}, {"A": "xy", "B": "w"}).splitlines() == [
        f"A: {'xy'!r:30} the same",
        f"B: {'z'!r:30} not 'w'",
    ]


def test_one_answer_of_each_quiz_names_its_misconception():
    assert "Moving KV to the CPU is swapping" in POOL_FULL.options[0].why
    assert "Half a request is of no use" in POOL_FULL.options[1].why
    assert "reads the keys and values of all tokens before it" in HALF.options[0].why


def test_the_stored_runs_have_the_arms_that_the_lesson_measures():
    for name, arms in (("serving_preemption", preemption_arms()), ("serving_batches", batch_arms())):
        assert [arm.name for arm in load_stored_run(name).arms] == list(arms)


def test_a_pool_that_runs_dry_changes_no_text_of_the_model():
    roomy, recompute, swap = (six(engine_of(ROOM_BLOCKS)), *(
        six(engine_of(TIGHT_BLOCKS, preemption=preemption)) for preemption in ("recompute", "swap")
    ))  # fmt: skip
    assert [each.token_ids for each in recompute] == [each.token_ids for each in roomy]
    assert [each.token_ids for each in swap] == [each.token_ids for each in roomy]
    assert [sum(each.preemptions for each in run) for run in (roomy, recompute, swap)] == [0, 2, 2]


def test_the_picture_of_the_processes_says_the_same_in_its_table():
    drawing = processes()
    assert [row[0] for row in drawing.table] == ["process", "API server", "engine core", "worker"]
    assert "engine core" in drawing.svg()
