"""The choice of tokens: which sequences are asked in a step, and what they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from kvlab.engine.beams import best_tokens
from kvlab.engine.draws import Draw
from kvlab.engine.job import Heard, Job, Lane
from kvlab.engine.sampling import Logprobs, SamplingParams, sample
from kvlab.scheduling.plan import Grant
from kvlab.workload import RequestId


class Turn(NamedTuple):
    """A sequence whose known tokens are all computed by this step: logits in `rows`, more than one after a draft."""

    grant: Grant
    job: Job
    lane: Lane | None
    rows: range


class Said(NamedTuple):
    """Tokens chosen from the rows of one turn, for each asked sample after the other."""

    token_ids: list[int]
    logprobs: list[Logprobs | None]


def choose(turns: Sequence[Turn], logits: Tensor) -> dict[RequestId, Said]:
    """The next tokens of each turn that has a lane, all in one call, by the id of its sequence."""
    rows: list[int] = []
    params: list[SamplingParams] = []
    draws: list[Draw] = []
    lanes = [(turn.job, turn.lane, turn.rows) for turn in turns if turn.lane is not None]
    for job, lane, own in lanes:
        spoken = lane.checker.output_tokens
        for index in job.asked if lane.index == 0 else (0,):
            for offset, row in enumerate(own):
                rows.append(row)
                params.append(job.params)
                draws.append(Draw(job.seed, lane.index + index, spoken + offset))
    in_order = rows == list(range(len(rows)))
    chosen = sample(logits if in_order else logits.cpu()[rows], params, draws)
    found, at = {}, 0
    for job, lane, own in lanes:
        end = at + len(own) * (len(job.asked) if lane.index == 0 else 1)
        found[lane.request.rid] = Said(chosen.token_ids[at:end], chosen.logprobs[at:end])
        at = end
    return found


def hear(turns: Sequence[Turn], logits: Tensor) -> dict[RequestId, Heard]:
    """The best continuations of each turn of a beam search, by the id of its sequence."""
    beams = [(turn, search) for turn in turns if (search := turn.job.search) is not None]
    if beams:
        logits = logits.cpu()  # an accelerator would make a graph for each number of beams
    return {
        turn.grant.request.rid: best_tokens(logits[turn.rows.start : turn.rows.stop], search.group.candidates)
        for turn, search in beams
    }
