"""Static shapes: after every reachable bucket was warmed up, no step compiles, and padding touches nothing.

The graphs are made by the backend for Gaudi itself (`HPU.compile`, `HPU.warming`); the stand-in's `hpu_backend` counts
them and runs them as torch's backend "eager" does, on CPU tensors that have values.
"""

import random

import pytest
import torch
from device.conftest import OnTheCPU
from device.gaudi_standin import Gaudi
from torch import Tensor

from kvlab.attention.flat_pa import FlatPA
from kvlab.attention.gather import Gather, pad_rows
from kvlab.attention.reference import Reference
from kvlab.device.buckets import Buckets
from kvlab.gaudi_report.cases import Case, Geometry, decode_case, last_slots, tolerance
from kvlab.gaudi_report.static_routes import StaticRoute, static_routes

# torch's own tracing of an autograd function, as FusedSDPA is one, makes an instance of it and warns about that
pytestmark = pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*instantiated:DeprecationWarning")

REQUESTS, BLOCKS, SIZE = 4, 2, 8
SMALL = Geometry(q_heads=4, kv_heads=2, head_dim=16, block_size=SIZE)
NAMES = ["gather", "gather, no fused operator", "flat_pa"]


def case(lengths: list[int], seed: int = 0) -> Case:
    """A step over a pool of always the same size."""
    used = sum(-(-length // SIZE) for length in lengths)
    return decode_case(lengths, SMALL, torch.float32, spare_blocks=REQUESTS * BLOCKS - used, seed=seed)


def random_day(steps: int) -> list[list[int]]:
    """Lengths of the requests of each step; all numbers of requests and of blocks come up."""
    draw = random.Random(7)
    day = [[draw.randint(1, SIZE * BLOCKS) for _ in range(draw.randint(1, REQUESTS))] for _ in range(steps)]
    assert {len(lengths) for lengths in day} == set(range(1, REQUESTS + 1))
    assert {-(-length // SIZE) for lengths in day for length in lengths} == set(range(1, BLOCKS + 1))
    return day


def warm_up(device: OnTheCPU, each: StaticRoute, warmup: list[list[int]]) -> "Compiled":
    """The compiled route after it ran a step of each shape in `warmup`."""
    compiled = Compiled(each, device.compile(each.route.compute))
    with device.warming():
        for blocks in warmup:
            compiled.run(case([SIZE * count for count in blocks]))
    return compiled


class Compiled:
    """A route and its compiled form."""

    def __init__(self, each: StaticRoute, compute) -> None:
        self.each, self.compute = each, compute

    def run(self, step: Case) -> Tensor:
        return self.each.run(self.compute, step.step, step.store)[: step.step.requests]


@pytest.mark.parametrize("name", NAMES)
def test_after_warming_up_a_random_day_compiles_nothing(eager_gaudi: Gaudi, name: str) -> None:
    device = OnTheCPU.open()
    each = {each.name: each for each in static_routes(device, REQUESTS, BLOCKS)}[name]
    compiled = warm_up(device, each, list(each.warmup))
    assert eager_gaudi.compiled == len(each.warmup), "one graph for each set of shapes"
    for seed, lengths in enumerate(random_day(40)):
        step = case(lengths, seed)
        output = compiled.run(step)
        assert eager_gaudi.compiled == len(each.warmup), f"a step of {lengths} compiled a graph"
        expected = Reference()(step.step, step.store)[0]
        assert (output - expected).abs().max() <= tolerance(step)


@pytest.mark.parametrize("name", ["gather", "flat_pa"])
def test_a_bucket_that_was_not_warmed_up_is_noticed(eager_gaudi: Gaudi, name: str) -> None:
    device = OnTheCPU.open()
    each = {each.name: each for each in static_routes(device, REQUESTS, BLOCKS)}[name]
    compiled = warm_up(device, each, list(each.warmup)[:-1])
    for lengths in random_day(40):
        compiled.run(case(lengths))
    assert eager_gaudi.compiled == len(each.warmup)


@pytest.mark.parametrize("route", [Gather(None, None, None), FlatPA("exact", None, None)], ids=["gather", "flat_pa"])
def test_without_buckets_steps_compile(eager_gaudi: Gaudi, route: Gather | FlatPA) -> None:
    device = OnTheCPU.open()
    every = Buckets(REQUESTS, form="linear")
    compiled = Compiled(StaticRoute(route.name, route, every, []), device.compile(route.compute))
    with device.warming():
        for lengths in ([5], [5, 5], [5, 5, 5]):
            compiled.run(case(lengths))
    assert eager_gaudi.compiled == 3


def test_more_shapes_than_torch_allows_need_the_warm_up(eager_gaudi: Gaudi) -> None:
    device = OnTheCPU.open()
    step = device.compile(lambda tensor: tensor * 2)
    with device.warming():
        for size in range(1, 20):
            step(torch.ones(size))
    assert eager_gaudi.compiled == 19
    step(torch.ones(7))
    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        step(torch.ones(40))
    assert eager_gaudi.compiled == 19


def test_a_step_that_is_not_one_graph_is_refused(eager_gaudi: Gaudi) -> None:
    step = OnTheCPU.open().compile(lambda tensor: tensor * 2 if tensor.sum() > 0 else tensor)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        step(torch.ones(3))


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_padded_rows_leave_live_slots_as_they_are(eager_gaudi: Gaudi, rows: int) -> None:
    for name, each in {each.name: each for each in static_routes(OnTheCPU.open(), REQUESTS, BLOCKS)}.items():
        padded, bare = (case([SIZE + 1] * rows) for _ in range(2))
        draw = torch.Generator().manual_seed(1)
        keys, values = (torch.randn(rows, 2, 16, generator=draw) for _ in range(2))
        slots = last_slots(bare.step.layouts)
        bare.store.write(keys, values, slots)
        filler = torch.full((REQUESTS - rows, 2, 16), 1e4)
        pads = torch.full((REQUESTS - rows,), padded.store.pad_slot)
        padded.store.write(torch.cat([keys, filler]), torch.cat([values, filler]), torch.cat([slots, pads]))
        blocks = padded.store.blocks
        assert same(padded.store.keys[:blocks], bare.store.keys[:blocks])
        assert same(padded.store.values[:blocks], bare.store.values[:blocks])

        kept = padded.store.keys.clone(), padded.store.values.clone()
        output = each.run(each.route.compute, padded.step, padded.store)
        assert len(output) == each.requests.bucket(rows)
        assert same(padded.store.keys, kept[0])
        assert same(padded.store.values, kept[1])
        expected = Reference()(bare.step, bare.store)[0]
        assert (output[:rows] - expected).abs().max() <= tolerance(bare), name


def same(one: Tensor, other: Tensor) -> bool:
    """Whether all bytes agree."""
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def test_padding_does_not_change_an_answer(eager_gaudi: Gaudi) -> None:
    for each in static_routes(OnTheCPU.open(), REQUESTS, BLOCKS):
        step = case([5, 9, 16])
        output = each.run(each.route.compute, step.step, step.store)
        alone = [each.run(each.route.compute, *one(step, request))[0] for request in range(3)]
        torch.testing.assert_close(output[:3], torch.stack(alone), atol=1e-6, rtol=0)


def one(full: Case, request: int):
    """One request of a step, and the store."""
    from dataclasses import replace

    step, row = full.step, slice(request, request + 1)
    tensors = {name: getattr(step, name)[row] for name in ("queries", "keys", "values")}
    return replace(step, **tensors, starts=[0, 1], lengths=step.lengths[row], layouts=step.layouts[row]), full.store


def test_rows_are_padded_with_zeros() -> None:
    assert pad_rows(torch.ones(2, 3), 4).sum(1).tolist() == [3, 3, 0, 0]
