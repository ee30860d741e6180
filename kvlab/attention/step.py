"""One attention call: what a step asks of one layer, and what a route answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvlab.attention.derived import Derived
from kvlab.attention.store import STORED, KVStore
from kvlab.policies.layout import Layout, Region, Ring, Slots, Table

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

    The layers of one group call a route with one step: make it for the first of them and `with_operands` for the
    others. What the routes derive from all but the operands (checks included) is then worked out once. Layouts are
    views, valid until the policy is called again, and so is what was derived from them: the next step is a new `Step`.
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
    derived: Derived = field(default_factory=Derived, init=False, repr=False, compare=False)

    def with_operands(self, queries: Tensor, keys: Tensor, values: Tensor) -> Step:
        """The same step in another layer: what was derived from its layouts is shared, whatever store they are read
        from. Each route checks the new operands; it checks the layouts again only for a store with other blocks."""
        step = Step(
            queries, keys, values, self.starts, self.lengths, self.layouts, self.scale, self.window_tokens, self.softcap
        )
        object.__setattr__(step, "derived", self.derived)
        return step

    @property
    def requests(self) -> int:
        """Requests in the step."""
        return len(self.lengths)

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.queries.shape[1] // self.keys.shape[1]

    @property
    def only_tables(self) -> bool:
        """Whether every layout is a block table."""
        return self.derived.once("only tables", lambda: all(isinstance(layout, Table) for layout in self.layouts))

    @property
    def entries(self) -> Entries:
        """The table entries of the step, turned into an array once; only where all layouts are tables."""
        return self.derived.once("entries", self._entries)

    def _entries(self) -> Entries:
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
        device = self.queries.device
        part, tokens = self.derived.once(("only", tuple(requests), device), lambda: self._part(requests, device))
        return part.with_operands(self.queries[tokens], self.keys[tokens], self.values[tokens]), tokens

    def _part(self, requests: Sequence[int], device: torch.device) -> tuple[Step, Tensor]:
        spans = [torch.arange(self.starts[r], self.starts[r + 1]) for r in requests]
        none = self.queries[:0]
        part = Step(
            none,
            none,
            none,
            [0, *accumulate(len(span) for span in spans)],
            [self.lengths[r] for r in requests],
            [self.layouts[r] for r in requests],
            self.scale,
            self.window_tokens,
            self.softcap,
        )
        return part, torch.cat(spans).to(device)

    @property
    def decodes(self) -> bool:
        """Whether every request has exactly one query."""
        return self.queries.shape[0] == self.requests

    def useful_tokens(self) -> int:
        """Tokens of KV that the queries must read, each once per request."""
        return self.derived.once("useful tokens", self._useful_tokens)

    def _useful_tokens(self) -> int:
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
