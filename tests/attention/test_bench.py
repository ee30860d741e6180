"""`kvlab bench attention`: the published shape, arms that compute the same, ratios that are what they say."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from kvlab.attention import get_route, routes
from kvlab.bench import attention
from kvlab.bench.paired import Paired
from kvlab.cli import app
from kvlab.errors import InvalidInput, InvariantViolation


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a few kilobytes over a cache of 64 KB."""
    monkeypatch.setattr(attention, "HEAD_DIM", 32)
    monkeypatch.setattr(attention, "PROMPT", 64)
    monkeypatch.setattr(attention, "last_level_cache", lambda: 1 << 16)
    monkeypatch.setattr(attention, "Case", lambda *args: CASE(*args[:4], *(args[4:] or (64, 1))))


CASE = attention.Case
DECODE_ARMS = {"contiguous", "gather", "indexing", "flat_pa", "native", "native_contiguous", "blockwise"}


def run(*options: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["bench", "attention", "--json", *options])
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def expected_arms(names: set[str]) -> set[str]:
    return {name for name in names if "native" in routes() or not name.startswith("native")}


def test_the_json_has_the_published_shape() -> None:
    found = run("--quick")
    assert found["bench"] == "attention"
    assert {"device", "threads", "torch", "read_bandwidth", "repeats"} <= set(found["provenance"])
    assert {row["case"]["dtype"] for row in found["rows"]} == {"bf16", "fp32"}
    for row in found["rows"]:
        assert set(row) == {"case", "name", "median_s", "iqr_s", "per_step_s", "ratio", "mbu", "bytes"}
        assert set(row["bytes"]) == {"useful", "padded", "physical"}
        case, dtype_bytes = row["case"], {"bf16": 2, "fp32": 4}[row["case"]["dtype"]]
        assert row["bytes"]["useful"] == case["batch"] * case["context"] * 2 * 8 * 32 * dtype_bytes
        assert set(row["ratio"]) == expected_arms(DECODE_ARMS) - {row["name"]}
        bandwidth = found["provenance"]["read_bandwidth"]
        assert row["mbu"] == pytest.approx(row["bytes"]["useful"] / row["median_s"] / bandwidth)


def test_filters_choose_the_cases_and_blockwise_is_left_out_of_large_batches() -> None:
    found = run("--batch", "9", "--dtype", "bf16", "--repeats", "5")
    cases = {(row["case"]["batch"], row["case"]["query_heads"], row["case"]["block_size"]) for row in found["rows"]}
    assert cases == {(9, 8, 16), (9, 8, 64), (9, 32, 16), (9, 32, 64)}
    assert {row["name"] for row in found["rows"]} == expected_arms(DECODE_ARMS - {"blockwise"})


def test_a_prompt_is_measured_on_the_routes_that_take_one() -> None:
    found = run("--prompt", "--quick", "--dtype", "bf16")
    assert {row["name"] for row in found["rows"]} == expected_arms(
        {"contiguous", "gather", "native", "native_contiguous"}
    )
    assert {(row["case"]["context"], row["case"]["new_tokens"]) for row in found["rows"]} == {(64, 64)}


def test_without_json_each_case_is_a_table() -> None:
    result = CliRunner().invoke(app, ["bench", "attention", "--quick", "--dtype", "fp32"])
    assert "batch 8, query_heads 8, block_size 16, dtype fp32" in result.stdout
    assert {
        line.split()[0] for line in result.stdout.splitlines() if line.startswith("  ") and line.split()[0] != "ms"
    } == (expected_arms(DECODE_ARMS))


def test_without_numba_the_native_arms_are_left_out_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    without = {name: route for name, route in routes().items() if name != "native"}
    monkeypatch.setattr(attention, "routes", lambda: without)
    result = CliRunner().invoke(app, ["bench", "attention", "--json", "--quick", "--dtype", "fp32"])
    assert {row["name"] for row in json.loads(result.stdout)["rows"]} == {
        "contiguous",
        "gather",
        "indexing",
        "flat_pa",
        "blockwise",
    }
    assert "native is left out" in result.stderr


def test_an_arm_that_computes_something_else_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    gather = get_route("gather")
    monkeypatch.setattr(type(gather), "compute", lambda *args: args[1] * 0)
    monkeypatch.setattr(attention, "routes", lambda: routes() | {"gather": gather})
    with pytest.raises(InvariantViolation, match="gather and contiguous differ"):
        attention.measure_case(CASE(2, 8, 16, "fp32", 64), 5)


def test_a_ratio_and_the_cost_once_per_step_are_paired_by_repeat() -> None:
    times = Paired({"contiguous": [2.0, 4.0, 8.0, 2.0, 2.0], "gather": [4.0, 8.0, 16.0, 4.0, 40.0]})
    firsts = Paired({"contiguous": [2.5, 4.5, 8.5, 2.5, 9.0], "gather": [6.0, 9.0, 18.0, 4.0, 42.0]})
    read = attention.Bytes(100, 100, 300)
    bandwidth = attention.Bandwidth(100.0, "a test")
    measured = attention.Measured(CASE(1, 8, 16, "bf16"), times, firsts, {"contiguous": read, "gather": read})
    contiguous, gather = measured.rows(bandwidth)
    assert contiguous["ratio"] == {"gather": 2.0}
    assert gather["ratio"] == {"contiguous": 0.5}
    assert contiguous["mbu"] == 0.5
    assert (contiguous["per_step_s"], gather["per_step_s"]) == (0.5, 2.0)


@pytest.mark.parametrize(("batches", "dtypes"), [([0], None), ([], None), (None, ["fp64"])])
def test_cases_that_cannot_be_are_refused(batches: list[int] | None, dtypes: list[str] | None) -> None:
    with pytest.raises(InvalidInput, match="a batch is at least 1"):
        attention.cases(batches, dtypes)


def test_the_full_benchmark_is_the_twenty_four_points_of_the_issue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    points = attention.cases()
    assert len(points) == len(set(points)) == 3 * 2 * 2 * 2
    assert {point.context for point in points} == {1024}
    assert [point.new_tokens for point in attention.cases(prompt=True)] == [2048] * 4
