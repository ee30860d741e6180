"""A whole decode step of each route for Gaudi runs on fake `hpu` tensors, within the rules of a graph there.

A new route for Gaudi is a line in `static_routes`. What the rules are worth is shown by one offender for each.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from device.dry_run import HPU as CARD
from device.dry_run import NotForGaudi, Watched, device_only, fake_hpu
from device.gaudi_standin import Gaudi
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention

from kvlab.attention.flat_pa import FlatPA
from kvlab.attention.gather import Gather, pad_rows
from kvlab.attention.reference import Reference
from kvlab.attention.store import FP8
from kvlab.device.buckets import Buckets
from kvlab.device.hpu import HPU
from kvlab.gaudi_report.cases import Case, Geometry, decode_case, last_slots
from kvlab.gaudi_report.static_routes import StaticRoute, static_routes
from kvlab.policies.base import Move

SMALL = Geometry(q_heads=4, kv_heads=2, head_dim=32, block_size=16)
LENGTHS = (5, 33, 64)
VARIATIONS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": torch.bfloat16},
    "float32": {"dtype": torch.float32},
    "window": {"dtype": torch.bfloat16, "window_tokens": 40},
    "soft-cap": {"dtype": torch.bfloat16, "softcap": 30.0},
    "fp8 store": {"dtype": torch.bfloat16, "stored": FP8},
}


def routes(device: HPU) -> dict[str, StaticRoute]:
    """The routes for Gaudi by name, and the stock window beside the exact one."""
    found = {each.name: each for each in static_routes(device, 4, 4)}
    exact = found["flat_pa"]
    stock = FlatPA("stock", exact.route.requests, exact.route.blocks)
    return found | {stock.name: replace(exact, name=stock.name, route=stock)}


NAMES = ["gather", "gather, no fused operator", "flat_pa", "flat_pa_stock"]


def test_every_route_for_gaudi_is_tried(eager_gaudi: Gaudi) -> None:
    assert list(routes(HPU.open())) == NAMES


@pytest.mark.parametrize("variation", VARIATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_a_decode_step_stays_on_the_card(eager_gaudi: Gaudi, name: str, variation: str) -> None:
    each, here = routes(HPU.open())[name], decode_case(LENGTHS, SMALL, **VARIATIONS[variation])
    with fake_hpu() as mode:
        there = on_card(mode, here)
        step, store = there.step, there.store
        plan = each.route.metadata(here.step, here.store).to(CARD)
        slots = pad_slots(here, rows=4).to(CARD)
        operands = [pad_rows(tensor, 4) for tensor in (step.queries, step.keys, step.values)]
        with device_only():
            store.write(operands[1], operands[2], slots)
            output = each.route.compute(operands[0], store.keys, store.values, plan, step.scale, step.softcap)
        assert (output.device, output.dtype, output.shape) == (CARD, step.queries.dtype, operands[0].shape)


@pytest.mark.parametrize("variation", VARIATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_the_whole_call_moves_only_its_plan_to_the_card(eager_gaudi: Gaudi, name: str, variation: str) -> None:
    each, here = routes(HPU.open())[name], decode_case(LENGTHS, SMALL, **VARIATIONS[variation])
    expected, slots = each.route(here.step, here.store)[1], last_slots(here.step.layouts).numpy()
    with fake_hpu() as mode:
        there = on_card(mode, here)
        there.store.write(there.step.keys, there.step.values, slots)
        output, counted = each.route(there.step, there.store)
        assert (output.device, output.shape) == (CARD, here.step.queries.shape)
    assert counted == expected, "bytes are counted on the host"


def on_card(mode: FakeTensorMode, case: Case) -> Case:
    """The step and the store as fake tensors on the card."""
    step, store = case.step, copy(case.store)
    store.keys, store.values = mode.from_tensor(store.keys), mode.from_tensor(store.values)
    queries, keys, values = (mode.from_tensor(each) for each in (step.queries, step.keys, step.values))
    return Case(replace(step, queries=queries, keys=keys, values=values), store).to(CARD)


def pad_slots(case: Case, rows: int) -> Tensor:
    """Where a step writes, padded rows into the pad slot."""
    slots = last_slots(case.step.layouts)
    return torch.cat([slots, torch.full((rows - len(slots),), case.store.pad_slot)])


@pytest.mark.parametrize("copies", [None, Buckets(32, first=4)], ids=["as they come", "rounded"])
def test_moves_stay_on_the_card(eager_gaudi: Gaudi, copies: Buckets | None) -> None:
    here = decode_case(LENGTHS, SMALL, torch.bfloat16)
    with fake_hpu() as mode:
        store = on_card(mode, here).store
        store.copies = copies
        with Watched() as watched:
            store.copy([Move("full", 0, "full", 32, 16, 0, "fork"), Move("full", 32, "full", 64, 5, 0, "fork")])
            met = set(watched.met)
            store.copy([Move("full", 0, "full", 32, 13, 0, "fork"), Move("full", 32, "full", 64, 7, 0, "fork")])
    assert store.bytes_copied == (16 + 5 + 13 + 7) * store.bytes_per_token
    assert met
    assert (watched.met == met) == (copies is not None)


def test_a_route_with_torchs_operator_would_not_pass(eager_gaudi: Gaudi) -> None:
    here = decode_case(LENGTHS, SMALL, torch.bfloat16)
    route = Gather(Buckets(4), Buckets(4))
    with fake_hpu() as mode:
        there = on_card(mode, here)
        plan = route.metadata(here.step, here.store).to(CARD)
        queries = pad_rows(there.step.queries, 4)
        with pytest.raises(NotForGaudi, match="has no kernel for hpu"), device_only():
            route.compute(queries, there.store.keys, there.store.values, plan, 1.0)
        with pytest.raises(NotImplementedError, match="HPU"):
            route(there.step, there.store)


def test_the_reference_would_not_pass(eager_gaudi: Gaudi) -> None:
    here = decode_case(LENGTHS, SMALL, torch.bfloat16)
    with fake_hpu() as mode:
        there = on_card(mode, here)
        with pytest.raises(NotForGaudi, match="CPU"), device_only():
            Reference()(there.step, there.store)


def table() -> Tensor:
    """Float32 `[4, 4, 2, 8]` on the card."""
    return torch.ones(4, 4, 2, 8, device=CARD)


OFFENDERS: dict[str, tuple[Callable[[Tensor], object], str]] = {
    "item": (lambda t: t.sum().item(), "waits for a value"),
    "a branch on a value": (lambda t: 1 if t.max() > 0 else 2, "waits for a value"),
    "tolist": (lambda t: t.tolist(), "waits for a value"),
    "equal": (lambda t: torch.equal(t, t), "waits for a value"),
    "nonzero": (lambda t: t.nonzero(), "depends on values"),
    "a mask as an index": (lambda t: t[t > 0], "depends on values"),
    "where with one argument": (lambda t: torch.where(t > 0), "depends on values"),
    "masked_select": (lambda t: t.masked_select(t > 0), "depends on values"),
    "unique": (lambda t: t.unique(), "depends on values"),
    "repeat_interleave by a tensor": (lambda t: t.repeat_interleave(t[0, :, 0, 0].long(), 0), "depends on values"),
    "a tensor of the CPU": (lambda t: t + OUTSIDE, "reads a tensor"),
    "a scalar tensor of the CPU": (lambda t: t * SCALAR, "reads a tensor"),
    "a new tensor on the CPU": (lambda t: torch.arange(4), "makes a tensor"),
    "a way to the CPU": (lambda t: t.cpu(), "makes a tensor"),
    "torch's operator": (lambda t: scaled_dot_product_attention(t, t, t), "no kernel"),
    "torch's operator, grouped": (lambda t: scaled_dot_product_attention(t, t, t, enable_gqa=True), "no kernel"),
    "a write into a row": (lambda t: t[0].copy_(t[1]), "through a view"),
    "a write by index": (lambda t: t.__setitem__((slice(None), 0), 1.0), "through a view"),
    "an operator in place on a slice": (lambda t: t[:, 1:].mul_(2), "through a view"),
}
OUTSIDE, SCALAR = torch.ones(8), torch.tensor(2.0)
ALLOWED: dict[str, Callable[[Tensor], object]] = {
    "arithmetic with numbers": lambda t: (t * 2 + 1).exp(),
    "index_copy_ on the whole tensor": lambda t: t.index_copy_(
        0, torch.zeros(1, dtype=torch.int64, device=CARD), t[:1]
    ),
    "index_copy_ on the whole tensor in another shape": lambda t: t.view(-1, 8).index_fill_(0, LAST(), 0.0),
    "index_select": lambda t: t.index_select(0, LAST()),
    "where with three arguments": lambda t: torch.where(t > 0, t, -torch.inf),
    "softmax and matrix products": lambda t: torch.softmax(t @ t.mT, -1) @ t,
    "a slice": lambda t: t[1:, None, 0],
    "scatter_reduce": lambda t: t.scatter_reduce(0, torch.zeros_like(t, dtype=torch.int64), t, "amax"),
}


def LAST() -> Tensor:
    return torch.full((1,), 3, device=CARD)


@pytest.mark.parametrize("name", OFFENDERS)
def test_each_rule_catches_its_offender(eager_gaudi: Gaudi, name: str) -> None:
    offend, told = OFFENDERS[name]
    with fake_hpu():
        tensor = table()
        with pytest.raises(NotForGaudi, match=told), device_only():
            offend(tensor)


@pytest.mark.parametrize(
    ("mix", "told"),
    [
        (lambda t: t + OUTSIDE, "mixes tensors"),
        (lambda t: t.index_select(0, torch.zeros(1, dtype=torch.int64)), "mixes tensors"),
        (lambda t: t * SCALAR, "mixes tensors"),
        (lambda t: t[0].copy_(t[1]), "through a view"),
    ],
    ids=["a tensor of the CPU", "an index of the CPU", "a scalar of the CPU", "a write into a row"],
)
def test_what_host_and_card_must_not_do_together(
    eager_gaudi: Gaudi, mix: Callable[[Tensor], object], told: str
) -> None:
    with fake_hpu(), Watched() as watched:
        tensor = table()
        assert (tensor * 2).cpu().device.type == OUTSIDE.to(CARD).cpu().device.type == "cpu"
        assert any("_to_copy" in each for each in watched.met)
        with pytest.raises(NotForGaudi, match=told):
            mix(tensor)


@pytest.mark.parametrize("name", ALLOWED)
def test_the_rules_let_ordinary_work_pass(eager_gaudi: Gaudi, name: str) -> None:
    with fake_hpu():
        tensor = table()
        with device_only():
            ALLOWED[name](tensor)


def test_the_dry_run_takes_its_guard_back(eager_gaudi: Gaudi) -> None:
    with fake_hpu():
        assert torch.ones(2, device=CARD)[0].device == CARD
    with FakeTensorMode(), pytest.raises(RuntimeError, match="not linked with support for hpu"):
        torch.ones(2, device=CARD)[0]
