"""A request as the engine follows it: the sequences it became, and what they have said so far."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from kvlab.engine.beams import BeamGroup, BeamStep, Floats, Ints
from kvlab.engine.outputs import Completion, Delta, Result
from kvlab.engine.sampling import Logprobs, SamplingParams
from kvlab.engine.stopping import FinishReason, StopChecker
from kvlab.engine.tokenizer import Detokenizer, Tokenizer
from kvlab.workload import Request, RequestId

Heard: TypeAlias = tuple[Floats, Ints]
"""The best continuations of a beam: log-probabilities and ids, `[1, candidates]` each."""


class Lane:
    """One sample: a sequence and what it has said.

    Its text leaves as it comes where the request streams, else with the last token; a stop string needs it at once.
    """

    __slots__ = ("checker", "completion", "detokenizer", "index", "job", "request")

    def __init__(self, job: Job, index: int, request: Request) -> None:
        self.job = job
        self.index = index
        self.request = request
        self.completion: Completion = job.result.completions[index]
        eos = job.tokenizer.eos_token_ids
        self.checker = StopChecker(job.params, eos_token_ids=eos, output_limit=request.max_tokens)
        self.detokenizer = Detokenizer(job.tokenizer) if job.streams or job.params.stop else None

    def say(self, token_ids: list[int], logprobs: list[Logprobs | None]) -> Delta:
        """Take new tokens up to the one that ends the sample; what leaves now."""
        text, reason, taken = "", None, 0
        for token_id, logprob in zip(token_ids, logprobs, strict=True):
            taken += 1
            if logprob is not None:
                self.completion.logprobs.append(logprob)
            piece = ""
            if self.detokenizer is not None and token_id not in self.job.stop_ids:
                piece = self.detokenizer.push(token_id)
            piece, reason = self.checker.push(token_id, piece)
            text += piece
            if reason is not None:
                break
        self.completion.token_ids += token_ids[:taken]
        if reason is not None and not isinstance(self.checker.matched, str):
            text += self._rest()
        return self._leave(text, reason, token_ids[:taken])

    def _rest(self) -> str:
        """Text that was not pushed yet, the token that ended the sample left out."""
        if self.detokenizer is not None:
            return self.detokenizer.flush()
        ids = self.completion.token_ids
        return self.job.tokenizer.decode(ids if self.checker.matched is None else ids[:-1])

    def end(self, reason: FinishReason) -> Delta:
        """End it from outside; what was held back leaves."""
        return self._leave(self.checker.end(reason).text + self._rest(), reason, [])

    def _leave(self, text: str, reason: FinishReason | None, token_ids: list[int]) -> Delta:
        self.completion.text += text
        self.completion.reason = reason
        return Delta(self.job.rid, self.index, token_ids, text, reason)


class Job:
    """A request, its `n` samples or its beams. `sequences` are those that the scheduler has."""

    def __init__(
        self,
        rid: RequestId,
        request: Request,
        params: SamplingParams,
        *,
        seed: int,
        tokenizer: Tokenizer,
        streams: bool,
        now: float,
    ) -> None:
        self.rid = rid
        self.params = params
        self.seed = seed
        self.tokenizer = tokenizer
        self.streams = streams
        self.stop_ids = frozenset(params.stop_token_ids).union(() if params.ignore_eos else tokenizer.eos_token_ids)
        self.submitted = now
        self.result = Result(rid, request.prompt_tokens, [Completion() for _ in range(params.n)])
        self.lanes = [Lane(self, 0, request)] if params.beams is None else []
        self.search = Search(self, request) if params.beams is not None else None
        self.sequences = {request.rid: request}

    @property
    def asked(self) -> range:
        """The samples that the first sequence's next token is drawn for: all of them after the prompt, then its own."""
        first = len(self.lanes) == 1 and not self.lanes[0].completion.token_ids
        return range(self.params.n if first else 1)


class Search:
    """The beams of a job, in the order of `group.live`, and the continuations that came in for the next step."""

    def __init__(self, job: Job, request: Request) -> None:
        params = job.params
        assert params.beams is not None
        self.group = BeamGroup(
            params.beams,
            max_tokens=request.max_tokens,
            eos_token_ids=job.stop_ids,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
        )
        self.beams = [request]
        self.forks = 0
        self.heard: dict[RequestId, Heard] = {}

    @property
    def complete(self) -> bool:
        """Whether every live beam was heard."""
        return bool(self.heard) and len(self.heard) == len(self.beams)

    def step(self) -> BeamStep:
        """What to do with the beams, all of which were heard."""
        heard = [self.heard.pop(beam.rid) for beam in self.beams]
        return self.group.step(np.concatenate([each[0] for each in heard]), np.concatenate([each[1] for each in heard]))
