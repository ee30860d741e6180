"""Requests and traces: what they refuse, what they count, and the ShareGPT lengths against a plain loop."""

import csv
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from kvlab.errors import InvalidInput
from kvlab.events import EventLog
from kvlab.policies.paged import Paged
from kvlab.shapes import LayerGroup
from kvlab.workload import Request, Workload, lognormal, made_token_ids, multi_turn, sharegpt, uniform


@pytest.mark.parametrize("prompt", [0, -3, [], np.array([], np.int32)])
def test_an_empty_prompt_is_refused(prompt: object) -> None:
    with pytest.raises(InvalidInput, match=r"prompt tokens of request 'r' must be an integer of at least 1"):
        Request("r", prompt, 4)


@pytest.mark.parametrize("ids", [[1.5, 2.0], "text", [[1, 2]], [[1], [1, 2]], 3.5, None, [True, False]])
def test_token_ids_that_are_no_flat_list_of_integers_are_refused(ids: object) -> None:
    with pytest.raises(InvalidInput, match="flat list of integers"):
        Request("r", ids, 4)


@pytest.mark.parametrize("ids", [[1, -1], [2**31], [2**40, 5]])
def test_token_ids_that_do_not_fit_are_refused_instead_of_wrapped(ids: list[int]) -> None:
    with pytest.raises(InvalidInput, match=r"\[0, 2\*\*31\)"):
        Request("r", ids, 4)
    request = Request("r", [1, 2], 4)
    with pytest.raises(InvalidInput):
        request.generated(ids)
    assert request.known_tokens == 2


@pytest.mark.parametrize(("most", "output"), [(0, None), (-1, None), (4, 0), (4, 5), (4, -1)])
def test_output_lengths_out_of_range_are_refused(most: int, output: int | None) -> None:
    with pytest.raises(InvalidInput, match="request 'r'"):
        Request("r", 3, most, output_tokens=output)


def test_lengths_from_numpy_columns_are_plain_integers_so_that_a_log_can_be_saved(tmp_path: Path) -> None:
    request = Request("r", np.int64(3), np.int64(9), output_tokens=np.int64(5))
    log = EventLog()
    Paged((LayerGroup("global", "full", (0,), None, 4),), 64, log=log).admit(request)
    log.save(tmp_path / "log.jsonl")
    assert EventLog.load(tmp_path / "log.jsonl").events == log.events


def test_lengths_say_how_far_a_request_can_go() -> None:
    known, unknown = Request("a", 10, 20, output_tokens=5), Request("b", 10, 20)
    assert (known.known_tokens, known.final_tokens, known.limit_tokens) == (10, 15, 30)
    assert (unknown.known_tokens, unknown.final_tokens, unknown.limit_tokens) == (10, 30, 30)


def test_generated_ids_are_appended_through_every_growth_of_the_array() -> None:
    request, ids = Request("r", [7], 1000), [7]
    for number in range(300):
        request.generated([number, number + 1])
        ids += [number, number + 1]
        assert request.known_tokens == len(ids)
    assert request.token_ids(0, len(ids)).tolist() == ids
    assert request.token_ids(3, 3).tolist() == []
    assert request.token_ids(0, 1).dtype == np.int32


def test_a_request_of_lengths_counts_and_a_request_of_ids_wants_ids() -> None:
    lengths, ids = Request("a", 3, 9), Request("b", [1, 2, 3], 9)
    lengths.generated(2)
    lengths.generated(np.int64(1))
    lengths.generated(0)
    assert lengths.known_tokens == 6
    with pytest.raises(InvalidInput, match="append a count"):
        lengths.generated([4])
    with pytest.raises(InvalidInput, match="append ids"):
        ids.generated(1)
    with pytest.raises(InvalidInput, match="cannot generate -2"):
        lengths.generated(-2)
    assert (lengths.known_tokens, ids.known_tokens) == (6, 3)


def test_the_callers_array_is_not_kept() -> None:
    ids = np.array([1, 2, 3], np.int32)
    request = Request("r", ids, 9)
    ids[0] = 99
    assert request.token_ids(0, 3).tolist() == [1, 2, 3]


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 4), (3, 2)])
def test_positions_past_the_known_ones_are_refused(start: int, stop: int) -> None:
    with pytest.raises(InvalidInput, match="knows 3 tokens"):
        Request("r", [1, 2, 3], 9).token_ids(start, stop)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2)])
def test_made_ids_exist_for_no_negative_positions(start: int, stop: int) -> None:
    with pytest.raises(InvalidInput):
        Request("r", 3, 9).token_ids(start, stop)


def test_a_fork_has_the_same_past_and_its_own_future() -> None:
    parent = Request("parent", [1, 2], 9, output_tokens=6, arrival_s=2.5)
    parent.generated([3])
    parent.computed = 2
    child = parent.fork("child")
    parent.generated([4])
    child.generated([5])
    assert parent.token_ids(0, 4).tolist() == [1, 2, 3, 4]
    assert child.token_ids(0, 4).tolist() == [1, 2, 3, 5]
    assert (child.rid, child.computed, child.known_tokens, child.final_tokens, child.arrival_s) == (
        "child", 2, 4, 8, 2.5,
    )  # fmt: skip


@pytest.mark.parametrize("salt", [None, "tenant", "", 7, 0, -1])
def test_a_fork_keeps_the_salt(salt: str | int | None) -> None:
    parent = Request("parent", [1, 2], 9, salt=salt)
    assert parent.salt == parent.fork("child").salt == salt
    assert Request("r", 3, 4).salt is None


@pytest.mark.parametrize("salt", [True, 1.0, b"x", ("a",), np.int64(3), np.str_("x")])
def test_a_salt_of_another_kind_is_refused(salt: object) -> None:
    with pytest.raises(InvalidInput, match="the salt of request 'r' must be a str, an int or None"):
        Request("r", 3, 4, salt=salt)


def test_made_ids_depend_on_conversation_and_position_alone() -> None:
    first, second = Request("a", 50, 9, conversation=3), Request("b", 90, 9, conversation=3)
    other = Request("a", 50, 9, conversation=4)
    assert (first.token_ids(0, 50) == second.token_ids(0, 50)).all()
    assert (first.token_ids(10, 20) == made_token_ids(3, 0, 50)[10:20]).all()
    assert (first.token_ids(0, 50) != other.token_ids(0, 50)).mean() > 0.9
    assert 0 <= first.token_ids(0, 50).min() <= first.token_ids(0, 50).max() < 50_000
    assert (Request("x", 9, 1).token_ids(0, 9) == Request("x", 9, 1).token_ids(0, 9)).all()


@pytest.mark.parametrize("column", ["output_tokens", "conversation", "arrival_s"])
def test_columns_of_different_lengths_are_refused(column: str) -> None:
    columns = {name: np.array([1, 2]) for name in ("prompt_tokens", "output_tokens", "conversation", "arrival_s")}
    with pytest.raises(InvalidInput, match=f"{column} has 3 rows, prompt_tokens 2"):
        Workload("w", **(columns | {column: np.array([1, 2, 3])}))


def test_a_workload_without_requests_or_with_an_empty_one_is_refused() -> None:
    empty, two = np.array([], np.int64), np.array([4, 0])
    with pytest.raises(InvalidInput, match="no requests"):
        Workload("w", empty, empty, empty)
    with pytest.raises(InvalidInput, match="row 1: output_tokens is 0"):
        Workload("w", np.array([1, 1]), two, two)
    with pytest.raises(InvalidInput, match="line 9: prompt_tokens is 0"):
        Workload("w", two, np.array([1, 1]), two, lines=np.array([2, 9]))


def test_iterating_twice_gives_fresh_requests() -> None:
    workload = uniform(5, 9, 9)
    first, second = list(workload), list(workload)
    first[0].computed = 3
    assert second[0].computed == 0
    assert [request.rid for request in second] == [0, 1, 2, 3, 4]
    assert all(type(request.final_tokens) is int for request in second)


def test_a_saturated_queue_serves_each_request_once_an_epoch_in_another_order() -> None:
    workload = Workload("w", np.arange(1, 8), np.ones(7, np.int64), np.arange(7))
    queue = workload.saturated(seed=3)
    epochs = [[next(queue) for _ in range(7)] for _ in range(3)]
    orders = [[request.prompt_tokens for request in epoch] for epoch in epochs]
    assert all(sorted(order) == list(range(1, 8)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert [request.rid for epoch in epochs for request in epoch] == list(range(21))
    again = workload.saturated(seed=3)
    assert [next(again).prompt_tokens for _ in range(7)] == orders[0]


def test_within_keeps_whole_rows_and_refuses_to_keep_none() -> None:
    workload = Workload(
        "w", np.array([5, 50, 5]), np.array([5, 5, 50]), np.array([7, 8, 9]),
        np.array([0.0, 1.0, 2.0]), lines=np.array([2, 3, 4]),
    )  # fmt: skip
    kept = workload.within(50, 55)
    assert (kept.prompt_tokens.tolist(), kept.conversation.tolist()) == ([5, 50, 5], [7, 8, 9])
    kept = workload.within(10, 20)
    assert (kept.prompt_tokens.tolist(), kept.arrival_s.tolist(), kept.lines.tolist()) == ([5], [0.0], [2])
    with pytest.raises(InvalidInput, match="no request of 'w'"):
        workload.within(4, 100)


def test_generators_are_seeded_and_within_their_bounds() -> None:
    for make in (
        lambda seed: uniform(400, 9, 5, seed=seed),
        lambda seed: lognormal(400, 160, 340, prompt_sigma=1.2, output_sigma=0.75, seed=seed),
        lambda seed: multi_turn(40, 10, 30, 60, seed=seed),
    ):
        one, same, other = make(1), make(1), make(2)
        assert (one.prompt_tokens == same.prompt_tokens).all()
        assert (one.prompt_tokens != other.prompt_tokens).any()
        assert min(one.prompt_tokens.min(), one.output_tokens.min()) >= 1
        assert len(one) == 400
    small = uniform(400, 9, 5)
    assert (set(small.prompt_tokens), set(small.output_tokens)) == (set(range(1, 10)), set(range(1, 6)))


def test_lognormal_lengths_have_the_means_that_were_asked_for() -> None:
    drawn = lognormal(200_000, 161.3, 338, prompt_sigma=1.2, output_sigma=0.75)
    assert drawn.prompt_tokens.mean() == pytest.approx(161.3, rel=0.02)
    assert drawn.output_tokens.mean() == pytest.approx(338, rel=0.01)
    assert np.log(drawn.output_tokens).std() == pytest.approx(0.75, rel=0.02)


@pytest.mark.parametrize(
    ("mean", "sigma"), [(0.5, 1), (float("nan"), 1), (float("inf"), 1), (9, -1), (9, float("nan"))]
)
def test_lognormal_lengths_that_cannot_be_drawn_are_refused(mean: float, sigma: float) -> None:
    with pytest.raises(InvalidInput, match="mean of at least 1"):
        lognormal(10, mean, 5, prompt_sigma=sigma, output_sigma=1)


@pytest.mark.parametrize(("requests", "longest"), [(0, 4), (-1, 4), (4, 0)])
def test_uniform_sizes_below_one_are_refused(requests: int, longest: int) -> None:
    with pytest.raises(InvalidInput):
        uniform(requests, longest, 4)


def test_a_turn_sends_the_transcript_so_far_and_matches_it() -> None:
    workload = multi_turn(3, 4, 10, 20, seed=5)
    for each in range(3):
        mine = workload.conversation == each
        turns = list(zip(workload.prompt_tokens[mine], workload.output_tokens[mine], strict=True))
        assert len(turns) == 4
        for (prompt, output), (later, _) in pairwise(turns):
            assert later > prompt + output
    first, second = workload.request(0), workload.request(3)
    assert first.conversation == second.conversation
    assert (second.token_ids(0, first.prompt_tokens) == first.token_ids(0, first.prompt_tokens)).all()


def test_sharegpt_turns_are_what_a_plain_loop_over_the_file_finds(root: Path) -> None:
    first, every = [], []
    with (root / "kvlab/data/sharegpt_lengths.csv").open(newline="") as handle:
        said, last = 0, None
        for row in csv.DictReader(handle):
            conversation, turn, prompt, output = (int(value) for value in row.values())
            assert turn == 0 or conversation == last
            said = 0 if turn == 0 else said
            last = conversation
            if turn == 0 and prompt and output:
                first.append((conversation, prompt, output))
            if said + prompt and output:
                every.append((conversation, said + prompt, output))
            said += prompt + output
    for turns, expected in (("first", first), ("all", every)):
        found = sharegpt(turns)
        rows = zip(found.conversation.tolist(), found.prompt_tokens.tolist(), found.output_tokens.tolist(), strict=True)
        assert list(rows) == expected
    assert "lengths only" in sharegpt().provenance
    with pytest.raises(InvalidInput, match="'first' or 'all'"):
        sharegpt("last")


def test_description_and_repr_say_the_lengths() -> None:
    assert uniform(7, 1, 1).describe() == (
        "uniform(1, 1): 7 requests, prompt mean 1.0 (median 1), output mean 1.0 (median 1)"
    )
    assert repr(Request("r", 3, 4)) == "Request('r', 0 of 3 computed, up to 7)"
