"""The routes that are meant for a Gaudi, in static shapes, and the steps that warm each of their graphs up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from kvlab.attention.flat_pa import FlatPA
from kvlab.attention.gather import Gather, pad_rows
from kvlab.attention.step import Step
from kvlab.attention.store import KVStore
from kvlab.device.base import Device
from kvlab.device.buckets import Buckets, reachable_pairs

Compute = Callable[..., Tensor]


@dataclass(frozen=True)
class StaticRoute:
    """A route with its buckets. `warmup` has, for each set of shapes that a step can have, the blocks of the requests
    of one step with these shapes."""

    name: str
    route: FlatPA | Gather
    requests: Buckets
    warmup: Sequence[Sequence[int]]

    def run(self, compute: Compute, step: Step, store: KVStore) -> Tensor:
        """One decode step by `compute`, the route's own or its compiled form: `[rows, q_heads, head_dim]` on the device
        of the store, padded rows last. The step is on the CPU and is padded there, so that the device meets no shape
        outside the buckets."""
        device = store.keys.device
        plan = self.route.metadata(step, store).to(device)
        queries = pad_rows(step.queries, self.requests.bucket(step.requests)).to(device)
        return compute(queries, store.keys, store.values, plan, step.scale, step.softcap)


def static_routes(device: Device, requests: int, blocks_per_request: int) -> list[StaticRoute]:
    """The routes for steps of up to `requests` requests with up to `blocks_per_request` blocks each."""
    batch, width = Buckets(requests), Buckets(blocks_per_request)
    total = Buckets(requests * blocks_per_request)
    rectangles = [[blocks] * rows for rows in batch.reachable() for blocks in width.reachable()]
    lists = [shared_out(blocks, rows) for rows, blocks in reachable_pairs(batch, total, blocks_per_request)]
    return [
        StaticRoute("gather", Gather(batch, width, device.sdpa), batch, rectangles),
        StaticRoute("gather, no fused operator", Gather(batch, width, None), batch, rectangles),
        StaticRoute("flat_pa", FlatPA("exact", batch, total), batch, lists),
    ]


def shared_out(blocks: int, rows: int) -> list[int]:
    """`blocks` blocks over as many requests as there are rows, or fewer where there are fewer blocks."""
    requests = min(blocks, rows)
    return [blocks // requests + (request < blocks % requests) for request in range(requests)]
