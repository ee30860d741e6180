"""Train the model that ships inside kvlab: `python tools/train_embedded.py train --help`, then `export`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import socket
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tokenizers import Tokenizer
from train.batches import Batches
from train.bpe import EOS, save_tokenizer, train_tokenizer
from train.corpus import Document, Source, austen, king_james, split, text_file
from train.loop import Run, Settings
from train.model import MAX_POSITIONS, VOCAB_SIZE, config
from train.release import release
from train.schedule import Schedule, Stage

from kvlab.engine.config import DecoderConfig
from kvlab.engine.decoder import Decoder, random_weights

MODEL_FOLDER = Path(__file__).parent.parent / "kvlab" / "data" / "model"
HELD_OUT_SHARE = 0.025
SCHEDULE = Schedule(warm_up=60, decay_from=0.3, stages=(Stage(0.7, 256, 16), Stage(1.0, 1024, 4)))


def prepare(sources: list[Source], settings: Settings, folder: Path) -> None:
    """Write what the workers and the export read: tokenizer, token ids, texts held out, what was used."""
    documents = [document for source in sources for document in source.documents]
    train, held_out = split(documents, HELD_OUT_SHARE, settings.seed)
    if not held_out:
        raise SystemExit(
            "every text is a single document: give one with chapters (a line such as CHAPTER I before each)"
        )
    tokenizer = train_tokenizer((document.text for document in train), VOCAB_SIZE)
    save_tokenizer(tokenizer, folder, MAX_POSITIONS)
    arrays = {f"{at:05d}": encoded(tokenizer, document) for at, document in enumerate(train)}
    np.savez(folder / "train.npz", **arrays)
    (folder / "held_out.json").write_text(json.dumps([asdict(each) for each in held_out]), encoding="utf-8")
    record = {
        "sources": [source.record() for source in sources],
        "train": {"documents": len(train), "tokens": sum(map(len, arrays.values())), "bytes": byte_count(train)},
        "held_out": {"documents": [document.name for document in held_out], "bytes": byte_count(held_out)},
        "settings": asdict(settings),
        "schedule": asdict(SCHEDULE),
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
    }
    (folder / "record.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    print(json.dumps(record["train"]), flush=True)


def encoded(tokenizer: Tokenizer, document: Document) -> np.ndarray:
    """<bos>, the text, <eos>."""
    return np.array([*tokenizer.encode(document.text).ids, EOS], np.int32)


def byte_count(documents: list[Document]) -> int:
    """UTF-8 bytes of their texts."""
    return sum(len(document.text.encode()) for document in documents)


def processor() -> str:
    """The kind of processor, as Linux names it."""
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def work(rank: int, settings: Settings, folder: Path, resume: bool, port: int) -> None:
    """One worker, from its weights to the last checkpoint."""
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=settings.workers)
    with np.load(folder / "train.npz") as arrays:
        documents = [arrays[name] for name in sorted(arrays.files)]
    decoder_config = DecoderConfig.from_config(config())
    generator = torch.Generator().manual_seed(settings.seed)
    model = Decoder(decoder_config, random_weights(decoder_config, generator))
    run = Run(model, Batches(documents, settings.seed), SCHEDULE, settings, folder, rank)
    if resume:
        run.restore()
    run.train()
    dist.destroy_process_group()


def train(arguments: argparse.Namespace) -> None:
    """Read the corpus (or what an earlier run made of it) and start the workers."""
    folder: Path = arguments.work
    settings = Settings(minutes=arguments.minutes, seed=arguments.seed, workers=arguments.workers)
    if arguments.resume:
        if not (folder / "checkpoint.pt").exists():
            raise SystemExit(f"{folder} holds no checkpoint yet: begin again in a new folder, without --resume")
        settings = Settings(**json.loads((folder / "record.json").read_text(encoding="utf-8"))["settings"])
    else:
        folder.mkdir(parents=True)
        sources = [] if arguments.no_bible else [king_james()]
        sources += [source for package in arguments.janeaustenr for source in austen(package)]
        sources += [text_file(path) for path in arguments.text]
        prepare(sources, settings, folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the workers too: the first one saves, then all end
    mp.spawn(work, (settings, folder, arguments.resume, port), settings.workers)


def export(arguments: argparse.Namespace) -> None:
    """Write the folder that ships from the last checkpoint of a run, whether it has ended or not."""
    settings = json.loads((arguments.work / "record.json").read_text(encoding="utf-8"))["settings"]
    command = (
        f"python tools/train_embedded.py train --work run --minutes {settings['minutes']:g} --seed {settings['seed']} "
        f"--workers {settings['workers']} --janeaustenr r-cran-janeaustenr_*.deb\n"
        "python tools/train_embedded.py export --work run"
    )
    facts = release(arguments.work, arguments.out, command)
    print(json.dumps({key: facts[key] for key in ("run", "model", "weights", "held_out")}, indent=1))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("train", help="train, or go on with --resume")
    run.add_argument("--work", type=Path, required=True, help="a new folder for checkpoints and the log")
    run.add_argument("--minutes", type=float, default=80.0, help="how long; the learning rate anneals to their end")
    run.add_argument("--seed", type=int, default=20261130)
    run.add_argument("--workers", type=int, default=2, help="processes of one thread each")
    run.add_argument("--resume", action="store_true", help="go on from the checkpoint in the folder, as it was begun")
    run.add_argument("--text", type=Path, nargs="*", default=[], help="further UTF-8 text files")
    run.add_argument("--janeaustenr", type=Path, nargs="*", default=[], help="the .deb of r-cran-janeaustenr")
    run.add_argument("--no-bible", action="store_true", help="without bible-kjv-text")
    run.set_defaults(run=train)
    write = commands.add_parser("export", help="write the folder that ships from a run's last checkpoint")
    write.add_argument("--work", type=Path, required=True, help="the folder of the run")
    write.add_argument("--out", type=Path, default=MODEL_FOLDER, help="where the model goes")
    write.set_defaults(run=export)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
