"""The state machine of the scheduler: requests come, go, fork, are held, drafted and interrupted in a tiny pool."""

from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kvlab.errors import InvalidInput, UnknownRequest
from kvlab.workload import Request
from support.machines import Counted
from support.scheduler_cases import SchedulerCase
from support.scheduler_model import TOO_LONG, Known, Modelled

PICK = st.integers(0, 99)
MOST = 7


class SchedulerMachine(Counted):
    """Subclasses give the cases, one of which each run draws."""

    cases: ClassVar[list[SchedulerCase]]

    @initialize(pick=PICK)
    def fresh(self, pick: int) -> None:
        self.model = Modelled(self.cases[pick % len(self.cases)])

    @property
    def scheduler(self):
        return self.model.scheduler

    @property
    def live(self) -> list[Known]:
        return self.model.live

    def picked(self, pick: int) -> Known:
        return self.live[pick % len(self.live)]

    @precondition(lambda self: len(self.live) < MOST)
    @rule(
        prompts=st.lists(st.integers(1, 12), min_size=1, max_size=4),
        output=st.integers(1, 16),
        spare=st.integers(0, 4),
        shared=st.integers(0, 12),
        then=st.integers(0, 3),
    )
    def arrive(self, prompts: list[int], output: int, spare: int, shared: int, then: int) -> None:
        for prompt in prompts:
            known = min(shared, prompt) if self.model.policy.reads_tokens else 0
            self.model.add([*range(known), *self.model.ids(prompt - known)], output + spare, output)
        self.go_on(then)

    @precondition(lambda self: len(self.live) < MOST)
    @rule()
    def arrive_too_long(self) -> None:
        self.model.add(self.model.ids(5), TOO_LONG)

    @precondition(lambda self: 0 < len(self.live) < MOST)
    @rule(pick=PICK, share=st.booleans(), then=st.integers(0, 3))
    def fork(self, pick: int, share: bool, then: int) -> None:
        self.model.fork(self.picked(pick), share=share)
        self.go_on(then)

    @precondition(lambda self: self.live)
    @rule(pick=PICK, place=st.integers(0, 2))
    def cancel(self, pick: int, place: int) -> None:
        places = [self.scheduler.swapped, self.scheduler.running, self.scheduler.waiting]
        places = [sequences for sequences in places if sequences]
        sequences = places[place % len(places)]
        self.model.cancel(sequences[pick % len(sequences)].request.rid)

    @precondition(lambda self: self.live)
    @rule(pick=PICK, then=st.integers(0, 3))
    def hold(self, pick: int, then: int) -> None:
        known = self.picked(pick)
        self.scheduler.hold(known.request.rid)
        known.held = True
        self.go_on(then)

    @precondition(lambda self: any(known.held for known in self.live))
    @rule(pick=PICK)
    def resume(self, pick: int) -> None:
        held = [known for known in self.live if known.held]
        self.scheduler.resume(held[pick % len(held)].request.rid)
        held[pick % len(held)].held = False

    @precondition(lambda self: self.live)
    @rule(pick=PICK)
    def ask_for_what_cannot_be(self, pick: int) -> None:
        request = self.picked(pick).request
        gone = next((rid for rid, known in self.model.known.items() if known.end), "nobody")
        for error, call in (
            (InvalidInput, lambda: self.scheduler.add(Request(request.rid, 3, 3))),
            (InvalidInput, lambda: self.scheduler.fork(request.rid, request.fork(request.rid))),
            (InvalidInput, lambda: self.scheduler.finish(request.rid, "tired")),
            (UnknownRequest, lambda: self.scheduler.finish(gone)),
            (UnknownRequest, lambda: self.scheduler.fork(gone, request.fork("child"))),
            (UnknownRequest, lambda: self.scheduler.hold(gone)),
            (UnknownRequest, lambda: self.scheduler.resume(gone)),
        ):
            with pytest.raises(error):
                call()

    @precondition(lambda self: self.live)
    @rule(
        drafts=st.dictionaries(PICK, st.integers(1, 5), max_size=4),
        right=st.integers(0, 5),
        interrupted=st.none() | st.none() | st.integers(0, 4),
    )
    def step(self, drafts: dict[int, int], right: int, interrupted: int | None) -> None:
        wanted = {self.picked(pick).request.rid: count for pick, count in drafts.items()}
        self.model.step(wanted, right, interrupted)

    @precondition(lambda self: self.live)
    @rule(count=st.integers(2, 8))
    def go_on(self, count: int) -> None:
        for _ in range(count):
            if self.live:
                self.model.step({}, 0, None)
                self.model.check()

    @invariant()
    def everything_agrees(self) -> None:
        if hasattr(self, "model"):
            self.model.check()

    def teardown(self) -> None:
        """Everybody is served to the end in a bounded number of steps, and all memory is free again."""
        if not hasattr(self, "model"):
            return
        for known in self.live:
            self.scheduler.resume(known.request.rid)
            known.held = False
        bound = 4 * sum(known.request.final_tokens for known in self.live if known.request.max_tokens < TOO_LONG) + 20
        for _ in range(bound):
            if not self.live:
                break
            self.model.step({}, 0, None)
            self.model.check()
        assert not self.live, f"not everybody is served after {bound} steps"
        assert len(self.scheduler) == 0
        assert all(usage.owned == 0 for usage in self.model.policy.usage().values()), "memory was not given back"


def machine_of(cases: list[SchedulerCase]) -> type[SchedulerMachine]:
    """A machine over these cases."""
    return type("SchedulerMachine", (SchedulerMachine,), {"cases": cases})
