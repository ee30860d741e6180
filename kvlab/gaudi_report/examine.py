"""Running the trials within a time limit. What fails is a line of the report, not its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TypeAlias

import torch

from kvlab.device.base import Bandwidth
from kvlab.device.hpu import HPU
from kvlab.doctor import Check, first_line
from kvlab.engine.static_shapes import Rounding
from kvlab.gaudi_report import trials
from kvlab.gaudi_report.cases import Geometry, decode_case
from kvlab.gaudi_report.served_steps import Served, beside_the_cpu
from kvlab.gaudi_report.static_routes import static_routes
from kvlab.gaudi_report.trials import Layer, Timing, Verdict

REMEDY = "Paste this report into an issue."
SECONDS = 300.0
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
Trial: TypeAlias = Callable[[], Verdict]


@dataclass(frozen=True)
class Sizes:
    """A small step of mixed lengths, compared with the reference, with and without a window; `day_steps` random
    steps of at most `day_requests` requests and `day_blocks` blocks each; one full layer, which is timed; and what the
    engine serves."""

    small: Geometry
    lengths: tuple[int, ...]
    window_tokens: int
    day_requests: int
    day_blocks: int
    day_steps: int
    layer: Geometry
    layer_requests: int
    layer_tokens: int
    served: Served


FULL = Sizes(
    small=Geometry(q_heads=16, kv_heads=4, head_dim=128, block_size=128),
    lengths=(1, 127, 128, 129, 700, 1024),
    window_tokens=300,
    day_requests=4,
    day_blocks=4,
    day_steps=40,
    layer=Geometry(q_heads=32, kv_heads=16, head_dim=256, block_size=128),
    layer_requests=56,
    layer_tokens=1024,
    served=Served(
        model={
            "model_type": "gemma3_text", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
            "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 1024, "vocab_size": 4096,
            "max_position_embeddings": 1024, "sliding_window": 200, "tie_word_embeddings": True,
            "layer_types": ["sliding_attention", "full_attention"] * 2, "initializer_range": 0.05,
        },
        prompts=(300, 30, 129),
        output_tokens=24,
        pool_tokens=512,
        block_size=16,
        token_budget=128,
        rounding=Rounding(requests=4, chunk=128, context=256, moved=512),
    ),
)  # fmt: skip
"""The layer is a sliding one of Gemma 4 31B with 56 requests and a full window, as article 000 timed it."""


@dataclass
class Findings:
    """What was found, in the order of the trials."""

    checks: list[Check] = field(default_factory=list)
    bandwidths: dict[str, Bandwidth] = field(default_factory=dict)
    timings: list[Timing] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return all(check.ok for check in self.checks)


def examine_gaudi(device: HPU, sizes: Sizes, report: Callable[[str], None], seconds: float = SECONDS) -> Findings:
    """Try everything on the device. `report` is told what begins; what would begin after `seconds` is not run."""
    found, start = Findings(), time.perf_counter()
    for name, trial in _trials(device, sizes, found):
        if time.perf_counter() - start > seconds:
            ok, detail = False, f"not run: {seconds:.0f} s were over"
        else:
            report(name)
            try:
                ok, detail = trial()
            except Exception as error:  # noqa: BLE001 (whatever the card or its software raises is a finding)
                ok, detail = False, f"{type(error).__name__}: {first_line(error)}"
        found.checks.append(Check(name, ok, detail, None if ok else REMEDY))
    found.seconds = time.perf_counter() - start
    return found


def _trials(device: HPU, sizes: Sizes, found: Findings) -> Iterator[tuple[str, Trial]]:
    yield "read bandwidth", partial(trials.bandwidth, found.bandwidths, "read", device.read_bandwidth)
    yield "copy bandwidth", partial(trials.bandwidth, found.bandwidths, "copy", device.copy_bandwidth)
    for name, dtype in DTYPES.items():
        yield f"write and copy, {name}", partial(trials.store, device, decode_case(sizes.lengths, sizes.small, dtype))

    blocks = _blocks(max(sizes.lengths), sizes.small)
    for route in static_routes(device, len(sizes.lengths), blocks):
        for name, dtype in DTYPES.items():
            for window in (None, sizes.window_tokens):
                case = decode_case(sizes.lengths, sizes.small, dtype, window_tokens=window)
                title = f"{route.name}, {name}, {f'window {window}' if window else 'no window'}"
                yield title, partial(trials.against_reference, device, route, case)

    most = sizes.day_requests * sizes.day_blocks
    for route in static_routes(device, sizes.day_requests, sizes.day_blocks):
        trial = partial(trials.no_shape_is_new, device, route, sizes.small, most, sizes.day_steps)
        yield f"{route.name}, shapes", trial

    @cache
    def layer() -> Layer:
        case = decode_case([sizes.layer_tokens] * sizes.layer_requests, sizes.layer, torch.bfloat16)
        return case.step, case.to(device.torch_device).store

    for route in static_routes(device, sizes.layer_requests, _blocks(sizes.layer_tokens, sizes.layer)):
        yield f"{route.name}, a full layer", partial(trials.layer_time, device, route, layer, found.timings)
    for name, dtype in DTYPES.items():
        yield f"engine, {name}", partial(beside_the_cpu, device, sizes.served, dtype)
    yield "operators on the host", partial(trials.fallbacks, device)


def _blocks(tokens: int, geometry: Geometry) -> int:
    return -(-tokens // geometry.block_size)
