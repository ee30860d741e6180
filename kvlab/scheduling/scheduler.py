"""Continuous batching: who runs in the next step, and who goes when memory runs out."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from operator import attrgetter
from typing import Final, Literal, TypeAlias, get_args

from kvlab.errors import InvalidInput, NeverFits, OutOfMemory, UnknownRequest, positive
from kvlab.events import EventLog
from kvlab.policies.base import Policy, ReleaseReason, checked_reason
from kvlab.scheduling.plan import Decision, Grant, Plan, Preemption, Refusal
from kvlab.scheduling.sequence import Sequence, Status
from kvlab.workload import Request, RequestId, TokenIds

Batching: TypeAlias = Literal["continuous", "static"]
NO_DRAFTS: Final[Mapping[RequestId, int]] = {}
_order = attrgetter("order")


class Scheduler:
    """First come, first served, over any policy. One step:

        decision = scheduler.decide()            who, and how many tokens, within the token budget
        plan = scheduler.allocate(decision)      slots from the policy; the latest are preempted where it has none
        ...                                      compute plan.granted
        scheduler.computed(grant, tokens)        for each; fewer tokens than granted = the rest is rolled back
        scheduler.end_step()

    At most `token_budget` tokens and `max_running` sequences a step; a long prompt is prefilled over several. A request
    that can never fit is refused for good and the next is served. Preemption takes a whole sequence: its memory is
    freed and its tokens are computed again later ("recompute"), or its KV is moved to host memory ("swap"; where the
    host is full, recomputed). `batching="static"` admits only when nobody runs, which is what servers did before.

    Nothing here computes: tokens are numbers, so a simulator drives the same object. Sources: Orca (Yu et al. 2022,
    iteration-level scheduling), Kwon et al. 2023, section 4.5.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        token_budget: int = 2048,
        max_running: int = 256,
        preemption: Preemption = "recompute",
        batching: Batching = "continuous",
        log: EventLog | None = None,
    ) -> None:
        if positive("token_budget", token_budget) < positive("max_running", max_running):
            raise InvalidInput(
                f"a budget of {token_budget} tokens a step cannot give each of {max_running} running sequences one; "
                "raise token_budget or lower max_running"
            )
        if preemption not in get_args(Preemption):
            raise InvalidInput(f"preemption is {' or '.join(get_args(Preemption))}, not {preemption!r}")
        if preemption == "swap" and not policy.can_swap:
            raise InvalidInput(
                f"{type(policy).__name__} cannot swap: give a paged policy host_tokens, or preempt by recomputing"
            )
        if batching not in get_args(Batching):
            raise InvalidInput(f"batching is {' or '.join(get_args(Batching))}, not {batching!r}")
        self.policy = policy
        self.token_budget = token_budget
        self.max_running = max_running
        self.preemption: Preemption = preemption
        self.batching = batching
        self.log = log
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.swapped: list[Sequence] = []
        self._sequences: dict[RequestId, Sequence] = {}
        self._arrivals = 0
        self._step_tokens: list[tuple[RequestId, int]] = []

    def __len__(self) -> int:
        """Sequences that are not finished."""
        return len(self._sequences)

    def __contains__(self, rid: object) -> bool:
        return rid in self._sequences

    def add(self, request: Request) -> None:
        """Put a request at the end of the queue. Raises `InvalidInput` where its id is in use."""
        self._enter(Sequence(request, (self._arrivals,)))
        self._arrivals += 1

    def _enter(self, sequence: Sequence) -> None:
        request = sequence.request
        if request.rid in self._sequences:
            raise InvalidInput(f"request {request.rid!r} is being served already; use another id")
        self._sequences[request.rid] = sequence
        insort(self.waiting, sequence, key=_order)
        if self.log is not None:
            self.log.write("arrive", request.rid, request.known_tokens)

    # One step

    def decide(self, drafts: Mapping[RequestId, int] = NO_DRAFTS) -> Decision:
        """Who should run: running sequences by their order, each its pending tokens and `drafts[rid]` more, within the
        budget; then those who may join. Changes nothing."""
        left = self.token_budget
        chosen: list[tuple[Sequence, int]] = []
        for sequence in self.running:
            if left == 0 or len(chosen) == self.max_running:
                break
            if not sequence.held:
                wanted = sequence.pending
                if drafts and wanted == 1:
                    wanted += drafts.get(sequence.request.rid, 0)
                tokens = min(wanted, left)
                chosen.append((sequence, tokens))
                left -= tokens
        places = 0 if self.batching == "static" and chosen else self.max_running - len(chosen)
        if places == 0 or left == 0:
            return Decision(chosen, [])
        joining = [each for each in self.swapped if not each.held][:places]
        for sequence in self.waiting:
            if len(joining) == places:
                break
            if not sequence.held:
                joining.append(sequence)
        return Decision(chosen, joining)

    def allocate(self, decision: Decision) -> Plan:
        """Ask the policy for the slots: of the running first, then admit until it says no or the budget is used.

        A step that had to preempt admits nobody, but in the place of held sequences that kept everybody out.
        """
        plan = Plan()
        for sequence, tokens in decision.running:
            if sequence.status is Status.RUNNING:
                self._grow(sequence, tokens, plan)
        if not plan.preempted:
            self._join(decision.joining, plan)
        if not plan.granted and not plan.refused:
            self._make_way(decision.joining, plan)
        return plan

    def _grow(self, sequence: Sequence, tokens: int, plan: Plan) -> None:
        start = sequence.request.computed
        if start + tokens > sequence.limit:
            while not self._extended(sequence, tokens):
                if tokens > sequence.pending:
                    tokens = sequence.pending  # drafts are the first to go
                elif self._preempt_one(plan) is sequence:
                    return
        plan.granted.append(Grant(sequence, start, tokens))

    def _extended(self, sequence: Sequence, tokens: int) -> bool:
        self._settle(sequence)
        try:
            extension = self.policy.extend(sequence.request.rid, tokens)
        except OutOfMemory:
            return False
        sequence.limit = extension.start + extension.count + extension.quiet
        sequence.granted = True
        return True

    def _join(self, joining: list[Sequence], plan: Plan) -> None:
        left = self.token_budget - plan.tokens
        for sequence in joining:
            if left == 0:
                return
            came_from = sequence.status
            if came_from is Status.WAITING and not self._admit(sequence, plan):
                return
            if came_from is Status.SWAPPED and not self._swap_in(sequence, plan):
                return
            if sequence.status is not Status.RUNNING:
                continue  # refused; the next one is asked
            tokens = min(sequence.pending, left)
            start = sequence.request.computed
            if start + tokens > sequence.limit and not self._extended(sequence, tokens):
                if came_from is Status.WAITING:
                    self._send_back(sequence, plan)
                return
            plan.granted.append(Grant(sequence, start, tokens))
            left -= tokens

    def _send_back(self, sequence: Sequence, plan: Plan) -> None:
        """Admission saw room that others have been promised: the sequence just admitted leaves as it came."""
        plan.admitted.pop()
        self.running.remove(sequence)
        self._requeue(sequence)

    def _admit(self, sequence: Sequence, plan: Plan) -> bool:
        """Whether the next in line may be asked."""
        request = sequence.request
        try:
            admission = self.policy.admit(request)
        except NeverFits as error:
            self.waiting.remove(sequence)
            del self._sequences[request.rid]
            plan.refused.append(Refusal(request, str(error)))
            if self.log is not None:
                self.log.write("refuse", request.rid, str(error))
            return True
        if admission is None:
            return False
        self.waiting.remove(sequence)
        request.computed = sequence.committed = sequence.limit = admission.cached_tokens
        self._run(sequence)
        plan.admitted.append((request, admission.cached_tokens))
        return True

    def _swap_in(self, sequence: Sequence, plan: Plan) -> bool:
        request = sequence.request
        try:
            self.policy.swap_in(request.rid)
        except OutOfMemory:
            return False
        self.swapped.remove(sequence)
        self._run(sequence)
        plan.swapped_in.append(request)
        return True

    def _run(self, sequence: Sequence) -> None:
        sequence.status = Status.RUNNING
        insort(self.running, sequence, key=_order)

    def _make_way(self, joining: list[Sequence], plan: Plan) -> None:
        """Held sequences fill the memory and nobody else can run: the last of them go until somebody can."""
        while joining and not plan.granted and any(each.held for each in self.running):
            self._preempt_one(plan)
            self._join(joining, plan)

    def _preempt_one(self, plan: Plan) -> Sequence:
        held = [each for each in self.running if each.held]
        victim = held[-1] if held else self.running[-1]
        self._preempt(victim, plan)
        return victim

    def _preempt(self, sequence: Sequence, plan: Plan) -> None:
        self._settle(sequence)
        self.running.remove(sequence)
        request = sequence.request
        if self.preemption == "swap":
            try:
                self.policy.swap_out(request.rid)
            except OutOfMemory:
                pass  # the host is full: recompute, and the plan says so
            else:
                sequence.status = Status.SWAPPED
                sequence.limit = sequence.committed
                insort(self.swapped, sequence, key=_order)
                plan.preempted.append((request, "swap"))
                return
        self._requeue(sequence)
        plan.preempted.append((request, "recompute"))

    def _requeue(self, sequence: Sequence) -> None:
        self.policy.release(sequence.request.rid, "preempted")
        sequence.status = Status.WAITING
        sequence.committed = sequence.limit = 0
        insort(self.waiting, sequence, key=_order)

    def _settle(self, sequence: Sequence) -> None:
        """Tell the policy the tokens of a quiet run."""
        request = sequence.request
        if request.computed > sequence.committed:
            self.policy.commit(request.rid, self._ids(request, sequence.committed, request.computed))
            sequence.committed = request.computed

    def _ids(self, request: Request, start: int, stop: int) -> range | TokenIds:
        return request.token_ids(start, stop) if self.policy.reads_tokens else range(start, stop)

    def computed(self, grant: Grant, tokens: int) -> None:
        """The KV of the first `tokens` tokens of the grant is computed and stays; drafts beyond them are rejected.

        Accepted drafts must be known tokens of the request by now.
        """
        sequence, start, _ = grant
        request = sequence.request
        stop = start + tokens
        if sequence.granted:
            sequence.granted = False
            self.policy.commit(request.rid, self._ids(request, start, stop))
            sequence.committed = stop
            if tokens < grant.tokens:
                sequence.limit = stop
        else:
            request.computed = stop
            if stop >= sequence.limit:  # the run is used up: a block that it filled can be found by others from now on
                self._settle(sequence)
        self._step_tokens.append((request.rid, tokens))

    def end_step(self) -> None:
        """End the frame of the log."""
        if self.log is not None:
            self.log.step(self._step_tokens)
        self._step_tokens = []

    def abandon(self, plan: Plan) -> None:
        """The step was interrupted: what is not computed by now is rolled back, and it can be decided again.

        What is computed already makes a frame of the log.
        """
        some_computed = bool(self._step_tokens)
        for grant in plan.granted:
            if grant.sequence.granted:
                self.computed(grant, 0)
        if some_computed:
            self.end_step()
        self._step_tokens = []

    # Between steps

    def fork(self, parent: RequestId, child: Request, *, share: bool = True) -> None:
        """`child`, a fork of the parent's request, runs from where the parent is.

        Its KV is shared (or copied: the policy decides) where the parent is in memory and there is room for it;
        otherwise, and with `share=False`, the child queues behind its parent and its KV is computed, or found in a
        prefix cache.
        """
        source = self._sequence(parent)
        if child.rid in self._sequences:
            raise InvalidInput(f"request {child.rid!r} is being served already; use another id")
        source.forks += 1
        sequence = Sequence(child, (*source.order, source.forks))
        if share and source.status is Status.RUNNING:
            self._settle(source)
            try:
                self.policy.fork(parent, child)
            except OutOfMemory:
                pass  # the child queues, as the docstring says
            else:
                sequence.committed = sequence.limit = child.computed
                source.limit = source.committed
                self._sequences[child.rid] = sequence
                self._run(sequence)
                return
        child.computed = 0
        self._enter(sequence)

    def hold(self, rid: RequestId) -> None:
        """Leave the sequence out of the next steps until `resume`; it may be preempted meanwhile."""
        self._sequence(rid).held = True

    def resume(self, rid: RequestId) -> None:
        """Let a held sequence run again."""
        self._sequence(rid).held = False

    def finish(self, rid: RequestId, reason: ReleaseReason = "finished") -> None:
        """Forget the sequence and free what it holds, wherever it is. Raises `UnknownRequest`."""
        sequence = self._sequence(rid)
        checked_reason(reason)
        if sequence.status is Status.RUNNING:
            self._settle(sequence)
            self.running.remove(sequence)
            self.policy.release(rid, reason)
        elif sequence.status is Status.SWAPPED:
            self.swapped.remove(sequence)
            self.policy.release(rid, reason)
        else:
            self.waiting.remove(sequence)
            if self.log is not None:
                self.log.write("release", rid, reason)
        del self._sequences[rid]

    def _sequence(self, rid: RequestId) -> Sequence:
        try:
            return self._sequences[rid]
        except KeyError:
            raise UnknownRequest(f"request {rid!r} is not being served; {len(self)} sequences are") from None
