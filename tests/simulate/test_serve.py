"""Serving lengths: what is counted, and that the log tells the same."""

from collections import Counter

import pytest
from support.cases import CASES, GLOBAL, PolicyCase

from kvlab.errors import InvalidInput, InvariantViolation
from kvlab.events import EventLog, Replay
from kvlab.policies.base import Admission
from kvlab.policies.paged import Paged
from kvlab.scheduling.scheduler import Scheduler
from kvlab.simulate.serve import Record, serve
from kvlab.viz.scenes.timeline import timeline
from kvlab.workload import Request, uniform


def scheduler(blocks: int = 20, *, host: int = 0, log: EventLog | None = None, **options: object) -> Scheduler:
    policy = Paged((GLOBAL,), blocks * 4, block_size=4, host_tokens=host * 4, log=log)
    return Scheduler(policy, log=log, **{"token_budget": 16, "max_running": 4} | options)


def requests(*lengths: tuple[int, int]) -> list[Request]:
    return [Request(name, prompt, output) for name, (prompt, output) in zip("abcdefgh", lengths, strict=False)]


def test_the_step_that_completes_a_prompt_makes_the_first_token() -> None:
    served = serve(scheduler(), requests((20, 5)))
    assert served.requests == {"a": Record("a", 0, 2, 6, 0, 0)}
    assert (served.steps, served.tokens, served.computed, served.computed_again) == (6, 5, 24, 0)
    assert (served.mean_batch, served.swapped_tokens, served.preemptions, served.refusals) == (1.0, 0, 0, ())


def test_an_output_of_one_token_is_done_with_the_prompt() -> None:
    served = serve(scheduler(), [Request("a", 5, 9, output_tokens=1)])
    assert (served.requests["a"].first_token, served.requests["a"].finished, served.computed) == (1, 1, 5)


def test_static_batching_waits_for_its_longest_and_continuous_batching_does_not() -> None:
    lengths = (2, 6), (2, 2), (2, 3), (2, 2)
    static = serve(scheduler(max_running=2, batching="static"), requests(*lengths))
    continuous = serve(scheduler(max_running=2), requests(*lengths))
    assert [(record.first_token, record.finished) for record in static.requests.values()] == [
        (1, 6), (1, 2), (7, 9), (7, 8),
    ]  # fmt: skip
    assert [(record.first_token, record.finished) for record in continuous.requests.values()] == [
        (1, 6), (1, 2), (3, 5), (6, 7),
    ]  # fmt: skip
    assert (static.steps, continuous.steps) == (9, 7)
    assert [record.waited for record in static.requests.values()] == [0, 0, 6, 6]
    assert [record.waited for record in continuous.requests.values()] == [0, 0, 2, 5]
    assert static.mean_batch == 13 / 9
    assert continuous.mean_batch == 13 / 7


def test_recomputing_computes_tokens_twice_and_swapping_moves_them() -> None:
    lengths = (7, 9), (7, 9)
    recomputed = serve(scheduler(4), requests(*lengths))
    swapped = serve(scheduler(4, host=4, preemption="swap"), requests(*lengths))
    assert (recomputed.preemptions, recomputed.computed_again, recomputed.swapped_tokens) == (1, 8, 0)
    assert (swapped.preemptions, swapped.computed_again, swapped.swapped_tokens) == (1, 0, 16)
    assert recomputed.computed - recomputed.computed_again == swapped.computed == 30
    assert recomputed.tokens == swapped.tokens == 18
    assert [record.preempted for record in swapped.requests.values()] == [0, 1]
    assert swapped.requests["b"].waited == 7


def test_requests_come_when_they_are_said_to_and_steps_without_any_count_too() -> None:
    served = serve(scheduler(), requests((3, 2), (3, 2), (3, 1)), arrivals=[1, 5, 5])
    assert [record.arrived for record in served.requests.values()] == [1, 5, 5]
    assert [(record.first_token, record.finished) for record in served.requests.values()] == [(2, 3), (6, 7), (6, 6)]
    assert served.steps == 7
    assert served.mean_batch == 5 / 4, "over the steps that had a sequence"


def test_arrivals_need_not_be_in_order() -> None:
    served = serve(scheduler(), requests((3, 2), (3, 2)), arrivals=[4, 0])
    assert list(served.requests) == ["b", "a"]


def test_a_refused_request_is_named_with_its_reason_and_the_others_are_served() -> None:
    served = serve(scheduler(4), requests((3, 2), (30, 2), (3, 2)))
    assert [refusal.request.rid for refusal in served.refusals] == ["b"]
    assert "the whole pool holds 4 blocks" in served.refusals[0].reason
    assert list(served.requests) == ["a", "c"]


def test_accepted_drafts_make_several_tokens_a_step() -> None:
    served = serve(scheduler(), requests((3, 9)), drafts=3, accepted=2)
    assert served.requests["a"].finished == 4, "1 + 3 + 3, and 2 that were left"
    assert (served.tokens, served.computed) == (9, 11)
    wrong = serve(scheduler(), requests((3, 9)), drafts=3)
    assert (wrong.steps, wrong.tokens, wrong.computed) == (9, 9, 11)


def test_it_ends_early_where_it_is_told_to() -> None:
    served = serve(scheduler(), requests((3, 2), (3, 20)), max_steps=5)
    assert served.steps == 5
    assert served.requests["a"] == Record("a", 0, 1, 2, 0, 0)
    assert served.requests["b"] == Record("b", 0, 1, None, 0, 0)
    waiting = serve(scheduler(max_running=1), requests((3, 9), (3, 9)), max_steps=5)
    assert waiting.requests["b"] == Record("b", 0, None, None, 5, 0)


def test_no_requests_take_no_steps() -> None:
    assert serve(scheduler(), []).steps == 0


def test_progress_counts_requests_those_refused_too() -> None:
    told: list[tuple[int, int]] = []
    serve(scheduler(4), requests((3, 2), (30, 2), (3, 4)), progress=lambda done, of: told.append((done, of)))
    assert told == [(1, 3), (2, 3), (3, 3)]


class Full(Paged):
    """Says that there is no room, whatever comes."""

    def admit(self, request: Request) -> Admission | None:
        return None


def test_a_step_that_gets_nowhere_is_an_error_and_no_hang() -> None:
    stuck = Scheduler(Full((GLOBAL,), 64))
    with pytest.raises(InvariantViolation, match="step 1 computed nothing for 2 sequences: 0 are in memory"):
        serve(stuck, requests((3, 2), (3, 2)))


def test_a_scheduler_in_use_is_refused() -> None:
    used = scheduler()
    used.add(Request("x", 3, 3))
    with pytest.raises(InvalidInput, match="the scheduler has 1 sequences already"):
        serve(used, requests((3, 2)))


@pytest.mark.parametrize(
    ("made", "options", "message"),
    [
        ([Request("a", 3, 3), Request("a", 3, 3)], {}, "two requests have the same id"),
        ([Request("a", [1, 2, 3], 3)], {}, "request 'a' has real token ids"),
        ([Request("a", 3, 3)], {"arrivals": [0, 1]}, "1 requests need as many arrivals, not 2"),
        ([Request("a", 3, 3)], {"arrivals": [-1]}, "a request comes after 0 steps or more, not -1"),
        ([Request("a", 3, 3)], {"drafts": 2, "accepted": 3}, "of 2 drafts, 0 to 2 can be accepted, not 3"),
        ([Request("a", 3, 3)], {"accepted": -1}, "not -1"),
        ([Request("a", 3, 3)], {"max_steps": 0}, "max_steps must be an integer of at least 1"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_happens(
    made: list[Request], options: dict[str, object], message: str
) -> None:
    log = EventLog()
    idle = scheduler(log=log)
    written = len(log)
    with pytest.raises(InvalidInput, match=message):
        serve(idle, made, **options)
    assert (len(idle), len(log)) == (0, written)


def test_requests_that_were_served_are_refused() -> None:
    used = requests((3, 2))
    serve(scheduler(), used)
    prefilled = Request("a", 3, 2)
    prefilled.computed = 2
    for request in (used[0], prefilled):
        with pytest.raises(InvalidInput, match="was served before; make the requests anew"):
            serve(scheduler(), [request])


LENGTHS = uniform(40, 12, 14, seed=3)
ARRIVALS = [row // 3 for row in range(len(LENGTHS))]


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("drafts", [(0, 0), (3, 1)])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_policy_serves_everybody_and_the_log_tells_it(
    case: PolicyCase, drafts: tuple[int, int], preemption: str
) -> None:
    if preemption == "swap" and case.host is None:
        return
    log = EventLog()
    policy = case.build(log)
    server = Scheduler(policy, token_budget=24, max_running=8, preemption=preemption, log=log)
    served = serve(server, LENGTHS, arrivals=ARRIVALS, drafts=drafts[0], accepted=drafts[1])
    policy.audit()
    assert all(usage.owned == 0 for usage in policy.usage().values())
    assert served.refusals == ()
    assert [record.rid for record in served.requests.values()] == list(range(40))
    assert served.tokens == LENGTHS.output_tokens.sum()
    lengths = LENGTHS.prompt_tokens + LENGTHS.output_tokens
    assert served.computed - served.computed_again == lengths.sum() - len(LENGTHS), "the last token is not computed"
    told: Counter[int] = Counter()
    for event in log:
        if event[0] == "step":
            told.update(dict(event[1]))
    assert sum(told.values()) == served.computed
    assert sum(event[0] == "step" for event in log) == served.steps
    lost = [event for event in log if event[0] == "swap_out" or event[::2] == ("release", "preempted")]
    lost = [event for event in lost if event[2] != "ring"]  # it follows its request's pages
    assert len(lost) == served.preemptions
    last = Replay(log).state(-1)
    assert {request.status for request in last.requests.values()} == {"finished"}
    assert timeline(log).title
    for record in served.requests.values():
        assert record.arrived == ARRIVALS[record.rid]
        assert record.arrived < record.first_token <= record.finished
        assert record.waited >= 0
