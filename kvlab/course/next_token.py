"""The next token of many texts at once, with a cache and without one: what lesson 00 measures on a real model.

`python -m kvlab.course.next_token kvlab/data/stored_runs` records the stored run; do that on a quiet machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import torch

from kvlab.bench.paired import Paired, measure
from kvlab.course.stored_run import record_run
from kvlab.engine.dense import DenseAttend
from kvlab.engine.engine import Engine
from kvlab.engine.sampling import SamplingParams
from kvlab.errors import positive
from kvlab.policies.paged import Paged

BATCHES: Final = (1, 8, 32)
STORED: Final = "next_token"
LIVE_REPEATS, STORED_REPEATS = 5, 15


class NextToken:
    """The model of `engine` says the likeliest next token of `batch` different texts of `length` tokens.

    One thread computes. With a cache the texts are read once, when an arm is made, and each call is a decode step of an
    engine, so a text grows by a token a call; without, each call computes all tokens of the texts again.
    """

    def __init__(self, engine: Engine, length: int = 96) -> None:
        self.engine = engine
        self.length = positive("length", length)
        torch.set_num_threads(1)

    def texts(self, batch: int) -> list[list[int]]:
        """Token ids drawn from a seed, `[batch, length]`."""
        drawn = torch.Generator().manual_seed(0)
        return torch.randint(4, self.engine.config.vocab_size, (batch, self.length), generator=drawn).tolist()

    def with_cache(self, batch: int, steps: int = 64) -> Engine:
        """An engine that has read the texts and said one token of each; `steps` more can be made."""
        capacity = batch * (self.length + steps + 32)
        served = Engine(
            self.engine.decoder,
            self.engine.tokenizer,
            lambda groups: Paged(groups, capacity),
            token_budget=batch * self.length,
            max_running=batch,
        )
        params = SamplingParams(temperature=0, max_tokens=steps + 1, ignore_eos=True)
        for text in self.texts(batch):
            served.submit(text, params)
        served.step()
        return served

    def without_cache(self, texts: list[list[int]]) -> list[int]:
        """Every token of the texts, which are equally long, goes through all layers; the next token of each."""
        decoder, batch, length = self.engine.decoder, len(texts), len(texts[0])
        with torch.inference_mode():
            attend = DenseAttend(decoder.config, batch, length)
            positions = torch.arange(length).repeat(batch)
            rows = decoder.hidden(torch.tensor(texts).flatten(), positions, attend)
            last = rows.view(batch, length, -1)[:, -1]
            return decoder.logits(last).argmax(dim=-1).tolist()

    def agree(self, batch: int, steps: int) -> bool:
        """Whether both ways say the same `steps` tokens after each text."""
        served = self.with_cache(batch, steps)
        rids = list(served.served)
        while served.unfinished:
            served.step()
        said = [served.result(rid).token_ids for rid in rids]
        texts = self.texts(batch)
        for step in range(steps):
            known = [[*text, *ids[:step]] for text, ids in zip(texts, said, strict=True)]
            if self.without_cache(known) != [ids[step] for ids in said]:
                return False
        return True

    def arms(self) -> dict[str, Callable[[], object]]:
        """What to measure: `all` tokens of so many texts again (the first is the baseline), or only the `new` ones."""
        without = {f"all {batch}": partial(self.without_cache, self.texts(batch)) for batch in BATCHES}
        cached = {f"new {batch}": self.with_cache(batch).step for batch in BATCHES}
        return {**without, **cached}

    def measure(self, repeats: int = LIVE_REPEATS) -> Paired:
        """All arms side by side."""
        return measure(self.arms(), repeats=repeats, warmup=1)


def record(folder: Path) -> Path:
    """Measure on the embedded model and write the stored run into `folder`."""
    path = folder / f"{STORED}.json"
    record_run(NextToken(Engine.from_pretrained("embedded")).measure(STORED_REPEATS), path)
    return path


if __name__ == "__main__":
    sys.stdout.write(f"{record(Path(sys.argv[1]))}\n")
