"""The KV of every layer: stores laid out as the policy's pools, and the only place where its moves are done."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from kvlab.attention.store import KVStore
from kvlab.device.buckets import Buckets
from kvlab.engine.config import DecoderConfig
from kvlab.engine.overlay import LayerKV, overlaid
from kvlab.errors import InvalidInput
from kvlab.policies.base import Move, Overlay, Policy
from kvlab.policies.layout import Slots


class KVCache:
    """One store a layer for each of the policy's pools that the layer can lie in, in the model's dtype unless `dtype`
    says otherwise.

    `group_of[layer]` is the index of the layer's group in `policy.groups`. Pools with an overlay lie over the same
    memory. A pool that is no group's ("host") is kept in host memory. `copies` rounds what is moved at once up to
    static shapes, as in `KVStore`. Raises `InvalidInput` where the policy's groups are not the model's layers.
    """

    def __init__(
        self,
        config: DecoderConfig,
        policy: Policy,
        *,
        dtype: torch.dtype | None = None,
        device: str | torch.device = "cpu",
        copies: Buckets | None = None,
    ) -> None:
        owner = {layer: index for index, group in enumerate(policy.groups) for layer in group.layers}
        if sorted(owner) != list(range(config.layers)):
            raise InvalidInput(
                f"the policy keeps the layers {sorted(owner)}, the model has {config.layers}; "
                "give it config.shape.groups()"
            )
        self.group_of = [owner[layer] for layer in range(config.layers)]
        self._pools = policy.pools()
        self._layers = {
            pool: [layer for group in policy.groups if group.pool == pool for layer in group.layers]
            for pool in self._pools
        }
        self._copies = copies
        self._dtype = dtype or config.dtype
        self._memories: list[Tensor] = []
        made: dict[int, KVStore] = {}
        for overlay in {pool.overlay for pool in self._pools.values()} - {None}:
            assert overlay is not None
            made |= self._overlaid(config, overlay, device)
        for pool, layers in self._layers.items():
            if self._pools[pool].overlay is None:
                made |= {layer: self._store(config, pool, layer, device) for layer in layers}
        self.stores = [made[layer] for layer in range(config.layers)]
        self._host: dict[str, dict[int, KVStore]] = {}
        for pool, layers in self._layers.items():
            if not layers:
                kept = self._layers.get(pool.removeprefix("host.")) or range(config.layers)
                self._host[pool] = {layer: self._store(config, pool, layer, "cpu") for layer in kept}
        self.bytes_swapped = 0

    def _store(self, config: DecoderConfig, pool: str, layer: int, device: str | torch.device) -> KVStore:
        slots, block_size, references, _ = self._pools[pool]
        return KVStore(
            slots, block_size, config.kv_heads(layer), config.head_dim(layer),
            dtype=self._dtype, device=device, references=references, copies=self._copies,
        )  # fmt: skip

    def _overlaid(self, config: DecoderConfig, overlay: Overlay, device: str | torch.device) -> dict[int, KVStore]:
        """The stores of all layers whose pools lie over the same memory."""
        pools = {name: pool for name, pool in self._pools.items() if pool.overlay == overlay}
        kinds = {
            name: [LayerKV(config.kv_heads(layer), config.head_dim(layer)) for layer in self._layers[name]]
            for name in pools
        }
        memory, store = overlaid(
            overlay.rows, pools, kinds, dtype=self._dtype, device=device, copies=self._copies
        )  # fmt: skip
        self._memories.append(memory)
        return {layer: store(name, index) for name in pools for index, layer in enumerate(self._layers[name])}

    def do(self, moves: Iterable[Move]) -> None:
        """Do the moves in order, those between the same pools together."""
        for (source, target), found in groupby(moves, attrgetter("source_pool", "target_pool")):
            if source == target:
                batch = list(found)
                for layer in self._layers[source]:
                    self.stores[layer].copy(batch, source)
            else:
                self._across(source, target, list(found))

    def _across(self, source: str, target: str, batch: list[Move]) -> None:
        """Between device and host, one gather and one scatter a layer, or several where static shapes hold less."""
        read = np.concatenate([np.arange(move.source, move.source + move.tokens) for move in batch])
        write = np.concatenate([np.arange(move.target, move.target + move.tokens) for move in batch])
        most = len(read) if self._copies is None else self._copies.limit
        for at in range(0, len(read), most):
            for layer in self._host[source if source in self._host else target]:
                origin, goal = self._at(source, layer), self._at(target, layer)
                piece = origin.padded(read[at : at + most]), goal.padded(write[at : at + most])
                _carry(origin, goal, *piece)
        self.bytes_swapped += sum(move.bytes for move in batch)

    def warm(self) -> None:
        """Move padding onto padding in every static shape: inside the device, and to host memory and back."""
        for tokens in self._copies.reachable() if self._copies is not None else ():
            for layer, store in enumerate(self.stores):
                pads = np.full(tokens, store.pad_slot)
                store.copy_slots(pads, pads)
                for kept in self._host.values():
                    if host := kept.get(layer):
                        host_pads = np.full(tokens, host.pad_slot)
                        _carry(store, host, pads, host_pads)
                        _carry(host, store, host_pads, pads)

    def _at(self, pool: str, layer: int) -> KVStore:
        return self._host[pool][layer] if pool in self._host else self.stores[layer]

    @property
    def nbytes(self) -> int:
        """Bytes of all stores, pad blocks included, shared memory once."""
        shared = {layer for pool, layers in self._layers.items() if self._pools[pool].overlay for layer in layers}
        alone = [store for layer, store in enumerate(self.stores) if layer not in shared]
        every = [*alone, *(store for stores in self._host.values() for store in stores.values())]
        return sum(store.keys.nbytes + store.values.nbytes for store in every) + sum(
            memory.nbytes for memory in self._memories
        )

    @property
    def bytes_copied(self) -> int:
        """Bytes copied inside the pools so far (copy-on-write, forks of regions)."""
        return sum(store.bytes_copied for store in self.stores)


def _carry(origin: KVStore, goal: KVStore, read: Slots, write: Slots) -> None:
    keys, values = origin.read(read)
    goal.write(keys.to(goal.keys.device), values.to(goal.keys.device), write)
