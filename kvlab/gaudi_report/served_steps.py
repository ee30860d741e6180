"""Whole steps of the engine on a Gaudi beside the same steps on the CPU, with a small random model.

Prompts in chunks, decoding beside them, a fork that copies on write, preemption by swap: the same scheduler twice, told
the same tokens, so that each row of logits has a counterpart. No tokenizer is needed, and no checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvlab.attention.gather import Gather
from kvlab.device.base import Device
from kvlab.device.cpu import CPU
from kvlab.device.hpu import HPU
from kvlab.engine.batch import batch_of
from kvlab.engine.config import DecoderConfig
from kvlab.engine.decoder import Decoder, random_weights
from kvlab.engine.runners import cache_and_runner
from kvlab.engine.static_shapes import Rounding
from kvlab.gaudi_report.trials import Verdict, compiled_graphs
from kvlab.policies.paged import Paged
from kvlab.scheduling.plan import Grant
from kvlab.scheduling.scheduler import Scheduler
from kvlab.workload import Request

ALLOWED = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
"""How far a logit may be from the CPU's, as a share of the largest one."""


@dataclass(frozen=True)
class Served:
    """What is served: a model by its Hugging Face fields, requests of `prompts` tokens that say `output_tokens` each
    (the first is forked once), in a pool that is too small for all of them."""

    model: Mapping[str, Any]
    prompts: tuple[int, ...]
    output_tokens: int
    pool_tokens: int
    block_size: int
    token_budget: int
    rounding: Rounding


class Side:
    """One of the two: a scheduler with its requests, their KV, and a runner."""

    def __init__(self, served: Served, decoder: Decoder, device: Device, rounding: Rounding | None) -> None:
        self.policy = Paged(
            decoder.config.shape.groups(), served.pool_tokens, block_size=served.block_size,
            host_tokens=4 * served.pool_tokens,
        )  # fmt: skip
        self.scheduler = Scheduler(
            self.policy, token_budget=served.token_budget, max_running=len(served.prompts) + 1, preemption="swap"
        )
        self.cache, self.runner = cache_and_runner(
            decoder, self.scheduler, device, route=None if rounding else Gather(), rounding=rounding, drafts=0,
            announce=lambda message: None,
        )  # fmt: skip
        for number, length in enumerate(served.prompts):
            draw = torch.Generator().manual_seed(number)
            ids = torch.randint(decoder.config.vocab_size, (length,), generator=draw).tolist()
            self.scheduler.add(Request(number, ids, served.output_tokens))

    def run(self) -> tuple[list[Grant], list[int], Tensor]:
        """Compute a step: what was granted, the first row of each grant, and the rows of logits on the CPU."""
        plan = self.scheduler.allocate(self.scheduler.decide())
        self.cache.do(self.policy.drain_moves())
        batch = batch_of(plan.granted, {}, self.policy)
        logits = self.runner.run(batch).cpu()[: len(batch.rows)].float()
        return plan.granted, list(batch.row_starts), logits

    def hear(self, granted: list[Grant], row_starts: list[int], token_ids: list[int]) -> None:
        """Append the next tokens, commit, and let the finished go."""
        for place, grant in enumerate(granted):
            request = grant.request
            if row_starts[place] < row_starts[place + 1]:
                request.generated([token_ids[row_starts[place]]])
            self.scheduler.computed(grant, grant.tokens)
        self.scheduler.end_step()
        for request in [grant.request for grant in granted]:
            if request.known_tokens == request.limit_tokens:
                self.scheduler.finish(request.rid)
            elif request.rid == 0 and request.known_tokens == request.prompt_tokens + 2:
                self.scheduler.fork(0, request.fork("fork"))


def beside_the_cpu(device: HPU, served: Served, dtype: torch.dtype) -> Verdict:
    """Serve on both sides; every row of logits must agree, and no graph may be compiled after the warm-up."""
    config = DecoderConfig.from_config(served.model).with_dtype(dtype)
    weights = random_weights(config, torch.Generator().manual_seed(0))
    here = Side(served, Decoder(config, weights), CPU(), None)
    on_device = {name: each.to(device.torch_device) for name, each in weights.items()}
    there = Side(served, Decoder(config, on_device), device, served.rounding)
    before = compiled_graphs(device)
    steps, error, largest = 0, 0.0, 0.0
    while len(here.scheduler):
        granted, row_starts, expected = here.run()
        also_granted, _, found = there.run()
        if len(expected):
            error = max(error, float((found - expected).abs().max()))
            largest = max(largest, float(expected.abs().max()))
        token_ids = expected.argmax(-1).tolist()
        here.hear(granted, row_starts, token_ids)
        there.hear(also_granted, row_starts, token_ids)
        steps += 1
    after = compiled_graphs(device)
    moved = f"{there.cache.bytes_copied} bytes copied on write, {there.cache.bytes_swapped} swapped"
    told = (
        f"{steps} steps, {moved}; largest error of a logit {error:.2e}, allowed {ALLOWED[dtype] * largest:.2e}; "
        f"graph_compilation {before} after the warm-up, then {after}"
    )
    return error <= ALLOWED[dtype] * largest and before == after, told
