"""Attention of a step in static shapes equals the reference: prompt chunks and drafts too, tables and regions."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.attention_steps import Case, assert_close, cases
from support.tiny_model import tiny_config
from torch import Tensor

from kvlab.attention.gather import Gather
from kvlab.attention.step import Step, Takes
from kvlab.attention.store import FP8, KVStore
from kvlab.engine.batch import Batch, GroupPlaces
from kvlab.engine.static_inputs import Group, inputs
from kvlab.engine.static_shapes import Rounding, Shapes
from kvlab.errors import InvalidInput
from kvlab.policies.layout import Region, Ring, Table

ROUTES = {"fused": Gather(), "matrix products": Gather(fused=None)}
BOTH = Takes(layouts=(Table, Region))


def batch_of_step(step: Step) -> Batch:
    """The step as an engine's batch that asks for no logits; what it writes is written already."""
    counts = [stop - start for start, stop in pairwise(step.starts)]
    positions = [np.arange(length - count, length) for count, length in zip(counts, step.lengths, strict=True)]
    slots = [layout.slots()[-count:] for count, layout in zip(counts, step.layouts, strict=True)]
    return Batch(
        np.zeros(sum(counts), np.int64), np.concatenate(positions), step.starts, step.lengths,
        [GroupPlaces(np.concatenate(slots), step.layouts)], np.zeros(0, np.int64), [0] * (step.requests + 1),
    )  # fmt: skip


def answered(step: Step, store: KVStore, route: Gather, rounding: Rounding, drafts: int) -> Tensor:
    """The output of every query, each part of the step computed in its static shape."""
    shapes = Shapes.of(rounding, max_running=8, token_budget=64, context_tokens=160, drafts=drafts)
    batch, group = batch_of_step(step), Group(store, 1, step.window_tokens)
    output = torch.full_like(step.queries, torch.nan)
    for part in shapes.parts(step.starts, step.lengths):
        requests, queries, _ = part.shape
        steps = [group.step(tiny_config(), batch, 0, part.requests)]
        given_ = inputs(batch, part, [group], steps, shapes.asked(part.shape), unused=0)
        plan = given_.groups[0].plan(given_.positions, store.kv_heads, store.block_size, step.window_tokens)
        grid = step.queries.new_zeros(requests, queries, *step.queries.shape[1:])
        for row, request in enumerate(part.requests):
            grid[row, : step.query_tokens(request)] = step.queries[step.starts[request] : step.starts[request + 1]]
        found = route.compute(grid.flatten(0, 1), store.keys, store.values, plan, step.scale, step.softcap)
        assert bool(torch.isfinite(found).all()), "padding has answers too, and they are numbers"
        found = found.unflatten(0, (requests, queries))
        for row, request in enumerate(part.requests):
            output[step.starts[request] : step.starts[request + 1]] = found[row, : step.query_tokens(request)]
    return output


@pytest.mark.parametrize("route", ROUTES.values(), ids=ROUTES)
@given(
    case=cases(BOTH).filter(lambda case: case.kind != "slab"),
    rounding=st.sampled_from([Rounding(), Rounding(1, 4, 8), Rounding(3, 1, 160)]),
    drafts=st.sampled_from([0, 3]),
)
@settings(
    max_examples=80,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
def test_static_attention_equals_the_reference(route: Gather, case: Case, rounding: Rounding, drafts: int) -> None:
    step, store = case.build()
    assert_close(step, store, answered(step, store, route, rounding, drafts))


@pytest.mark.parametrize("kind", ["table", "region"])
@pytest.mark.parametrize("window", [1, 15, 16, 17, 40])
def test_chunks_around_a_window(kind: str, window: int) -> None:
    for past in (0, window - 1, window, 2 * window + 3):
        for new in (1, 2, window, window + 1, 3 * window):
            case = Case(((past, min(new, 64)), (5, 1)), kind, window=window, softcap=20.0)
            step, store = case.build()
            assert_close(step, store, answered(step, store, ROUTES["fused"], Rounding(1, 8, 16), 0))


def test_an_fp8_store_and_a_wide_group() -> None:
    case = Case(((30, 9), (70, 1), (3, 4)), group=4, window=20, dtype=torch.bfloat16, fp8=True)
    step, store = case.build()
    assert store.keys.dtype == FP8
    for drafts in (0, 3):
        assert_close(step, store, answered(step, store, ROUTES["fused"], Rounding(), drafts))


def test_a_window_gathers_no_more_than_it_can_straddle() -> None:
    store = KVStore(64, 4, 1, 8, dtype=torch.float32)
    shapes = Shapes.of(Rounding(1, 4, 64), max_running=2, token_budget=8, context_tokens=64)
    widths = {shape: Group(store, 1, 5).width(shape) for shape in shapes.reachable()}
    assert widths == {(1, 1, 64): 2, (2, 1, 64): 2, (1, 4, 64): 3, (1, 8, 64): 4}
    assert Group(store, 1, None).width(shapes.reachable()[0]) == 16


def test_a_ring_is_refused_by_name() -> None:
    store = KVStore(64, 8, 1, 8, dtype=torch.float32)
    ring = Ring(0, 8, 0, 3)
    batch = Batch(
        np.zeros(1, np.int64), np.full(1, 3), [0, 1], [4], [GroupPlaces(np.array([3]), [ring])],
        np.zeros(0, np.int64), [0, 0],
    )  # fmt: skip
    with pytest.raises(InvalidInput, match="a ring has no static form yet"):
        Group(store, 1, 8).step(tiny_config(), batch, 0, [0])


def test_more_logits_than_a_part_gives_are_refused() -> None:
    step, store = Case(((0, 9),)).build()
    batch, group = batch_of_step(step), Group(store, 1, None)
    asking = replace(batch, rows=np.arange(3), row_starts=[0, 3])
    shapes = Shapes.of(Rounding(), max_running=2, token_budget=16, context_tokens=16)
    (part,) = shapes.parts(step.starts, step.lengths)
    with pytest.raises(InvalidInput, match="gives 1 rows of logits, not 3"):
        inputs(asking, part, [group], [group.step(tiny_config(), batch, 0, [0])], shapes.asked(part.shape), unused=0)
