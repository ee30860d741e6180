"""Running Hypothesis state machines: long enough to matter, short and the same each time to catch a planted bug."""

from collections.abc import Callable
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

from kvlab.errors import KvlabError

OPERATIONS = 10_000
Bug = Callable[[pytest.MonkeyPatch], None]


class Counted(RuleBasedStateMachine):
    """A state machine that counts the operations of all its runs."""

    operations: ClassVar[int] = 0

    @invariant()
    def count(self) -> None:
        type(self).operations += 1


def keeps_its_invariants(machine: type[Counted], *, steps: int = 80) -> None:
    """At least 10,000 operations without a violated invariant: runs may end early, so there are up to three rounds."""
    machine.operations = 0
    for _ in range(3):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=OPERATIONS * 3 // (2 * steps),
                stateful_step_count=steps,
                suppress_health_check=list(HealthCheck),
            ),
        )
        if machine.operations >= OPERATIONS:
            return
    raise AssertionError(f"the machine ran {machine.operations} operations only")


def catches(machine: type[Counted], bug: Bug) -> None:
    """The machine fails with a planted bug: by an assertion of its model, by a refusal that did not
    come, by one of the project's errors, or by a look-up that finds nothing."""
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        with pytest.raises((AssertionError, KvlabError, LookupError, pytest.fail.Exception)):
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=400, stateful_step_count=40, derandomize=True, database=None,
                    phases=[Phase.generate], report_multiple_bugs=False, suppress_health_check=list(HealthCheck),
                ),
            )  # fmt: skip
