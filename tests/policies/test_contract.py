"""Every policy keeps every clause of the contract; so does a fake one of two groups in two pools."""

import pytest
import support.contract_memory
import support.contract_refusals
from support.cases import CASES, PolicyCase
from support.contract import Clause, clauses_of

CLAUSES = [*clauses_of(support.contract_refusals), *clauses_of(support.contract_memory)]


@pytest.mark.parametrize("check", CLAUSES, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_policy_keeps_the_contract(case: PolicyCase, check: Clause) -> None:
    check(case)
