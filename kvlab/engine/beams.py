"""Beam search: which continuations of which beams go on, and which are finished. Decides only; the engine forks KV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from kvlab.errors import InvalidInput, positive

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


class Beam(NamedTuple):
    """A sequence that goes on: what it generated so far and the sum of the log-probabilities of these tokens."""

    token_ids: tuple[int, ...]
    score: float


class Survivor(NamedTuple):
    """A beam of the next step: `token_id` appended to beam `parent` (an index into this step's beams)."""

    parent: int
    token_id: int
    score: float


class Hypothesis(NamedTuple):
    """A finished sequence (its end-of-sequence token included) and score: the sum over length ** length_penalty."""

    token_ids: tuple[int, ...]
    score: float
    reason: Literal["stop", "length"]


@dataclass(frozen=True)
class BeamStep:
    """What one step decided.

    `survivors` are the next live beams, best first; none when `done`. `children[i]` survivors continue beam i: with
    none its memory is free, the first goes on in place, each further one is a fork. `finished` ended in this step.
    `ranked` are all continuations that it looked at, best first.
    """

    survivors: tuple[Survivor, ...]
    children: tuple[int, ...]
    finished: tuple[Hypothesis, ...]
    done: bool
    ranked: tuple[Survivor, ...]


class BeamGroup:
    """The beams of one request, with the decisions of `transformers` 5 `generate(num_beams=width)`, without sampling.

    Each step ranks every continuation of every live beam and looks at the best `candidates` of them: twice the width,
    or more with several end tokens, so that `width` of them can go on whatever ends. A continuation that ends is kept
    if it is among the best `width` of the step; the best `width` hypotheses are held. Equal scores: the better
    parent, then the lower token id. Scores are float32.

    `early_stopping` says when `width` hypotheses are enough: True at once; False as soon as the best live beam, scored
    at its present length, is no better than the worst of them; "never" the same with the length that would suit it
    best, `max_tokens` for a length penalty above 0. A width of 1 is greedy, as it is there.

    Where the vocabulary leaves fewer than `width` continuations the group has fewer beams (`transformers` fills up
    with copies of the prompt). Raises `InvalidInput` on a width or length below 1, or a penalty float32 cannot hold.
    """

    def __init__(
        self,
        width: int,
        *,
        max_tokens: int,
        eos_token_ids: Collection[int] = (),
        length_penalty: float = 1.0,
        early_stopping: bool | Literal["never"] = False,
    ) -> None:
        self.width = positive("beams", width)
        self.max_tokens = positive("max_tokens", max_tokens)
        self.eos_token_ids = frozenset(eos_token_ids)
        self.length_penalty = length_penalty
        self.early_stopping: bool | Literal["never"] = True if width == 1 else early_stopping
        self.candidates = max(2, 1 + len(self.eos_token_ids)) * width
        self.live: tuple[Beam, ...] = (Beam((), 0.0),)
        self.done = False
        self._held: tuple[Hypothesis, ...] = ()
        if abs(length_penalty) * np.log2(max_tokens) >= 127:
            raise InvalidInput(f"{max_tokens} tokens ** length_penalty {length_penalty:g} is no float32; use a smaller")

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The best `width` finished so far, best first."""
        return self._held

    def step(self, log_probs: Floats, token_ids: Ints) -> BeamStep:
        """Decide from the next token's best log-probabilities of each live beam and their ids, both `[live, best]`.

        `best` is `candidates`, or the vocabulary if that is smaller: `best_tokens` makes both from logits. Raises
        `InvalidInput`, and changes nothing, if the shapes differ, a score is NaN, none is finite or all is done.
        """
        parents, ids, scores = self._ranked(log_probs, token_ids)
        length = len(self.live[0].token_ids) + 1
        ends = np.isin(ids, list(self.eos_token_ids)) | (length >= self.max_tokens)
        finished = tuple(
            Hypothesis(
                (*self.live[parents[at]].token_ids, int(ids[at])),
                self._penalised(scores[at], length),
                "stop" if int(ids[at]) in self.eos_token_ids else "length",
            )
            for at in np.flatnonzero(ends[: self.width])
        )
        self._held = tuple(sorted((*self._held, *finished), key=lambda each: -each.score)[: self.width])
        going = np.flatnonzero(~ends)[: self.width]
        self.done = not len(going) or not self._can_improve(scores[going[0]], length)
        ranked = tuple(map(Survivor, parents.tolist(), ids.tolist(), scores.tolist()))
        survivors = () if self.done else tuple(ranked[at] for at in going)
        children = Counter(each.parent for each in survivors)
        counts = tuple(children[parent] for parent in range(len(self.live)))
        self.live = tuple(Beam((*self.live[each.parent].token_ids, each.token_id), each.score) for each in survivors)
        return BeamStep(survivors, counts, finished, self.done, ranked)

    def _ranked(self, log_probs: Floats, token_ids: Ints) -> tuple[Ints, Ints, Floats]:
        """(parent, id, summed log-probability) of the best continuations of all live beams, best first."""
        if self.done:
            raise InvalidInput("the beam search is done; its hypotheses are ranked")
        if log_probs.shape != token_ids.shape or log_probs.ndim != 2 or len(log_probs) != len(self.live):
            raise InvalidInput(
                f"{len(self.live)} live beams need a row of log-probabilities and of ids each, "
                f"not {log_probs.shape} and {token_ids.shape}"
            )
        scores = log_probs.astype(np.float32) + np.array([[beam.score] for beam in self.live], np.float32)
        if np.isnan(scores).any() or not np.isfinite(scores).any():
            raise InvalidInput("a beam's log-probabilities hold NaN or nothing finite")
        parents = np.repeat(np.arange(len(self.live)), scores.shape[1])
        flat, ids = scores.ravel(), token_ids.ravel()
        order = np.lexsort((ids, parents, -flat))[: self.candidates]
        order = order[np.isfinite(flat[order])]
        return parents[order], ids[order], flat[order]

    def _penalised(self, score: np.float32, length: int) -> float:
        return float(np.float32(score) / np.float32(length**self.length_penalty))

    def _can_improve(self, best: np.float32, length: int) -> bool:
        if len(self._held) < self.width:
            return True
        if self.early_stopping is True:
            return False
        if self.early_stopping == "never" and self.length_penalty > 0:
            length = self.max_tokens
        return self._penalised(best, length) > self._held[-1].score


def best_tokens(logits: Tensor, count: int) -> tuple[Floats, Ints]:
    """The `count` most probable next tokens of each row of `logits` `[beams, vocab]`: log-probabilities and ids.

    Both `[beams, min(count, vocab)]` on the host, best first; the softmax is taken in float32 where the logits are.
    """
    values, ids = logits.detach().float().log_softmax(dim=-1).topk(min(count, logits.shape[-1]), dim=-1)
    return values.cpu().numpy(), ids.cpu().numpy()
