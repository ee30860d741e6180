"""Rotary positions: one frequency for each pair of head dimensions, turned once a step and shared by the layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvlab.errors import InvalidInput, positive

KINDS = ("default", "linear", "llama3", "proportional")


def above_zero(name: str, value: Any) -> float:
    """`value` as a float if it is a finite number above 0, else `InvalidInput` naming it."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InvalidInput(f"{name} must be a number above 0, not {value!r}")
    return float(value)


@dataclass(frozen=True, slots=True)
class Rope:
    """How one kind of layer turns its queries and keys.

    kind: `default`; `linear` divides every frequency by `factor`; `llama3` divides only those whose wavelength is
    long beside `original_positions`, with a ramp between (Llama 3.1); `proportional` turns the first `rotated` share
    of the pairs and leaves the others (Gemma 4's global layers).
    """

    base: float
    kind: str = "default"
    factor: float = 1.0
    rotated: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_positions: int = 1

    @classmethod
    def parse(cls, fields: Mapping[str, Any], base: float, where: str) -> Rope:
        """From the `rope_parameters` (or old `rope_scaling`) of a Hugging Face configuration.

        `base` is used where the fields have no `rope_theta`. Raises `InvalidInput` on a scaling kvlab does not know.
        """
        kind = fields.get("rope_type") or fields.get("type") or "default"
        if kind not in KINDS:
            raise InvalidInput(f"{where}: rope_type {kind!r} is not supported; kvlab knows {', '.join(KINDS)}")
        rotated = above_zero(f"{where}: partial_rotary_factor", fields.get("partial_rotary_factor") or 1.0)
        if rotated > 1 or (rotated < 1 and kind != "proportional"):
            raise InvalidInput(f"{where}: partial_rotary_factor = {rotated} is not supported with rope_type {kind!r}")
        if kind == "default":
            numbers: dict[str, float] = {}
        else:
            needed = {"llama3": ("factor", "low_freq_factor", "high_freq_factor"), "linear": ("factor",)}.get(kind, ())
            absent = [each for each in needed if fields.get(each) is None]
            if absent:
                raise InvalidInput(f"{where}: rope_type {kind!r} needs {' and '.join(absent)}")
            names = (*needed, "factor") if fields.get("factor") is not None else needed
            numbers = {each: above_zero(f"{where}: {each}", fields[each]) for each in names}
        if kind == "llama3" and numbers["high_freq_factor"] <= numbers["low_freq_factor"]:
            raise InvalidInput(f"{where}: high_freq_factor must be above low_freq_factor")
        original = 1
        if kind == "llama3":
            asked: Any = fields.get("original_max_position_embeddings")
            original = positive(f"{where}: original_max_position_embeddings", asked)
        theta = fields.get("rope_theta")
        base = above_zero(f"{where}: rope_theta", base if theta is None else theta)
        return cls(base, kind, rotated=rotated, original_positions=original, **numbers)

    def frequencies(self, head_dim: int) -> Tensor:
        """Radians a position of each pair, float32 `[head_dim / 2]`; 0 where a pair is not turned."""
        pairs = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        turned = 1.0 / self.base**pairs
        if self.kind == "llama3":
            return self._stretched(turned)
        if self.kind == "proportional":
            turned[int(self.rotated * head_dim // 2) :] = 0.0
        return turned / self.factor

    def _stretched(self, turned: Tensor) -> Tensor:
        """Short wavelengths as they are, long ones divided by `factor`, a linear ramp between."""
        turns = self.original_positions * turned / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = kept.clamp(0.0, 1.0)
        return kept * turned + (1 - kept) * turned / self.factor


def signed(frequencies: Tensor) -> Tensor:
    """`[-f, f]`, `[head_dim]`: of these angles the cosine is `[c, c]` and the sine `[-s, s]`, as `turn` wants them."""
    return torch.cat((-frequencies, frequencies))


def angles(positions: Tensor, signed_frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position, `[tokens, 1, head_dim]` each, computed in float32."""
    turned = positions.to(torch.float32)[:, None, None] * signed_frequencies
    return turned.cos().to(dtype), turned.sin().to(dtype)


def turn(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate `[tokens, heads, head_dim]`; dimension i is paired with i + head_dim / 2, as Hugging Face stores it."""
    swapped = torch.roll(heads, heads.shape[-1] // 2, -1)
    return torch.addcmul(heads * cosine, swapped, sine)
