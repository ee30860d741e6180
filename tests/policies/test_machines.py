"""Every policy through the state machine, with the content model, the plainest books, audits and replayed logs."""

import pytest
from support.cases import (
    CONTIGUOUS,
    ISLANDS,
    LAZY,
    PAGED,
    PREFIX,
    RINGS,
    SMALL_ARENAS,
    SMALL_CACHES,
    SMALL_TREES,
    PolicyCase,
    fake,
)
from support.machines import keeps_its_invariants
from support.policy_machine import machine_of
from support.prefix_machine import PrefixMachine

KINDS = {
    "ContiguousMax": CONTIGUOUS[0:2],
    "ContiguousPow2": CONTIGUOUS[2:4],
    "ContiguousOracle": CONTIGUOUS[4:6],
    "Paged": [case for case in PAGED if case.host is None],
    "Paged with swap": [case for case in PAGED if case.host is not None],
    "PagedPrefix": [*PREFIX, *SMALL_CACHES],
    "RadixLazy": [*LAZY, SMALL_TREES[0]],
    "RadixIslands": [*ISLANDS, *SMALL_TREES[1:]],
    "HybridRing": [*RINGS, *SMALL_ARENAS],
    "TwoGroups": [fake()],
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_models_agree_for_ten_thousand_operations(kind: str) -> None:
    cases: list[PolicyCase] = KINDS[kind]
    keeps_its_invariants(machine_of(cases))


def test_a_prefix_cache_is_its_plainest_model_block_for_block() -> None:
    keeps_its_invariants(PrefixMachine)
