"""`kvlab bench radix`: every operation is timed, memory is counted, and the targets for memory hold."""

import json

import pytest
from typer.testing import CliRunner

from kvlab.bench import radix
from kvlab.cli import app


def test_the_command_times_every_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radix, "SEQUENCES", 20)
    sequences = radix.sequences
    monkeypatch.setattr(radix, "sequences", lambda page, shared, *more: sequences(page, shared, 20, 1100))
    monkeypatch.setattr(radix, "memory", lambda: iter([radix.Memory({"page": 1}, 5)]))
    done = CliRunner().invoke(app, ["bench", "radix", "--json", "--repeats", "5"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    timed = [row for row in found["rows"] if row["name"] != "memory"]
    assert {row["name"] for row in timed} == {"insert", "match", "lock_unlock", "evict", "evict_swa"}
    assert {(row["case"]["page"], row["case"]["shared"]) for row in timed} == {
        (page, shared) for page in (1, 16, 64) for shared in (0, 1024)
    }
    assert all(row["median_s"] > 0 for row in timed)
    assert found["provenance"]["repeats"] == 5


def test_the_books_of_a_million_tokens_are_small() -> None:
    sizes = {(size.case["page"], size.case["shared"]): size.bytes for size in radix.memory()}
    assert sizes[1, 0] <= 40_000_000
    assert sizes[64, 0] <= 10_000_000
    assert sizes[1, 1024] <= 100_000_000
