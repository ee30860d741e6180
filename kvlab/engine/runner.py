"""One step of the model: the batch's KV is written where the policy said, and attention reads it from there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kvlab.attention.step import Bytes, Route, Step
from kvlab.engine.batch import Batch, Ints
from kvlab.engine.decoder import Decoder
from kvlab.engine.kv import KVCache
from kvlab.policies.layout import Ring


class Runner:
    """Runs batches of any shape: for a CPU or a CUDA device, where shapes may change from step to step.

    Rings are written by `commit`, the accepted tokens only: the queries of a chunk or of a draft still read what their
    own tokens overwrite. `read` counts the KV bytes of all attention calls so far.
    """

    def __init__(self, decoder: Decoder, cache: KVCache, route: Route) -> None:
        self.decoder = decoder
        self.cache = cache
        self.route = route
        self.read = Bytes(0, 0, 0)
        self.device = decoder.device
        self._batch: Batch | None = None
        self._ringed: dict[int, tuple[Tensor, Tensor]] = {}

    @torch.inference_mode()
    def run(self, batch: Batch) -> Tensor:
        """Logits of the batch's `rows`, `[rows, vocab]`; its KV is written."""
        steps: list[Step | None] = [None] * len(batch.groups)
        rows: list[Tensor | None] = [None] * len(batch.groups)
        config, cache = self.decoder.config, self.cache
        ringed = [bool(places.layouts) and isinstance(places.layouts[0], Ring) for places in batch.groups]
        self._batch, self._ringed = batch, {}

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            store, group = cache.stores[layer], cache.group_of[layer]
            step, places = steps[group], rows[group]
            if ringed[group]:
                self._ringed[layer] = keys, values
            else:
                if places is None:
                    rows[group] = places = store.places(batch.groups[group].slots)
                store.write_rows(keys, values, places)
            if step is None:
                step = Step(
                    queries, keys, values, batch.starts, batch.lengths, batch.groups[group].layouts,
                    config.scale, config.window_tokens(layer), config.softcap,
                )  # fmt: skip
            else:
                step = step.with_operands(queries, keys, values)
            steps[group] = step
            output, read = self.route(step, store)
            self.read = Bytes(*map(sum, zip(self.read, read, strict=True)))
            return output

        token_ids = torch.from_numpy(batch.token_ids).to(self.device)
        positions = torch.from_numpy(batch.positions).to(self.device)
        hidden = self.decoder.hidden(token_ids, positions, attend)
        return self.decoder.logits(hidden.index_select(0, torch.from_numpy(batch.rows).to(self.device)))

    @torch.inference_mode()
    def commit(self, kept: Sequence[int]) -> None:
        """Of each request of the last batch the first `kept` tokens are accepted: rings get their K and V. Of more than
        a ring holds, the last."""
        batch, ringed = self._batch, self._ringed
        self._batch, self._ringed = None, {}
        if batch is None or not ringed:
            return
        chosen: dict[int, tuple[Tensor | None, Tensor]] = {}
        for layer, (keys, values) in ringed.items():
            store, group = self.cache.stores[layer], self.cache.group_of[layer]
            if group not in chosen:
                tokens = _accepted(batch.starts, kept, store.block_size)
                every = len(tokens) == batch.starts[-1]
                places = store.places(batch.groups[group].slots[tokens])
                chosen[group] = None if every else torch.from_numpy(tokens).to(self.device), places
            tokens_of, places = chosen[group]
            if tokens_of is not None:
                keys, values = keys.index_select(0, tokens_of), values.index_select(0, tokens_of)
            store.write_rows(keys, values, places)


def _accepted(starts: Sequence[int], kept: Sequence[int], window: int) -> Ints:
    """The tokens of the batch to write: of each request the last `window` of those kept."""
    spans = [
        np.arange(start + max(0, count - window), start + count) for start, count in zip(starts, kept, strict=False)
    ]
    return np.concatenate(spans)
