"""The shapes of a static runner: no batch is outside them, and none is listed that no batch has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.engine.static_shapes import MOVED_AT_ONCE, Rounding, Shape, Shapes
from kvlab.errors import InvalidInput

ROUNDINGS = [Rounding(), Rounding(2, 4, 8), Rounding(1, 1, 1), Rounding(100, 100, 100)]


def shapes(rounding: Rounding, running: int = 3, budget: int = 12, context: int = 20, drafts: int = 0) -> Shapes:
    return Shapes.of(rounding, max_running=running, token_budget=budget, context_tokens=context, drafts=drafts)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Shapes, list[int], list[int]]:
    """Shapes, and the tokens and lengths of a batch that a scheduler could give."""
    made = shapes(
        draw(st.sampled_from(ROUNDINGS)), draw(st.integers(1, 6)), draw(st.integers(6, 20)), draw(st.integers(1, 30)),
        draw(st.integers(0, 3)),
    )  # fmt: skip
    longest = min(made.chunk.limit, made.context.limit)
    counts = draw(st.lists(st.integers(1, longest), min_size=1, max_size=made.requests.limit))
    return made, counts, [draw(st.integers(count, made.context.limit)) for count in counts]


def starts(counts: list[int]) -> list[int]:
    return [sum(counts[:index]) for index in range(len(counts) + 1)]


@given(batches())
def test_every_request_is_in_one_part_that_holds_it_and_every_part_is_reachable(batch) -> None:
    made, counts, lengths = batch
    parts = made.parts(starts(counts), lengths)
    assert sorted(request for part in parts for request in part.requests) == list(range(len(counts)))
    for (requests, queries, context), members in parts:
        assert Shape(requests, queries, context) in made.reachable()
        assert len(members) <= requests
        assert all(counts[each] <= queries and lengths[each] <= context for each in members)
        assert requests == 1 or queries in (1, made.short)


@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize("rounding", ROUNDINGS, ids=str)
def test_every_reachable_shape_is_reached(rounding: Rounding, drafts: int) -> None:
    made = shapes(rounding, drafts=drafts)
    met = {
        part.shape
        for requests in range(1, 4)
        for count in range(1, 13 if requests == 1 else made.short + 1)
        for length in range(count, 21)
        for part in made.parts(starts([count] * requests), [length] * requests)
    }
    assert met == set(made.reachable())
    assert len(made.reachable()) == len(met)


def test_the_shapes_of_a_small_engine() -> None:
    made = shapes(Rounding(requests=2, chunk=4, context=16), drafts=1)
    together = [(requests, queries, context) for queries in (1, 2) for requests in (2, 3) for context in (16, 20)]
    alone = [(1, queries, context) for queries in (4, 8, 12) for context in (16, 20)]
    assert made.reachable() == together + alone
    assert made.parts([0, 1, 8, 9], [5, 17, 9]) == [((2, 1, 16), [0, 2]), ((1, 8, 20), [1])]
    assert made.parts([0, 1, 3], [5, 9]) == [((2, 2, 16), [0, 1])], "a draft beside a plain token"
    assert made.asked(Shape(3, 2, 16)) == 6
    assert made.asked(Shape(1, 12, 16)) == 2
    assert list(made.rows.reachable()) == [1, 2, 4, 6]


def test_the_graphs_of_a_server_are_few() -> None:
    made = shapes(Rounding(), running=64, budget=2048, context=8192)
    assert len(made.reachable()) == 78


def test_a_batch_beyond_the_shapes_is_refused() -> None:
    made = shapes(Rounding())
    for counts, lengths in (([1] * 4, [1] * 4), ([13], [13]), ([1], [21])):
        with pytest.raises(InvalidInput, match="no bucket"):
            made.parts(starts(counts), lengths)


def test_moves_are_rounded_up_to_a_limit() -> None:
    assert list(Rounding(moved=16).copies(100).reachable()) == [16, 32, 64, 100]
    assert Rounding().copies(1_000_000).limit == MOVED_AT_ONCE
    with pytest.raises(InvalidInput, match="moved must be an integer of at least 1, not 0"):
        Rounding(moved=0)
