"""Stores over shared memory: the pools of an overlay lie over the same rows of one tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import lcm
from typing import NamedTuple

import torch
from torch import Tensor

from kvlab.attention.store import KVStore
from kvlab.device.buckets import Buckets
from kvlab.device.pages import zeros
from kvlab.errors import InvalidInput
from kvlab.policies.base import Pool


class LayerKV(NamedTuple):
    """KV heads of a layer, and values of one."""

    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Plan:
    """Where the pools' blocks lie in rows of `row_values` values: `apart[pool]` values from a block to the next."""

    row_values: int
    apart: Mapping[str, int]


def plan(rows: int, pools: Mapping[str, Pool], layers: Mapping[str, Sequence[LayerKV]]) -> Plan:
    """The narrowest rows that hold the blocks of every pool. A block holds K and V of its layers, one after the other.

    Raises `InvalidInput` where a pool has no whole number of blocks a row, or two pools have several of them.
    """
    blocks, long, grain = {}, {}, 1
    for name, pool in pools.items():
        blocks[name], left = divmod(pool.slots, rows * pool.block_size)
        if left or not blocks[name]:
            raise InvalidInput(f"pool {name!r} of {pool.slots} slots has no whole blocks in {rows} rows")
        long[name] = sum(2 * layer.kv_heads * pool.block_size * layer.head_dim for layer in layers[name])
        # Blocks of tables are gathered by heads, rings by tokens: each must start at a whole one.
        for layer in layers[name]:
            grain = lcm(grain, layer.head_dim * (1 if pool.references is None else pool.block_size))
    several = [name for name, count in blocks.items() if count > 1]
    if len(several) > 1:
        raise InvalidInput(f"the pools {', '.join(several)} all have several blocks a row; one may")
    count = blocks[several[0]] if several else 1
    page = max(-(-long[name] // (count if blocks[name] == 1 else 1)) for name in pools)
    page = -(-page // grain) * grain
    return Plan(page * count, {name: page * count // blocks[name] for name in pools})


def overlaid(
    rows: int,
    pools: Mapping[str, Pool],
    layers: Mapping[str, Sequence[LayerKV]],
    *,
    dtype: torch.dtype,
    device: str | torch.device,
    copies: Buckets | None,
) -> tuple[Tensor, Callable[[str, int], KVStore]]:
    """The memory, a row of padding after the others, and what makes the store of a pool's i-th layer."""
    found = plan(rows, pools, layers)
    memory = zeros(((rows + 1) * found.row_values,), dtype=dtype, device=device)

    def store(name: str, index: int) -> KVStore:
        pool, apart = pools[name], found.apart[name]
        before = sum(2 * layer.kv_heads * pool.block_size * layer.head_dim for layer in layers[name][:index])
        heads, dim = layers[name][index]
        shape = (pool.slots // pool.block_size + 1, heads, pool.block_size, dim)
        strides = (apart, pool.block_size * dim, dim, 1)
        half = heads * pool.block_size * dim
        keys, values = (memory.as_strided(shape, strides, before + each) for each in (0, half))
        return KVStore.over(keys, values, references=pool.references, copies=copies)

    return memory, store
