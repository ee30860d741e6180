"""`kvlab bench engine`: tokens a second of the engine, beside transformers on the same weights and requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from kvlab.bench.paired import Paired, Spread, measure
from kvlab.bench.provenance import provenance
from kvlab.engine.engine import Engine
from kvlab.engine.loop import Spent
from kvlab.engine.pretrained import resolve
from kvlab.engine.sampling import SamplingParams
from kvlab.engine.tokenizer import Tokenizer
from kvlab.engine.weights import load
from kvlab.errors import InvalidInput, require
from kvlab.policies.paged import Paged
from kvlab.workload import sharegpt

DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16}
BATCHES: Final = (8, 32)
PROMPT: Final = 128
OUTPUT: Final = 128
MIXED: Final = 32
FIRST_FREE_ID: Final = 4
"""Token ids below are special in the models measured here."""


@dataclass(frozen=True)
class Case:
    """`batch` requests at once. `lengths` is "uniform" (128 tokens in, 128 out) or "mixed": the first `batch` ShareGPT
    conversations, lengths scaled so that the longest fits the model's context."""

    model: str
    dtype: str
    batch: int
    lengths: str = "uniform"


def cases(model: str, dtype: str, *, mixed: bool = True, quick: bool = False) -> list[Case]:
    """The points of the benchmark, with or without the mixed lengths; with `quick` the smallest."""
    if dtype not in DTYPES:
        raise InvalidInput(f"dtype is {' or '.join(DTYPES)}, not {dtype!r}")
    found = [Case(model, dtype, batch) for batch in BATCHES]
    if quick:
        return found[:1]
    return [*found, Case(model, dtype, MIXED, "mixed")] if mixed else found


@dataclass(frozen=True)
class Requests:
    """Prompts as token ids and how many tokens each is to be answered with."""

    prompts: Sequence[list[int]]
    outputs: Sequence[int]

    @classmethod
    def of(cls, case: Case, vocab_size: int, context: int) -> Requests:
        """The same requests for every arm, drawn with a fixed seed."""
        if case.lengths == "uniform":
            lengths = [(PROMPT, OUTPUT)] * case.batch
        else:
            rows = sharegpt().within(1 << 20, 1 << 20)
            real = list(zip(rows.prompt_tokens[: case.batch], rows.output_tokens[: case.batch], strict=True))
            scale = min(1.0, (context - 2) / max(int(a + b) for a, b in real))
            lengths = [(max(1, int(a * scale)), max(1, int(b * scale))) for a, b in real]
        rng = np.random.default_rng(0)
        prompts = [rng.integers(FIRST_FREE_ID, vocab_size, prompt).tolist() for prompt, _ in lengths]
        return cls(prompts, [output for _, output in lengths])


@dataclass(frozen=True)
class Measured:
    """The arms of one case, and where the engine's time went over all repeats."""

    case: Case
    requests: Requests
    times: Paired
    spent: Spent

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of `--json`; `ratio` is how many times as fast as each other arm, paired by repeat."""
        tokens = sum(self.requests.outputs)
        for name, own in self.times.samples_s.items():
            time = self.times.time_s(name)
            row: dict[str, Any] = {
                "case": asdict(self.case) | {
                    "prompt_tokens": sum(map(len, self.requests.prompts)), "output_tokens": tokens,
                },
                "name": name,
                "median_s": time.median,
                "iqr_s": time.iqr,
                "tokens_per_s": tokens / time.median,
                "ratio": {
                    other: Spread.of([b / a for a, b in zip(own, samples, strict=True)]).median
                    for other, samples in self.times.samples_s.items()
                    if other != name
                },
            }  # fmt: skip
            if name == "kvlab":
                parts = {each: getattr(self.spent, each) for each in ("decide", "allocate", "run", "sample")}
                row["share"] = {each: value / sum(parts.values()) for each, value in parts.items()}
                row["step_s"] = sum(parts.values()) / self.spent.steps
            yield row


def bench(points: Sequence[Case], repeats: int, progress: Callable[[str], None]) -> Iterator[Measured]:
    """Measure each case. Raises `InvalidInput` where transformers, which it is compared with, is not installed."""
    if find_spec("transformers") is None:
        raise InvalidInput("the comparison needs transformers; install it with: pip install transformers")
    for case in points:
        progress(f"{case.model}, {case.dtype}, batch {case.batch}, {case.lengths}: {repeats} repeats")
        yield _measured(case, repeats)


def _measured(case: Case, repeats: int) -> Measured:
    folder, dtype = resolve(case.model), DTYPES[case.dtype]
    decoder, tokenizer = load(folder, dtype), Tokenizer.from_dir(folder)
    requests = Requests.of(case, decoder.config.vocab_size, decoder.config.max_positions)
    capacity = sum(-(-(len(p) + n) // 16) * 16 for p, n in zip(requests.prompts, requests.outputs, strict=True))
    engine = Engine(decoder, tokenizer, lambda groups: Paged(groups, capacity), max_running=case.batch)
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in requests.outputs]
    peer = _Transformers(folder, dtype)

    def ours() -> None:
        answers = engine.generate(requests.prompts, params)
        require([len(each.token_ids) for each in answers] == requests.outputs, "the engine stopped early")

    times = measure({"transformers": lambda: peer.generate(requests), "kvlab": ours}, repeats=repeats, warmup=1)
    return Measured(case, requests, times, replace(engine.spent))


class _Transformers:
    """`generate` of transformers over a left-padded batch, which runs until its longest answer is done."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        from transformers import AutoModelForCausalLM

        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        self.model.train(False)
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.pad_token_id = 0

    @torch.inference_mode()
    def generate(self, requests: Requests) -> None:
        """Answer all requests in one batch."""
        longest = max(map(len, requests.prompts))
        ids = torch.zeros(len(requests.prompts), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(requests.prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        tokens = max(requests.outputs)
        answer = self.model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=tokens)
        require(answer.shape[1] == longest + tokens, "transformers stopped early")


def as_json(measured: Sequence[Measured], repeats: int) -> dict[str, Any]:
    """The object that `--json` prints."""
    return {
        "bench": "engine",
        "provenance": provenance() | {"repeats": repeats},
        "rows": [row for each in measured for row in each.rows()],
    }


def text(found: dict[str, Any]) -> str:
    """The rows as lines for people."""
    lines = []
    for row in found["rows"]:
        case = row["case"]
        line = (
            f"{case['model']} {case['dtype']} batch {case['batch']:3} {case['lengths']:8} {row['name']:13}"
            f"{row['tokens_per_s']:9.1f} tokens/s  +- {row['iqr_s'] / row['median_s']:4.0%}"
        )
        for other, ratio in row["ratio"].items():
            line += f"  {ratio:5.2f} x {other}"
        if "share" in row:
            line += "  (" + ", ".join(f"{name} {share:.1%}" for name, share in row["share"].items()) + ")"
        lines.append(line)
    return "\n".join(lines)
