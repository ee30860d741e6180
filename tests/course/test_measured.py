"""A stored run beside the live one."""

import re
from pathlib import Path

import pytest

from kvlab.bench.paired import Spread
from kvlab.course import Beside, Paired, load_stored_run, measure, measured_text, record_run
from kvlab.course.measured import mark, seconds_text
from kvlab.course.normalise import MEASURED
from kvlab.course.stored_run import StoredRun, parse_stored_run
from kvlab.errors import InvalidInput

LIVE = Paired({"native": [0.010, 0.011, 0.010, 0.012, 0.010], "gather": [0.05, 0.055, 0.05, 0.06, 0.05]})


@pytest.fixture
def stored(tmp_path: Path) -> StoredRun:
    record_run(LIVE, tmp_path / "attention.json")
    return parse_stored_run("attention", (tmp_path / "attention.json").read_text())


def test_a_recorded_run_is_read_back_with_its_provenance(stored: StoredRun):
    assert [arm.name for arm in stored.arms] == ["native", "gather"]
    assert stored.arms[1].ratio.median == pytest.approx(5.0)
    assert stored.arms[0].time_s.median == pytest.approx(0.010)
    assert {"processor", "cores", "date", "repeats"} <= stored.provenance.keys()


def test_the_table_marks_the_ratio_and_keeps_stored_and_live_apart(stored: StoredRun):
    table = Beside("Attention", stored, LIVE)
    assert table.marks() == {"gather": "agrees"}
    assert "gather: stored 50 ms, 5.00 (5.00 to 5.00) times native; live" in repr(table)
    assert "; live measured: 50 ms, measured: 5.00 [agrees]\n" in repr(table)
    assert f"date {stored.provenance['date']}" in repr(table)


def test_once_clock_readings_are_masked_two_live_runs_show_the_same(stored: StoredRun):
    slow = Paired({name: [37.1 * s for s in samples] for name, samples in LIVE.samples_s.items()})
    noisy = Paired({"native": [1e-5, 2e-5, 1e-5, 9e-5, 1e-5], "gather": [5e-4, 9e-4, 1e-4, 3e-4, 8e-4]})
    assert Beside("A", stored, noisy).marks() == {"gather": "too noisy"}
    for mime in ("text/plain", "text/html"):
        texts = {
            re.sub(MEASURED, "measured: TIME", Beside("A", stored, live)._repr_mimebundle_()[mime])
            for live in (LIVE, slow, noisy)
        }
        assert len(texts) == 1


@pytest.mark.parametrize(
    ("live", "expected"),
    [
        (Spread(5.5, 5.4, 5.6), "agrees"),
        (Spread(3.0, 2.9, 3.1), "differs"),
        (Spread(3.0, 2.6, 4.05), "agrees"),
        (Spread(5.0, 3.0, 6.0), "too noisy"),
    ],
)
def test_marks(live: Spread, expected: str):
    assert mark(Spread(5.0, 4.0, 5.1), live) == expected


def test_arms_are_interleaved_and_the_order_alternates():
    calls: list[str] = []
    paired = measure({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=6, warmup=0)
    assert "".join(calls) == "baab" * 3
    assert [len(samples) for samples in paired.samples_s.values()] == [6, 6]
    assert paired.baseline == "a"


@pytest.mark.parametrize(
    "samples", [{"a": [1.0] * 9}, {"a": [1.0] * 3, "b": [1.0] * 3}, {"a": [1.0] * 5, "b": [1.0] * 6}]
)
def test_a_measurement_that_cannot_be_compared_is_refused(samples: dict[str, list[float]]):
    with pytest.raises(InvalidInput, match="two arms or more and five repeats"):
        Paired(samples)


def test_other_arms_than_the_stored_ones_are_refused(stored: StoredRun):
    live = Paired({"native": [1.0] * 5, "ring": [1.0] * 5})
    with pytest.raises(InvalidInput, match="ring"):
        Beside("A", stored, live)


def test_a_missing_or_damaged_stored_run_is_refused():
    with pytest.raises(InvalidInput, match="no stored run 'nowhere'"):
        load_stored_run("nowhere")
    with pytest.raises(InvalidInput, match="KeyError: 'arms'"):
        parse_stored_run("x", '{"provenance": {}}')
    with pytest.raises(InvalidInput, match="JSONDecodeError"):
        parse_stored_run("x", "{")


@pytest.mark.parametrize(
    ("seconds", "text"), [(12.34, "12.3 s"), (0.0123, "12.3 ms"), (4.2e-6, "4.2 µs"), (1.5e-9, "0.0015 µs")]
)
def test_times_have_a_unit_that_fits_and_the_marker(seconds: float, text: str):
    assert seconds_text(seconds) == text
    assert re.fullmatch(MEASURED, measured_text(seconds))
