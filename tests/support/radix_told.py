"""Logs of real radix policies, with what the policy's own books said after every step."""

from dataclasses import dataclass, field
from typing import Any

from kvlab.events import EventLog
from kvlab.policies.base import Usage
from kvlab.policies.islands import RadixIslands
from kvlab.policies.radix_lazy import RadixLazy
from kvlab.shapes import LayerGroup
from kvlab.workload import Request

WINDOW, PAGE, CHUNK = 8, 4, 32


def groups(window: int | None = WINDOW) -> tuple[LayerGroup, ...]:
    everything = LayerGroup("global", "full", (0,), None, 1)
    return (everything,) if window is None else (everything, LayerGroup("sliding", "full", (1,), window, 1))


@dataclass
class Told:
    """A policy that is served by hand; `usages[i]` are its books after frame i."""

    kind: type[RadixLazy | RadixIslands] = RadixIslands
    tokens: int = 256
    window: int | None = WINDOW
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.log = EventLog()
        self.policy = self.kind(
            groups(self.window), self.tokens, log=self.log,
            **{"page_size": PAGE, "chunk_tokens": CHUNK, "ratio": 0.5} | self.options,
        )  # fmt: skip
        self.usages: list[dict[str, Usage]] = [self.policy.usage()]
        self.requests: dict[Any, Request] = {}

    def end(self, *steps: tuple[Any, int]) -> None:
        self.log.step(steps)
        self.usages.append(self.policy.usage())

    def admit(self, rid: Any, ids: list[int], output: int = 80) -> bool:
        request = Request(rid, ids, output)
        if self.policy.admit(request) is None:
            return False
        self.requests[rid] = request
        return True

    def step(self, rid: Any, count: int, accepted: int | None = None) -> None:
        request = self.requests[rid]
        start, accepted = request.computed, count if accepted is None else accepted
        self.policy.extend(rid, count)
        new = max(0, start + accepted - request.known_tokens)
        request.generated([7 + position % 5 for position in range(request.known_tokens, request.known_tokens + new)])
        self.policy.commit(rid, request.token_ids(start, start + accepted))
        self.policy.audit()
        self.end((rid, accepted))

    def prefill(self, rid: Any, ids: list[int], output: int = 80) -> None:
        assert self.admit(rid, ids, output)
        request = self.requests[rid]
        while request.computed < request.known_tokens:
            self.step(rid, min(CHUNK, request.known_tokens - request.computed))

    def release(self, rid: Any, reason: Any = "finished") -> None:
        self.policy.release(rid, reason)
        del self.requests[rid]


def two_requests(kind: type[RadixLazy | RadixIslands], decoded: int = 48, **options: Any) -> Told:
    """A: 104 tokens in chunks of 32, then decoded one by one; B shares its first 32."""
    told = Told(kind, options=options)
    told.prefill("A", [i % 50 for i in range(104)])
    for _ in range(decoded):
        told.step("A", 1)
    told.prefill("B", [i % 50 for i in range(32)] + [60 + i for i in range(30)])
    return told
