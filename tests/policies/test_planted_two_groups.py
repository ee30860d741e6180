"""Bugs planted into the fake policy of two groups; the state machine must catch every one."""

from typing import Any

import pytest
from support.cases import PolicyCase, fake
from support.machines import Bug, catches
from support.planted import (
    events_are_lost,
    fork_leaves_the_parents_quiet_run,
    moves_are_lost,
    moves_carry_one_token_too_few,
    quiet_is_one_too_large,
)
from support.policy_machine import machine_of
from support.two_groups import RingHolding, TwoGroups

from kvlab.policies.base import Extension, ReleaseReason, Usage
from kvlab.policies.layout import Layout, Ring
from kvlab.workload import Request, RequestId


def rings_are_not_given_back(patch: pytest.MonkeyPatch) -> None:
    release = TwoGroups.release

    def buggy(self: TwoGroups, rid: RequestId, reason: ReleaseReason) -> None:
        ring = self._holding(rid).ring
        release(self, rid, reason)
        self.rings.allocate()
        assert self.rings.references[ring]

    patch.setattr(TwoGroups, "release", buggy)


def forked_rings_are_shared(patch: pytest.MonkeyPatch) -> None:
    fork = TwoGroups.fork

    def buggy(self: TwoGroups, parent: RequestId, child: Request) -> None:
        fork(self, parent, child)
        self._held[child.rid].ring = self._held[parent].ring

    patch.setattr(TwoGroups, "fork", buggy)


def the_window_reaches_one_token_too_far(patch: pytest.MonkeyPatch) -> None:
    layout = TwoGroups.layout

    def buggy(self: TwoGroups, rid: RequestId) -> tuple[Layout, ...]:
        table, ring = layout(self, rid)
        assert isinstance(ring, Ring)
        return table, Ring(ring.first_slot, ring.window_tokens, max(0, ring.start - 1), ring.end)

    patch.setattr(TwoGroups, "layout", buggy)


def rings_start_at_the_wrong_slot_for_an_extension(patch: pytest.MonkeyPatch) -> None:
    extend = TwoGroups.extend

    def buggy(self: TwoGroups, rid: RequestId, count: int) -> Extension:
        extension = extend(self, rid, count)
        right = extension._slots_of
        extension._slots_of = lambda start, stop: (right(start, stop)[0], right(start + 1, stop + 1)[1])
        return extension

    patch.setattr(TwoGroups, "extend", buggy)


def a_full_ring_has_nothing_dead(patch: pytest.MonkeyPatch) -> None:
    usage = TwoGroups.usage

    def buggy(self: TwoGroups, pending_tokens: int | None = None) -> dict[str, Usage]:
        found = usage(self, pending_tokens)
        rings = found["rings"]
        return found | {"rings": rings._replace(live=rings.live + rings.dead, dead=0)}

    patch.setattr(TwoGroups, "usage", buggy)


def rollback_keeps_the_quiet_run(patch: pytest.MonkeyPatch) -> None:
    commit = TwoGroups.commit

    def buggy(self: TwoGroups, rid: RequestId, token_ids: Any) -> None:
        holding: RingHolding = self._holding(rid)
        limit = holding.limit
        commit(self, rid, token_ids)
        holding.limit = limit

    patch.setattr(TwoGroups, "commit", buggy)


BUGS: dict[str, tuple[list[PolicyCase], Bug]] = {
    "two groups: quiet is one too large": ([fake()], quiet_is_one_too_large(TwoGroups)),
    "two groups: a fork leaves the parent's quiet run": ([fake()], fork_leaves_the_parents_quiet_run(TwoGroups)),
    "two groups: a rollback keeps the quiet run": ([fake()], rollback_keeps_the_quiet_run),
    "two groups: a fork without the ring's move": ([fake()], moves_are_lost("fork")),
    "two groups: a fork moves too little": ([fake()], moves_carry_one_token_too_few("fork")),
    "two groups: forked rings shared": ([fake()], forked_rings_are_shared),
    "two groups: rings not given back": ([fake()], rings_are_not_given_back),
    "two groups: the window reaches too far": ([fake()], the_window_reaches_one_token_too_far),
    "two groups: wrong slots in an extension": ([fake()], rings_start_at_the_wrong_slot_for_an_extension),
    "two groups: nothing dead": ([fake()], a_full_ring_has_nothing_dead),
    "two groups: region events lost": ([fake()], events_are_lost("region")),
}


@pytest.mark.parametrize("name", BUGS)
def test_the_machine_catches(name: str) -> None:
    cases, bug = BUGS[name]
    catches(machine_of(cases), bug)
