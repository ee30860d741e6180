"""The gate: two engines that differ in the island switch must say the same, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kvlab.attention.step import Route
from kvlab.engine.batch import Batch
from kvlab.engine.decoder import Decoder
from kvlab.engine.engine import Engine
from kvlab.engine.gate_report import DEEP_WINDOWS, Case, Compared, Drift, Gate
from kvlab.engine.kv import KVCache
from kvlab.engine.loop import PromptLookup
from kvlab.engine.runner import Runner
from kvlab.engine.sampling import SamplingParams
from kvlab.engine.tokenizer import Tokenizer
from kvlab.errors import InvalidInput, require
from kvlab.policies.islands import RadixIslands, require_islands
from kvlab.policies.radix_lazy import RadixLazy

AGAIN_TOKENS: Final = 48

PROMPTS: Final = (
    "The old clerk counted the letters twice before he tied them with a cord. There were nine of them, all in one "
    "hand, and none had been opened. He set them upon the shelf where the lamp would not reach, and went down to the "
    "yard to ask whether the boat had come. No one could tell him. The men stood about the gate with their hats in "
    "their hands, and looked at the water, and said that the wind would change before the night was out.",
    "In the first year of the great frost the people of the hill brought their cattle into the church, for there was "
    "no other house of stone. The priest made no complaint. He said that the beasts had better manners than many who "
    "came on Sundays, and that they were certainly more quiet during the sermon. So they stayed until the spring, and "
    "when the thaw came it was found that not one of them had died.",
    "My dear sister, I have your two letters, and I am glad that the journey is over and that you have found the rooms "
    "to your liking. Here nothing has happened that would interest you. The garden is under water, the cook has gone "
    "home to her mother, and our uncle talks every evening of selling the horses. I do not believe that he will sell "
    "them, but it is pleasant to him to be asked not to.",
)


class Recorder(Runner):
    """A runner that keeps the logits of every step."""

    def __init__(self, decoder: Decoder, cache: KVCache, route: Route) -> None:
        super().__init__(decoder, cache, route)
        self.logits: list[Tensor] = []

    def run(self, batch: Batch) -> Tensor:
        """See `Runner.run`."""
        logits = super().run(batch)
        self.logits.append(logits.clone())
        return logits


@dataclass(frozen=True)
class Served:
    """One answer: its tokens, the logits of its steps, and how much of its prompt was found in the cache."""

    token_ids: list[int]
    logits: list[Tensor]
    hit: int

    def same_logits(self, other: Served) -> bool:
        """Bit for bit, step by step."""
        return len(self.logits) == len(other.logits) and all(map(_same_bits, self.logits, other.logits))


class Arm:
    """One of the two engines, serving one request at a time."""

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        *,
        islands: bool,
        page_size: int,
        chunk_tokens: int,
        kv_dtype: torch.dtype | None,
    ) -> None:
        kind = RadixIslands if islands else RadixLazy
        tokens = 8 * decoder.config.max_positions
        self.engine = Engine(
            decoder, tokenizer, lambda groups: kind(groups, tokens, page_size=page_size, chunk_tokens=chunk_tokens),
            token_budget=chunk_tokens, max_running=1, drafts=PromptLookup(),
        )  # fmt: skip
        if islands:
            require_islands(self.engine.policy)
        runner, loop = self.engine.runner, self.engine._loop
        if type(runner) is not Runner:
            raise InvalidInput("the gate reads the logits of a plain runner; serve without static shapes")
        cache = KVCache(decoder.config, self.engine.policy, dtype=kv_dtype, device=decoder.device)
        self.recorder = Recorder(decoder, cache, runner.route)
        self.engine.cache, self.engine.runner = loop.cache, loop.runner = cache, self.recorder

    def serve(self, prompt: Sequence[int], tokens: int) -> Served:
        """Greedily, `tokens` tokens."""
        self.recorder.logits.clear()
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        (result,) = self.engine.generate([list(prompt)], params)
        require(result.error is None, f"the gate's request was refused: {result.error}")
        self.engine.policy.audit()
        return Served(result.token_ids, list(self.recorder.logits), result.cached_tokens)


def gate(
    decoder: Decoder,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    *,
    page_size: int = 16,
    chunk_tokens: int = 96,
    kv_dtype: torch.dtype | None = None,
    progress: Callable[[str], None] | None = None,
) -> Gate:
    """Serve every prompt in three classes with islands off and on: cold; again, from the cache; and its whole finished
    transcript extended, `DEEP_WINDOWS` windows into what was generated. Tokens and logits must be equal, a hit always
    compared with a hit. KV is stored as `kv_dtype` (None: the model's).

    Raises `InvalidInput` where the model has no window, or its context is too short to be that deep.
    """
    config = decoder.config
    window = next((each for each in map(config.window_tokens, range(config.layers)) if each is not None), None)
    if window is None:
        raise InvalidInput("the gate needs a model with sliding layers: without a window there are no islands")
    tokens = DEEP_WINDOWS * window + 2 * page_size
    longest = max(map(len, prompts)) + tokens + page_size + 2 * AGAIN_TOKENS
    if longest > config.max_positions:
        raise InvalidInput(
            f"{DEEP_WINDOWS} windows of {window} after the longest prompt reach {longest} tokens; "
            f"the model's context is {config.max_positions}"
        )
    off, on = (
        Arm(decoder, tokenizer, islands=islands, page_size=page_size, chunk_tokens=chunk_tokens, kv_dtype=kv_dtype)
        for islands in (False, True)
    )
    compared: list[Compared] = []
    drift: list[Drift] = []
    deep = float("inf")
    for number, prompt in enumerate(prompts):
        cold = [arm.serve(prompt, tokens) for arm in (off, on)]
        compared.append(_compared("cold", number, *cold))
        again = [arm.serve(prompt, AGAIN_TOKENS) for arm in (off, on)]
        compared.append(_compared("again", number, *again))
        asked = prompts[(number + 1) % len(prompts)][:AGAIN_TOKENS]
        extended = [
            arm.serve([*prompt, *each.token_ids, *asked], AGAIN_TOKENS)
            for arm, each in zip((off, on), cold, strict=True)
        ]
        compared.append(_compared("extended", number, *extended))
        deep = min(deep, (extended[1].hit - len(prompt)) / window)
        drift += [
            Drift(number, islands, *_drift(first, second))
            for islands, first, second in zip((False, True), cold, again, strict=True)
        ]
        if progress is not None:
            progress(f"prompt {number + 1} of {len(prompts)}")
    assert isinstance(on.engine.policy, RadixIslands)
    stats, spent = on.engine.policy.stats, on.engine.spent
    return Gate(
        str(config.dtype).removeprefix("torch."), compared, drift, stats.chunk_islands, stats.decode_islands,
        spent.accepted, deep,
    )  # fmt: skip


def _compared(case: Case, prompt: int, off: Served, on: Served) -> Compared:
    same = off.token_ids == on.token_ids
    return Compared(case, prompt, len(on.token_ids), off.hit, on.hit, same, off.same_logits(on))


def _drift(cold: Served, hit: Served) -> tuple[bool, float]:
    """Whether the tokens agree as far as both go, and the largest difference of the first token's logits."""
    tokens = min(len(cold.token_ids), len(hit.token_ids))
    one, other = (next(each for each in served.logits if len(each)) for served in (cold, hit))
    return cold.token_ids[:tokens] == hit.token_ids[:tokens], float((one[0].float() - other[0].float()).abs().max())


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(one.view(torch.uint8), other.view(torch.uint8)))
