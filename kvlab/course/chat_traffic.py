"""Chats of real length over a prefix cache: which tokens were sent before, how many are found, what not finding costs.

Lengths only (ShareGPT); the policies are kvlab's own, without a model behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvlab.bench.paired import Paired
from kvlab.bench.prefix import prefill
from kvlab.engine.engine import Engine
from kvlab.engine.sampling import SamplingParams
from kvlab.errors import InvalidInput
from kvlab.policies.paged import Paged
from kvlab.policies.prefix import PagedPrefix, PrefixStats
from kvlab.shapes import ModelShape
from kvlab.workload import Ints, Workload, sharegpt

BLOCK_SIZE = 16


def sent_before(workload: Workload) -> Ints:
    """For each turn the tokens of its prompt that the turn before sent or got as its answer, int64 `[turns]`; 0 for
    the first of a conversation."""
    total = workload.prompt_tokens + workload.output_tokens
    same = workload.conversation[1:] == workload.conversation[:-1]
    return np.concatenate(([0], np.where(same, total[:-1], 0)))


@dataclass(frozen=True)
class Chats:
    """Turns of several conversations in the order in which a server gets them."""

    workload: Workload
    order: Sequence[int]

    @classmethod
    def of_sharegpt(cls, chats: int = 150, *, at_once: int = 30, limit_tokens: int = 4096, seed: int = 0) -> Chats:
        """Conversations drawn from the ShareGPT lengths, at most `at_once` of them open: each next turn is of one
        drawn from those, and where one ends another begins. Turns beyond `limit_tokens` are left out, as by a server
        that refuses them. Raises `InvalidInput` where there are fewer conversations."""
        workload = sharegpt("all").within(limit_tokens - 1, limit_tokens)
        rng = np.random.default_rng(seed)
        known = np.unique(workload.conversation)
        if not 1 <= at_once <= chats <= len(known):
            raise InvalidInput(f"{chats} chats, {at_once} at once: there are {len(known)} conversations to draw from")
        rows = [np.flatnonzero(workload.conversation == each).tolist() for each in rng.choice(known, chats, False)]
        active, order = rows[:at_once], []
        coming = iter(rows[at_once:])
        while active:
            at = int(rng.integers(len(active)))
            order.append(active[at].pop(0))
            if not active[at]:
                following = next(coming, None)
                active[at : at + 1] = [] if following is None else [following]
        return cls(workload, order)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts together."""
        return int(self.workload.prompt_tokens[list(self.order)].sum())

    @property
    def distinct_tokens(self) -> int:
        """Tokens of all conversations, each counted once: what a cache that keeps everything would hold."""
        ends = {int(self.workload.conversation[row]): self._length(row) for row in self.order}
        return sum(ends.values())

    @property
    def resent(self) -> float:
        """The share of all prompt tokens that had been sent or answered before."""
        return float(sent_before(self.workload)[list(self.order)].sum()) / self.prompt_tokens

    def _length(self, row: int) -> int:
        return int(self.workload.prompt_tokens[row] + self.workload.output_tokens[row])

    def through(self, capacity_tokens: int) -> PrefixStats:
        """Serve the turns one after the other with `PagedPrefix`; what it found. The last token of an answer has no
        KV: nobody fed it to the model."""
        policy = PagedPrefix(ModelShape.preset("llama-3.1-8b").groups(), capacity_tokens, block_size=BLOCK_SIZE)
        for row in self.order:
            request = self.workload.request(row)
            if policy.admit(request) is None:
                raise InvalidInput(f"turn {row} does not fit into {capacity_tokens} tokens, though it is alone")
            request.generated(request.max_tokens - 1)
            start, stop = request.computed, request.known_tokens
            policy.extend(request.rid, stop - start)
            policy.commit(request.rid, request.token_ids(start, stop))
            policy.release(request.rid, "finished")
        return policy.stats


def manager_cost(*, tokens: int = 1024, repeats: int = 31) -> Paired:
    """Admit, extend and commit a prompt in the memory manager alone: without a cache, and with one that finds nothing
    and evicts a block for each it takes. Paired, seconds a prompt."""
    arms: dict[str, Callable[[], float]] = {
        "Paged": prefill(Paged, tokens, BLOCK_SIZE),
        "PagedPrefix": prefill(PagedPrefix, tokens, BLOCK_SIZE),
    }
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(repeats):
        for name in list(arms) if turn % 2 else list(arms)[::-1]:
            samples[name].append(arms[name]())
    return Paired(samples)


def engine_arms(
    engine: Engine, *, prompts: int = 2, tokens: int = 512, answer: int = 8
) -> dict[str, Callable[[], object]]:
    """For `measure`: the same work in three engines around one model. Without a cache; with one that finds nothing,
    its pool full of others' blocks; with one that finds all it may."""
    rng = np.random.default_rng(6)
    params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
    capacity = 2 * prompts * (tokens + 2 * answer)

    def drawn() -> list[list[int]]:
        return [rng.integers(16, engine.config.vocab_size, tokens).tolist() for _ in range(prompts)]

    def with_policy(kind: type[Paged]) -> Engine:
        return Engine(engine.decoder, engine.tokenizer, lambda groups: kind(groups, capacity, block_size=BLOCK_SIZE))

    plain, cold, warm = with_policy(Paged), with_policy(PagedPrefix), with_policy(PagedPrefix)
    again = drawn()
    warm.generate(again, params)
    return {
        "no cache": lambda: plain.generate(drawn(), params),
        "nothing found": lambda: cold.generate(drawn(), params),
        "all but a block": lambda: warm.generate(again, params),
    }
