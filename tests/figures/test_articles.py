"""The ledgers of articles 000 and 002 hold, and the three together are whole."""

import pytest

from kvlab.figures import article_000, article_002
from kvlab.figures.every import figures
from kvlab.figures.ledger import Figure, claims

LEDGERS = {"000": article_000, "002": article_002}


@pytest.fixture(scope="module")
def found() -> dict[str, Figure]:
    return {figure.claim.id: figure for module in LEDGERS.values() for figure in module.figures()}


def test_every_claim_of_both_articles_is_in_its_ledger(found: dict[str, Figure]) -> None:
    assert (len(claims("000")), len(claims("002"))) == (43, 72)
    assert {claim_id.split("-")[0] for claim_id in found} == {"s000", "s002"}
    assert len(found) == 43 + 72


@pytest.mark.parametrize("claim", [*claims("000"), *claims("002")], ids=lambda claim: claim.id)
def test_a_recomputed_figure_gets_the_verdict_that_the_ledger_records(found: dict[str, Figure], claim) -> None:
    figure = found[claim.id]
    assert figure.verdict == claim.expect
    assert (figure.ours is None) == (claim.kind == "published")


def test_what_does_not_reconcile_says_why(found: dict[str, Figure]) -> None:
    odd = {name for name, figure in found.items() if figure.verdict == "does not reconcile"}
    assert odd == {
        "s000-usable-kv-kv", "s000-usable-kv-padded", "s000-usable-kv-9blocks", "s000-moved-448", "s000-moved-9",
        "s000-mbu-295", "s000-mbu-implied-bytes", "s000-batch1", "s002-full-kb", "s002-swa-kb", "s002-t-017-deployed",
        "s002-t-gain-formula", "s002-budget-980", "s002-modulo-hit", "s002-workload-fixed", "s002-little-fixed",
        "s002-hold-implied",
    }  # fmt: skip
    assert all(found[name].note for name in odd)


@pytest.mark.parametrize("article", LEDGERS)
def test_every_note_belongs_to_a_recomputed_claim(article: str) -> None:
    assert set(LEDGERS[article].NOTES) <= set(LEDGERS[article].recomputed())


def test_the_whole_ledger_goes_article_by_article() -> None:
    every = [figure.claim.id for figure in figures()]
    assert len(every) == len(set(every)) == 43 + 72 + 114
    assert [every[0], every[43], every[43 + 72]] == ["s000-layers", "s002-need", "s003-kv-per-token"]
