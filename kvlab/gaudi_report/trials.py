"""What is tried on a Gaudi. A trial answers whether all was well, and in a sentence what it saw."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from kvlab.attention.reference import Reference
from kvlab.attention.step import Step
from kvlab.attention.store import KVStore
from kvlab.device.base import Bandwidth
from kvlab.device.hpu import HPU
from kvlab.gaudi_report.cases import Case, Geometry, decode_case, last_slots, tolerance
from kvlab.gaudi_report.static_routes import Compute, StaticRoute
from kvlab.policies.base import Move

Verdict: TypeAlias = tuple[bool, str]
Layer: TypeAlias = tuple[Step, KVStore]
"""A step on the CPU, and the store on the device."""
CPU = torch.device("cpu")
REPEATS = 20


class Timing(NamedTuple):
    """One route on one layer: the median time of its graph, and the useful KV bytes of the step."""

    route: str
    seconds: float
    useful_bytes: int


def bandwidth(measured: dict[str, Bandwidth], what: str, measure: Callable[[], Bandwidth]) -> Verdict:
    """Measure one, and keep it under its name."""
    measured[what] = measure()
    return True, f"{measured[what].bytes_per_s / 1e12:.3f} TB/s: {measured[what].how}"


def store(device: HPU, case: Case) -> Verdict:
    """The same writes, padded rows too, and the same moves here and on the device: live slots agree bit for bit."""
    size, blocks = case.store.block_size, case.store.blocks
    there = case.to(device.torch_device)
    slots = torch.cat([last_slots(case.step.layouts), torch.full((2,), case.store.pad_slot)])
    moves = [Move("full", size * block, "full", size * (block + 1), size, 0, "trial") for block in (0, 2)]
    for each, where in ((case, slots), (there, slots.to(device.torch_device))):
        padding = each.step.keys.new_ones(2, *each.step.keys.shape[1:])
        each.store.write(torch.cat([each.step.keys, padding]), torch.cat([each.step.values, padding]), where)
        each.store.copy(moves)
    agree = same_bytes(case.store.keys[:blocks], there.store.keys[:blocks])
    agree &= same_bytes(case.store.values[:blocks], there.store.values[:blocks])
    told = f"after {len(slots)} writes and {len(moves)} block copies live slots"
    return agree, f"{told} {'equal' if agree else 'differ from'} the CPU's"


def same_bytes(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same bytes, NaN or not, wherever they are."""
    here, there = (each.to(CPU).contiguous().view(torch.uint8) for each in (one, other))
    return torch.equal(here, there)


def against_reference(device: HPU, each: StaticRoute, case: Case) -> Verdict:
    """The whole call as it is written, and its tensor part as one graph, each within the tolerance."""
    expected = Reference()(case.step, case.store)[0].double()
    allowed, there = tolerance(case), case.to(device.torch_device)
    outputs = [each.route(there.step, there.store)[0]]
    with device.warming():
        outputs.append(each.run(device.compile(each.route.compute), case.step, there.store))
    written, graph = (float((_rows(output, expected) - expected).abs().max()) for output in outputs)
    told = f"largest error {written:.2e} as written, {graph:.2e} as a graph; allowed {allowed:.2e}"
    return written <= allowed and graph <= allowed, told


def _rows(output: Tensor, expected: Tensor) -> Tensor:
    return output.to(CPU)[: len(expected)].double()


def no_shape_is_new(device: HPU, each: StaticRoute, geometry: Geometry, blocks: int, steps: int) -> Verdict:
    """Warm every set of shapes up, then run random steps: the bridge's count of compiled graphs must stand still.

    `blocks` are the most that a step may have, `steps` how many there are.
    """
    compute, size, requests = device.compile(each.route.compute), geometry.block_size, each.requests.limit

    def case(lengths: list[int]) -> Case:
        spare = blocks - sum(-(-length // size) for length in lengths)
        return decode_case(lengths, geometry, torch.bfloat16, spare_blocks=spare)

    there = case([size * blocks]).to(device.torch_device).store
    with device.warming():
        for shape in each.warmup:
            each.run(compute, case([size * count for count in shape]).step, there)
    before, draw = compiled_graphs(device), random.Random(0)
    for _ in range(steps):
        lengths = [draw.randint(1, size * blocks // requests) for _ in range(draw.randint(1, requests))]
        each.run(compute, case(lengths).step, there)
    after = compiled_graphs(device)
    told = f"{len(each.warmup)} sets of shapes, then {steps} random steps; graph_compilation {before}, then {after}"
    return before == after, told


def compiled_graphs(device: HPU) -> list[tuple[str, Any]]:
    """The bridge's count of the graphs that it has compiled."""
    device.synchronize()
    return device.counters()["graph_compilation"]


def layer_time(device: HPU, each: StaticRoute, layer: Callable[[], Layer], timings: list[Timing]) -> Verdict:
    """The graph's time on the device, its plan and queries there already."""
    times_s: list[float] = []
    (step, store), compute = layer(), device.compile(each.route.compute)
    with device.warming():
        each.run(compute, step, store)
    for _ in range(REPEATS):
        each.run(_timed(device, compute, times_s), step, store)
    timing = Timing(each.name, median(times_s), step.useful_tokens() * store.bytes_per_token)
    timings.append(timing)
    return True, f"{timing.seconds * 1e3:.3f} ms, median of {REPEATS}; {timing.useful_bytes / 1e9:.2f} GB of useful KV"


def _timed(device: HPU, compute: Compute, times_s: list[float]) -> Compute:
    def timed(*arguments: object) -> Tensor:
        with device.timer() as timer:
            result = compute(*arguments)
        times_s.append(timer.seconds)
        return result

    return timed


def fallbacks(device: HPU) -> Verdict:
    """No operator of all this ran on the host."""
    counted = device.counters()["cpu_fallback"]
    return not any(count for _, count in counted if isinstance(count, int)), f"cpu_fallback: {counted}"
