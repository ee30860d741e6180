"""What a call says it read: bytes counted by hand for small steps, and the slots that its trace names."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.attention_steps import Case, Kind

from kvlab.attention import Bytes, Route, get_route, routes
from kvlab.attention.flat_pa import FlatPA
from kvlab.attention.gather import Gather
from kvlab.device.buckets import Buckets
from kvlab.policies.layout import Table

# 2 KV heads x 32 values x 4 bytes x K and V = 512 bytes a token. Lengths 5 and 21: one block of 8, and three.
DECODE = Case(((4, 1), (20, 1)), block_size=8)
PROMPT = replace(DECODE, requests=((4, 1), (20, 3)))
TOKEN = 512


def read_by(route: Route | str, case: Case) -> Bytes:
    return (get_route(route) if isinstance(route, str) else route)(*case.build())[1]


@pytest.mark.parametrize("kind", ["table", "slab", "region"])
def test_routes_that_read_filled_slots_only_read_what_is_useful(kind: Kind) -> None:
    assert read_by("blockwise", replace(DECODE, kind=kind)) == (26 * TOKEN, 26 * TOKEN, 26 * TOKEN)
    if kind != "table":
        assert read_by("contiguous", replace(DECODE, kind=kind)) == (26 * TOKEN, 26 * TOKEN, 26 * TOKEN)


def test_reference_also_writes_and_reads_a_float64_copy() -> None:
    assert read_by("reference", DECODE) == (26 * TOKEN, 26 * TOKEN, 26 * TOKEN + 2 * 26 * 2 * TOKEN)


def test_gather_copies_whole_blocks_padded_to_the_longest_request() -> None:
    assert read_by("gather", DECODE) == (26 * TOKEN, 2 * 3 * 8 * TOKEN, 3 * 2 * 3 * 8 * TOKEN)


def test_gather_in_buckets_also_copies_the_bucket() -> None:
    padded = 4 * 4 * 8 * TOKEN
    assert read_by(Gather(Buckets(8, first=4), Buckets(64)), DECODE) == (26 * TOKEN, padded, 3 * padded)


def test_gather_copies_each_request_of_a_prompt_step_for_itself() -> None:
    assert read_by("gather", PROMPT) == (28 * TOKEN, (8 + 24) * TOKEN, 3 * (8 + 24) * TOKEN)


def test_gather_leaves_blocks_behind_the_window_alone() -> None:
    # A window of 4: positions [1, 5) and [17, 21), one block each.
    assert read_by("gather", replace(DECODE, window=4)) == (8 * TOKEN, 16 * TOKEN, 48 * TOKEN)


def test_gather_of_a_ring_counts_the_steps_own_token() -> None:
    case = Case(((20, 1),), kind="ring", window=16)
    assert read_by("gather", case) == (16 * TOKEN, 16 * TOKEN, 48 * TOKEN)


def test_gather_of_fp8_counts_the_conversion() -> None:
    # Read and written as 1 byte, read and written again as 4, read by the operator as 4.
    copied, stored = 48, TOKEN // 4
    found = read_by("gather", replace(DECODE, fp8=True))
    assert found == (26 * stored, copied * stored, copied * (3 * stored + 2 * TOKEN))


def test_a_soft_cap_widens_sixteen_bits_to_float32() -> None:
    half = replace(DECODE, dtype=torch.bfloat16, softcap=5.0)
    stored = TOKEN // 2
    assert read_by("gather", half).physical == 48 * (3 * stored + 2 * TOKEN)
    assert read_by("contiguous", replace(half, kind="slab")).physical == 26 * (stored + 2 * TOKEN)
    assert read_by("contiguous", replace(half, kind="slab", softcap=None)).physical == 26 * stored


def test_flat_pa_pads_the_blocks_of_all_requests_together() -> None:
    assert read_by("flat_pa", DECODE) == (26 * TOKEN, 4 * 8 * TOKEN, 3 * 4 * 8 * TOKEN)
    five = replace(DECODE, requests=((4, 1), (24, 1)))
    assert read_by("flat_pa", five) == (30 * TOKEN, 8 * 8 * TOKEN, 3 * 8 * 8 * TOKEN)
    assert read_by(FlatPA("exact", None, None), five).padded == 5 * 8 * TOKEN


def test_the_step_of_article_000_pads_448_blocks_to_512() -> None:
    # Figure s000: 56 requests, a window of 1,024 in blocks of 128; bytes scaled down by the heads.
    case = Case(((1023, 1),) * 56, block_size=128, window=1024, kv_heads=1, group=1, head_dim=1)
    token = 2 * 4
    assert read_by("flat_pa_stock", case) == (56 * 1024 * token, 512 * 128 * token, 3 * 512 * 128 * token)


@pytest.mark.parametrize("length", [1024, 1025, 1151, 1152])
def test_exact_reads_one_block_more_than_stock_where_the_window_straddles(length: int) -> None:
    case = Case(((length - 1, 1),), block_size=128, window=1024, kv_heads=1, group=1, head_dim=1)
    stock, exact = (FlatPA(mode, None, None) for mode in ("stock", "exact"))
    assert read_by(stock, case).padded == 8 * 128 * 8
    assert read_by(exact, case).padded == (8 + bool(length % 128)) * 128 * 8


def traced(route: Route, case: Case) -> dict[int, list[int]]:
    step, store = case.build()
    seen: dict[int, list[int]] = {}
    route(step, store, lambda request, slots: seen.__setitem__(request, sorted(np.asarray(slots).tolist())))
    return seen


@pytest.mark.parametrize("case", [DECODE, PROMPT, replace(DECODE, window=5), replace(DECODE, kind="slab")])
def test_a_trace_names_the_readable_slots(case: Case) -> None:
    step, _ = case.build()
    for name, route in routes().items():
        if isinstance(step.layouts[0], route.takes.layouts) and name not in ("gather", "flat_pa", "flat_pa_stock"):
            readable = [sorted(layout.slots().tolist()) for layout in step.layouts]
            assert traced(route, case) == dict(enumerate(readable)), name


@pytest.mark.parametrize("name", ["gather", "flat_pa"])
def test_a_gather_reads_every_slot_of_its_blocks(name: str) -> None:
    step, _ = replace(DECODE, window=5).build()
    expected = {}
    for request, layout in enumerate(step.layouts):
        assert isinstance(layout, Table)
        blocks = layout.blocks[layout.start // 8 : -(-layout.end // 8)]
        expected[request] = sorted(block * 8 + offset for block in blocks for offset in range(8))
    assert traced(get_route(name), replace(DECODE, window=5)) == expected


def test_a_trace_of_a_ring_names_what_the_ring_held() -> None:
    case = Case(((20, 1), (3, 2)), kind="ring", window=16)
    step, _ = case.build()
    expected = [sorted(layout.slots()[-15:].tolist()) for layout in step.layouts]
    for name in ("reference", "gather", "blockwise", "native"):
        if name in routes():
            assert traced(get_route(name), case) == dict(enumerate(expected)), name
