"""A step is checked before anything is computed: a wrong one is refused by name, never answered with wrong numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from kvlab.attention.step import Route, Step
from kvlab.attention.store import FP8, STORED, KVStore
from kvlab.errors import InvalidInput
from kvlab.policies.layout import Region, Ring, Table

SERIAL: Final = 32_768
"""Elements up to which torch does an elementwise operation on one thread."""


def accept(route: Route, step: Step, store: KVStore) -> None:
    """`check`, and refuse what this route does not take. Raises `InvalidInput`."""
    check(step, store)
    _refuse_not_taken(route, step, store)


def accept_but_nan(route: Route, step: Step, store: KVStore) -> None:
    """`accept`, for a route that finds NaN in the queries by itself before it computes anything."""
    _check_but_nan(step, store)
    _refuse_not_taken(route, step, store)


def check(step: Step, store: KVStore) -> None:
    """Refuse a step that cannot be right: shapes, dtypes, devices, head counts, layouts, lengths, NaN in the queries.

    What the operands have no part in is checked once for all the steps that share it (`Step.with_operands`), and again
    for a store with another block size, other blocks or other references. Raises `InvalidInput`. NaN is looked for on
    the CPU only: elsewhere that would wait for the device.
    """
    _check_but_nan(step, store)
    refuse_nan(step)


def refuse_nan(step: Step) -> None:
    """Raise `InvalidInput` where queries on the CPU hold NaN or infinity."""
    if step.queries.device.type == "cpu" and not _all_finite(step.queries):
        raise not_finite()


def not_finite() -> InvalidInput:
    """The error for NaN in the queries."""
    return InvalidInput("the queries hold NaN or infinity")


def _check_but_nan(step: Step, store: KVStore) -> None:
    _check_operands(step, store)
    check_places(step, store)


def check_places(step: Step, store: KVStore) -> None:
    """What `check` asks of all but the operands: lengths and layouts, window, scale and soft-cap."""
    _, _, block_size, _ = store.keys.shape
    key = ("places", block_size, store.blocks, id(store.references))
    step.derived.once(key, lambda: _checked_places(step, store))


def _check_operands(step: Step, store: KVStore) -> None:
    queries, keys, values = step.queries, step.keys, step.values
    tokens, q_heads, head_dim = _three(queries, "queries")
    _, kv_heads, _, stored_dim = store.keys.shape
    for name, tensor in (("keys", keys), ("values", values)):
        if _three(tensor, name) != (tokens, kv_heads, stored_dim):
            raise InvalidInput(
                f"{name} are {tuple(tensor.shape)}; {tokens} tokens of this store need {(tokens, kv_heads, stored_dim)}"
            )
    if head_dim != stored_dim:
        raise InvalidInput(f"queries have head_dim {head_dim}, the store {stored_dim}")
    if q_heads % kv_heads:
        raise InvalidInput(f"{q_heads} query heads do not divide among {kv_heads} KV heads")
    dtype, stored = queries.dtype, store.keys.dtype
    if not dtype == keys.dtype == values.dtype:
        raise InvalidInput(f"queries, keys and values differ in dtype: {dtype}, {keys.dtype}, {values.dtype}")
    if dtype not in STORED or dtype == FP8:
        raise InvalidInput(f"attention is computed in float32, bfloat16 or float16, not {dtype}")
    if stored not in (dtype, FP8):
        raise InvalidInput(f"queries of {dtype} do not read a store of {stored}; convert them")
    if not queries.device == keys.device == values.device == store.keys.device:
        devices = {tensor.device for tensor in (queries, keys, values, store.keys)}
        raise InvalidInput(f"operands and store are on different devices: {', '.join(sorted(map(str, devices)))}")
    starts = step.starts
    if not (len(step.layouts) == step.requests == len(starts) - 1) or starts[-1] != tokens or starts[0]:
        raise InvalidInput(
            f"{step.requests} lengths, {len(step.layouts)} layouts and starts {list(starts)} do not describe "
            f"{tokens} query tokens"
        )


def _checked_places(step: Step, store: KVStore) -> Sequence[int] | None:
    """The store's references: kept with the step, so that no other list can take their id."""
    if step.window_tokens is not None and step.window_tokens < 1:
        raise InvalidInput(f"a window of {step.window_tokens} tokens reads nothing; use at least 1 or None")
    if step.softcap is not None and not 0 < step.softcap < math.inf:
        raise InvalidInput(f"a soft-cap must be above 0 and finite, not {step.softcap}")
    if not math.isfinite(step.scale):
        raise InvalidInput(f"a scale must be finite, not {step.scale}")
    if not (step.only_tables and _tables_fit(step, store)):
        for request in range(step.requests):
            _check_request(step, store, request)
    return store.references


def _refuse_not_taken(route: Route, step: Step, store: KVStore) -> None:
    takes = route.takes
    if store.keys.dtype not in takes.stored:
        raise InvalidInput(f"{route.name} does not read {store.keys.dtype}; `gather` and `reference` read every dtype")
    if store.keys.shape[3] % takes.head_dim_multiple:
        raise InvalidInput(
            f"{route.name} needs a head_dim that is a multiple of {takes.head_dim_multiple}, not {store.head_dim}; "
            "`gather` and `reference` take any"
        )
    key = ("taken", takes.layouts, takes.many_queries)
    step.derived.once(key, lambda: _refuse_requests_not_taken(route, step))


def _refuse_requests_not_taken(route: Route, step: Step) -> None:
    takes = route.takes
    for request, layout in enumerate(step.layouts):
        if not isinstance(layout, takes.layouts):
            raise InvalidInput(
                f"{route.name} reads a {' or '.join(each.__name__ for each in takes.layouts)}; request {request} lies "
                f"in a {type(layout).__name__}; `gather` and `reference` read every layout"
            )
        if step.query_tokens(request) > 1 and not takes.many_queries:
            raise InvalidInput(
                f"{route.name} is for decode steps, one query a request; request {request} has "
                f"{step.query_tokens(request)}; compute prompt chunks and drafts with `gather`"
            )


def _all_finite(tensor: Tensor) -> bool:
    """In pieces that torch computes on one thread: waking the others costs more than the check."""
    flat = tensor.reshape(-1)
    for at in range(0, len(flat), SERIAL):
        low, high = torch.aminmax(flat[at : at + SERIAL])
        if not (math.isfinite(float(low)) and math.isfinite(float(high))):
            return False
    return True


def _three(tensor: Tensor, name: str) -> tuple[int, int, int]:
    if tensor.dim() != 3:
        raise InvalidInput(f"{name} must be [tokens, heads, head_dim], not {tuple(tensor.shape)}")
    first, second, third = tensor.shape
    return first, second, third


def _tables_fit(step: Step, store: KVStore) -> bool:
    """What `_check_request` asks of a table, for all requests at once; it then names the one that does not fit."""
    size = store.block_size
    if any(layout.block_size != size for layout in step.layouts if isinstance(layout, Table)):
        return False
    counts, lengths = np.diff(step.starts), np.asarray(step.lengths)
    begin = np.array([layout.start for layout in step.layouts])
    end = np.array([layout.end for layout in step.layouts])
    readable = 0 if step.window_tokens is None else np.maximum(0, lengths - counts - step.window_tokens + 1)
    blocks, starts = step.entries
    return bool(
        (counts >= 1).all()
        and (counts <= lengths).all()
        and (end == lengths).all()
        and (begin >= 0).all()
        and (begin <= np.minimum(readable, end)).all()
        and (np.diff(starts) >= -(-end // size) - begin // size).all()
        and (not len(blocks) or 0 <= blocks.min() <= blocks.max() < store.blocks)
        and (store.references is None or all(store.references[block] for block in blocks.tolist()))
    )


def _check_request(step: Step, store: KVStore, request: int) -> None:
    count, length, layout = step.query_tokens(request), step.lengths[request], step.layouts[request]
    if not 1 <= count <= length:
        raise InvalidInput(f"request {request} has {count} queries and a length of {length}")
    needed_end = length - count if isinstance(layout, Ring) else length
    if layout.end != needed_end or not 0 <= layout.start <= min(step.first_readable(request), layout.end):
        raise InvalidInput(
            f"request {request} needs the positions [{step.first_readable(request)}, {needed_end}), its layout holds "
            f"[{layout.start}, {layout.end})"
        )
    if isinstance(layout, Table):
        used = np.asarray(layout.blocks[layout.start // layout.block_size : -(-layout.end // layout.block_size)])
        if len(used) < -(-layout.end // layout.block_size) - layout.start // layout.block_size:
            raise InvalidInput(f"request {request} has {len(layout.blocks)} blocks for {layout.end} tokens")
        if layout.block_size != store.block_size:
            raise InvalidInput(f"a table in blocks of {layout.block_size} over a store in blocks of {store.block_size}")
        if len(used) and not 0 <= used.min() <= used.max() < store.blocks:
            outside = used.max() if used.max() >= store.blocks else used.min()
            raise InvalidInput(f"request {request} names block {outside}; the store has blocks 0 to {store.blocks - 1}")
        if store.references is not None:
            _refuse_free(request, used.tolist(), store.references)
    elif isinstance(layout, Region):
        if not 0 <= layout.first_slot + layout.start <= layout.first_slot + layout.end <= store.slots:
            raise InvalidInput(f"request {request} reaches slot {layout.first_slot + layout.end} of {store.slots}")
    elif (
        layout.window_tokens != store.block_size
        or layout.first_slot % store.block_size
        or not 0 <= layout.first_slot < store.slots
    ):
        raise InvalidInput(f"a ring of {layout.window_tokens} at slot {layout.first_slot} is no block of this store")
    elif layout.end - layout.start > layout.window_tokens:
        raise InvalidInput(
            f"request {request} reads the positions [{layout.start}, {layout.end}) from a ring that keeps "
            f"{layout.window_tokens}"
        )


def _refuse_free(request: int, blocks: list[int], references: Sequence[int]) -> None:
    free = [block for block in blocks if not references[block]]
    if free:
        raise InvalidInput(
            f"the table of request {request} names block {free[0]}, which nobody holds; take the layout from the "
            "policy again after each call that names the request"
        )
