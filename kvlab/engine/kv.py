"""The KV of every layer: stores laid out as the policy's pools, and the only place where its moves are done."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

import numpy as np
import torch

from kvlab.attention.store import KVStore
from kvlab.device.buckets import Buckets
from kvlab.engine.config import DecoderConfig
from kvlab.errors import InvalidInput
from kvlab.policies.base import Move, Policy
from kvlab.policies.layout import Slots


class KVCache:
    """One store a layer for each of the policy's pools that the layer can lie in, in the model's dtype unless `dtype`
    says otherwise.

    `group_of[layer]` is the index of the layer's group in `policy.groups`. A pool that is no group's ("host") is kept
    in host memory. `copies` rounds what is moved at once up to static shapes, as in `KVStore`. Raises `InvalidInput`
    where the policy's groups are not the model's layers.
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
        pools = policy.pools()
        grouped = {group.pool for group in policy.groups}

        def store(pool: str, layer: int, where: str | torch.device) -> KVStore:
            slots, block_size, references, _ = pools[pool]
            return KVStore(
                slots, block_size, config.kv_heads(layer), config.head_dim(layer),
                dtype=dtype or config.dtype, device=where, references=references, copies=copies,
            )  # fmt: skip

        self.stores = [
            store(policy.groups[owner[layer]].pool, layer, device) for layer in range(config.layers)
        ]  # fmt: skip
        self._by_pool = {
            group.pool: [
                self.stores[layer] for each in policy.groups if each.pool == group.pool for layer in each.layers
            ]
            for group in policy.groups
        }
        self._host = {
            pool: [store(pool, layer, "cpu") for layer in range(config.layers)] for pool in pools if pool not in grouped
        }
        self._copies = copies
        self.bytes_swapped = 0

    def do(self, moves: Iterable[Move]) -> None:
        """Do the moves in order, those between the same pools together."""
        for (source, target), found in groupby(moves, attrgetter("source_pool", "target_pool")):
            if source == target:
                batch = list(found)
                for store in self._by_pool[source]:
                    store.copy(batch, source)
            else:
                self._across(source, target, list(found))

    def _across(self, source: str, target: str, batch: list[Move]) -> None:
        """Between device and host, one gather and one scatter a layer, or several where static shapes hold less."""
        read = np.concatenate([np.arange(move.source, move.source + move.tokens) for move in batch])
        write = np.concatenate([np.arange(move.target, move.target + move.tokens) for move in batch])
        most = len(read) if self._copies is None else self._copies.limit
        for at in range(0, len(read), most):
            for origin, goal in zip(self._stores(source), self._stores(target), strict=True):
                piece = origin.padded(read[at : at + most]), goal.padded(write[at : at + most])
                _carry(origin, goal, *piece)
        self.bytes_swapped += sum(move.bytes for move in batch)

    def warm(self) -> None:
        """Move padding onto padding in every static shape: inside the device, and to host memory and back."""
        for tokens in self._copies.reachable() if self._copies is not None else ():
            for layer, store in enumerate(self.stores):
                pads = np.full(tokens, store.pad_slot)
                store.copy_slots(pads, pads)
                for host in self._host.values():
                    host_pads = np.full(tokens, host[layer].pad_slot)
                    _carry(store, host[layer], pads, host_pads)
                    _carry(host[layer], store, host_pads, pads)

    def _stores(self, pool: str) -> list[KVStore]:
        return self._host.get(pool, self.stores)

    @property
    def nbytes(self) -> int:
        """Bytes of all stores, pad blocks included."""
        every = [*self.stores, *(store for stores in self._host.values() for store in stores)]
        return sum(store.keys.nbytes + store.values.nbytes for store in every)

    @property
    def bytes_copied(self) -> int:
        """Bytes copied inside the pools so far (copy-on-write, forks of regions)."""
        return sum(store.bytes_copied for store in self.stores)


def _carry(origin: KVStore, goal: KVStore, read: Slots, write: Slots) -> None:
    keys, values = origin.read(read)
    goal.write(keys.to(goal.keys.device), values.to(goal.keys.device), write)
