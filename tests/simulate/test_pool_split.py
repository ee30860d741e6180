"""The arithmetic of two pools over one budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.errors import InvalidInput
from kvlab.shapes import ModelShape
from kvlab.simulate.pool_split import PoolSplit, bind

SPLIT = PoolSplit(37e9, 9_500, 95_000, 10_240)


def test_cost_and_tokens_of_the_articles_ratios() -> None:
    assert SPLIT.cost(0.32) == pytest.approx(50_140)
    assert (SPLIT.tokens(0.32), SPLIT.tokens(0.17)) == (737_933, 1_030_927)
    assert SPLIT.swa_tokens(0.17) == 175_257


def test_floor_margin_and_bind() -> None:
    assert SPLIT.floor(48) == 16_384 + 48 * 1_088
    assert SPLIT.margin(0.10, 48) == pytest.approx(1.84, abs=0.005)
    assert bind(0.17, 980_000, 15_500) == pytest.approx(10.75, abs=0.005)


@given(st.integers(1, 200))
def test_the_lowest_ratio_is_just_the_floor(requests: int) -> None:
    ratio = SPLIT.lowest_ratio(requests)
    assert SPLIT.margin(ratio, requests) == pytest.approx(1, rel=1e-4)


@given(st.integers(0, 100_000))
def test_the_tail_behind_the_frontier_is_between_a_window_and_a_page_and_two_pages(tokens: int) -> None:
    assert tokens - SPLIT.frontier(tokens) <= 1_024 + 2 * 64 - 1
    assert SPLIT.frontier(tokens) == 0 or tokens - SPLIT.frontier(tokens) >= 1_088
    assert SPLIT.frontier(tokens) % 64 == 0


def test_more_requests_than_the_budget_holds_at_any_ratio_are_refused() -> None:
    with pytest.raises(InvalidInput, match="any ratio"):
        SPLIT.lowest_ratio(10_000)


@pytest.mark.parametrize("ratio", [0, -0.1, 1.01, float("nan")])
def test_a_ratio_outside_0_to_1_is_refused(ratio: float) -> None:
    with pytest.raises(InvalidInput, match="ratio"):
        SPLIT.cost(ratio)


def test_a_model_of_one_kind_of_layers_has_no_ratio() -> None:
    with pytest.raises(InvalidInput, match="no ratio"):
        PoolSplit.of(ModelShape.preset("llama-3.1-8b"), 1e9, page_size=16, chunk_tokens=2048)


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="budget"):
        PoolSplit(0, 1, 1)
