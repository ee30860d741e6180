"""One configuration of islands and pools: the kill switch and the split of the memory move together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvlab.errors import InvalidInput, positive
from kvlab.events import EventLog
from kvlab.policies.islands import RadixIslands, Rule, Trigger
from kvlab.policies.radix_lazy import RadixLazy
from kvlab.shapes import LayerGroup


@dataclass(frozen=True, slots=True)
class Split:
    """`full_tokens` of token index space, and `ratio` times as many SWA slots."""

    full_tokens: int
    ratio: float

    def __post_init__(self) -> None:
        positive("full_tokens", self.full_tokens)
        if not 0 < self.ratio <= 1:
            raise InvalidInput(f"ratio must lie in (0, 1], not {self.ratio!r}")

    @property
    def swa_tokens(self) -> int:
        """Slots of the SWA pool."""
        return int(self.full_tokens * self.ratio)

    def __str__(self) -> str:
        return f"{self.full_tokens:,} tokens at ratio {self.ratio:g} ({self.swa_tokens:,} SWA tokens)"


@dataclass(frozen=True, slots=True)
class IslandConfig:
    """Two splits of one memory and a switch: `lean` with islands, `ample` without.

    Switching islands off goes back to `ample`, because the lean split assumes that nobody holds more than a window and
    a page. `requests` must be able to run at once in the split that is in force. Source: article 002, deployment notes.
    """

    lean: Split
    ample: Split
    page_size: int = 64
    chunk_tokens: int = 16_384
    requests: int = 1
    islands: bool = True
    rule: Rule = "A"
    trigger: Trigger = "progress"
    branch_islands: bool = False

    @property
    def split(self) -> Split:
        """The split in force."""
        return self.lean if self.islands else self.ample

    def swa_floor(self, window_tokens: int) -> int:
        """SWA tokens that `requests` running requests need: a chunk in flight, and each a window and a page with
        islands, a whole locked chunk without."""
        each = window_tokens + self.page_size
        return self.chunk_tokens + self.requests * (each if self.islands else max(each, self.chunk_tokens))

    def policy(self, groups: Sequence[LayerGroup], log: EventLog | None = None) -> RadixIslands | RadixLazy:
        """The policy in force. Raises `InvalidInput` where its split does not hold `requests`, with the numbers."""
        split = self.split
        for window in {group.window_tokens for group in groups if group.window_tokens is not None}:
            floor = self.swa_floor(window)
            if floor > split.swa_tokens:
                raise InvalidInput(
                    f"{self.requests} requests with islands {'on' if self.islands else 'off'} need {floor:,} SWA "
                    f"tokens (a chunk of {self.chunk_tokens:,} in flight, window {window:,}, page {self.page_size}); "
                    f"the split has {split}: take a ratio of at least {floor / split.full_tokens:.3g} or fewer requests"
                )
        if not self.islands:
            return RadixLazy(
                groups, split.full_tokens, ratio=split.ratio, page_size=self.page_size, chunk_tokens=self.chunk_tokens,
                log=log,
            )  # fmt: skip
        return RadixIslands(
            groups, split.full_tokens, ratio=split.ratio, page_size=self.page_size, chunk_tokens=self.chunk_tokens,
            rule=self.rule, trigger=self.trigger, branch_islands=self.branch_islands, log=log,
        )  # fmt: skip
