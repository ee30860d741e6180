"""Bugs planted into Paged and its swapping; the state machine must catch every one."""

from typing import Any

import pytest
from support.cases import PAGED, PolicyCase
from support.machines import Bug, catches
from support.planted import (
    events_are_lost,
    fork_leaves_the_parents_quiet_run,
    moves_are_lost,
    moves_carry_one_token_too_few,
    moves_come_out_in_reverse,
    quiet_is_one_too_large,
    refused_admission_touches_the_request,
)
from support.planted_parts import fork_forgets_the_references, swap_shares_partial_blocks
from support.policy_machine import machine_of

from kvlab.memory.block_table import BlockTable
from kvlab.policies.base import PolicyBase, Usage
from kvlab.policies.paged import Paged
from kvlab.policies.table_books import TableBooks, TableHolding
from kvlab.workload import RequestId

SWAPPING = [case for case in PAGED if case.host is not None]
WINDOWED = [case for case in PAGED if "window" in case.name]


def shared_tails_are_counted_for_each_holder(patch: pytest.MonkeyPatch) -> None:
    usage = Paged.usage

    def buggy(self: Paged, pending_tokens: int | None = None) -> dict[str, Usage]:
        references = self.pool._references
        self.pool._references = [min(1, count) for count in references]
        try:
            return usage(self, pending_tokens)
        finally:
            self.pool._references = references

    patch.setattr(Paged, "usage", buggy)


def a_shared_tail_is_promised_to_its_last_holder(patch: pytest.MonkeyPatch) -> None:
    usage = Paged.usage

    def buggy(self: Paged, pending_tokens: int | None = None) -> dict[str, Usage]:
        finals = {rid: holding.request.output_tokens for rid, holding in self._held.items()}
        last: dict[int, TableHolding] = {}
        for holding in self._held.values():
            if holding.table.empty_slots:
                last[holding.table.blocks[-1]] = holding
        for holding in self._held.values():
            if holding.table.empty_slots and holding.request.output_tokens is not None:
                holding.request.output_tokens = last[holding.table.blocks[-1]].request.output_tokens
        try:
            return usage(self, pending_tokens)
        finally:
            for rid, holding in self._held.items():
                holding.request.output_tokens = finals[rid]

    patch.setattr(Paged, "usage", buggy)


def quiet_tokens_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    usage = Paged.usage

    def buggy(self: Paged, pending_tokens: int | None = None) -> dict[str, Usage]:
        computed = {rid: holding.request.computed for rid, holding in self._held.items()}
        for holding in self._held.values():
            holding.request.computed = holding.committed
        found = usage(self, pending_tokens)
        for rid, holding in self._held.items():
            holding.request.computed = computed[rid]
        return found

    patch.setattr(Paged, "usage", buggy)


def released_slots_are_all_its_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TableBooks, "own_slots", lambda self, holding: holding.committed)


def dead_slots_are_counted_for_each_holder(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TableBooks, "_dead_shared", TableBooks._dead_alone)


def rollback_keeps_its_blocks(patch: pytest.MonkeyPatch) -> None:
    truncate = BlockTable.truncate

    def buggy(self: BlockTable, tokens: int) -> Any:
        return truncate(self, tokens) if tokens == 0 else setattr(self, "tokens", tokens)

    patch.setattr(BlockTable, "truncate", buggy)


def swap_in_forgets_what_was_computed(patch: pytest.MonkeyPatch) -> None:
    swap_in = Paged.swap_in

    def buggy(self: Paged, rid: RequestId) -> None:
        swap_in(self, rid)
        holding = self._held[rid]
        self._held[rid] = TableHolding(holding.request, holding.table, len(self.groups))

    patch.setattr(Paged, "swap_in", buggy)


def admission_ignores_the_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Paged, "_watermark", lambda self: 0)


def swapped_ids_are_free_for_a_fork(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Paged, "_refuse_admitted", PolicyBase._refuse_admitted)


BUGS: dict[str, tuple[list[PolicyCase], Bug]] = {
    "paged: quiet is one too large": (PAGED, quiet_is_one_too_large(Paged)),
    "paged: a fork leaves the parent's quiet run": (PAGED, fork_leaves_the_parents_quiet_run(Paged)),
    "paged: copy-on-write without its move": (PAGED, moves_are_lost("copy-on-write")),
    "paged: copy-on-write moves too little": (PAGED, moves_carry_one_token_too_few("copy-on-write")),
    "paged: shared tails counted twice": (PAGED, shared_tails_are_counted_for_each_holder),
    "paged: a shared tail promised to its last holder alone": (PAGED, a_shared_tail_is_promised_to_its_last_holder),
    "paged: quiet tokens not counted": (PAGED, quiet_tokens_are_not_counted),
    "paged: released slots all its own": (PAGED, released_slots_are_all_its_own),
    "paged: dead slots counted for each holder": (WINDOWED, dead_slots_are_counted_for_each_holder),
    "paged: a rollback keeps its blocks": (PAGED, rollback_keeps_its_blocks),
    "paged: a fork forgets the references": (PAGED, fork_forgets_the_references),
    "paged: a refused admission touches the request": (PAGED, refused_admission_touches_the_request(Paged)),
    "paged: no watermark": ([case for case in PAGED if case.watermark], admission_ignores_the_watermark),
    "paged: grow events lost": (PAGED, events_are_lost("grow")),
    "paged: trim events lost": (PAGED, events_are_lost("trim")),
    "swap: moves out lost": (SWAPPING, moves_are_lost("swap out")),
    "swap: moves in lost": (SWAPPING, moves_are_lost("swap in")),
    "swap: moves in carry too little": (SWAPPING, moves_carry_one_token_too_few("swap in")),
    "swap: moves out of order": (SWAPPING, moves_come_out_in_reverse),
    "swap: partial blocks shared": (SWAPPING, swap_shares_partial_blocks),
    "swap: nothing computed after it": (SWAPPING, swap_in_forgets_what_was_computed),
    "swap: a fork takes the id of a swapped request": (SWAPPING, swapped_ids_are_free_for_a_fork),
}


@pytest.mark.parametrize("name", BUGS)
def test_the_machine_catches(name: str) -> None:
    cases, bug = BUGS[name]
    catches(machine_of(cases), bug)
