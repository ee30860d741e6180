"""The serving runs that lesson 05 measures, on the embedded model: preemption in three ways, batches of three sizes.

Record the stored runs again on a quiet machine:

    python -m kvlab.course.serving_arms kvlab/data/stored_runs
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch

from kvlab.bench.paired import measure
from kvlab.course.stored_run import record_run
from kvlab.engine.embedded import load_model
from kvlab.engine.engine import Engine
from kvlab.engine.outputs import Result
from kvlab.engine.sampling import SamplingParams
from kvlab.errors import require
from kvlab.events import EventLog
from kvlab.policies.paged import Paged

Arms: TypeAlias = dict[str, Callable[[], object]]

OPENINGS: Final = (
    "And it came to pass in those days, that the king sent messengers to all the cities of the land, saying, "
    "Let every man come up to the house which I have built.",
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want "
    "of a wife.",
    "And the children of Israel went down into the plain, and they pitched their tents by the river which is "
    "before the city, and they were afraid.",
    "She was the youngest of the two daughters of a most affectionate, indulgent father, and had been mistress "
    "of his house from a very early period.",
    "Hear my prayer, O LORD, and let my cry come unto thee. Hide not thy face from me in the day when I am in "
    "trouble; incline thine ear unto me.",
    "The evening was spent chiefly in talking over the news of the county, and telling again what had already "
    "been written by the post of the morning.",
)
"""Six openings in the manner of the training text."""
PROMPT_TOKENS: Final = 120
OUTPUT_TOKENS: Final = 32
ROOM_BLOCKS: Final = 60
"""What all six need at their longest: 152 tokens each."""
TIGHT_BLOCKS: Final = 48
BATCHES: Final = (1, 8, 32)


@cache
def _model() -> tuple[Any, Any]:
    torch.set_num_threads(1)
    return load_model()


def engine_of(blocks: int, *, log: EventLog | None = None, **options: Any) -> Engine:
    """An engine for the embedded model over `blocks` blocks of 16, with as many on the host; `options` are its own.

    Sets torch to one thread: the model is so small that dividing a step among several gains nothing, and on a busy
    machine loses much.
    """
    decoder, tokenizer = _model()
    tokens = blocks * 16
    return Engine(decoder, tokenizer, lambda groups: Paged(groups, tokens, host_tokens=tokens, log=log), **options)


def six(engine: Engine) -> list[Result]:
    """Six prompts of 120 tokens (the openings, each time beginning with another), continued by 32 tokens."""
    turned = [" ".join((*OPENINGS[number:], *OPENINGS[:number])) for number in range(len(OPENINGS))]
    prompts = [engine.tokenizer.encode(text)[:PROMPT_TOKENS] for text in turned]
    require(all(len(prompt) == PROMPT_TOKENS for prompt in prompts), "the openings fill the prompts")
    params = SamplingParams(temperature=0.8, top_p=0.9, seed=5, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    return engine.generate(prompts, params)


def preemption_arms() -> Arms:
    """Room for all (the baseline), and a pool that runs dry: recompute and swap."""
    return {
        "room for all": partial(six, engine_of(ROOM_BLOCKS)),
        "recompute": partial(six, engine_of(TIGHT_BLOCKS)),
        "swap": partial(six, engine_of(TIGHT_BLOCKS, preemption="swap")),
    }


def thirty_two(engine: Engine) -> int:
    """32 prompts of 16 tokens, answered with 4 each; the number of steps it took."""
    before = engine.spent.steps
    prompts = [[4 + (7 * number + position) % 1024 for position in range(16)] for number in range(32)]
    answers = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))
    require(sum(len(each.token_ids) for each in answers) == 32 * 4, "every prompt is answered with 4 tokens")
    return engine.spent.steps - before


def batch_arms() -> Arms:
    """The same 32 requests with at most 1 (the baseline), 8 or 32 of them at once."""
    return {f"{batch} at once": partial(thirty_two, engine_of(64, max_running=batch)) for batch in BATCHES}


def record(folder: Path) -> list[Path]:
    """Measure both and write the stored runs into `folder`."""
    written = []
    for name, arms in (("serving_preemption", preemption_arms()), ("serving_batches", batch_arms())):
        path = folder / f"{name}.json"
        record_run(measure(arms, repeats=7), path)
        written.append(path)
    return written


if __name__ == "__main__":
    for path in record(Path(sys.argv[1])):
        sys.stdout.write(f"{path}\n")
