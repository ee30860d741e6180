"""The training loop: a run that is given minutes, anneals to their end, and can be stopped and taken up again.

Workers are processes of one thread each. They see different windows of a batch, average their gradients, and each moves
the matrices it owns; on a machine shared with others this waits once a step, not once an operator.
"""

from __future__ import annotations

import json
import math
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from kvlab.engine.decoder import Decoder
from kvlab.engine.dense import DenseAttend
from train.batches import Batches
from train.schedule import Schedule, Stage

PIECE_TOKENS = 1024  # of one forward and backward pass: its tensors stay in the cache of a core


@dataclass(frozen=True)
class Settings:
    """What a run can be told; the rest follows from the seed."""

    minutes: float
    seed: int = 20261130
    workers: int = 2
    matrix_rate: float = 0.02
    other_rate: float = 0.003
    weight_decay: float = 0.05
    average: float = 0.995
    clip: float = 1.0
    report_s: float = 20.0
    save_s: float = 180.0
    compiled: bool = True


class Run:
    """One worker's side of a training: weights, their running average, optimizers, place in the data, time spent."""

    def __init__(
        self, model: Decoder, batches: Batches, schedule: Schedule, settings: Settings, folder: Path, rank: int
    ) -> None:
        self.model, self.batches, self.schedule, self.settings = model, batches, schedule, settings
        self.folder, self.rank = folder, rank
        self.parameters = list(model.parameters())
        self.matrices = [weight for name, weight in model.named_parameters() if is_matrix(name)]
        others = [weight for name, weight in model.named_parameters() if not is_matrix(name)]
        owned = self.matrices[rank :: settings.workers]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(owned, lr=settings.matrix_rate, weight_decay=settings.weight_decay),
            torch.optim.AdamW(others, lr=settings.other_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
        ]
        self.peaks = (settings.matrix_rate, settings.other_rate)
        self.average = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        self.hidden = torch.compile(model.hidden, dynamic=False) if settings.compiled else model.hidden
        self.steps, self.tokens, self.spent_s, self.stopped = 0, 0, 0.0, False
        self._asked_to_stop = False  # this worker alone knows; `stopped` is what all have been told
        self._read_s: float | None = None

    @property
    def share(self) -> float:
        """The part of the time that has passed."""
        return self.spent_s / (60 * self.settings.minutes)

    def warm_up(self) -> None:
        """Compile the pass over every stage's pieces, one worker after another: the others find it in the cache."""
        for rank in range(self.settings.workers):
            if rank == self.rank:
                for stage in self.schedule.stages:
                    rows = max(1, PIECE_TOKENS // stage.length)
                    losses(
                        self.model, torch.zeros((rows, stage.length + 1), dtype=torch.long), self.hidden
                    ).mean().backward()
            dist.barrier()

    def step(self) -> float:
        """One optimizer step; its loss, in nats a token. The first worker's clock counts, pauses between steps too."""
        if self._read_s is None:
            self._read_s = time.monotonic()
        stage = self.schedule.stage(self.share)
        windows = self.batches.next(stage.length, stage.batch)[self.rank :: self.settings.workers]
        loss = self._gradients(windows, stage)
        factor = self.schedule.rate(self.steps, self.share)
        for optimizer, peak in zip(self.optimizers, self.peaks, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = peak * factor
            optimizer.step()
        for number, matrix in enumerate(self.matrices):
            dist.broadcast(matrix.data, number % self.settings.workers)
        if self.rank == 0:
            self._follow()
        self.steps += 1
        self.tokens += stage.batch * stage.length
        now = time.monotonic()
        clock = torch.tensor([self.spent_s + now - self._read_s, float(self._asked_to_stop)], dtype=torch.float64)
        self._read_s = now
        dist.broadcast(clock, 0)
        self.spent_s, self.stopped = clock[0].item(), bool(clock[1].item())
        return loss

    def _gradients(self, windows: Tensor, stage: Stage) -> float:
        rows = max(1, PIECE_TOKENS // stage.length)
        pieces = windows.split(rows)
        total = torch.zeros(())
        for weight in self.parameters:
            weight.grad = None
        for piece in pieces:
            loss = losses(self.model, piece, self.hidden).mean() * len(piece) / len(windows)
            loss.backward()
            total += loss.detach()
        flat = torch.cat([weight.grad.flatten() for weight in self.parameters] + [total[None]])
        dist.all_reduce(flat)
        flat /= self.settings.workers
        at = 0
        for weight in self.parameters:
            weight.grad.copy_(flat[at : at + weight.numel()].view_as(weight))
            at += weight.numel()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip)
        return flat[-1].item()

    @torch.no_grad()
    def _follow(self) -> None:
        decay = min(self.settings.average, (self.steps + 1) / (self.steps + 10))
        for name, weight in self.model.named_parameters():
            self.average[name].lerp_(weight, 1 - decay)

    def save(self) -> None:
        """Write the checkpoint; a reader sees the old one or the new one, never half of one."""
        owned = {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers], "steps": self.steps}
        replace(owned, self.folder / f"optimizers.{self.rank}.pt")
        if self.rank == 0:
            shared = {
                "model": self.model.state_dict(),
                "average": self.average,
                "batches": self.batches.state(),
                "counts": (self.steps, self.tokens, self.spent_s),
            }
            replace(shared, self.folder / "checkpoint.pt")

    def restore(self) -> None:
        """Go on from the checkpoint in the folder."""
        shared = torch.load(self.folder / "checkpoint.pt", weights_only=True)
        owned = torch.load(self.folder / f"optimizers.{self.rank}.pt", weights_only=True)
        if owned["steps"] != shared["counts"][0]:
            raise SystemExit("the run ended while it saved: its files are of different steps")
        self.model.load_state_dict(shared["model"])
        self.average = shared["average"]
        for optimizer, kept in zip(self.optimizers, owned["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        self.batches.restore(shared["batches"])
        self.steps, self.tokens, self.spent_s = shared["counts"]

    def log(self, **fields: object) -> None:
        """One line to log.jsonl and to the terminal."""
        row = {"step": self.steps, "minutes": round(self.spent_s / 60, 2), "tokens": self.tokens, **fields}
        line = json.dumps(row)
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)

    def train(self) -> None:
        """Step until the minutes are used up or Ctrl-C asks to stop, saving on the way and at the end."""
        if self.rank == 0:
            signal.signal(signal.SIGINT, self._stop)
            signal.signal(signal.SIGTERM, self._stop)
        else:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.warm_up()
        reported, saved, kept, tokens = self.spent_s, self.spent_s, [], self.tokens
        while self.share < 1 and not self.stopped:
            kept.append(self.step())
            if self.spent_s - reported > self.settings.report_s:
                loss = sum(kept) / len(kept)
                if not math.isfinite(loss):
                    raise SystemExit("the loss is no number any more: lower the rates")
                if self.rank == 0:
                    rate = (self.tokens - tokens) / (self.spent_s - reported)
                    factor = self.schedule.rate(self.steps, self.share)
                    self.log(
                        train=round(loss, 4), tokens_per_s=round(rate), epoch=self.batches.epoch, rate=round(factor, 4)
                    )
                reported, tokens, kept = self.spent_s, self.tokens, []
            if self.spent_s - saved > self.settings.save_s:
                self.save()
                saved = self.spent_s
        self.save()
        if self.rank == 0:
            self.log(end="stopped; --resume goes on" if self.stopped else "the minutes are used up")

    def _stop(self, signal_number: int, frame: object) -> None:
        self._asked_to_stop = True


def replace(state: dict[str, object], path: Path) -> None:
    """Save beside `path`, then put it there in one move."""
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def is_matrix(name: str) -> bool:
    """Whether Muon moves this weight: the projections, not the embedding and the norms."""
    return name.startswith("layers.") and not name.endswith("norm")


def losses(model: Decoder, windows: Tensor, hidden: object = None) -> Tensor:
    """Nats of each target of `[batch, length + 1]` token ids, `[batch * length]`; `hidden` may be compiled."""
    batch, length = windows.shape[0], windows.shape[1] - 1
    attend = DenseAttend(model.config, batch, length)
    states = (hidden or model.hidden)(windows[:, :-1].flatten(), torch.arange(length).repeat(batch), attend)
    return F.cross_entropy(model.logits(states).float(), windows[:, 1:].flatten(), reduction="none")
