"""A step that cannot be right is refused by every route with a message that says what to do, before any work."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.attention_steps import Case

from kvlab.attention import FP8, KVStore, Route, Step, check, get_route, routes
from kvlab.attention.flat_pa import FlatPA
from kvlab.attention.gather import Gather
from kvlab.attention.store import bits
from kvlab.device.buckets import Buckets
from kvlab.errors import InvalidInput
from kvlab.policies.layout import Region, Ring, Table
from kvlab.policies.paged import Paged
from kvlab.shapes import LayerGroup
from kvlab.workload import Request

GOOD = Case(((4, 1), (20, 1)), block_size=8, kv_heads=2, group=2, head_dim=32)


def refused(step: Step, store: KVStore, message: str) -> None:
    """Every route refuses the step, reads nothing and changes nothing."""
    before = bits(store.keys).clone()
    for route in routes().values():
        with pytest.raises(InvalidInput, match=message):
            route(step, store, lambda request, slots: pytest.fail("read before the step was checked"))
    torch.testing.assert_close(bits(store.keys), before, rtol=0, atol=0, equal_nan=True)


OPERANDS = ("queries", "keys", "values")


def nan_in(queries: torch.Tensor, value: float = torch.nan) -> torch.Tensor:
    queries = queries.clone()
    queries[1, 2, 3] = value
    return queries


def table(step: Step, **change: Any) -> list[Any]:
    return [step.layouts[0], replace(step.layouts[1], **change)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {"keys": s.keys.bfloat16()}, "differ in dtype"),
        (lambda s: {"values": s.values.double()}, "differ in dtype"),
        (lambda s: {name: getattr(s, name).bfloat16() for name in OPERANDS}, "do not read"),
        (lambda s: {name: getattr(s, name).double() for name in OPERANDS}, "is computed in"),
        (lambda s: {name: getattr(s, name).long() for name in OPERANDS}, "is computed in"),
        (lambda s: {"queries": s.queries.to("meta")}, "different devices"),
        (lambda s: {"queries": s.queries[:, :3]}, "3 query heads do not divide among 2 KV heads"),
        (lambda s: {"queries": s.queries[..., :16]}, "head_dim 16"),
        (lambda s: {"queries": s.queries[0]}, "must be"),
        (lambda s: {"keys": s.keys[:, :1]}, "keys are"),
        (lambda s: {"values": s.values[:1]}, "values are"),
        (lambda s: {"queries": nan_in(s.queries)}, "NaN or infinity"),
        (lambda s: {"queries": nan_in(s.queries, torch.inf)}, "NaN or infinity"),
        (lambda s: {"window_tokens": 0}, "a window of 0 tokens"),
        (lambda s: {"window_tokens": -1}, "a window of -1 tokens"),
        (lambda s: {"softcap": 0.0}, "soft-cap"),
        (lambda s: {"softcap": torch.nan}, "soft-cap"),
        (lambda s: {"scale": torch.nan}, "scale must be finite"),
        (lambda s: {"starts": [0, 1]}, "do not describe"),
        (lambda s: {"starts": [0, 1, 3]}, "do not describe"),
        (lambda s: {"starts": [1, 1, 2]}, "do not describe"),
        (lambda s: {"starts": [0, 2, 2]}, "request 1 has 0 queries"),
        (lambda s: {"starts": [0, 3, 2]}, "request 1 has -1 queries"),
        (lambda s: {"lengths": [5]}, "do not describe"),
        (lambda s: {"lengths": [0, 21]}, "a length of 0"),
        (lambda s: {"lengths": [5, 22]}, r"needs the positions \[0, 22\)"),
        (lambda s: {"layouts": s.layouts[:1]}, "do not describe"),
        (lambda s: {"layouts": table(s, end=22)}, "request 1 needs"),
        (lambda s: {"layouts": table(s, start=1)}, "request 1 needs"),
        (lambda s: {"layouts": table(s, start=-1)}, "request 1 needs"),
        (lambda s: {"layouts": table(s, blocks=s.layouts[1].blocks[:2])}, "2 blocks for 21 tokens"),
        (lambda s: {"layouts": table(s, blocks=[0, 1, 7])}, "names block 7; the store has blocks 0 to 6"),
        (lambda s: {"layouts": table(s, blocks=[0, -1, 2])}, "names block -1; the store has blocks 0 to 6"),
        (lambda s: {"layouts": table(s, block_size=16)}, "blocks of 16 over a store in blocks of 8"),
        (lambda s: {"layouts": [s.layouts[0], Region(40, 0, 21)]}, "reaches slot 61 of 56"),
        (lambda s: {"layouts": [s.layouts[0], Region(-1, 0, 21)]}, "reaches slot"),
        (lambda s: {"layouts": [s.layouts[0], Ring(0, 16, 4, 20)], "window_tokens": 16}, "is no block of this store"),
        (lambda s: {"layouts": [s.layouts[0], Ring(4, 8, 13, 20)], "window_tokens": 8}, "is no block of this store"),
        (lambda s: {"layouts": [s.layouts[0], Ring(56, 8, 13, 20)], "window_tokens": 8}, "is no block of this store"),
        (lambda s: {"layouts": [s.layouts[0], Ring(0, 8, 0, 20)]}, "a ring that keeps 8"),
    ],
)  # fmt: skip
def test_a_step_that_cannot_be_right_is_refused_by_every_route(change: Any, message: str) -> None:
    step, store = GOOD.build()
    assert store.blocks == 7
    refused(replace(step, **change(step)), store, message)


def test_operands_on_another_device_than_the_store_are_refused() -> None:
    step, store = GOOD.build()
    operands = {name: getattr(step, name).to("meta") for name in OPERANDS}
    with pytest.raises(InvalidInput, match="different devices"):
        check(replace(step, **operands), store)


def test_a_table_that_names_a_block_nobody_holds_is_refused() -> None:
    policy = Paged((LayerGroup("global", "full", (0,), None, 64),), 32, block_size=8)
    store = KVStore(32, 8, 1, 32, dtype=torch.float32, references=policy.pool.references)
    policy.admit(Request(1, 10, 4))
    slots = policy.extend(1, 10).slots()[0]
    queries = torch.randn(10, 1, 32)
    store.write(queries, queries, slots)
    policy.commit(1, range(10))
    (layout,) = policy.layout(1)
    assert isinstance(layout, Table)
    kept = replace(layout, blocks=list(layout.blocks))
    step = Step(queries[9:], queries[9:], queries[9:], [0, 1], [10], [kept], 1.0)
    check(step, store)
    policy.release(1, "finished")
    refused(replace(step), store, "which nobody holds")


@pytest.mark.parametrize("name", ["flat_pa", "flat_pa_stock"])
def test_flat_pa_names_what_it_does_not_take(name: str) -> None:
    route = get_route(name)
    for case, message in (
        (replace(GOOD, requests=((4, 1), (20, 3))), "one query a request; request 1 has 3"),
        (replace(GOOD, kind="ring"), f"{name} reads a Table; request 0 lies in a Ring"),
        (replace(GOOD, kind="region"), f"{name} reads a Table; request 0 lies in a Region"),
    ):
        with pytest.raises(InvalidInput, match=message):
            route(*case.build())


def test_stock_refuses_a_window_below_a_block() -> None:
    step, store = replace(GOOD, window=7).build()
    with pytest.raises(InvalidInput, match=r'none of a window of 7 in blocks of 8.*window_mode="exact"'):
        FlatPA("stock")(step, store)
    with pytest.raises(InvalidInput, match="stock or exact, not 'both'"):
        FlatPA("both")


def test_contiguous_names_what_it_does_not_take() -> None:
    route = get_route("contiguous")
    with pytest.raises(InvalidInput, match="contiguous reads a Region; request 0 lies in a Table"):
        route(*GOOD.build())
    with pytest.raises(InvalidInput, match=r"does not read torch\.float8_e4m3fn"):
        route(*replace(GOOD, kind="slab", fp8=True).build())
    step, store = GOOD.build()
    with pytest.raises(InvalidInput, match=r"the slots \[3, 8\) cross blocks|the slots \[6, 11\) cross blocks of 8"):
        route(replace(step, layouts=[Region(6, 0, 5), Region(16, 0, 21)]), store)


@pytest.mark.parametrize(
    "route", [Gather(Buckets(1), Buckets(9)), Gather(Buckets(9), Buckets(2)), FlatPA("exact", Buckets(9), Buckets(3))]
)
def test_a_step_above_the_largest_bucket_is_refused(route: Route) -> None:
    with pytest.raises(InvalidInput, match="no bucket for"):
        route(*GOOD.build())


def test_fp8_queries_are_refused() -> None:
    step, store = replace(GOOD, fp8=True).build()
    operands = {name: getattr(step, name).to(FP8) for name in OPERANDS}
    refused(replace(step, **operands), store, "is computed in")


def test_an_unknown_route_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="no route is called 'paged'; there are reference, contiguous, gather"):
        get_route("paged")


def test_slots_outside_are_refused_also_as_numpy_integers() -> None:
    step, store = GOOD.build()
    blocks = np.array([0, 1, 9])
    refused(replace(step, layouts=table(step, blocks=blocks)), store, "names block 9")
