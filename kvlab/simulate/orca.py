"""The setting of the PagedAttention paper's utilisation figure: OPT-13B, 12 GiB of KV, sequences up to 2,048."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvlab.policies.base import Policy
from kvlab.policies.contiguous import ContiguousMax, ContiguousOracle, ContiguousPow2
from kvlab.policies.paged import Paged
from kvlab.shapes import ModelShape
from kvlab.simulate.saturation import Saturation, saturate
from kvlab.workload import Workload, lognormal, sharegpt

MODEL: Final = "opt-13b"
MAX_MODEL_TOKENS: Final = 2048
MAX_PROMPT_TOKENS: Final = 1024
CAPACITY_TOKENS: Final = 12 * 2**30 // ModelShape.preset(MODEL).bytes_per_token
"""15,728 slots."""


def systems() -> dict[str, Callable[[], Policy]]:
    """Name in the paper -> a fresh policy in the paper's setting."""
    groups = ModelShape.preset(MODEL).groups()
    return {
        "Orca (Max)": lambda: ContiguousMax(groups, CAPACITY_TOKENS, max_model_tokens=MAX_MODEL_TOKENS),
        "Orca (Pow2)": lambda: ContiguousPow2(groups, CAPACITY_TOKENS, max_model_tokens=MAX_MODEL_TOKENS),
        "Orca (Oracle)": lambda: ContiguousOracle(groups, CAPACITY_TOKENS, max_model_tokens=MAX_MODEL_TOKENS),
        "vLLM": lambda: Paged(groups, CAPACITY_TOKENS, block_size=16),
    }


def length_sets(seed: int = 0) -> dict[str, Workload]:
    """The lengths to show side by side, each cut to the paper's limits.

    The log-normal one has the means that the paper gives for ShareGPT and the spread that its figure implies
    (`pap-output-cv2`); the other two are the real ShareGPT lengths.
    """
    drawn = {
        "log-normal": lognormal(20_000, 161.31, 337.99, prompt_sigma=1.2, output_sigma=0.75, seed=seed),
        "ShareGPT, first turns": sharegpt("first"),
        "ShareGPT, every turn": sharegpt("all"),
    }
    return {name: lengths.within(MAX_PROMPT_TOKENS, MAX_MODEL_TOKENS) for name, lengths in drawn.items()}


def utilisation(
    workload: Workload,
    *,
    steps: int = 300_000,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Saturation]:
    """The four systems on one workload; `progress(system, done, of)`.

    Under 300,000 steps the seed alone moves a share by several points.
    """
    found = {}
    for name, policy in systems().items():
        told = None if progress is None else lambda done, of, name=name: progress(name, done, of)
        found[name] = saturate(policy(), workload, steps=steps, warmup_steps=steps // 60, seed=seed, progress=told)
    return found
