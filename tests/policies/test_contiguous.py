"""The three reservations: how much each takes, where regions go, and what construction refuses."""

from collections.abc import Callable

import pytest
from support.cases import GLOBAL, SLIDING

from kvlab.errors import InvalidInput, InvariantViolation, NeverFits, OutOfMemory
from kvlab.policies.contiguous import Contiguous, ContiguousMax, ContiguousOracle, ContiguousPow2
from kvlab.policies.layout import Region
from kvlab.workload import Request

ALL = [ContiguousMax, ContiguousPow2, ContiguousOracle]


def test_each_variant_reserves_what_the_paper_says() -> None:
    for prompt, output, expected in ((100, 60, (2048, 164, 160)), (100, 64, (2048, 164, 164)), (1, 1, (2048, 2, 2))):
        request = Request("r", prompt, 512, output_tokens=output)
        found = tuple(kind((GLOBAL,), 15_728, max_model_tokens=2048).reservation(request) for kind in ALL)
        assert found == expected
    unknown = Request("r", 100, 60)
    assert [kind((GLOBAL,), 15_728, max_model_tokens=2048).reservation(unknown) for kind in ALL] == [2048, 164, 160]


def test_pow2_never_reserves_more_than_the_model_can_hold() -> None:
    request = Request("r", 1000, 1048, output_tokens=1030)
    policy = ContiguousPow2((GLOBAL,), 15_728, max_model_tokens=2048)
    assert policy.reservation(request) == 2048
    assert policy.slots_needed(request) == 2048


def test_a_forked_request_reserves_for_its_own_length() -> None:
    policy = ContiguousOracle((GLOBAL,), 64, max_model_tokens=64, placement="first-fit")
    parent = Request("parent", 4, 40, output_tokens=4)
    policy.admit(parent)
    policy.extend("parent", 4)
    policy.commit("parent", range(4))
    child = parent.fork("child")
    child.output_tokens = 20
    policy.fork("parent", child)
    policy.extend("child", 20)
    policy.commit("child", range(20))
    policy.audit()
    with pytest.raises(OutOfMemory, match="asks for token 25 of a reservation of 24"):
        policy.extend("child", 1)


def test_a_first_fit_region_starts_right_after_the_one_before() -> None:
    policy = ContiguousOracle((GLOBAL, SLIDING), 64, max_model_tokens=64, placement="first-fit")
    for rid, output in (("a", 3), ("b", 5), ("c", 1)):
        policy.admit(Request(rid, 10, 10, output_tokens=output))
    starts = [layout.first_slot for rid in "abc" for layout in policy.layout(rid)[:1] if isinstance(layout, Region)]
    assert starts == [0, 13, 28]


def test_a_request_longer_than_the_model_or_the_largest_region_never_fits() -> None:
    policy = ContiguousOracle((GLOBAL,), 48, max_model_tokens=40)
    with pytest.raises(NeverFits, match="the model holds 40 tokens"):
        policy.admit(Request("r", 20, 21, output_tokens=1))
    with pytest.raises(NeverFits, match=r"reserves 64 slots; .* the largest region 32 slots"):
        policy.admit(Request("r", 20, 20, output_tokens=20))
    assert ContiguousOracle((GLOBAL,), 48, max_model_tokens=40, placement="first-fit").admit(
        Request("r", 20, 20, output_tokens=20)
    )


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(
    "change", [{"capacity_tokens": 0}, {"capacity_tokens": -1}, {"max_model_tokens": 0}, {"placement": "best-fit"}]
)
def test_a_bad_size_or_placement_is_refused(kind: type[Contiguous], change: dict[str, object]) -> None:
    options: dict[str, object] = {"capacity_tokens": 64, "max_model_tokens": 32}
    with pytest.raises(InvalidInput):
        kind((GLOBAL,), **(options | change))


def test_a_policy_without_layers_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one layer group"):
        ContiguousMax((), 64, max_model_tokens=32)


def broken_length(policy: Contiguous) -> None:
    policy._held["a"].request.computed += 50


def broken_grant(policy: Contiguous) -> None:
    policy._held["a"].granted = 30


def broken_region(policy: Contiguous) -> None:
    policy._held["b"].region = policy._held["a"].region


def lost_region(policy: Contiguous) -> None:
    policy.regions.allocate(4)


def broken_sum(policy: Contiguous) -> None:
    policy.regions.slots += 4


@pytest.mark.parametrize("breakage", [broken_length, broken_grant, broken_region, lost_region, broken_sum])
def test_the_audit_sees(breakage: Callable[[Contiguous], None]) -> None:
    policy = ContiguousOracle((GLOBAL, SLIDING), 64, max_model_tokens=32)
    for rid in "ab":
        policy.admit(Request(rid, 10, 6))
        policy.extend(rid, 10)
        policy.commit(rid, range(10))
    policy.audit()
    breakage(policy)
    with pytest.raises(InvariantViolation):
        policy.audit()
