"""Requests of known length, served step by step: who ran when, who waited, what was computed twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvlab.errors import InvalidInput, InvariantViolation, positive
from kvlab.scheduling.plan import Plan, Refusal
from kvlab.scheduling.scheduler import NO_DRAFTS, Scheduler
from kvlab.workload import Request, RequestId


@dataclass(frozen=True, slots=True)
class Record:
    """One request. Times are numbers of steps done: it came after `arrived` steps, step `first_token` made its first
    token and step `finished` its last (None where that did not happen). In `waited` of the steps between it computed
    nothing. `preempted` counts how often it lost its memory."""

    rid: RequestId
    arrived: int
    first_token: int | None
    finished: int | None
    waited: int
    preempted: int


@dataclass(frozen=True)
class Served:
    """What `serve` did.

    `tokens` were generated; `computed` counts the tokens whose KV was computed and kept, `computed_again` those of
    them that had been computed before and were lost to a preemption. `swapped_tokens` went to the host or came back.
    `mean_batch` is the number of sequences in a step, over the steps that had any. `requests` has a record of each
    request that came and was not refused, in order of arrival.
    """

    steps: int
    tokens: int
    computed: int
    computed_again: int
    swapped_tokens: int
    mean_batch: float
    requests: dict[RequestId, Record]
    refusals: tuple[Refusal, ...]

    @property
    def preemptions(self) -> int:
        """How often a sequence lost its memory."""
        return sum(record.preempted for record in self.requests.values())


class _Course:
    """A request on its way."""

    __slots__ = ("arrived", "finished", "first_token", "highest", "preempted", "ran", "request")

    def __init__(self, request: Request, arrived: int) -> None:
        self.request = request
        self.arrived = arrived
        self.first_token: int | None = None
        self.finished: int | None = None
        self.ran = self.preempted = self.highest = 0

    def record(self, steps: int) -> Record:
        alive = (steps if self.finished is None else self.finished) - self.arrived
        return Record(self.request.rid, self.arrived, self.first_token, self.finished, alive - self.ran, self.preempted)


class _Server:
    def __init__(self, scheduler: Scheduler, drafts: int, accepted: int) -> None:
        self.scheduler = scheduler
        self.drafts, self.accepted = drafts, accepted
        self.courses: dict[RequestId, _Course] = {}
        self.refusals: list[Refusal] = []
        self.steps = self.busy = self.done = 0
        self.generated = self.computed = self.computed_again = self.swapped = self.granted = 0

    def add(self, request: Request) -> None:
        self.scheduler.add(request)
        self.courses[request.rid] = _Course(request, self.steps)

    def step(self) -> None:
        scheduler = self.scheduler
        self.steps += 1
        ended: list[RequestId] = []
        if len(scheduler):
            plan = scheduler.allocate(scheduler.decide(self._drafts()))
            self._note(plan)
            ended = self._compute(plan)
        scheduler.end_step()
        for rid in ended:
            self.courses[rid].finished = self.steps
            scheduler.finish(rid)
        self.done += len(ended)

    def _drafts(self) -> Mapping[RequestId, int]:
        if not self.drafts:
            return NO_DRAFTS
        running = [each.request for each in self.scheduler.running]
        return {each.rid: min(self.drafts, each.final_tokens - each.known_tokens - 1) for each in running}

    def _note(self, plan: Plan) -> None:
        for request, _ in plan.preempted:
            self.courses[request.rid].preempted += 1
        for refusal in plan.refused:
            del self.courses[refusal.request.rid]
        self.refusals += plan.refused
        self.done += len(plan.refused)
        self.swapped += sum(move.tokens for move in self.scheduler.policy.drain_moves() if move.why.startswith("swap"))
        if plan.granted:
            self.busy += 1
            self.granted += len(plan.granted)
        elif not plan.refused:
            left = self.scheduler
            raise InvariantViolation(
                f"step {self.steps} computed nothing for {len(left)} sequences: {len(left.running)} are in memory, "
                f"{len(left.swapped)} on the host, {len(left.waiting)} wait"
            )

    def _compute(self, plan: Plan) -> list[RequestId]:
        """The requests that made their last token."""
        ended = []
        for grant in plan.granted:
            request, start = grant.request, grant.start
            course, known = self.courses[request.rid], request.known_tokens
            stop = start + grant.tokens
            if stop >= known:
                right = min(self.accepted, stop - known)
                stop = known + right
                request.generated(right + 1)
                self.generated += right + 1
                course.first_token = course.first_token or self.steps
                if request.known_tokens == request.final_tokens:
                    ended.append(request.rid)
            self.scheduler.computed(grant, stop - start)
            self.computed += stop - start
            self.computed_again += max(0, min(stop, course.highest) - start)
            course.highest = max(course.highest, stop)
            course.ran += 1
        return ended

    def served(self) -> Served:
        return Served(
            self.steps,
            self.generated,
            self.computed,
            self.computed_again,
            self.swapped,
            self.granted / self.busy if self.busy else 0.0,
            {rid: course.record(self.steps) for rid, course in self.courses.items()},
            tuple(self.refusals),
        )


def serve(
    scheduler: Scheduler,
    requests: Iterable[Request],
    *,
    arrivals: Sequence[int] | None = None,
    drafts: int = 0,
    accepted: int = 0,
    max_steps: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Served:
    """Serve `requests` (a `Workload` is one way to have some) to their true lengths; nothing is computed but lengths.

    Request i comes when `arrivals[i]` steps are done, all at once without `arrivals` (`arrival_s` is not read). The
    step that completes a prompt makes the first token, each further step one more; with `drafts`, up to that many are
    tried besides, of which the first `accepted` are right. `max_steps` ends it early. `progress(done, of)` counts
    requests. With one log in scheduler and policy it tells everything, for `Replay` and the timeline.

    Raises `InvalidInput` (nothing changed) for requests that were served before or have real token ids, two of one id,
    and a scheduler in use; `InvariantViolation` where a step computes nothing although sequences remain.
    """
    if len(scheduler):
        raise InvalidInput(f"the scheduler has {len(scheduler)} sequences already; give serve one of its own")
    if not 0 <= accepted <= drafts:
        raise InvalidInput(f"of {drafts} drafts, 0 to {drafts} can be accepted, not {accepted}")
    if max_steps is not None:
        positive("max_steps", max_steps)
    coming = _in_order(list(requests), arrivals)
    server, of = _Server(scheduler, drafts, accepted), len(coming)
    while (coming or len(scheduler)) and server.steps != max_steps:
        while coming and coming[0][0] <= server.steps:
            server.add(coming.popleft()[1])
        done = server.done
        server.step()
        if progress is not None and server.done > done:
            progress(server.done, of)
    return server.served()


def _in_order(requests: list[Request], arrivals: Sequence[int] | None) -> deque[tuple[int, Request]]:
    times = [0] * len(requests) if arrivals is None else [int(step) for step in arrivals]
    if len(times) != len(requests):
        raise InvalidInput(f"{len(requests)} requests need as many arrivals, not {len(times)}")
    if times and min(times) < 0:
        raise InvalidInput(f"a request comes after 0 steps or more, not {min(times)}")
    if len({request.rid for request in requests}) < len(requests):
        raise InvalidInput("two requests have the same id; each needs its own")
    for request in requests:
        request.generated(0)  # refuses one with real token ids, which has no next token here
        if request.known_tokens > request.prompt_tokens or request.computed:
            raise InvalidInput(f"{request!r} was served before; make the requests anew")
    return deque(sorted(zip(times, requests, strict=True), key=lambda each: each[0]))
