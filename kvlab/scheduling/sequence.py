"""What the scheduler remembers of a request."""

from __future__ import annotations

from enum import Enum, auto
from typing import TypeAlias

from kvlab.workload import Request

Order: TypeAlias = tuple[int, ...]
"""First come, first served: lower runs first. A fork has its parent's, with a number of its own behind it."""


class Status(Enum):
    """Where a sequence is: in the queue, in the pool, or in host memory."""

    WAITING = auto()
    RUNNING = auto()
    SWAPPED = auto()


class Sequence:
    """A request with the scheduler.

    `committed` of its tokens are known to the policy; up to `limit` tokens no call of the policy is needed. `granted`
    is set while the tokens that it was extended for are computed. A `held` sequence asks for nothing until it is
    resumed (a beam that waits for the others), and is the first to be preempted.
    """

    __slots__ = ("committed", "forks", "granted", "held", "limit", "order", "request", "status")

    def __init__(self, request: Request, order: Order) -> None:
        self.request = request
        self.order = order
        self.status = Status.WAITING
        self.committed = self.limit = 0
        self.granted = self.held = False
        self.forks = 0

    @property
    def pending(self) -> int:
        """Known tokens whose KV is not computed: 1 in decoding, more in a prompt."""
        return self.request.known_tokens - self.request.computed

    def __repr__(self) -> str:
        return f"Sequence({self.request!r}, {self.status.name.lower()})"
