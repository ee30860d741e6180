"""A scheduler driven by hand: lengths only, one step at a time."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from kvlab.events import EventLog
from kvlab.policies.base import Admission, Extension, ReleaseReason, TokenList
from kvlab.policies.paged import Paged
from kvlab.scheduling.plan import Grant, Plan
from kvlab.scheduling.scheduler import NO_DRAFTS, Scheduler
from kvlab.workload import Request, RequestId
from support.cases import GLOBAL


class Spy(Paged):
    """Counts the calls that a step makes, by name."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.calls: Counter[str] = Counter()

    def admit(self, request: Request) -> Admission | None:
        self.calls["admit"] += 1
        return super().admit(request)

    def extend(self, rid: RequestId, count: int) -> Extension:
        self.calls["extend"] += 1
        return super().extend(rid, count)

    def commit(self, rid: RequestId, token_ids: TokenList) -> None:
        self.calls["commit"] += 1
        super().commit(rid, token_ids)

    def release(self, rid: RequestId, reason: ReleaseReason) -> None:
        self.calls["release"] += 1
        super().release(rid, reason)


def over_blocks(blocks: int, *, size: int = 4, host: int = 0, log: EventLog | None = None, **options: Any) -> Scheduler:
    """A scheduler over `Paged` with this many blocks, and as many on the host as said."""
    policy = Spy((GLOBAL,), blocks * size, block_size=size, host_tokens=host * size, log=log)
    return Scheduler(policy, log=log, **{"token_budget": 64, "max_running": 8} | options)


def add(scheduler: Scheduler, rid: RequestId, prompt: int, output: int = 8) -> Request:
    """Queue a request of these lengths."""
    request = Request(rid, prompt, output)
    scheduler.add(request)
    return request


def compute(scheduler: Scheduler, grant: Grant, right: int = 0) -> None:
    """The grant is computed; where all known tokens are, `right` drafts at most are accepted and one token follows."""
    request, stop = grant.request, grant.start + grant.tokens
    if stop >= request.known_tokens:
        accepted = min(right, stop - request.known_tokens)
        stop = request.known_tokens + accepted
        request.generated(accepted + 1)
    scheduler.computed(grant, stop - grant.start)


def step(scheduler: Scheduler, drafts: Mapping[RequestId, int] = NO_DRAFTS, right: int = 0) -> Plan:
    """One whole step, with the policy's audit after it."""
    plan = scheduler.allocate(scheduler.decide(drafts))
    for grant in plan.granted:
        compute(scheduler, grant, right)
    scheduler.end_step()
    scheduler.policy.audit()
    return plan


def ran(plan: Plan) -> dict[RequestId, int]:
    """Request -> tokens granted, in order."""
    return {grant.request.rid: grant.tokens for grant in plan.granted}


def preempted(plan: Plan) -> list[tuple[RequestId, str]]:
    """Who lost its memory, and how."""
    return [(request.rid, how) for request, how in plan.preempted]


def rids(sequences: list[Any]) -> list[RequestId]:
    """The ids of sequences."""
    return [each.request.rid for each in sequences]
