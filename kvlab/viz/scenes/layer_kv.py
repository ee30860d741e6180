"""What one layer keeps of a request: which positions it holds, and which of them a query can still read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from kvlab.errors import InvalidInput
from kvlab.events import State
from kvlab.shapes import LayerGroup
from kvlab.workload import RequestId


@dataclass(frozen=True)
class LayerKV:
    """Of positions [0, end), [held, end) are in memory and [readable, end) can be read by the newest query.

    [held, readable) is dead, [0, held) was freed. `sliding` says whether the layer has a window.
    """

    layer: int
    sliding: bool
    held: int
    readable: int
    end: int
    bytes_per_token: int

    def __post_init__(self) -> None:
        if not 0 <= self.held <= self.end or not 0 <= self.readable <= self.end:
            raise InvalidInput(f"layer {self.layer} holds [{self.held}, {self.end}) and reads from {self.readable}")

    @property
    def dead(self) -> int:
        """Tokens in memory that no query can read."""
        return max(0, self.readable - self.held)

    @property
    def live(self) -> int:
        """Tokens in memory that the newest query reads."""
        return self.end - max(self.held, self.readable)

    @property
    def lost(self) -> int:
        """Tokens that the newest query should read and that are not in memory any more (0 unless something broke)."""
        return max(0, self.held - self.readable)

    @property
    def freed(self) -> int:
        """Tokens that are not in memory any more."""
        return self.held


def layers_of(groups: Sequence[LayerGroup], tokens: int, held: Mapping[str, int] | None = None) -> list[LayerKV]:
    """The layers of a request with `tokens` committed: a window of W reads the last W positions.

    `held` is the first position in memory by group name; a group that it leaves out keeps everything. Raises
    `InvalidInput` for a name that no group has.
    """
    held = held or {}
    if unknown := set(held) - {group.name for group in groups}:
        raise InvalidInput(f"no layer group is named {sorted(unknown)}; there are {[group.name for group in groups]}")
    found = []
    for group in groups:
        window = group.window_tokens
        readable = 0 if window is None else max(0, tokens - window)
        each = group.bytes_per_token // len(group.layers)
        found += [
            LayerKV(layer, window is not None, held.get(group.name, 0), readable, tokens, each)
            for layer in group.layers
        ]
    return sorted(found, key=lambda kv: kv.layer)


def layers_in(state: State, rid: RequestId, groups: Sequence[LayerGroup]) -> list[LayerKV]:
    """The same from a replayed state, by the request's table or region in each group's pool; a ring holds its end.

    A request that holds no memory there has no tokens.
    """
    request = state.requests.get(rid)
    if request is None or request.status != "running":
        return layers_of(groups, 0)
    held = {}
    for group in groups:
        table = request.tables.get(group.pool, ())
        size = state.pools[group.pool].block_size
        room = request.regions[group.pool][1] if group.pool in request.regions else len(table) * size
        first = next((entry for entry, block in enumerate(table) if block is not None), len(table))
        held[group.name] = min(max(first * size, request.tokens - room), request.tokens)
    return layers_of(groups, request.tokens, held)


def alike(layers: Iterable[LayerKV]) -> list[tuple[LayerKV, list[int]]]:
    """Layers that keep the same: one of them and the rows (not layer numbers) of all, in order of first appearance."""
    found: dict[LayerKV, tuple[LayerKV, list[int]]] = {}
    for row, kv in enumerate(layers):
        found.setdefault(replace(kv, layer=0), (kv, []))[1].append(row)
    return list(found.values())


def bands(layers: Sequence[LayerKV]) -> list[tuple[LayerKV, int, int]]:
    """Neighbours that keep the same, as (one of them, first row, row after the last)."""
    found, row = [], 0
    for _, run in groupby(layers, key=lambda kv: replace(kv, layer=0)):
        members = list(run)
        found.append((members[0], row, row + len(members)))
        row += len(members)
    return found
