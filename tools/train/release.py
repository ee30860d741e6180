"""From a run's checkpoint to the folder that ships: weights, tokenizer, configuration, training.json, model card."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from kvlab.engine.config import DecoderConfig
from kvlab.engine.decoder import Decoder
from kvlab.engine.tokenizer import Tokenizer
from kvlab.engine.weights import export, load
from train.bpe import BOS, EOS, PAD
from train.card import card
from train.corpus import Document
from train.evaluate import held_out_losses, sample
from train.model import config

SIZE_LIMIT = 6_000_000
SAMPLES = (
    ("", 100),
    ("And the king said unto his servants,", 80),
    ("It was a fine morning, and Elizabeth", 80),
    ("The memory of a machine", 60),
)
TEMPERATURE, SAMPLE_SEED = 0.8, 7


def release(run: Path, out: Path, command: str) -> dict[str, Any]:
    """Export the better of the last weights and their running average, and write what the run's log says of it.

    Every file is put in place in one move, the weights first. Returns what training.json holds.
    """
    held_out = [Document(**each) for each in json.loads((run / "held_out.json").read_text(encoding="utf-8"))]
    checkpoint = torch.load(run / "checkpoint.pt", weights_only=True)
    candidates = {}
    with tempfile.TemporaryDirectory() as scratch:
        for kind in ("average", "model"):
            folder = Path(scratch) / kind
            write_model(checkpoint[kind], run, folder)
            candidates[kind] = held_out_losses(load(folder, torch.float32), Tokenizer.from_dir(folder), held_out)
        chosen = min(candidates, key=lambda kind: candidates[kind]["by_source"]["all"]["nats_per_token"])
        folder = Path(scratch) / chosen
        facts = told(run, checkpoint, command)
        facts["weights"] = {"average": "running average", "model": "last"}[chosen]
        facts["held_out"] |= candidates[chosen]
        facts["model"] = {
            "parameters": sum(weight.numel() for weight in checkpoint["model"].values()),
            "safetensors_bytes": (folder / "model.safetensors").stat().st_size,
        }
        decoder, tokenizer = load(folder, torch.float32), Tokenizer.from_dir(folder)
        facts["samples"] = [
            {"prompt": prompt, "text": sample(decoder, tokenizer, prompt, tokens, TEMPERATURE, SAMPLE_SEED + number)}
            for number, (prompt, tokens) in enumerate(SAMPLES)
        ]
        facts["sampling"] = {"temperature": TEMPERATURE, "seed": SAMPLE_SEED}
        (folder / "training.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        (folder / "README.md").write_text(card(facts, config()), encoding="utf-8")
        size = sum(file.stat().st_size for file in folder.iterdir())
        if size >= SIZE_LIMIT:
            raise SystemExit(f"the folder takes {size:,} bytes, {SIZE_LIMIT:,} are allowed")
        place(folder, out)
    return facts


def write_model(weights: dict[str, torch.Tensor], run: Path, folder: Path) -> None:
    """The files that transformers reads, bf16, with the tokenizer of the run."""
    decoder = Decoder(DecoderConfig.from_config(config(), "kvlab embedded"), weights)
    export(decoder, folder, torch.bfloat16)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(run / name, folder)
    ids = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    (folder / "generation_config.json").write_text(json.dumps(ids, indent=2) + "\n", encoding="utf-8")


def told(run: Path, checkpoint: dict[str, Any], command: str) -> dict[str, Any]:
    """What the run wrote down: sources, settings, machine, counts, the curve of the training loss."""
    facts: dict[str, Any] = json.loads((run / "record.json").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    curve = [each for each in rows if "train" in each]
    steps, tokens, spent_s = checkpoint["counts"]
    facts["command"] = command
    facts["run"] = {
        "steps": steps,
        "tokens": tokens,
        "minutes": round(spent_s / 60, 1),
        "train_nats_per_token": round(sum(each["train"] for each in curve[-10:]) / len(curve[-10:]), 4),
        "share_of_schedule": round(min(1.0, spent_s / 60 / facts["settings"]["minutes"]), 3),
    }
    thinned = curve[:: max(1, len(curve) // 40)]
    facts["curve"] = [{key: each[key] for key in ("minutes", "step", "train")} for each in thinned]
    return facts


def place(folder: Path, out: Path) -> None:
    """Move every file of `folder` over its namesake in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(folder.iterdir(), key=lambda file: file.name != "model.safetensors"):
        partial = out / f".{file.name}.partial"
        partial.write_bytes(file.read_bytes())  # not copied: safetensors makes files that only their owner reads
        partial.replace(out / file.name)
