"""A step on a device that makes a graph for each set of shapes, as a Gaudi does: every shape is one of few."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kvlab.attention.checking import check_places
from kvlab.attention.gather import Gather
from kvlab.attention.step import Bytes
from kvlab.attention.store import scatter
from kvlab.device.base import Device
from kvlab.engine.batch import Batch, GroupPlaces
from kvlab.engine.decoder import Decoder
from kvlab.engine.kv import KVCache
from kvlab.engine.sampling import greedy_on_device
from kvlab.engine.static_inputs import Group, Inputs, inputs
from kvlab.engine.static_shapes import Part, Shapes
from kvlab.policies.layout import Table


class StaticRunner:
    """Runs batches in parts of static shapes: requests with one token each together, each prompt chunk alone.

    A part is one graph: the model from token ids to logits, its KV written in place. What depends on who is in the
    batch is made on the host (`static_inputs`) and copied over before; inside, attention is `Gather`'s. `read` counts
    the KV bytes of all parts so far.

    `run` answers with more rows than the batch asked for: padding follows them. They lie in a buffer of the runner,
    valid until the next call.
    """

    def __init__(self, decoder: Decoder, cache: KVCache, device: Device, shapes: Shapes) -> None:
        self.decoder = decoder
        self.cache = cache
        self.device = device
        self.shapes = shapes
        self.read = Bytes(0, 0, 0)
        config, members = decoder.config, cache.group_of
        self._groups = [
            Group(cache.stores[members.index(group)], members.count(group), config.window_tokens(members.index(group)))
            for group in range(max(members) + 1)
        ]
        self._stored = [(store.keys, store.values) for store in cache.stores]
        self._route = Gather(fused=device.sdpa)
        self._unused_row = shapes.rows.limit
        self._logits = torch.zeros(
            self._unused_row + 1, config.vocab_size, dtype=config.dtype, device=device.torch_device
        )
        self._graph = device.compile(self.compute)

    @torch.no_grad()
    def run(self, batch: Batch) -> Tensor:
        """Logits of the batch's `rows` and padding after them, `[bucket, vocab]`; its KV is written.

        Raises `InvalidInput`, nothing written, on a batch larger than the shapes, and on a ring.
        """
        parts = self.shapes.parts(batch.starts, batch.lengths)
        everyone = range(len(batch.lengths))
        for index, group in enumerate(self._groups):
            check_places(group.step(self.decoder.config, batch, index, everyone), group.store)
        for part in parts:
            self._run(batch, part)
        return self._logits.narrow(0, 0, self.shapes.rows.bucket(max(1, len(batch.rows))))

    def _run(self, batch: Batch, part: Part) -> None:
        config, groups = self.decoder.config, self._groups
        steps = [group.step(config, batch, index, part.requests) for index, group in enumerate(groups)]
        given = inputs(batch, part, groups, steps, self.shapes.asked(part.shape), self._unused_row)
        self._graph(given.to(self.device.torch_device), self._stored, self._logits)
        for group, step in zip(groups, steps, strict=True):
            copied = part.shape.requests * group.width(part.shape) * group.store.block_size
            read = self._route.read(step, group.store, copied)
            self.read = Bytes(*(total + group.layers * each for total, each in zip(self.read, read, strict=True)))

    def commit(self, kept: Sequence[int]) -> None:
        """Nothing is left to write: there are no rings here."""

    def compute(self, given: Inputs, stored: Sequence[tuple[Tensor, Tensor]], logits: Tensor) -> None:
        """One part in tensors alone, for a graph: writes the K and V of its tokens into `stored`, one pair a layer,
        and the logits that were asked for into rows of `logits`."""
        config, members = self.decoder.config, self.cache.group_of
        plans = [
            each.plan(given.positions, group.store.kv_heads, group.store.block_size, group.window_tokens)
            for each, group in zip(given.groups, self._groups, strict=True)
        ]

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            group = members[layer]
            stored_keys, stored_values = stored[layer]
            scatter(stored_keys, given.groups[group].written, keys)
            scatter(stored_values, given.groups[group].written, values)
            return self._route.compute(queries, stored_keys, stored_values, plans[group], config.scale, config.softcap)

        hidden = self.decoder.hidden(given.token_ids, given.positions.view(-1), attend)
        logits.index_copy_(0, given.put, self.decoder.logits(hidden.index_select(0, given.taken)))

    @property
    def graphs(self) -> int:
        """How many graphs `warm` makes of the step; the moves and the choice of tokens add a few small ones."""
        return len(self.shapes.reachable())

    @torch.no_grad()
    def warm(self) -> None:
        """Run every reachable shape once, moves and the choice of tokens too, over padding: no live slot changes."""
        pad = Batch(
            np.zeros(1, np.int64),
            np.zeros(1, np.int64),
            [0, 1],
            [1],
            [
                GroupPlaces(np.array([store.pad_slot]), [Table([store.pad_block], store.block_size, 0, 1)])
                for store, _, _ in self._groups
            ],
            np.zeros(0, np.int64),
            [0, 0],
        )
        with self.device.warming():
            for shape in self.shapes.reachable():
                self._run(pad, Part(shape, [0]))
            for rows in self.shapes.rows.reachable():
                logits = self._logits.narrow(0, 0, rows)
                greedy_on_device(logits, 0)
                logits.float().cpu()  # sampling, and after it a beam search
                logits.cpu()
            self.cache.warm()
        self.device.synchronize()
        self.read = Bytes(0, 0, 0)
