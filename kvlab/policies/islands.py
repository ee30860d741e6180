"""Radix islands: a committed chunk frees the sliding-window KV that is dead and keeps a tail that can be matched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from kvlab.errors import InvalidInput, positive
from kvlab.events import EventLog
from kvlab.policies.radix_base import RadixPolicy
from kvlab.policies.radix_books import RadixHolding
from kvlab.shapes import LayerGroup

Rule = Literal["A", "B"]
Trigger = Literal["progress", "modulo"]


class RadixIslands(RadixPolicy):
    """A path of the tree is tombstones (full KV only) with islands of live SWA KV at whose ends a match can end.

        one prompt in three chunks     [ tombstone ][island][ tombstone ][island][ tombstone ][island]
                                                  t = floor(L - w - p) ^         L = all committed ^

    - A committed prompt chunk is inserted with its SWA KV before t freed. Rule "A" frees what the request owns, so
      islands of earlier chunks stay, unlocked; rule "B" frees unlocked SWA KV of the tree before t as well.
    - Generated text is inserted every `interval` tokens (default: a quarter of a chunk), unless the tree has it all: by
      progress since the last insert. The trigger "modulo" waits for a multiple of it, which steps of several tokens
      seldom hit.
    - With `branch_islands`, an insert also keeps the window before the point up to which the tree had the prompt's full
      KV: where prompts part, a later one can then be matched. Without, a shared prefix in mid-chunk is never matched.

    Without sliding layers nothing of this has any effect: it is the plain radix cache. Subclasses are refused: what
    frees KV under a running kernel is enabled by the exact type, never by inheritance.
    """

    def __init__(
        self,
        groups: Sequence[LayerGroup],
        full_tokens: int,
        *,
        ratio: float = 1.0,
        page_size: int = 16,
        chunk_tokens: int = 2048,
        rule: Rule = "A",
        trigger: Trigger = "progress",
        interval: int | None = None,
        branch_islands: bool = False,
        log: EventLog | None = None,
    ) -> None:
        require_islands(self)
        super().__init__(groups, full_tokens, ratio=ratio, page_size=page_size, chunk_tokens=chunk_tokens, log=log)
        if rule not in get_args(Rule) or trigger not in get_args(Trigger):
            raise InvalidInput(f"rule must be 'A' or 'B' and trigger 'progress' or 'modulo', not {rule!r}, {trigger!r}")
        if rule == "B" and branch_islands:
            raise InvalidInput("rule 'B' frees unlocked islands, those at branch points too; use rule 'A' with them")
        self.rule: Rule = rule
        self.trigger: Trigger = trigger
        self.interval = max(1, chunk_tokens // 4) if interval is None else positive("interval", interval)
        self.branch_islands = branch_islands

    def _chunk_dead_to(self, holding: RadixHolding, length: int) -> int:
        return self._frontier(length)

    def _kept(self, holding: RadixHolding, dead_to: int) -> tuple[int, int] | None:
        branch = holding.branch_at
        if not self.branch_islands or self.window_tokens is None or not holding.protected < branch:
            return None
        start, stop = max(0, self._floor(branch - self.window_tokens)), min(branch, dead_to)
        start = max(start, holding.own_swa_from)
        return (start, stop) if start < stop else None

    def _island_is_due(self, holding: RadixHolding, length: int) -> bool:
        if self.window_tokens is None:
            return False
        if self.trigger == "modulo":
            return holding.committed % self.interval == 0
        return length - holding.island_at >= self.interval

    def _trims(self) -> bool:
        return True

    def _inserted(self, holding: RadixHolding, dead_to: int) -> None:
        if self.rule == "B":
            self.memory.free_swa(self.tree.bury_before(holding.lock, dead_to).tolist())


def require_islands(policy: object) -> None:
    """Raise `InvalidInput` unless this is a `RadixIslands` itself: a class that only looks like one, or inherits from
    it, may read what an island's commit has freed."""
    if type(policy) is not RadixIslands:
        raise InvalidInput(
            f"islands need a RadixIslands, not a {type(policy).__name__}: another cache may hold KV that they free"
        )
