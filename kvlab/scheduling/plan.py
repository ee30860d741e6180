"""What the scheduler says of one step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from kvlab.scheduling.sequence import Sequence
from kvlab.workload import Request

Preemption: TypeAlias = Literal["recompute", "swap"]


class Decision(NamedTuple):
    """Who should run, in order, before memory is asked.

    `running` says how many tokens each running sequence may compute, drafts included; together they are within the
    token budget. `joining` are those that may come (back) in where budget and memory are left.
    """

    running: list[tuple[Sequence, int]]
    joining: list[Sequence]


class Grant(NamedTuple):
    """Compute the tokens at positions [start, start + tokens) of a sequence; their slots are there.

    Of them, those beyond the known tokens of the request are drafts.
    """

    sequence: Sequence
    start: int
    tokens: int

    @property
    def request(self) -> Request:
        """The request."""
        return self.sequence.request


class Refusal(NamedTuple):
    """A request that can never run, and why."""

    request: Request
    reason: str


@dataclass(slots=True)
class Plan:
    """What memory allowed in this step. `admitted` pairs a request with its tokens found in the cache."""

    granted: list[Grant] = field(default_factory=list)
    admitted: list[tuple[Request, int]] = field(default_factory=list)
    swapped_in: list[Request] = field(default_factory=list)
    preempted: list[tuple[Request, Preemption]] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens to compute."""
        return sum(grant.tokens for grant in self.granted)
