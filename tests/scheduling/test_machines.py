"""The scheduler over every policy through its state machine: no hang, nothing lost, everything back at the end."""

import pytest
from support.machines import keeps_its_invariants
from support.scheduler_cases import KINDS
from support.scheduler_machine import machine_of


@pytest.mark.parametrize("kind", KINDS)
def test_all_models_agree_for_ten_thousand_operations(kind: str) -> None:
    keeps_its_invariants(machine_of(KINDS[kind]), steps=40)
