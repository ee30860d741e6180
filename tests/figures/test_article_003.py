"""The ledger of article 003 and the paper holds: what each figure recomputes to, and what that says."""

import pytest

from kvlab.errors import InvalidInput
from kvlab.figures import article_003
from kvlab.figures.ledger import Claim, claims, judge, recompute


@pytest.fixture(scope="module")
def found():
    return {figure.claim.id: figure for figure in article_003.figures()}


def test_every_claim_of_the_article_and_of_the_paper_is_in_the_ledger(found):
    assert len(found) == 114
    assert {claim_id.split("-")[0] for claim_id in found} == {"s003", "pap"}


@pytest.mark.parametrize("claim", claims("003"), ids=lambda claim: claim.id)
def test_a_recomputed_figure_gets_the_verdict_that_the_ledger_records(found, claim):
    figure = found[claim.id]
    assert figure.verdict == claim.expect
    assert (figure.ours is None) == (claim.kind == "published")


def test_exactly_two_figures_do_not_reconcile_and_each_says_why(found):
    odd = {name: figure for name, figure in found.items() if figure.verdict == "does not reconcile"}
    assert set(odd) == {"s003-ps-cow-copies", "pap-last-block-util"}
    assert odd["s003-ps-cow-copies"].ours == 3
    assert odd["pap-last-block-util"].ours == pytest.approx(98.4, abs=0.05)
    assert all(figure.note for figure in odd.values())


def test_only_whole_blocks_count_as_blocks(found):
    assert found["s003-pool-blocks"].ours == 30_469
    assert "30,469" in found["s003-pool-blocks"].note


def test_every_note_belongs_to_a_claim(found):
    assert set(article_003.NOTES) <= set(found)


def test_a_ledger_without_code_for_a_claim_is_refused():
    code = article_003.recomputed()
    del code["s003-used-slots"]
    with pytest.raises(InvalidInput, match="s003-used-slots"):
        recompute("003", code, {})


def test_code_without_a_claim_is_refused():
    with pytest.raises(InvalidInput, match="s003-invented"):
        recompute("003", article_003.recomputed() | {"s003-invented": lambda: 1}, {})


@pytest.mark.parametrize(
    ("value", "tolerance", "ours", "verdict"),
    [
        (3270, 0, 3270, "exact"),
        (3270, 0, 3271, "does not reconcile"),
        (20.0, 0.05, 19.958, "within rounding"),
        (20.0, 0.05, 19.94, "does not reconcile"),
        (None, None, 0.76, "consistent"),
        (4, 0, None, "published"),
    ],
)
def test_a_figure_is_judged_by_its_distance(value, tolerance, ours, verdict):
    claim = Claim("x", "x", value, "slots", "exact", tolerance, "exact")
    assert judge(claim, ours) == verdict
