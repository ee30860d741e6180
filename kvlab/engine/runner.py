"""One step of the model: the batch's KV is written where the policy said, and attention reads it from there."""

from __future__ import annotations

import torch
from torch import Tensor

from kvlab.attention.step import Bytes, Route, Step
from kvlab.engine.batch import Batch
from kvlab.engine.decoder import Decoder
from kvlab.engine.kv import KVCache


class Runner:
    """Runs batches of any shape: for a CPU or a CUDA device, where shapes may change from step to step.

    `read` counts the KV bytes of all attention calls so far.
    """

    def __init__(self, decoder: Decoder, cache: KVCache, route: Route) -> None:
        self.decoder = decoder
        self.cache = cache
        self.route = route
        self.read = Bytes(0, 0, 0)
        self.device = decoder.device

    @torch.inference_mode()
    def run(self, batch: Batch) -> Tensor:
        """Logits of the batch's `rows`, `[rows, vocab]`; its KV is written."""
        steps: list[Step | None] = [None] * len(batch.groups)
        rows: list[Tensor | None] = [None] * len(batch.groups)
        config, cache = self.decoder.config, self.cache

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            store, group = cache.stores[layer], cache.group_of[layer]
            step, places = steps[group], rows[group]
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
