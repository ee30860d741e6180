"""From a checkpoint to the folder that ships, and the card that tells of it."""

import dataclasses
import json

import pytest
import torch

from kvlab.engine.config import DecoderConfig
from kvlab.engine.decoder import Decoder, random_weights
from kvlab.engine.embedded import embedded_folder
from kvlab.engine.tokenizer import Tokenizer
from kvlab.engine.weights import load

TEXT = "And the king said unto the people, Go up into the land, and they went up. " * 4


@pytest.fixture
def finished(tools, tmp_path, monkeypatch):
    """The folder of a run that has ended, as the training leaves it; its average is the better of its weights."""
    import train_embedded
    from train import release
    from train.corpus import Document, Source
    from train.loop import Settings
    from train.model import config

    monkeypatch.setattr(release, "SAMPLES", (("And", 6),))
    folder = tmp_path / "run"
    folder.mkdir()
    chapters = tuple(Document("Book", f"Book {n}", TEXT * 30) for n in range(9))
    source = Source("Book", "package book 1.0", "public domain", chapters)
    train_embedded.prepare([source], Settings(minutes=1), folder)
    decoder_config = DecoderConfig.from_config(config())
    weights = [random_weights(decoder_config, torch.Generator().manual_seed(seed)) for seed in range(2)]
    weights[1]["head"] = weights[1]["head"] * 9  # so sure of itself that it must lose
    checkpoint = {"average": weights[0], "model": weights[1], "batches": {}, "counts": (30, 9000, 60.0)}
    torch.save(checkpoint, folder / "checkpoint.pt")
    rows = [{"step": n, "minutes": n / 30, "tokens": 300 * n, "train": 5 - n / 20} for n in range(31)]
    rows.append({"step": 30, "minutes": 1.0, "tokens": 9000, "end": "the minutes are used up"})
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def test_what_ships_is_the_better_of_the_checkpoint_in_bf16(finished, tmp_path):
    from train.model import config
    from train.release import release

    facts = release(finished, tmp_path / "out", "the command")
    assert facts["weights"] == "running average"
    assert facts["run"] == {
        "steps": 30,
        "tokens": 9000,
        "minutes": 1.0,
        "train_nats_per_token": pytest.approx(3.725),
        "share_of_schedule": 1.0,
    }
    decoder = load(tmp_path / "out")
    kept = torch.load(finished / "checkpoint.pt", weights_only=True)["average"]
    original = Decoder(DecoderConfig.from_config(config()), kept)
    for (name, stored), exact in zip(decoder.named_parameters(), original.parameters(), strict=True):
        torch.testing.assert_close(stored.float(), exact.detach(), rtol=0.01, atol=0.01, msg=name)
    assert decoder.config.dtype == torch.bfloat16
    assert Tokenizer.from_dir(tmp_path / "out").eos_token_ids == (1,)
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
        "training.json", "README.md",
    }  # fmt: skip
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "the command" in card
    assert f"{facts['held_out']['by_source']['all']['nats_per_token']:.3f} nats a token" in card
    assert facts["sources"][0]["sha256"] in card


def test_a_run_stopped_early_is_told_as_such(finished, tmp_path):
    from train.release import release

    checkpoint = torch.load(finished / "checkpoint.pt", weights_only=True)
    torch.save(checkpoint | {"counts": (30, 9000, 27.0)}, finished / "checkpoint.pt")
    assert release(finished, tmp_path / "out", "")["run"]["share_of_schedule"] == 0.45
    assert "45.0% of the schedule" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


def test_a_model_too_large_ships_nothing(finished, tmp_path, monkeypatch):
    from train import release

    monkeypatch.setattr(release, "SIZE_LIMIT", 5_000_000)
    with pytest.raises(SystemExit, match="5,000,000 are allowed"):
        release.release(finished, tmp_path / "out", "")
    assert not (tmp_path / "out").exists()


def test_held_out_loss_of_a_model_that_guesses(finished):
    """With weights of zero each token costs ln(vocabulary), wherever it stands, however the chapter is cut."""
    from train.corpus import Document
    from train.evaluate import held_out_losses
    from train.model import config

    decoder_config = DecoderConfig.from_config(config())
    weights = {name: weight * 0 for name, weight in random_weights(decoder_config).items()}
    guess = Decoder(decoder_config, weights)
    found = held_out_losses(guess, tokenizer_of(finished), [Document("a", "1", TEXT * 30), Document("b", "2", "And")])
    nats = 7.6246  # ln 2048
    assert found["by_source"]["all"]["nats_per_token"] == nats
    assert found["by_source"]["a"]["tokens"] > 1024
    assert found["by_source"]["all"]["bytes"] == len(TEXT) * 30 + 3
    late = found["context"]
    assert late == {
        "targets": 256 * (found["by_source"]["a"]["tokens"] // 1024),
        "at_least_768": nats,
        "at_most_320": nats,
    }
    row = found["by_source"]["b"]
    assert row["bits_per_byte"] == pytest.approx(nats * row["tokens"] / 0.693147 / 3, abs=1e-3)


def tokenizer_of(run):
    """The tokenizer of a run, whose folder has no weights."""
    import tokenizers

    return Tokenizer(tokenizers.Tokenizer.from_file(str(run / "tokenizer.json")), 2048, (1,), 2)


def test_the_card_that_ships_is_made_from_the_facts_that_ship(tools):
    from train.card import card
    from train.model import config

    facts = json.loads((embedded_folder() / "training.json").read_text(encoding="utf-8"))
    assert (embedded_folder() / "README.md").read_text(encoding="utf-8") == card(facts, config())


def test_the_settings_that_ship_are_the_settings_of_the_script(tools):
    import train_embedded
    from train.loop import Settings

    facts = json.loads((embedded_folder() / "training.json").read_text(encoding="utf-8"))
    settings = Settings(minutes=facts["settings"]["minutes"])
    assert facts["settings"] == dataclasses.asdict(settings)
    assert facts["schedule"] == json.loads(json.dumps(dataclasses.asdict(train_embedded.SCHEDULE)))
