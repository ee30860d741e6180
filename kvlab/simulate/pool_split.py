"""The arithmetic of two pools over one budget: what a ratio costs, holds and needs. Source: article 002."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kvlab.errors import InvalidInput, positive
from kvlab.shapes import ModelShape


@dataclass(frozen=True)
class PoolSplit:
    """A budget of `budget_bytes` for T token indices and r T sliding-window (SWA) slots.

    A token index costs `full_bytes`, and `extra_bytes` where a draft model keeps KV for it too; an SWA slot costs
    `swa_bytes`. Raises `InvalidInput` for sizes below 1 (or an extra below 0).
    """

    budget_bytes: float
    full_bytes: float
    swa_bytes: float
    extra_bytes: float = 0.0
    window_tokens: int = 1024
    page_size: int = 64
    chunk_tokens: int = 16_384

    def __post_init__(self) -> None:
        for name in ("window_tokens", "page_size", "chunk_tokens"):
            positive(name, getattr(self, name))
        if min(self.budget_bytes, self.full_bytes, self.swa_bytes) <= 0 or self.extra_bytes < 0:
            raise InvalidInput(f"a split needs a budget and costs above 0, not {self}")

    @classmethod
    def of(cls, shape: ModelShape, budget_bytes: float, *, page_size: int, chunk_tokens: int) -> PoolSplit:
        """The split of a hybrid shape; `InvalidInput` where all its layers are of one kind."""
        full, swa = (shape.kind_bytes_per_token(kind) for kind in ("global", "sliding"))
        if not full or not swa or shape.window_tokens is None:
            raise InvalidInput(f"{shape.name} has layers of one kind only: there is no ratio to choose")
        return cls(
            budget_bytes, full, swa, window_tokens=shape.window_tokens, page_size=page_size, chunk_tokens=chunk_tokens
        )

    @cached_property
    def need_tokens(self) -> int:
        """SWA tokens that a running request needs at least: a window and a page, w + p."""
        return self.window_tokens + self.page_size

    def cost(self, ratio: float) -> float:
        """c(r): bytes of one token index and its share of the SWA pool."""
        return self.full_bytes + self.swa_bytes * checked_ratio(ratio) + self.extra_bytes

    def tokens(self, ratio: float) -> int:
        """T_max(r): token indices that the budget holds."""
        return int(self.budget_bytes / self.cost(ratio))

    def swa_tokens(self, ratio: float) -> int:
        """r T_max(r): SWA slots."""
        return int(ratio * self.tokens(ratio))

    def floor(self, requests: int) -> int:
        """SWA tokens that `requests` running requests need: a chunk in flight, and w + p each."""
        return self.chunk_tokens + positive("requests", requests) * self.need_tokens

    def margin(self, ratio: float, requests: int) -> float:
        """How many times the floor the SWA pool is."""
        return self.swa_tokens(ratio) / self.floor(requests)

    def lowest_ratio(self, requests: int) -> float:
        """The ratio at which the SWA pool is just the floor: r B / c(r) = floor.

        Raises `InvalidInput` where even a ratio of 1 is too little.
        """
        floor = self.floor(requests)
        left = self.budget_bytes - self.swa_bytes * floor
        ratio = floor * (self.full_bytes + self.extra_bytes) / left if left > 0 else 2.0
        if ratio > 1:
            raise InvalidInput(
                f"{requests} requests need {floor:,} SWA tokens ({floor * self.swa_bytes / 1e9:.3g} GB); a budget of "
                f"{self.budget_bytes / 1e9:.3g} GB does not hold them at any ratio"
            )
        return ratio

    def bind(self, ratio: float, hold_tokens: float) -> float:
        """N ~ r T / H: requests that run when each holds `hold_tokens` of the SWA pool."""
        return bind(ratio, self.tokens(ratio), hold_tokens)

    def frontier(self, tokens: int) -> int:
        """t = max(0, floor_p(L - w - p)): where SWA KV ends to be live after `tokens` committed tokens."""
        return max(0, (tokens - self.need_tokens) // self.page_size * self.page_size)


def bind(ratio: float, tokens: float, hold_tokens: float) -> float:
    """N ~ r T / H."""
    return ratio * tokens / hold_tokens


def checked_ratio(ratio: float) -> float:
    """The ratio, if it lies in (0, 1]."""
    if not 0 < ratio <= 1:
        raise InvalidInput(f"a ratio lies in (0, 1], not {ratio!r}")
    return ratio
