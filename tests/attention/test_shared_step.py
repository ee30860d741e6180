"""The layers of one step share what its layouts give; they get the answers that a step of their own would get them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.attention_steps import LAYOUT, Case, Kind
from torch import Tensor

from kvlab.attention import KVStore, Route, Step, check, routes
from kvlab.errors import InvalidInput
from kvlab.policies.layout import Table

ROUTES = routes()
every_route = pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
DECODE = ((4, 1), (20, 1), (0, 1), (47, 1))
CHUNKS = ((4, 1), (20, 12), (0, 9), (30, 3), (16, 1))
SHAPES = [
    Case(DECODE),
    Case(DECODE, block_size=8, window=5),
    Case(DECODE, dtype=torch.bfloat16, group=4, window=32),
    Case(DECODE, fp8=True, dtype=torch.float16, softcap=5.0),
    Case(CHUNKS, block_size=8),
    Case(CHUNKS, window=16, dtype=torch.bfloat16),
    Case(CHUNKS, window=6, block_size=4, softcap=5.0),
]


def layers(case: Case, count: int) -> list[tuple[Step, KVStore]]:
    """A step whose layers have contents of their own; the layouts of all are those of the first."""
    first, *others = [replace(case, seed=seed).build() for seed in range(count)]
    step, _ = first
    return [first, *((step.with_operands(own.queries, own.keys, own.values), store) for own, store in others)]


def fresh(step: Step) -> Step:
    """The same step with nothing derived yet."""
    return replace(step)


def taken(route: Route, case: Case) -> bool:
    decodes = all(new == 1 for _, new in case.requests)
    stock_has_no_block = route.name == "flat_pa_stock" and (case.window or case.block_size) < case.block_size
    return (
        LAYOUT[case.kind] in route.takes.layouts
        and (decodes or route.takes.many_queries)
        and (not case.fp8 or len(route.takes.stored) == 4)
        and not stock_has_no_block
    )


def answered(route: Route, step: Step, store: KVStore) -> tuple[Tensor, Any, dict[int, list[int]]]:
    seen: dict[int, list[int]] = {}
    output, read = route(step, store, lambda request, slots: seen.__setitem__(request, np.asarray(slots).tolist()))
    return output, read, seen


@every_route
@pytest.mark.parametrize("case", SHAPES, ids=range(len(SHAPES)))
@pytest.mark.parametrize("kind", LAYOUT)
def test_a_layer_gets_what_a_step_of_its_own_would_get_it(route: Route, case: Case, kind: Kind) -> None:
    case = replace(case, kind=kind)
    if not taken(route, case):
        pytest.skip(f"{route.name} does not take it")
    for step, store in layers(case, 3):
        shared, alone = answered(route, step, store), answered(route, fresh(step), store)
        assert torch.equal(shared[0], alone[0])
        assert shared[1:] == alone[1:]


@pytest.mark.parametrize("case", SHAPES, ids=range(len(SHAPES)))
def test_routes_do_not_find_each_others_plans(case: Case) -> None:
    takers = [route for route in ROUTES.values() if taken(route, case)]
    for step, store in layers(case, 2):
        for route in takers:
            assert torch.equal(route(step, store)[0], route(fresh(step), store)[0]), route.name


def test_stores_of_other_heads_and_dtypes_do_not_find_each_others_plans() -> None:
    base = Case(DECODE)
    step, store = base.build()
    for case in (base, replace(base, kv_heads=3), replace(base, head_dim=64), replace(base, dtype=torch.bfloat16)):
        other, store = case.build()
        shared = step.with_operands(other.queries, other.keys, other.values)
        for name, route in ROUTES.items():
            if taken(route, case):
                output, read = route(replace(shared, scale=step.scale), store)
                again = route(shared, store)
                assert torch.equal(again[0], output), name
                assert again[1] == read, name


class Watched(list[int]):
    """A block table that counts how often it is looked at."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        self.looks += 1
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[int]:
        self.looks += 1
        return super().__iter__()


@pytest.mark.parametrize("name", sorted({"gather", "flat_pa", "flat_pa_stock", "native"} & set(ROUTES)))
@pytest.mark.parametrize("requests", [DECODE, CHUNKS], ids=["decode", "chunks"])
def test_tables_are_looked_at_for_the_first_layer_only(name: str, requests: Any) -> None:
    case, route = Case(requests, window=20), ROUTES[name]
    if not taken(route, case):
        pytest.skip(f"{name} does not take it")
    step, store = case.build()
    tables = [replace(layout, blocks=Watched(layout.blocks)) for layout in step.layouts]
    step = replace(step, layouts=tables)
    route(step, store)
    first = [table.blocks.looks for table in tables]
    assert min(first) > 0
    for _ in range(3):
        route(step.with_operands(step.queries + 1, step.keys, step.values), store)
    assert [table.blocks.looks for table in tables] == first


@every_route
def test_a_table_that_went_bad_is_refused_by_the_first_call_and_every_other(route: Route) -> None:
    step, store = Case(DECODE).build()
    if not isinstance(step.layouts[0], route.takes.layouts):
        step = replace(step, layouts=[replace(step.layouts[0], blocks=[99]), *step.layouts[1:]])
        with pytest.raises(InvalidInput, match="names block 99"):
            route(step, store)
        return
    step = replace(step, layouts=[replace(step.layouts[0], blocks=[99]), *step.layouts[1:]])
    for _ in range(2):
        with pytest.raises(InvalidInput, match="names block 99"):
            route(step.with_operands(step.queries, step.keys, step.values), store)


def over(store: KVStore, **change: Any) -> KVStore:
    """A store like this one, but for what is said."""
    made = {"slots": store.slots, "block_size": store.block_size} | change
    return KVStore(kv_heads=store.kv_heads, head_dim=store.head_dim, dtype=store.keys.dtype, **made)


@pytest.mark.parametrize("name", [name for name, route in ROUTES.items() if Table in route.takes.layouts])
def test_another_store_is_checked_again(name: str) -> None:
    step, store = Case(DECODE, block_size=8).build()
    route = ROUTES[name]
    route(step, store)
    highest = max(block for layout in step.layouts for block in layout.blocks)
    held, free = [1] * store.blocks, [1] * store.blocks
    free[highest] = 0
    for other, message in (
        (over(store, slots=highest * 8), f"names block {highest}"),
        (over(store, block_size=4), "a table in blocks of 8 over a store in blocks of 4"),
        (over(store, references=free), f"names block {highest}, which nobody holds"),
    ):
        with pytest.raises(InvalidInput, match=message):
            route(step, other)
    check(step, over(store, references=held))
    check(step, over(store, slots=store.slots + 80))


@every_route
def test_operands_are_checked_in_every_layer(route: Route) -> None:
    kind = next(kind for kind, layout in LAYOUT.items() if layout in route.takes.layouts)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        step, store = Case(DECODE, kind=kind, dtype=dtype).build()
        route(step, store)
        for value in (torch.nan, torch.inf, -torch.inf):
            for at in (0, -1):
                queries = step.queries.clone()
                queries.view(-1)[at] = value
                with pytest.raises(InvalidInput, match="NaN or infinity"):
                    route(step.with_operands(queries, step.keys, step.values), store)
        with pytest.raises(InvalidInput, match="do not describe 3 query tokens"):
            route(step.with_operands(step.queries[:3], step.keys[:3], step.values[:3]), store)
        with pytest.raises(InvalidInput, match="keys are"):
            route(step.with_operands(step.queries, step.keys[:3], step.values), store)
        with pytest.raises(InvalidInput, match="differ in dtype"):
            route(step.with_operands(step.queries.double(), step.keys, step.values), store)


def test_a_new_step_derives_anew() -> None:
    step, store = Case(DECODE).build()
    check(step, store)
    worse = replace(step, lengths=[length + 1 for length in step.lengths])
    with pytest.raises(InvalidInput, match="request 0 needs"):
        check(worse, store)
