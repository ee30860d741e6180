"""The recorded runs are what the simulator gives today, and match the paper where the lengths do."""

import pytest

from kvlab.errors import InvalidInput
from kvlab.figures.ledger import claims
from kvlab.simulate import orca_runs
from kvlab.simulate.orca import length_sets, systems
from kvlab.simulate.orca_runs import SEEDS, TERMS, average, read_runs, record, run, spread, stored

PUBLISHED = {claim.id: claim.value for claim in claims("003")}


def test_every_system_is_recorded_on_every_length_set_with_every_seed():
    found = [(each.lengths, each.system, each.seed) for each in stored()]
    assert found == [(lengths, system, seed) for lengths in length_sets() for system in systems() for seed in SEEDS]


@pytest.mark.parametrize(
    ("lengths", "system", "seed"),
    [
        ("log-normal", "Orca (Max)", 4),
        ("ShareGPT, first turns", "Orca (Pow2)", 2),
        ("ShareGPT, every turn", "Orca (Oracle)", 1),
        ("ShareGPT, every turn", "vLLM", 0),
    ],
)
def test_a_recorded_run_comes_out_the_same_today(lengths, system, seed):
    recorded = next(r for r in stored() if (r.lengths, r.system, r.seed) == (lengths, system, seed))
    assert run(lengths, system, seed) == recorded, "record again: python -m kvlab.simulate.orca_runs"


def test_the_shares_of_every_run_add_up_to_the_memory():
    for each in stored():
        assert sum(each.shares().values()) == pytest.approx(100, abs=0.001)


@pytest.mark.parametrize(
    ("system", "claim", "within"),
    [("Orca (Max)", "pap-fig2-max", 5), ("Orca (Pow2)", "pap-fig2-pow2", 2), ("Orca (Oracle)", "pap-fig2-oracle", 2)],
)
def test_lengths_with_the_papers_means_give_the_papers_shares(system, claim, within):
    found = average("log-normal", system)
    ours = [getattr(found, term) for term in ("tokens", "reserved", "internal", "external")]
    assert ours == pytest.approx(PUBLISHED[claim], abs=within)


def test_vllm_fills_its_memory_on_all_three_sets():
    assert all(average(lengths, "vLLM").tokens >= 95.5 for lengths in length_sets())


def test_the_order_of_arrival_moves_no_share_by_a_point():
    spreads = [spread(lengths, system) for lengths in length_sets() for system in systems()]
    assert 0 < max(each[term] for each in spreads for term in TERMS[:-1]) < 1


def test_what_a_request_holds_depends_on_the_lengths_alone():
    for lengths in length_sets():
        held = [average(lengths, system).tokens_held for system in systems()]
        assert held == pytest.approx([held[0]] * 4, rel=0.01)


def test_a_file_written_is_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(orca_runs, "length_sets", lambda: {"log-normal": length_sets()["log-normal"]})
    monkeypatch.setattr(orca_runs, "systems", lambda: {"Orca (Max)": systems()["Orca (Max)"]})
    record(tmp_path / "runs.csv", steps=6_000)
    assert (tmp_path / "runs.csv").read_text().startswith("# Modelled by `python -m kvlab.simulate.orca_runs`, 6,000")
    found = read_runs(tmp_path / "runs.csv")
    assert found == tuple(run("log-normal", "Orca (Max)", seed, 6_000) for seed in SEEDS)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: run("alpaca", "vLLM"), "ShareGPT, every turn"),
        (lambda: run("log-normal", "Orca"), "Orca (Oracle)"),
        (lambda: average("alpaca", "vLLM"), "alpaca"),
    ],
)
def test_an_unknown_length_set_or_system_is_refused_with_the_known_ones(call, named):
    with pytest.raises(InvalidInput) as refused:
        call()
    assert named in str(refused.value)
