"""One schedule served twice: with a call at every token, and with calls only where a quiet run ends."""

import random
from collections import deque
from typing import NamedTuple

from kvlab.errors import OutOfMemory
from kvlab.events import Event, EventLog
from kvlab.policies.base import Policy, Usage
from kvlab.policies.layout import Layout, Table
from kvlab.workload import Request, RequestId
from support.cases import PolicyCase


class Moment(NamedTuple):
    """What can be seen of a policy after a step."""

    usage: dict[str, Usage]
    layouts: dict[RequestId, tuple[object, ...]]
    computed: dict[RequestId, int]


def seen(layout: Layout) -> object:
    """A layout by value."""
    return (list(layout.blocks), layout.start, layout.end) if isinstance(layout, Table) else layout


class Lockstep:
    """First come, first served; every running request makes one token a step; now and then one is forked."""

    def __init__(self, policy: Policy, seed: int, *, every_token: bool, requests: int = 14) -> None:
        self.policy = policy
        self.every_token = every_token
        self.rng = random.Random(seed)
        self.queue = deque(self.request(rid) for rid in range(requests))
        self.running: dict[RequestId, Request] = {}
        self.committed: dict[RequestId, int] = {}
        self.room: dict[RequestId, int] = {}
        self.preempted = self.forked = 0

    def request(self, rid: RequestId) -> Request:
        output = self.rng.randint(1, 12)
        return Request(rid, self.rng.randint(1, 18), 12, output_tokens=output, conversation=int(rid) % 3)

    def run(self, steps: int = 60) -> list[Moment]:
        """What can be seen after each step."""
        return [self.step(number) for number in range(steps)]

    def step(self, number: int) -> Moment:
        while self.queue and (admission := self.policy.admit(self.queue[0])) is not None:
            request = self.queue.popleft()
            new = request.known_tokens - admission.cached_tokens
            extension = self.policy.extend(request.rid, new)
            self.commit(request, new)
            self.run_from_here(request, extension.quiet)
        for rid, request in list(self.running.items()):
            if rid in self.running:
                self.decode(rid, request)
        if number % 7 == 3 and self.running:
            self.fork(next(iter(self.running)), f"child-{number}")
        self.policy.audit()
        return Moment(
            self.policy.usage(9),
            {rid: tuple(map(seen, self.policy.layout(rid))) for rid in self.running},
            {rid: request.computed for rid, request in self.running.items()},
        )

    def run_from_here(self, request: Request, quiet: int) -> None:
        self.running[request.rid] = request
        self.committed[request.rid] = request.computed
        self.room[request.rid] = quiet

    def commit(self, request: Request, count: int) -> None:
        """The next tokens after the committed ones."""
        start = self.committed.get(request.rid, request.computed)
        ids = request.token_ids(start, start + count) if self.policy.reads_tokens else range(count)
        self.policy.commit(request.rid, ids)
        self.committed[request.rid] = start + count

    def settle(self, rid: RequestId) -> None:
        request = self.running[rid]
        pending = request.computed - self.committed[rid]
        if pending:
            self.commit(request, pending)

    def decode(self, rid: RequestId, request: Request) -> None:
        if request.computed >= request.final_tokens:
            self.settle(rid)
            self.policy.release(rid, "finished")
            del self.running[rid], self.committed[rid]
            return
        if self.every_token or not self.room[rid]:
            self.settle(rid)
            while True:
                try:
                    self.room[rid] = 1 + self.policy.extend(rid, 1).quiet
                    break
                except OutOfMemory:
                    if self.preempt() == rid:
                        return
        if self.every_token:
            self.commit(request, 1)
        else:
            request.computed += 1
        self.room[rid] -= 1
        if not self.room[rid]:
            self.settle(rid)

    def preempt(self) -> RequestId:
        rid = next(reversed(self.running))
        self.settle(rid)
        request = self.running.pop(rid)
        done = request.computed
        self.policy.release(rid, "preempted")
        del self.committed[rid]
        request.generated(max(0, done - request.known_tokens))
        self.queue.appendleft(request)
        self.preempted += 1
        return rid

    def fork(self, parent: RequestId, child: RequestId) -> None:
        self.settle(parent)
        request = self.running[parent].fork(child)
        try:
            self.policy.fork(parent, request)
        except OutOfMemory:
            return
        self.room[parent] = 0
        self.run_from_here(request, 0)
        self.forked += 1


def without_steps(log: EventLog) -> list[Event]:
    """What the policy itself wrote."""
    return [event for event in log if event[0] != "step"]


def both_ways(case: PolicyCase, seed: int) -> tuple[list[Moment], list[Moment], EventLog, EventLog]:
    """The moments and logs of both, the first with a call at every token."""
    logs = EventLog(), EventLog()
    every, quiet = (
        Lockstep(case.build(log), seed, every_token=flag).run() for log, flag in zip(logs, (True, False), strict=True)
    )
    return every, quiet, *logs
