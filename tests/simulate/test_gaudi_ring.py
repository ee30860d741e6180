"""Preset gaudi-ring: the article's figures come out of the clock, and published never meets modelled in a column."""

import pytest

from kvlab.simulate import gaudi_ring, report
from kvlab.simulate.gaudi_ring import GaudiRing, bucket, first


@pytest.fixture(scope="module")
def run() -> GaudiRing:
    return GaudiRing.preset()


@pytest.fixture(scope="module")
def rows() -> list[report.Row]:
    return gaudi_ring.rows(lambda line: None)


def test_the_trace_of_one_layer(run: GaudiRing) -> None:
    assert run.padded_bytes(56) == 2**30
    assert run.sliding_s("gather", 56, 4096) == pytest.approx(1.10e-3, rel=0.005)
    assert run.sliding_s("ring", 56, 4096) == pytest.approx(0.434e-3, rel=0.005)


def test_the_whole_step_at_batch_56_and_at_batch_1(run: GaudiRing) -> None:
    assert run.step_mbu("gather", 56, 3072) == pytest.approx(0.37, abs=0.005)
    assert run.step_mbu("ring", 56, 3072) == pytest.approx(0.59, abs=0.005)
    assert run.gain(56, 3072) == pytest.approx(1.6, abs=0.05)
    assert run.gain(1, 3072) == pytest.approx(1.11, abs=0.005)


def test_the_gain_grows_with_the_batch(run: GaudiRing) -> None:
    gains = [run.gain(batch, 3072) for batch in gaudi_ring.BATCHES]
    assert gains == sorted(gains)


def test_contiguous_pa_loses_at_4k_and_wins_below_3k(run: GaudiRing) -> None:
    assert run.step_s("contiguous-pa", 56, 4096) > run.step_s("gather", 56, 4096)
    assert run.step_s("contiguous-pa", 56, 2048) < run.step_s("gather", 56, 2048)
    assert 2900 < run.layer_crossover(56) < run.step_crossover(56) < 3500


def test_usable_kv_is_what_requests_own_with_and_without_what_lies_behind_the_window(run: GaudiRing) -> None:
    assert run.usable_kv(4096, global_tensors=1) == 3.5
    assert run.usable_kv(4096) == pytest.approx(22 / 7)
    assert run.usable_kv(1024) == 1
    assert run.usable_kv(2048) < run.usable_kv_over_decode(2048, 4096) < run.usable_kv(4096)


def test_every_published_figure_is_met_within_a_tenth(rows: list[report.Row]) -> None:
    stated = [row for row in rows if row.published is not None]
    assert len(stated) == 10
    for row in stated:
        assert row.modelled == pytest.approx(row.published, rel=0.1), row


def test_a_step_time_is_modelled_and_never_in_the_published_column(rows: list[report.Row]) -> None:
    assert [row.published for row in rows if row.metric == "step_time"] == [None] * 3


def test_the_object_of_the_command_has_the_agreed_keys(rows: list[report.Row]) -> None:
    found = report.as_json("gaudi-ring", rows)
    assert found["preset"] == "gaudi-ring"
    assert {tuple(row) for row in found["rows"]} == {("metric", "arm", "published", "modelled", "unit", "note")}


@pytest.mark.parametrize(("count", "padded"), [(1, 1), (2, 2), (3, 4), (448, 512), (512, 512), (513, 1024)])
def test_a_bucket_is_the_next_power_of_two(count: int, padded: int) -> None:
    assert bucket(count) == padded


def test_first_finds_the_first() -> None:
    assert first(lambda n: n >= 10_240) == 10_240
    assert first(lambda n: True) == 1


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (None, "s", ""),
        (1.1e-3, "s", "1.1 ms"),
        (4.34e-4, "s", "434 us"),
        (46.5, "s", "46.5 s"),
        (1.07e9, "bytes", "1.07 GB"),
        (0.295, "fraction", "29.5%"),
        (2.535, "ratio", "2.54x"),
        (2967, "tokens", "2,967 tokens"),
        (45.13, "requests", "45.1 requests"),
    ],
)
def test_a_number_is_shown_in_the_size_that_people_read(value: float | None, unit: str, shown: str) -> None:
    assert report.shown_number(value, unit) == shown
