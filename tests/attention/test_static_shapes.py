"""gather and flat_pa split in two: metadata on the host, then tensors of shapes that follow from the buckets alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.attention_steps import Case
from torch import Tensor

from kvlab.attention.block_list import block_list
from kvlab.attention.flat_pa import FlatPA
from kvlab.attention.gather import Gather, pad_rows
from kvlab.attention.gather_plan import gather_plan
from kvlab.attention.workspace import Workspace
from kvlab.device.buckets import Buckets

STATIC = {
    "gather": Gather(Buckets(4), Buckets(8)),
    "gather by matrix products": Gather(Buckets(4), Buckets(8), fused=None),
    "flat_pa": FlatPA("exact", Buckets(4), Buckets(32)),
    "flat_pa_stock": FlatPA("stock", Buckets(4), Buckets(32)),
}
every_static_route = pytest.mark.parametrize("route", STATIC.values(), ids=STATIC)
DAY = [
    Case(requests, block_size=8, window=window, dtype=torch.bfloat16, seed=seed)
    for seed, requests in enumerate(
        [((4, 1),), ((30, 1), (2, 1)), ((9, 1),) * 3, ((7, 1), (60, 1), (15, 1), (16, 1)), ((63, 1),), ((1, 1), (1, 1))]
    )
    for window in (None, 24)
]


def computed(route: Any, case: Case, function: Any) -> tuple[Tensor, Any]:
    """The whole padded output, and the metadata."""
    step, store = case.build()
    metadata = route.metadata(step, store)
    queries = pad_rows(
        step.queries, metadata.allowed.shape[0] if "allowed" in metadata._fields else metadata[3].shape[1]
    )
    return function(queries, store.keys, store.values, metadata, step.scale), metadata


@every_static_route
def test_one_graph_serves_every_step_of_the_same_buckets(route: Any) -> None:
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(route.compute, backend=backend, fullgraph=True, dynamic=False)
    stores = {}
    for case in DAY:
        output, metadata = computed(route, case, compiled)
        shapes = tuple(each.shape for each in metadata), case.build()[1].keys.shape
        stores[shapes] = stores.get(shapes, 0) + 1
        assert torch.equal(output, computed(route, case, route.compute)[0])
    assert len(graphs) == len(stores) < len(DAY)


@every_static_route
def test_padding_is_harmless_whatever_the_pad_block_holds(route: Any) -> None:
    for case in DAY:
        step, store = case.build()
        clean, _ = route(step, store)
        store.keys[store.pad_block], store.values[store.pad_block] = 1e30, -1e30
        live = store.keys[:-1].clone()
        dirty, _ = route(step, store)
        assert torch.equal(clean, dirty)
        assert torch.equal(live.nan_to_num(), store.keys[:-1].nan_to_num())


@every_static_route
def test_padded_rows_come_out_finite(route: Any) -> None:
    for case in DAY:
        output, _ = computed(route, case, route.compute)
        assert bool(torch.isfinite(output).all())


def test_the_block_list_of_a_small_step() -> None:
    # Two requests in blocks of 4: 6 tokens, then 9 of which a window of 6 is read, so position 3 on.
    step, store = Case(((5, 1), (8, 1)), block_size=4, window=6).build()
    first, second = (layout.blocks for layout in step.layouts)
    listed = block_list(step, store, "exact", Buckets(4, first=4), Buckets(8))
    pad = store.pad_block
    assert listed.block_list.tolist() == [first[0], first[1], second[0], second[1], second[2], pad, pad, pad]
    assert listed.block_groups.tolist() == [0, 0, 1, 1, 1, -1, -1, -1]
    assert listed.block_usage.tolist() == [4, 2, 4, 4, 1, 1, 1, 1]
    assert listed.block_mapping.tolist() == [[1, 0, 0, 0]] * 2 + [[0, 1, 0, 0]] * 3 + [[0, 0, 0, 0]] * 3
    read = (listed.block_bias == 0).int().tolist()
    one = [1, 0, 0, 0]
    assert read == [[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1], one, one, one, one]
    # The first and last block of each request and each of 2 heads; a padded request repeats the first.
    assert listed.edges.tolist() == [0, 1, 2, 3, 4, 5, 8, 9] + [0, 1] * 4
    assert listed.filled.int()[..., 0].tolist()[::2] == [[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 1], one] + [[1] * 4] * 4

    stock = block_list(step, store, "stock", None, None)
    assert stock.block_list.tolist() == [first[1], second[2]]
    assert stock.block_usage.tolist() == [2, 1]


def test_the_gather_plan_of_a_small_step() -> None:
    step, store = Case(((5, 1), (8, 1)), block_size=4, window=6, kv_heads=2).build()
    first, second = (layout.blocks for layout in step.layouts)
    plan = gather_plan(step, store, static=False)
    heads = [[2 * block + head for block in row] for row in ([*first, store.pad_block], second) for head in (0, 1)]
    assert plan.rows.view(4, 3).tolist() == heads
    allowed = plan.allowed.int().view(2, 12).tolist()
    assert allowed == [[1] * 6 + [0] * 6, [0] * 3 + [1] * 6 + [0] * 3]
    # Not filled: the second block of the first request, the first and last of the second, for each head.
    assert plan.edges.tolist() == [1, 4, 6, 9, 8, 11]
    full = gather_plan(
        replace(step, window_tokens=None, layouts=[replace(each, start=0) for each in step.layouts]),
        store,
        static=False,
    )
    assert full.edges.tolist() == [1, 4, 8, 11]


def test_a_workspace_grows_by_powers_of_two_and_is_reused() -> None:
    workspace, cpu = Workspace(), torch.device("cpu")
    first = workspace.take("keys", (3, 5), torch.float32, cpu)
    assert (tuple(first.shape), workspace.nbytes) == ((3, 5), 16 * 4)
    assert workspace.take("keys", (16,), torch.float32, cpu).data_ptr() == first.data_ptr()
    assert workspace.take("values", (16,), torch.float32, cpu).data_ptr() != first.data_ptr()
    workspace.take("keys", (17,), torch.float32, cpu)
    assert workspace.nbytes == 32 * 4 + 16 * 4
    workspace.release()
    assert workspace.nbytes == 0


def test_gather_keeps_its_workspace_between_calls() -> None:
    route = Gather()
    route(*Case(((100, 1),)).build())
    held = route.workspace.nbytes
    assert held > 0
    route(*Case(((90, 1),)).build())
    assert route.workspace.nbytes == held
