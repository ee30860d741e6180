"""Bugs planted into the contiguous policies; the state machine must catch every one."""

import pytest
from support.cases import CONTIGUOUS, PolicyCase
from support.machines import Bug, catches
from support.planted import (
    fork_leaves_the_parents_quiet_run,
    moves_are_lost,
    moves_carry_one_token_too_few,
    quiet_is_one_too_large,
    refused_admission_touches_the_request,
)
from support.policy_machine import machine_of

from kvlab.policies.base import ReleaseReason, Usage
from kvlab.policies.contiguous import Contiguous, ContiguousMax, ContiguousOracle, ContiguousPow2
from kvlab.workload import Request, RequestId


def release_keeps_the_region(patch: pytest.MonkeyPatch) -> None:
    release = Contiguous.release

    def buggy(self: Contiguous, rid: RequestId, reason: ReleaseReason) -> None:
        region = self._holding(rid).region
        release(self, rid, reason)
        self.regions.allocate(region.asked)

    patch.setattr(Contiguous, "release", buggy)


def rounding_is_internal(patch: pytest.MonkeyPatch) -> None:
    usage = Contiguous.usage

    def buggy(self: Contiguous, pending_tokens: int | None = None) -> dict[str, Usage]:
        full = usage(self, pending_tokens)["full"]
        rounding = sum(holding.region.rounding for holding in self._held.values()) * self.bytes_per_token
        return {"full": full._replace(internal=full.internal + rounding, external=full.external - rounding)}

    patch.setattr(Contiguous, "usage", buggy)


def fork_shares_the_region(patch: pytest.MonkeyPatch) -> None:
    fork = Contiguous.fork

    def buggy(self: Contiguous, parent: RequestId, child: Request) -> None:
        fork(self, parent, child)
        self._held[child.rid].region = self._held[parent].region

    patch.setattr(Contiguous, "fork", buggy)


def pending_tokens_are_ignored(patch: pytest.MonkeyPatch) -> None:
    usage = Contiguous.usage
    patch.setattr(Contiguous, "usage", lambda self, pending_tokens=None: usage(self))


def reservation_is_one_too_small(patch: pytest.MonkeyPatch) -> None:
    for kind in (ContiguousMax, ContiguousPow2, ContiguousOracle):
        reservation = kind.reservation
        patch.setattr(
            kind, "reservation", lambda self, request, reservation=reservation: reservation(self, request) - 1
        )


BUGS: dict[str, tuple[list[PolicyCase], Bug]] = {
    "contiguous: quiet is one too large": (CONTIGUOUS, quiet_is_one_too_large(Contiguous)),
    "contiguous: a fork leaves the parent's quiet run": (CONTIGUOUS, fork_leaves_the_parents_quiet_run(Contiguous)),
    "contiguous: a fork without its move": (CONTIGUOUS, moves_are_lost("fork")),
    "contiguous: a fork moves too little": (CONTIGUOUS, moves_carry_one_token_too_few("fork")),
    "contiguous: a fork shares the region": (CONTIGUOUS, fork_shares_the_region),
    "contiguous: a release keeps the region": (CONTIGUOUS, release_keeps_the_region),
    "contiguous: rounding counted as internal": (CONTIGUOUS, rounding_is_internal),
    "contiguous: pending tokens ignored": (CONTIGUOUS, pending_tokens_are_ignored),
    "contiguous: the reservation is one too small": (CONTIGUOUS, reservation_is_one_too_small),
    "contiguous: a refused admission touches the request": (
        CONTIGUOUS,
        refused_admission_touches_the_request(Contiguous),
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_the_machine_catches(name: str) -> None:
    cases, bug = BUGS[name]
    catches(machine_of(cases), bug)
