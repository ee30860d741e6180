"""Bugs that can be planted into any policy."""

from typing import Any

import pytest

from kvlab.events import EventLog
from kvlab.policies.base import Admission, Extension, Move, PolicyBase
from kvlab.workload import Request, RequestId
from support.machines import Bug


def quiet_is_one_too_large(kind: type[PolicyBase[Any]]) -> Bug:
    def bug(patch: pytest.MonkeyPatch) -> None:
        extend = kind.extend

        def buggy(self: PolicyBase[Any], rid: RequestId, count: int) -> Extension:
            extension: Extension = extend(self, rid, count)
            self._held[rid].limit += 1
            extension.quiet += 1
            return extension

        patch.setattr(kind, "extend", buggy)

    return bug


def fork_leaves_the_parents_quiet_run(kind: type[PolicyBase[Any]]) -> Bug:
    def bug(patch: pytest.MonkeyPatch) -> None:
        fork = kind.fork

        def buggy(self: PolicyBase[Any], parent: RequestId, child: Request) -> None:
            limit = self._held[parent].limit if parent in self._held else 0
            fork(self, parent, child)
            self._held[parent].limit = max(limit, self._held[parent].limit)

        patch.setattr(kind, "fork", buggy)

    return bug


def moves_are_lost(why: str) -> Bug:
    def bug(patch: pytest.MonkeyPatch) -> None:
        drain = PolicyBase.drain_moves
        patch.setattr(PolicyBase, "drain_moves", lambda self: [m for m in drain(self) if m.why != why])

    return bug


def moves_carry_one_token_too_few(why: str) -> Bug:
    def bug(patch: pytest.MonkeyPatch) -> None:
        drain = PolicyBase.drain_moves

        def buggy(self: PolicyBase[Any]) -> list[Move]:
            short = [
                move._replace(tokens=move.tokens - 1, bytes=move.bytes // move.tokens * (move.tokens - 1))
                if move.why == why
                else move
                for move in drain(self)
            ]
            return [move for move in short if move.tokens]

        patch.setattr(PolicyBase, "drain_moves", buggy)

    return bug


def moves_come_out_in_reverse(patch: pytest.MonkeyPatch) -> None:
    drain = PolicyBase.drain_moves
    patch.setattr(PolicyBase, "drain_moves", lambda self: drain(self)[::-1])


def events_are_lost(kind: str) -> Bug:
    def bug(patch: pytest.MonkeyPatch) -> None:
        write = EventLog.write
        patch.setattr(EventLog, "write", lambda self, *event: None if event[0] == kind else write(self, *event))

    return bug


def refused_admission_touches_the_request(kind: type[PolicyBase[Any]]) -> Bug:
    def bug(patch: pytest.MonkeyPatch) -> None:
        admit = kind.admit

        def buggy(self: PolicyBase[Any], request: Request) -> Admission | None:
            admission: Admission | None = admit(self, request)
            if admission is None:
                request.computed += 1
            return admission

        patch.setattr(kind, "admit", buggy)

    return bug
