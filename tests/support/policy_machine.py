"""The state machine of every policy: requests come, grow, fork, roll back, swap and go, and all models agree."""

from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kvlab.errors import InvalidInput, NeverFits, UnknownRequest
from kvlab.events import Replay
from kvlab.workload import Request, RequestId
from support.cases import LONGEST, PolicyCase
from support.machines import Counted
from support.serving import Serving

PICK = st.integers(0, 99)
REASONS = st.sampled_from(["finished", "aborted", "preempted"])
SALTS = [None, None, None, None, 7, "7"]
NAMES: list[RequestId] = [0, 1, "a", "b", "c", 7, "7"]


class PolicyMachine(Counted):
    """Subclasses give the cases, one of which each run draws."""

    cases: ClassVar[list[PolicyCase]]

    @initialize(pick=PICK)
    def fresh(self, pick: int) -> None:
        self.serving = Serving(self.cases[pick % len(self.cases)])
        self.again: list[Request] = []

    @property
    def policy(self):
        return self.serving.policy

    def unused(self, pick: int) -> RequestId | None:
        busy = {*self.serving.admitted, *self.serving.swapped, *(request.rid for request in self.again)}
        free = [name for name in NAMES if name not in busy]
        return free[pick % len(free)] if free else None

    def picked(self, pick: int) -> RequestId:
        return list(self.serving.admitted)[pick % len(self.serving.admitted)]

    def picked_settled(self, pick: int) -> RequestId | None:
        settled = [rid for rid, sequence in self.serving.admitted.items() if sequence.settled]
        return settled[pick % len(settled)] if settled else None

    @rule(
        pick=PICK, prompt=st.integers(1, 20), output=st.integers(1, 12), spare=st.none() | st.integers(0, 5), cut=PICK
    )
    def admit(self, pick: int, prompt: int, output: int, spare: int | None, cut: int) -> None:
        rid = self.unused(pick)
        if rid is None:
            return
        limit = min(LONGEST - prompt, output + (spare or 0))
        true = None if spare is None else min(output, limit)
        if self.policy.reads_tokens:
            shared = cut % 21
            tokens = [position % 3 if position < shared else pick % 2 for position in range(prompt)]
            request = Request(rid, tokens, limit, output_tokens=true, salt=SALTS[cut % len(SALTS)])
        else:
            request = Request(rid, prompt, limit, output_tokens=true)
        if self.serving.admit(request) is not None:
            self.prefill(request)

    @precondition(lambda self: self.again)
    @rule(pick=PICK)
    def admit_again(self, pick: int) -> None:
        request = self.again[pick % len(self.again)]
        if self.serving.admit(request) is not None:
            self.again.remove(request)
            self.prefill(request)

    def prefill(self, request: Request) -> None:
        """The first half at once, the rest is left to the machine."""
        first = (request.known_tokens - request.computed + 1) // 2
        if self.serving.extend(request.rid, first):
            self.serving.commit(request.rid, first)

    @precondition(lambda self: self.serving.admitted)
    @rule(pick=PICK, count=st.integers(1, 3) | st.integers(1, 20))
    def extend(self, pick: int, count: int) -> None:
        rid = self.picked_settled(pick)
        if rid is not None:
            self.serving.extend(rid, count)

    @precondition(lambda self: self.serving.admitted)
    @rule(pick=PICK, count=st.integers(0, 20) | st.just(99))
    def quiet(self, pick: int, count: int) -> None:
        rid = self.picked(pick)
        sequence = self.serving.admitted[rid]
        self.serving.quiet(rid, min(count, sequence.room - sequence.written))

    @precondition(lambda self: self.serving.admitted)
    @rule(pick=PICK, count=st.integers(0, 20) | st.just(99))
    def commit(self, pick: int, count: int) -> None:
        rid = self.picked(pick)
        sequence = self.serving.admitted[rid]
        self.serving.commit(rid, min(sequence.room, sequence.written + count))

    @precondition(lambda self: self.serving.admitted)
    @rule(pick=PICK)
    def decode(self, pick: int) -> None:
        rid = self.picked_settled(pick)
        if rid is not None and self.serving.extend(rid, 1):
            self.serving.commit(rid, 1)

    @precondition(lambda self: self.serving.admitted)
    @rule(pick=PICK, drafts=st.integers(2, 12), accepted=st.integers(0, 11))
    def speculate(self, pick: int, drafts: int, accepted: int) -> None:
        rid = self.picked_settled(pick)
        if rid is not None and self.serving.extend(rid, drafts):
            self.serving.commit(rid, min(accepted, drafts - 1))

    @precondition(lambda self: self.serving.admitted)
    @rule(pick=PICK, name=PICK, output=st.integers(0, 12))
    def fork(self, pick: int, name: int, output: int) -> None:
        parent, child = self.picked_settled(pick), self.unused(name)
        if parent is not None and child is not None:
            self.serving.fork(parent, child, output)

    @precondition(lambda self: self.serving.admitted)
    @rule(pick=PICK, reason=REASONS)
    def release(self, pick: int, reason: str) -> None:
        request = self.serving.release(self.picked(pick), reason)
        if reason == "preempted":
            self.again.append(request)

    @precondition(lambda self: self.policy.can_swap and self.serving.admitted)
    @rule(pick=PICK)
    def swap_out(self, pick: int) -> None:
        rid = self.picked_settled(pick)
        if rid is not None:
            self.serving.swap_out(rid)

    @precondition(lambda self: self.serving.swapped)
    @rule(pick=PICK)
    def swap_in(self, pick: int) -> None:
        self.serving.swap_in(list(self.serving.swapped)[pick % len(self.serving.swapped)])

    @precondition(lambda self: self.serving.swapped)
    @rule(pick=PICK, reason=REASONS)
    def give_up(self, pick: int, reason: str) -> None:
        self.serving.release(list(self.serving.swapped)[pick % len(self.serving.swapped)], reason)

    @precondition(lambda self: self.serving.admitted)
    @rule(pick=PICK, which=st.integers(0, 10))
    def ask_for_what_cannot_be(self, pick: int, which: int) -> None:
        rid = self.picked(pick)
        sequence, policy, refused = self.serving.admitted[rid], self.policy, self.serving.refused
        calls = [
            (InvalidInput, lambda: policy.admit(sequence.request)),
            (InvalidInput, lambda: policy.commit(rid, range(sequence.room + 1))),
            (InvalidInput, lambda: policy.extend(rid, 0)),
            (InvalidInput, lambda: policy.fork(rid, sequence.request.fork(rid))),
            (InvalidInput, lambda: policy.release(rid, "tired")),
            (UnknownRequest, lambda: policy.extend("nobody", 1)),
            (NeverFits, lambda: policy.admit(Request("huge", 3, 200))),
            (UnknownRequest if policy.can_swap else InvalidInput, lambda: policy.swap_in(rid)),
        ]
        if not sequence.settled:
            calls.append((InvalidInput, lambda: policy.extend(rid, 1)))
            calls.append((InvalidInput, lambda: policy.fork(rid, sequence.request.fork("child"))))
            calls.append((InvalidInput, lambda: policy.swap_out(rid)))
        error, call = calls[-1 - which % len(calls)]
        refused(error, call, sequence.request)

    @precondition(lambda self: self.serving.swapped and self.serving.admitted)
    @rule(pick=PICK, which=st.integers(0, 3))
    def ask_for_what_is_away(self, pick: int, which: int) -> None:
        rid, sequence = list(self.serving.swapped.items())[pick % len(self.serving.swapped)]
        parent = self.picked_settled(pick)
        calls = [
            (UnknownRequest, lambda: self.policy.extend(rid, 1)),
            (UnknownRequest, lambda: self.policy.layout(rid)),
            (InvalidInput, lambda: self.policy.admit(sequence.request)),
        ]
        if parent is not None:
            request = self.serving.admitted[parent].request
            calls.append((InvalidInput, lambda: self.policy.fork(parent, request.fork(rid))))
        error, call = calls[which % len(calls)]
        self.serving.refused(error, call, sequence.request)

    @rule(pending=st.none() | st.integers(0, 40))
    def read_the_books(self, pending: int | None) -> None:
        self.serving.check(pending)

    @invariant()
    def everything_agrees(self) -> None:
        self.serving.check()

    def teardown(self) -> None:
        if not hasattr(self, "serving"):
            return
        self.serving.flush()
        self.serving.check_contents()
        replay = Replay(self.serving.log, keyframe_every=3)
        forward = list(replay.states())
        for frame in sorted(range(len(replay)), key=lambda frame: frame * 7919 % 101)[:12]:
            assert replay.state(frame) == forward[frame], "going back is not the same as going forward"
        self.serving.replay()
        last = replay.state(-1)
        last.moved = self.serving.state.moved
        assert last == self.serving.state


def machine_of(cases: list[PolicyCase]) -> type[PolicyMachine]:
    """A machine over these cases."""
    return type("PolicyMachine", (PolicyMachine,), {"cases": cases})
