"""One attention call: what a step asks of one layer, checked before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvlab.attention.store import FP8, STORED, KVStore
from kvlab.errors import InvalidInput
from kvlab.policies.layout import Layout, Region, Ring, Slots, Table

SERIAL: Final = 32_768
"""Elements up to which torch does an elementwise operation on one thread."""

Trace: TypeAlias = Callable[[int, Slots], None]
"""Told, per request, which slots a route read (a lesson draws them); None costs nothing."""


class Bytes(NamedTuple):
    """KV bytes of a call: what the answer needs, what the route read with padding and masked rows, and what crossed
    the memory bus (a gather reads, writes and reads again)."""

    useful: int
    padded: int
    physical: int


class Entries(NamedTuple):
    """The table entries that hold live positions, int64 `[entries]`, requests one after the other: those of request r
    are [starts[r], starts[r + 1])."""

    blocks: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Step:
    """The queries of one step, requests one after the other, and where their KV lies.

    `queries` is `[tokens, q_heads, head_dim]`; `keys` and `values` are the step's own K and V, `[tokens, kv_heads,
    head_dim]`. Request r has the tokens [starts[r], starts[r + 1]); its last query stands at position `lengths[r] - 1`
    and query i reads the positions up to its own, at most `window_tokens` of them. `layouts[r]` says which positions
    the store holds: a `Table` or a `Region` ends at `lengths[r]` (the step's K and V are written before the call), a
    `Ring` ends before the step's tokens, which are read from `keys` and `values`. `softcap` bounds the logits by
    softcap * tanh(x / softcap).
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    starts: Sequence[int]
    lengths: Sequence[int]
    layouts: Sequence[Layout]
    scale: float
    window_tokens: int | None = None
    softcap: float | None = None

    @property
    def requests(self) -> int:
        """Requests in the step."""
        return len(self.lengths)

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.queries.shape[1] // self.keys.shape[1]

    @cached_property
    def only_tables(self) -> bool:
        """Whether every layout is a block table."""
        return all(isinstance(layout, Table) for layout in self.layouts)

    @cached_property
    def entries(self) -> Entries:
        """The table entries of the step, turned into an array once; only where all layouts are tables."""
        used = [
            layout.blocks[layout.start // layout.block_size : -(-layout.end // layout.block_size)]
            for layout in self.layouts
            if isinstance(layout, Table)
        ]
        starts = np.array([0, *accumulate(map(len, used))])
        return Entries(np.fromiter(chain.from_iterable(used), np.int64, int(starts[-1])), starts)

    def query_tokens(self, request: int) -> int:
        """Queries of one request."""
        return self.starts[request + 1] - self.starts[request]

    def first_readable(self, request: int) -> int:
        """Lowest position that the request's first query may read."""
        first = self.lengths[request] - self.query_tokens(request)
        return 0 if self.window_tokens is None else max(0, first - self.window_tokens + 1)

    def grouped(self, request: int) -> Tensor:
        """The queries of one request by the KV head that they read, `[queries, kv_heads, group, head_dim]`."""
        rows = self.queries[self.starts[request] : self.starts[request + 1]]
        return rows.reshape(rows.shape[0], self.keys.shape[1], self.group, rows.shape[2])

    def only(self, requests: Sequence[int]) -> tuple[Step, Tensor]:
        """The step of some of the requests, and the indices of its query tokens in this one, int64 `[tokens]`."""
        spans = [torch.arange(self.starts[r], self.starts[r + 1]) for r in requests]
        tokens = torch.cat(spans).to(self.queries.device)
        part = replace(
            self,
            queries=self.queries[tokens],
            keys=self.keys[tokens],
            values=self.values[tokens],
            starts=[0, *accumulate(len(span) for span in spans)],
            lengths=[self.lengths[r] for r in requests],
            layouts=[self.layouts[r] for r in requests],
        )
        return part, tokens

    @property
    def decodes(self) -> bool:
        """Whether every request has exactly one query."""
        return self.queries.shape[0] == self.requests

    def useful_tokens(self) -> int:
        """Tokens of KV that the queries must read, each once per request."""
        return sum(self.lengths[r] - self.first_readable(r) for r in range(self.requests))


@dataclass(frozen=True)
class Takes:
    """What a route computes; it refuses the rest."""

    layouts: tuple[type[Layout], ...] = (Table, Ring, Region)
    stored: tuple[torch.dtype, ...] = STORED
    many_queries: bool = True
    """Prompt chunks and drafts, not only one query a request."""
    head_dim_multiple: int = 1


class Route(Protocol):
    """One way to compute a step's attention over a store. Raises `InvalidInput` before anything is computed."""

    @property
    def name(self) -> str:
        """What the route is called in `routes()`, in tables and in errors."""

    @property
    def takes(self) -> Takes:
        """What it computes."""

    def __call__(self, step: Step, store: KVStore, trace: Trace | None = None) -> tuple[Tensor, Bytes]:
        """The output, `[tokens, q_heads, head_dim]` in the queries' dtype, and the bytes it took."""


def accept(route: Route, step: Step, store: KVStore) -> None:
    """`check`, and refuse what this route does not take. Raises `InvalidInput`."""
    check(step, store)
    takes = route.takes
    if store.keys.dtype not in takes.stored:
        raise InvalidInput(f"{route.name} does not read {store.keys.dtype}; `gather` and `reference` read every dtype")
    if store.head_dim % takes.head_dim_multiple:
        raise InvalidInput(
            f"{route.name} needs a head_dim that is a multiple of {takes.head_dim_multiple}, not {store.head_dim}; "
            "`gather` and `reference` take any"
        )
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


def check(step: Step, store: KVStore) -> None:
    """Refuse a step that cannot be right: shapes, dtypes, devices, head counts, layouts, lengths, NaN in the queries.

    Raises `InvalidInput`. NaN is looked for on the CPU only: elsewhere that would wait for the device.
    """
    tokens, q_heads, head_dim = _three(step.queries, "queries")
    for name, tensor in (("keys", step.keys), ("values", step.values)):
        if _three(tensor, name) != (tokens, store.kv_heads, store.head_dim):
            raise InvalidInput(
                f"{name} are {tuple(tensor.shape)}; {tokens} tokens of this store need "
                f"{(tokens, store.kv_heads, store.head_dim)}"
            )
    if head_dim != store.head_dim:
        raise InvalidInput(f"queries have head_dim {head_dim}, the store {store.head_dim}")
    if q_heads % store.kv_heads:
        raise InvalidInput(f"{q_heads} query heads do not divide among {store.kv_heads} KV heads")
    if not step.queries.dtype == step.keys.dtype == step.values.dtype:
        raise InvalidInput(
            f"queries, keys and values differ in dtype: {step.queries.dtype}, {step.keys.dtype}, {step.values.dtype}"
        )
    if step.queries.dtype not in STORED or step.queries.dtype == FP8:
        raise InvalidInput(f"attention is computed in float32, bfloat16 or float16, not {step.queries.dtype}")
    if store.keys.dtype not in (step.queries.dtype, FP8):
        raise InvalidInput(f"queries of {step.queries.dtype} do not read a store of {store.keys.dtype}; convert them")
    devices = {tensor.device for tensor in (step.queries, step.keys, step.values, store.keys)}
    if len(devices) > 1:
        raise InvalidInput(f"operands and store are on different devices: {', '.join(sorted(map(str, devices)))}")
    if step.window_tokens is not None and step.window_tokens < 1:
        raise InvalidInput(f"a window of {step.window_tokens} tokens reads nothing; use at least 1 or None")
    if step.softcap is not None and not 0 < step.softcap < math.inf:
        raise InvalidInput(f"a soft-cap must be above 0 and finite, not {step.softcap}")
    if not math.isfinite(step.scale):
        raise InvalidInput(f"a scale must be finite, not {step.scale}")
    if not (len(step.layouts) == step.requests == len(step.starts) - 1) or step.starts[-1] != tokens or step.starts[0]:
        raise InvalidInput(
            f"{step.requests} lengths, {len(step.layouts)} layouts and starts {list(step.starts)} do not describe "
            f"{tokens} query tokens"
        )
    if not (step.only_tables and _tables_fit(step, store)):
        for request in range(step.requests):
            _check_request(step, store, request)
    if step.queries.device.type == "cpu" and not _all_finite(step.queries):
        raise InvalidInput("the queries hold NaN or infinity")


def _all_finite(tensor: Tensor) -> bool:
    """In pieces that torch computes on one thread: waking the others costs more than the check."""
    flat = tensor.reshape(-1)
    return all(bool(torch.isfinite(flat[at : at + SERIAL]).all()) for at in range(0, len(flat), SERIAL))


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
