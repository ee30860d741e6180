"""The gate passes on the embedded model, in every class, and fails on KV that was freed too early."""

import json

import pytest
import torch
from support.hf_models import KINDS, VOCAB, WINDOW, model
from typer.testing import CliRunner

from kvlab.attention.store import FP8
from kvlab.cli import app
from kvlab.engine.embedded import load_model
from kvlab.engine.gate import PROMPTS, gate
from kvlab.engine.gate_report import DEEP_WINDOWS
from kvlab.engine.weights import load
from kvlab.errors import InvalidInput, KvlabError
from kvlab.policies.islands import RadixIslands
from kvlab.policies.radix_base import RadixPolicy


class Numbers:
    """A tokenizer whose text is the ids."""

    eos_token_ids = ()

    def decode(self, ids):
        return " ".join(map(str, ids))


@pytest.fixture(scope="module")
def embedded():
    decoder, tokenizer = load_model()
    return decoder, tokenizer, [tokenizer.encode(PROMPTS[0])]


def test_islands_change_no_bit_of_the_embedded_model(embedded) -> None:
    found = gate(*embedded)
    assert found.ok
    assert [each.case for each in found.compared] == ["cold", "again", "extended"]
    assert found.compared[0].hit_on == 0
    assert all(each.hit_on > 0 for each in found.compared[1:])
    assert found.chunk_islands > 0
    assert found.decode_islands > DEEP_WINDOWS
    assert found.accepted_drafts > 0


def test_a_hit_differs_from_a_cold_serve_by_rounding_with_islands_on_and_off() -> None:
    decoder, tokenizer = load_model(torch.bfloat16)
    found = gate(decoder, tokenizer, [tokenizer.encode(PROMPTS[0])])
    assert found.ok
    off, on = found.drift
    assert off.largest_difference == on.largest_difference > 0, "a hit is not computed as a cold prompt is"


def tiny(kind: str, tmp_path):
    made = model(kind)
    made.save_pretrained(tmp_path)
    ids = torch.randint(1, VOCAB, (3, 53), generator=torch.Generator().manual_seed(2)).tolist()
    return load(tmp_path), Numbers(), ids


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("gemma")])
def test_islands_change_no_bit_of_random_models(kind: str, tmp_path) -> None:
    found = gate(*tiny(kind, tmp_path), page_size=4, chunk_tokens=24)
    assert all(each.ok for each in found.compared)
    assert found.chunk_islands > 0
    assert found.decode_islands > DEEP_WINDOWS * WINDOW / 6 - 1


def test_with_fp8_kv_too(tmp_path) -> None:
    found = gate(*tiny("gemma 4", tmp_path), page_size=4, chunk_tokens=24, kv_dtype=FP8)
    assert all(each.ok for each in found.compared)


def freed_while_it_is_read(self: RadixPolicy, length: int) -> int:
    return max(0, length - self.page_size)


def test_kv_freed_too_early_fails(embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RadixIslands, "_frontier", freed_while_it_is_read, raising=False)
    monkeypatch.setattr(RadixPolicy, "audit", lambda self: None)
    try:
        found = gate(*embedded)
    except KvlabError:
        return  # a commit, or the attention route, saw it first
    assert not found.ok


def test_other_kv_in_an_island_fails(embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages change hands without the books: only what is computed can tell."""
    inserted = RadixIslands._inserted

    def swapped(self, holding, dead_to):
        inserted(self, holding, dead_to)
        first = holding.lock.swa_from // self.page_size
        if holding.protected // self.page_size - first > 1:
            one, other = holding.pages[first : first + 2]
            swa = self.memory._swa_of
            swa[one], swa[other] = swa[other], swa[one]
            holding.swa[first : first + 2] = swa[one], swa[other]

    monkeypatch.setattr(RadixIslands, "_inserted", swapped)
    found = gate(*embedded)
    assert found.fired
    assert not found.ok


def test_islands_that_never_fire_prove_nothing(embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RadixIslands, "_island_is_due", lambda self, holding, length: False)
    found = gate(*embedded)
    assert all(each.ok for each in found.compared)
    assert not found.ok


def test_a_model_without_a_window_or_with_a_short_context_is_refused(embedded, tmp_path) -> None:
    with pytest.raises(InvalidInput, match="sliding"):
        gate(*tiny("llama", tmp_path))
    decoder, tokenizer, (prompt,) = embedded
    with pytest.raises(InvalidInput, match="context"):
        gate(decoder, tokenizer, [prompt * 5])


def test_the_command() -> None:
    done = CliRunner().invoke(app, ["gate", "--json", "--prompts", "1"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["ok"] is True
    assert CliRunner().invoke(app, ["gate", "--dtype", "int4"]).exit_code == 2
