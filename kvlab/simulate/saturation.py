"""A saturated server: how much of the KV memory holds tokens, averaged over many decode steps.

First come, first served, every running request makes one token a step, a prompt is prefilled in the step that admits
it, and the queue never empties. The policy is called only when a quiet run ends, so a simulated token costs far less
than a call; nothing is approximated by that (a test compares with calling at every step).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvlab.errors import InvalidInput, OutOfMemory, positive
from kvlab.policies.base import Policy, Usage
from kvlab.workload import Request, RequestId, Workload


@dataclass(frozen=True)
class Saturation:
    """Time averages over the steps after the warm-up. `shares` are fractions of the pool, by accounting term."""

    policy: str
    workload: str
    shares: dict[str, float]
    requests_in_flight: float
    steps: int
    tokens: int
    finished: int
    preempted: int


class _Run:
    """A running request: `committed` tokens at step `since`, one more each step; the policy is due at step `due`."""

    __slots__ = ("committed", "due", "final", "order", "quiet", "request", "since")

    def __init__(self, request: Request, order: int) -> None:
        self.request = request
        self.final = request.final_tokens
        self.order = order
        self.committed = self.since = self.due = self.quiet = 0


class SaturatedServer:
    """Runs `policy` on the endless requests of `queue`. `skip=False` calls the policy at every token instead."""

    def __init__(self, policy: Policy, queue: Iterator[Request], *, skip: bool = True) -> None:
        self.policy = policy
        self.now = 0
        self.finished = self.preempted = self._committed = 0
        self._skip = skip
        self._queue = queue
        self._waiting = deque([next(queue)])
        self._running: dict[RequestId, _Run] = {}
        self._due: list[tuple[int, int, RequestId]] = []
        self._admitted = 0
        # Whether memory was given back since the head of the queue was refused; until then it would be again.
        self._room = True

    def __len__(self) -> int:
        return len(self._running)

    @property
    def tokens(self) -> int:
        """Tokens generated so far, those of quiet runs that still go on included."""
        return self._committed + sum(max(0, self.now - run.since) for run in self._running.values())

    def advance(self, until: int) -> None:
        """Run to step `until`; afterwards every `request.computed` is exact and `policy.usage()` can be read."""
        self._admit()
        while self._due and self._due[0][0] <= until:
            self.now, order, rid = heapq.heappop(self._due)
            run = self._running.get(rid)
            if run is not None and run.order == order and run.due == self.now:
                self._call(run)
            if not self._due or self._due[0][0] > self.now:
                self._admit()
        self.now = until
        for run in self._running.values():
            run.request.computed = run.committed + max(0, until - run.since)

    def usage(self) -> dict[str, Usage]:
        """The policy's accounting, with what the head of the queue needs."""
        return self.policy.usage(self.policy.slots_needed(self._waiting[0]))

    def _call(self, run: _Run) -> None:
        request = run.request
        self._commit(run)
        if run.committed == run.final:
            self.policy.release(request.rid, "finished")
            self._room = True
            del self._running[request.rid]
            self.finished += 1
        else:
            self._schedule(run)

    def _commit(self, run: _Run) -> None:
        stop = run.committed + max(0, self.now - run.since)
        if stop > run.committed:
            request, start = run.request, run.committed
            ids = request.token_ids(start, stop) if self.policy.reads_tokens else range(start, stop)
            self.policy.commit(request.rid, ids)
            self._committed += stop - start
            # What is committed may be a prefix that the head of the queue then finds.
            self._room = self._room or self.policy.reads_tokens
            run.quiet -= stop - start
            run.committed, run.since = stop, self.now

    def _schedule(self, run: _Run) -> None:
        if run.quiet == 0:
            while True:
                try:
                    run.quiet = 1 + self.policy.extend(run.request.rid, 1).quiet
                    break
                except OutOfMemory:
                    if self._preempt_latest() is run:
                        return
        run.due = self.now + self._quiet_steps(run)
        heapq.heappush(self._due, (run.due, run.order, run.request.rid))

    def _quiet_steps(self, run: _Run) -> int:
        steps = min(run.quiet, run.final - run.committed)
        return steps if self._skip else min(steps, 1)

    def _preempt_latest(self) -> _Run:
        victim = next(reversed(self._running.values()))
        request = victim.request
        self._commit(victim)
        self.policy.release(request.rid, "preempted")
        self._room = True
        del self._running[request.rid]
        request.generated(victim.committed - request.known_tokens)
        self._waiting.appendleft(request)
        self.preempted += 1
        return victim

    def _admit(self) -> None:
        while self._room:
            request = self._waiting[0]
            admission = self.policy.admit(request)
            if admission is None:
                self._room = False
                return
            self._waiting.popleft()
            if not self._waiting:
                self._waiting.append(next(self._queue))
            run = _Run(request, self._admitted)
            self._admitted += 1
            self._running[request.rid] = run
            cached, known = admission.cached_tokens, request.known_tokens
            extension = self.policy.extend(request.rid, known - cached)
            ids = request.token_ids(cached, known) if self.policy.reads_tokens else range(cached, known)
            self.policy.commit(request.rid, ids)
            # The prompt takes this step; the first token is made in the next.
            run.committed, run.since, run.quiet = known, self.now + 1, extension.quiet
            run.due = run.since + self._quiet_steps(run)
            heapq.heappush(self._due, (run.due, run.order, request.rid))


def saturate(
    policy: Policy,
    workload: Workload,
    *,
    steps: int = 300_000,
    warmup_steps: int = 5_000,
    sample_every: int = 20,
    seed: int = 0,
    skip: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Saturation:
    """Serve `workload` (shuffled, repeated without end) for `steps` decode steps and average the accounting.

    The full pool's `usage()` is read every `sample_every` steps after the warm-up. `progress(done, of)` is called now
    and then. Raises `NeverFits` if a request of the workload is larger than the pool.
    """
    positive("steps", steps)
    positive("sample_every", sample_every)
    if not 0 <= warmup_steps < steps:
        raise InvalidInput(f"warmup_steps must be in [0, {steps}), not {warmup_steps}")
    server = SaturatedServer(policy, workload.saturated(seed), skip=skip)
    server.advance(warmup_steps)
    base = (server.tokens, server.finished, server.preempted)
    sums, in_flight, samples = [0.0] * len(Usage._fields), 0, 0
    for step in range(warmup_steps + 1, steps + 1, sample_every):
        server.advance(step)
        usage = server.usage()["full"]
        capacity = usage.capacity
        sums = [total + value / capacity for total, value in zip(sums, usage, strict=True)]
        in_flight += len(server)
        samples += 1
        if progress is not None and samples % 500 == 0:
            progress(step, steps)
    if progress is not None:
        progress(steps, steps)
    return Saturation(
        type(policy).__name__,
        workload.name,
        {name: total / samples for name, total in zip(Usage._fields, sums, strict=True)},
        in_flight / samples,
        steps,
        server.tokens - base[0],
        server.finished - base[1],
        server.preempted - base[2],
    )
