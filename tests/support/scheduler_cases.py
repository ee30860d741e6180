"""The schedulers that are tested over every policy, each with a pool that soon runs dry."""

from dataclasses import dataclass, field
from typing import Any

from kvlab.policies.contiguous import ContiguousMax, ContiguousOracle, ContiguousPow2
from support.cases import GLOBAL, SLIDING, PolicyCase, contiguous, fake, paged, prefix


@dataclass(frozen=True)
class SchedulerCase:
    """A policy with a tiny pool, and the options of the scheduler over it."""

    policy: PolicyCase
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([str(self.policy), *(f"{key}={value}" for key, value in self.options.items())])


def cases_of(*policies: PolicyCase) -> list[SchedulerCase]:
    """Each policy with each of a few schedulers."""
    options = [
        {},
        {"token_budget": 4, "max_running": 4},
        {"token_budget": 64, "max_running": 9},
        {"batching": "static"},
    ]
    swap = [{"preemption": "swap"}, {"preemption": "swap", "token_budget": 7, "max_running": 2}]
    return [
        SchedulerCase(policy, chosen)
        for policy in policies
        for chosen in (options + swap + swap if policy.host else options)
    ]


_CONTIGUOUS = [
    contiguous(kind, placement, slots=68)
    for kind in (ContiguousMax, ContiguousPow2, ContiguousOracle)
    for placement in ("buddy", "first-fit")
]
KINDS: dict[str, list[SchedulerCase]] = {
    "Contiguous": cases_of(*_CONTIGUOUS),
    "Paged": cases_of(
        paged(1, slots=40), paged(4, slots=50, reuse="lowest-id"), paged(16, slots=80),
        paged(4, slots=48, groups=(GLOBAL, SLIDING), watermark_blocks=2),
    ),
    "Paged with swap": cases_of(
        paged(1, slots=36, host_tokens=30), paged(4, slots=48, host_tokens=24),
        paged(4, slots=48, groups=(GLOBAL, SLIDING), host_tokens=96),
        paged(16, slots=80, host_tokens=48, watermark_blocks=1),
    ),
    "PagedPrefix": cases_of(
        prefix(1, slots=40), prefix(4, slots=50), prefix(4, slots=60, groups=(GLOBAL, SLIDING), watermark_blocks=2),
        prefix(16, slots=80),
    ),
    "TwoGroups": cases_of(fake(blocks=11, rings=3)),
}  # fmt: skip
