"""Bugs planted into the scheduler; the state machine must catch every one."""

from collections.abc import Mapping

import pytest
from support.machines import Bug, catches
from support.scheduler_cases import KINDS
from support.scheduler_machine import machine_of

from kvlab.errors import NeverFits
from kvlab.events import EventLog
from kvlab.policies.base import ReleaseReason
from kvlab.policies.paged import Paged
from kvlab.scheduling.plan import Decision, Grant, Plan
from kvlab.scheduling.scheduler import Scheduler
from kvlab.scheduling.sequence import Sequence, Status
from kvlab.workload import Request, RequestId


def the_budget_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    decide = Scheduler.decide

    def buggy(self: Scheduler, drafts: Mapping[RequestId, int]) -> Decision:
        running, joining = decide(self, drafts)
        return Decision([(sequence, max(tokens, sequence.pending)) for sequence, tokens in running], joining)

    patch.setattr(Scheduler, "decide", buggy)


def joining_forgets_what_the_running_use(patch: pytest.MonkeyPatch) -> None:
    join = Scheduler._join

    def buggy(self: Scheduler, joining: list[Sequence], plan: Plan) -> None:
        join(self, joining, plan2 := Plan(admitted=plan.admitted, swapped_in=plan.swapped_in, refused=plan.refused))
        plan.granted += plan2.granted

    patch.setattr(Scheduler, "_join", buggy)


def max_running_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    decide = Scheduler.decide

    def buggy(self: Scheduler, drafts: Mapping[RequestId, int]) -> Decision:
        running, joining = decide(self, drafts)
        if joining:
            joining = [each for each in [*self.swapped, *self.waiting] if not each.held]
        return Decision(running, joining)

    patch.setattr(Scheduler, "decide", buggy)


def max_running_is_forgotten_for_those_on_the_host(patch: pytest.MonkeyPatch) -> None:
    decide = Scheduler.decide

    def buggy(self: Scheduler, drafts: Mapping[RequestId, int]) -> Decision:
        running, joining = decide(self, drafts)
        if joining and joining[0].status is Status.SWAPPED:
            joining = [each for each in self.swapped if not each.held]
        return Decision(running, joining)

    patch.setattr(Scheduler, "decide", buggy)


def held_sequences_run(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "hold", lambda self, rid: self._sequence(rid))


def the_first_is_preempted(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: Scheduler, plan: Plan) -> Sequence:
        victim = next(each for each in self.running if not each.granted)
        self._preempt(victim, plan)
        return victim

    patch.setattr(Scheduler, "_preempt_one", buggy)


def held_sequences_stay(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: Scheduler, plan: Plan) -> Sequence:
        victim = self.running[-1]
        self._preempt(victim, plan)
        return victim

    patch.setattr(Scheduler, "_preempt_one", buggy)


def nobody_makes_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "_make_way", lambda self, joining, plan: None)


def a_step_that_preempted_admits(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: Scheduler, decision: Decision) -> Plan:
        plan = Plan()
        for sequence, tokens in decision.running:
            if sequence.status is Status.RUNNING:
                self._grow(sequence, tokens, plan)
        self._join(decision.joining, plan)
        if not plan.granted and not plan.refused:
            self._make_way(decision.joining, plan)
        return plan

    patch.setattr(Scheduler, "allocate", buggy)


def a_preempted_sequence_goes_to_the_end(patch: pytest.MonkeyPatch) -> None:
    requeue = Scheduler._requeue

    def buggy(self: Scheduler, sequence: Sequence) -> None:
        requeue(self, sequence)
        self.waiting.remove(sequence)
        self.waiting.append(sequence)

    patch.setattr(Scheduler, "_requeue", buggy)


def swapping_forgets_what_was_computed(patch: pytest.MonkeyPatch) -> None:
    swap_out = Paged.swap_out

    def buggy(self: Paged, rid: RequestId) -> None:
        swap_out(self, rid)
        self._swapped[rid][0].computed = 0

    patch.setattr(Paged, "swap_out", buggy)


def half_a_sequence_is_preempted(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: Scheduler, sequence: Sequence) -> None:
        sequence.status = Status.WAITING
        sequence.committed = sequence.limit = 0
        self.waiting.append(sequence)

    patch.setattr(Scheduler, "_requeue", buggy)


def a_quiet_run_is_lost_in_a_preemption(patch: pytest.MonkeyPatch) -> None:
    preempt = Scheduler._preempt

    def buggy(self: Scheduler, sequence: Sequence, plan: Plan) -> None:
        sequence.request.computed = sequence.committed
        preempt(self, sequence, plan)

    patch.setattr(Scheduler, "_preempt", buggy)


def a_quiet_run_is_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "_settle", lambda self, sequence: None)


def a_swapped_sequence_stays_on_the_list(patch: pytest.MonkeyPatch) -> None:
    swap_in = Scheduler._swap_in

    def buggy(self: Scheduler, sequence: Sequence, plan: Plan) -> bool:
        came = swap_in(self, sequence, plan)
        if came:
            self.swapped.append(sequence)
        return came

    patch.setattr(Scheduler, "_swap_in", buggy)


def a_swapped_sequence_keeps_its_limit(patch: pytest.MonkeyPatch) -> None:
    preempt = Scheduler._preempt

    def buggy(self: Scheduler, sequence: Sequence, plan: Plan) -> None:
        limit = sequence.limit
        preempt(self, sequence, plan)
        sequence.limit = limit

    patch.setattr(Scheduler, "_preempt", buggy)


def the_queue_is_served_from_its_end(patch: pytest.MonkeyPatch) -> None:
    decide = Scheduler.decide

    def buggy(self: Scheduler, drafts: Mapping[RequestId, int]) -> Decision:
        running, joining = decide(self, drafts)
        return Decision(running, joining[::-1])

    patch.setattr(Scheduler, "decide", buggy)


def an_impossible_request_blocks_the_queue(patch: pytest.MonkeyPatch) -> None:
    admit = Scheduler._admit

    def buggy(self: Scheduler, sequence: Sequence, plan: Plan) -> bool:
        try:
            Paged.admit(self.policy, Request("trial", sequence.request.prompt_tokens, sequence.request.max_tokens))
        except NeverFits:
            return False
        self.policy.release("trial", "finished")
        return admit(self, sequence, plan)

    patch.setattr(Scheduler, "_admit", buggy)


def an_impossible_request_is_not_forgotten(patch: pytest.MonkeyPatch) -> None:
    admit = Scheduler._admit

    def buggy(self: Scheduler, sequence: Sequence, plan: Plan) -> bool:
        refused = len(plan.refused)
        may_go_on = admit(self, sequence, plan)
        if len(plan.refused) > refused:
            self._sequences[sequence.request.rid] = sequence
        return may_go_on

    patch.setattr(Scheduler, "_admit", buggy)


def what_was_found_in_the_cache_is_computed_again(patch: pytest.MonkeyPatch) -> None:
    admit = Scheduler._admit

    def buggy(self: Scheduler, sequence: Sequence, plan: Plan) -> bool:
        may_go_on = admit(self, sequence, plan)
        sequence.request.computed = 0
        return may_go_on

    patch.setattr(Scheduler, "_admit", buggy)


def a_limit_is_one_too_large(patch: pytest.MonkeyPatch) -> None:
    extended = Scheduler._extended

    def buggy(self: Scheduler, sequence: Sequence, tokens: int) -> bool:
        done = extended(self, sequence, tokens)
        sequence.limit += done
        return done

    patch.setattr(Scheduler, "_extended", buggy)


def rejected_drafts_leave_the_quiet_run(patch: pytest.MonkeyPatch) -> None:
    computed = Scheduler.computed

    def buggy(self: Scheduler, grant: Grant, tokens: int) -> None:
        limit = grant.sequence.limit
        computed(self, grant, tokens)
        grant.sequence.limit = limit

    patch.setattr(Scheduler, "computed", buggy)


def rejected_drafts_are_kept(patch: pytest.MonkeyPatch) -> None:
    computed = Scheduler.computed
    patch.setattr(Scheduler, "computed", lambda self, grant, tokens: computed(self, grant, grant.tokens))


def a_fork_leaves_the_parents_quiet_run(patch: pytest.MonkeyPatch) -> None:
    fork = Scheduler.fork

    def buggy(self: Scheduler, parent: RequestId, child: Request, *, share: bool = True) -> None:
        limit = self._sequences[parent].limit if parent in self._sequences else 0
        fork(self, parent, child, share=share)
        self._sequences[parent].limit = max(limit, self._sequences[parent].limit)

    patch.setattr(Scheduler, "fork", buggy)


def a_queued_fork_believes_it_is_computed(patch: pytest.MonkeyPatch) -> None:
    fork = Scheduler.fork

    def buggy(self: Scheduler, parent: RequestId, child: Request, *, share: bool = True) -> None:
        computed = child.computed
        fork(self, parent, child, share=share)
        child.computed = computed

    patch.setattr(Scheduler, "fork", buggy)


def a_fork_without_room_is_lost(patch: pytest.MonkeyPatch) -> None:
    enter = Scheduler._enter

    def buggy(self: Scheduler, sequence: Sequence) -> None:
        enter(self, sequence)
        if len(sequence.order) > 1:
            self.waiting.remove(sequence)

    patch.setattr(Scheduler, "_enter", buggy)


def forks_of_one_parent_have_one_place(patch: pytest.MonkeyPatch) -> None:
    fork = Scheduler.fork

    def buggy(self: Scheduler, parent: RequestId, child: Request, *, share: bool = True) -> None:
        fork(self, parent, child, share=share)
        sequence = self._sequences[child.rid]
        sequence.order = sequence.order[:-2] + sequence.order[-1:]

    patch.setattr(Scheduler, "fork", buggy)


def an_interrupted_step_stays_extended(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "abandon", lambda self, plan: self.end_step())


def an_interrupted_step_is_half_told(patch: pytest.MonkeyPatch) -> None:
    abandon = Scheduler.abandon

    def buggy(self: Scheduler, plan: Plan) -> None:
        self._step_tokens = []
        abandon(self, plan)

    patch.setattr(Scheduler, "abandon", buggy)


def what_leaves_in_a_quiet_run_leaves_its_memory(patch: pytest.MonkeyPatch) -> None:
    finish = Scheduler.finish

    def buggy(self: Scheduler, rid: RequestId, reason: ReleaseReason = "finished") -> None:
        sequence = self._sequence(rid)
        if sequence.status is Status.RUNNING and sequence.request.computed > sequence.committed:
            self.running.remove(sequence)
            del self._sequences[rid]
            return
        finish(self, rid, reason)

    patch.setattr(Scheduler, "finish", buggy)


def what_leaves_the_host_leaves_its_memory(patch: pytest.MonkeyPatch) -> None:
    finish = Scheduler.finish

    def buggy(self: Scheduler, rid: RequestId, reason: ReleaseReason = "finished") -> None:
        sequence = self._sequence(rid)
        if sequence.status is Status.SWAPPED:
            self.swapped.remove(sequence)
            del self._sequences[rid]
            return
        finish(self, rid, reason)

    patch.setattr(Scheduler, "finish", buggy)


def static_batches_are_joined(patch: pytest.MonkeyPatch) -> None:
    decide = Scheduler.decide

    def buggy(self: Scheduler, drafts: Mapping[RequestId, int]) -> Decision:
        batching, self.batching = self.batching, "continuous"
        decision = decide(self, drafts)
        self.batching = batching
        return decision

    patch.setattr(Scheduler, "decide", buggy)


def events_are_lost(kind: str) -> Bug:
    def bug(patch: pytest.MonkeyPatch) -> None:
        write = EventLog.write
        patch.setattr(EventLog, "write", lambda self, *event: None if event[0] == kind else write(self, *event))

    return bug


def steps_tell_nothing(patch: pytest.MonkeyPatch) -> None:
    step = EventLog.step
    patch.setattr(EventLog, "step", lambda self, tokens: step(self, list(tokens)[1:]))


BUGS: dict[str, tuple[str, Bug]] = {
    "the budget forgotten": ("Paged", the_budget_is_forgotten),
    "those who join get a budget of their own": ("Paged", joining_forgets_what_the_running_use),
    "max_running forgotten": ("Paged", max_running_is_forgotten),
    "max_running forgotten on the host": ("Paged with swap", max_running_is_forgotten_for_those_on_the_host),
    "held sequences run": ("Paged", held_sequences_run),
    "the first is preempted": ("Paged", the_first_is_preempted),
    "held sequences outlive those that run": ("Paged", held_sequences_stay),
    "nobody makes way": ("Contiguous", nobody_makes_way),
    "a step that preempted admits": ("Paged", a_step_that_preempted_admits),
    "the preempted go to the end of the queue": ("Paged", a_preempted_sequence_goes_to_the_end),
    "swapping forgets what was computed": ("Paged with swap", swapping_forgets_what_was_computed),
    "a preempted sequence keeps its memory": ("Paged", half_a_sequence_is_preempted),
    "a quiet run lost in a preemption": ("Paged with swap", a_quiet_run_is_lost_in_a_preemption),
    "quiet runs not told": ("Paged", a_quiet_run_is_not_told),
    "one swapped in is still on the list": ("Paged with swap", a_swapped_sequence_stays_on_the_list),
    "one swapped out keeps its limit": ("Paged with swap", a_swapped_sequence_keeps_its_limit),
    "last come, first served": ("Paged", the_queue_is_served_from_its_end),
    "an impossible request blocks the queue": ("Paged", an_impossible_request_blocks_the_queue),
    "an impossible request is not forgotten": ("Paged", an_impossible_request_is_not_forgotten),
    "cached tokens computed again": ("PagedPrefix", what_was_found_in_the_cache_is_computed_again),
    "a limit one too large": ("Paged", a_limit_is_one_too_large),
    "rejected drafts leave the quiet run": ("Paged", rejected_drafts_leave_the_quiet_run),
    "rejected drafts kept": ("Paged", rejected_drafts_are_kept),
    "a fork leaves the parent's quiet run": ("Paged", a_fork_leaves_the_parents_quiet_run),
    "a queued fork believes it is computed": ("Contiguous", a_queued_fork_believes_it_is_computed),
    "a fork without room is lost": ("Contiguous", a_fork_without_room_is_lost),
    "forks take their parent's turn": ("Paged", forks_of_one_parent_have_one_place),
    "an interrupted step stays extended": ("Paged", an_interrupted_step_stays_extended),
    "an interrupted step is half told": ("Paged", an_interrupted_step_is_half_told),
    "leaving in a quiet run keeps the memory": ("Contiguous", what_leaves_in_a_quiet_run_leaves_its_memory),
    "leaving the host keeps the memory": ("Paged with swap", what_leaves_the_host_leaves_its_memory),
    "static batches joined": ("Paged", static_batches_are_joined),
    "arrivals not told": ("Paged", events_are_lost("arrive")),
    "refusals not told": ("Paged", events_are_lost("refuse")),
    "steps told without their first": ("Paged", steps_tell_nothing),
}


@pytest.mark.parametrize("name", BUGS)
def test_the_machine_catches(name: str) -> None:
    kind, bug = BUGS[name]
    catches(machine_of(KINDS[kind]), bug)
