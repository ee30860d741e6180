"""Every route gives the answer of `reference`, and `reference` that of a loop over queries, heads and keys."""

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.attention_steps import LAYOUT, Case, assert_close, cases, dense, largest

from kvlab.attention import Route, routes
from kvlab.attention.flat_pa import FlatPA
from kvlab.attention.gather import Gather
from kvlab.attention.step import Takes
from kvlab.device.buckets import Buckets

OTHER_FORMS: dict[str, Route] = {
    "gather in buckets": Gather(Buckets(8), Buckets(64)),
    "gather by matrix products": Gather(fused=None),
    "flat_pa without padding": FlatPA("exact", None, None),
}
ROUTES = {name: route for name, route in (routes() | OTHER_FORMS).items() if name not in ("reference", "flat_pa_stock")}
every_route = pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
thorough = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@given(cases(Takes()))
@thorough
def test_reference_equals_a_loop_over_queries_and_heads(case: Case) -> None:
    step, store = case.build()
    output, _ = routes()["reference"](step, store)
    assert_close(step, store, output)
    close = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}[case.dtype]
    torch.testing.assert_close(output.double(), dense(case), rtol=close, atol=close)


@every_route
@given(data=st.data())
@thorough
def test_route_equals_reference(route: Route, data: st.DataObject) -> None:
    case = data.draw(cases(route.takes))
    step, store = case.build()
    output, _ = route(step, store)
    assert_close(step, store, output)


@every_route
@given(data=st.data())
@settings(parent=thorough, max_examples=25)
def test_results_do_not_depend_on_where_blocks_lie(route: Route, data: st.DataObject) -> None:
    case = data.draw(cases(route.takes))
    orders = data.draw(st.lists(st.integers(0, 1000), min_size=2, max_size=2, unique=True))
    first, second = (route(*case.build(order))[0] for order in orders)
    assert torch.equal(first, second)


@every_route
def test_windows_around_the_context(route: Route) -> None:
    for window in (1, 15, 16, 17, 31, 32, 33, 64, 100):
        for length in (1, window - 1, window, window + 1, 2 * window):
            if length:
                case = Case(((length - 1, 1), (40, 1)), kind=kind_for(route), window=window)
                step, store = case.build()
                assert_close(step, store, route(step, store)[0])


@every_route
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_context_of_a_thousand_tokens(route: Route, dtype: torch.dtype) -> None:
    case = Case(((1023, 1), (700, 1), (1000, 1)), kind=kind_for(route), dtype=dtype, head_dim=128, group=4)
    for window in (None, 512):
        step, store = replace(case, window=window).build()
        assert_close(step, store, route(step, store)[0])


@every_route
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logits_that_span_two_thousand_either_way(route: Route, dtype: torch.dtype) -> None:
    case = Case(((200, 1), (77, 1), (0, 1)), kind=kind_for(route), dtype=dtype, spread=2000.0)
    step, store = case.build()
    assert largest(step, store, 0)[0] > 1900
    assert_close(step, store, route(step, store)[0])


@every_route
def test_a_step_without_requests_is_empty(route: Route) -> None:
    step, store = Case((), kind=kind_for(route)).build()
    output, read = route(step, store)
    assert output.shape == (0, 4, 32)
    assert read == (0, 0, 0)


@every_route
def test_one_token_attends_to_itself(route: Route) -> None:
    step, store = Case(((0, 1),), kind=kind_for(route), group=1).build()
    output, _ = route(step, store)
    torch.testing.assert_close(output, step.values, rtol=1e-6, atol=0)


@every_route
def test_a_route_can_be_used_again_for_another_shape(route: Route) -> None:
    for length in (300, 3, 150, 301):
        for dtype in (torch.float32, torch.bfloat16):
            step, store = Case(((length, 1), (2, 1)), kind=kind_for(route), dtype=dtype, window=200).build()
            assert_close(step, store, route(step, store)[0])


def kind_for(route: Route) -> str:
    """The first kind of layout that a route takes."""
    return next(kind for kind, layout in LAYOUT.items() if layout in route.takes.layouts)


def test_stock_reads_the_last_whole_blocks_of_the_window() -> None:
    # Block 16, window 40: two blocks, and the last one may hold a single token.
    for length in (5, 16, 32, 33, 47, 48, 49, 100):
        case = Case(((length - 1, 1),), window=40)
        step, store = case.build()
        stock, _ = FlatPA("stock")(step, store)
        seen = min(length, length - (-(-length // 16) - 2) * 16)
        same, _ = FlatPA("exact")(replace(step, window_tokens=seen), store)
        assert torch.equal(stock, same)
        assert seen in range(17, 33) or seen == length


def test_stock_equals_reference_where_there_is_no_window_or_it_ends_with_a_block() -> None:
    for case in (Case(((40, 1), (3, 1))), Case(((63, 1), (95, 1)), window=32)):
        step, store = case.build()
        assert_close(step, store, FlatPA("stock")(step, store)[0])
