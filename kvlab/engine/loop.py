"""The serving loop: decide who runs, allocate memory, run the model, sample."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvlab.engine.batch import batch_of
from kvlab.engine.interrupt import uninterrupted
from kvlab.engine.job import Heard, Job, Lane, Search
from kvlab.engine.kv import KVCache
from kvlab.engine.outputs import BeamMove, Completion, Delta
from kvlab.engine.runner import Runner
from kvlab.engine.speculate import accept, propose
from kvlab.engine.static_runner import StaticRunner
from kvlab.engine.stopping import FinishReason
from kvlab.engine.turns import Said, Turn, choose, hear
from kvlab.errors import require
from kvlab.policies.base import ReleaseReason
from kvlab.scheduling.plan import Grant, Plan
from kvlab.scheduling.scheduler import Scheduler
from kvlab.workload import Request, RequestId


class PromptLookup(NamedTuple):
    """Speculative decoding: up to `tokens` drafts a step, where the last `ngram_max` to `ngram_min` tokens have stood
    in the sequence before."""

    tokens: int = 4
    ngram_max: int = 3
    ngram_min: int = 1


@dataclass
class Spent:
    """Seconds in the four parts of a step, over `steps` steps that computed `tokens` tokens. Of the drafts proposed
    `accepted` of `drafted` came true."""

    decide: float = 0.0
    allocate: float = 0.0
    run: float = 0.0
    sample: float = 0.0
    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0


class Loop:
    """Serves jobs until they are finished; `Engine` is its front. `moves` are the beam searches' of the last step."""

    def __init__(
        self,
        scheduler: Scheduler,
        cache: KVCache,
        runner: Runner | StaticRunner,
        drafts: PromptLookup | None,
        share_samples: bool,
    ) -> None:
        self.scheduler = scheduler
        self.policy = scheduler.policy
        self.cache = cache
        self.runner = runner
        self.drafts = drafts
        self.share_samples = share_samples
        self.spent = Spent()
        self.jobs: dict[RequestId, Job] = {}
        self.moves: list[BeamMove] = []
        self._owner: dict[RequestId, Job] = {}
        self._lane: dict[RequestId, Lane] = {}
        self._refused: list[Job] = []
        self._kept: dict[RequestId, int] = {}

    def add(self, job: Job, request: Request) -> None:
        """Queue a job. Raises `InvalidInput` where the id of its sequence is in use."""
        self.scheduler.add(request)
        self.jobs[job.rid] = job
        self._follow(job, request, job.lanes[0] if job.lanes else None)

    def _follow(self, job: Job, request: Request, lane: Lane | None) -> None:
        job.sequences[request.rid] = request
        self._owner[request.rid] = job
        if lane is not None:
            self._lane[request.rid] = lane

    def drop(self, job: Job, rid: RequestId, reason: ReleaseReason) -> None:
        """Free one sequence of a job."""
        self.scheduler.finish(rid, reason)
        self._forget(job, rid)

    def _forget(self, job: Job, rid: RequestId) -> None:
        del job.sequences[rid], self._owner[rid]
        self._lane.pop(rid, None)

    def close(self, job: Job, reason: ReleaseReason) -> None:
        """Free all that is left of a job."""
        for rid in list(job.sequences):
            self.drop(job, rid, reason)
        if job in self._refused:
            self._refused.remove(job)
        job.result.finished_s = time.perf_counter() - job.submitted
        del self.jobs[job.rid]

    def step(self) -> list[Delta]:
        """One step; what each sample said. An interrupt or an error in the model leaves it undone."""
        clock, spent = time.perf_counter, self.spent
        begin = clock()
        self.moves.clear()
        drafts = self._propose() if self.drafts else {}
        decision = self.scheduler.decide({rid: len(draft) for rid, draft in drafts.items()})
        decided = clock()
        with uninterrupted():
            plan = self.scheduler.allocate(decision)
            self.cache.do(self.policy.drain_moves())
            self._note(plan)
        allocated = clock()
        if not plan.granted:
            require(bool(self._refused), "a step with unfinished requests computed nothing")
            self.scheduler.end_step()
            return self._refuse()
        try:
            batch = batch_of(plan.granted, drafts, self.policy)
            logits = self.runner.run(batch)
            ran = clock()
            turns = self._turns(plan.granted, batch.row_starts)
            said, heard = choose(turns, logits), hear(turns, logits)
        except BaseException:
            with uninterrupted():
                self.scheduler.abandon(plan)
            raise
        with uninterrupted():
            deltas = self._refuse() + self._settle(plan, turns, said, heard, drafts)
        spent.decide += decided - begin
        spent.allocate += allocated - decided
        spent.run += ran - allocated
        spent.sample += clock() - ran
        spent.steps += 1
        spent.tokens += plan.tokens
        return deltas

    def _propose(self) -> dict[RequestId, list[int]]:
        """What running sequences may say next, by prompt lookup; no further than they may grow."""
        assert self.drafts is not None
        tokens, ngram_max, ngram_min = self.drafts
        found = {}
        for sequence in self.scheduler.running:
            request = sequence.request
            room = min(tokens, request.limit_tokens - request.known_tokens - 1)
            if sequence.pending == 1 and room > 0 and request.rid in self._lane:
                known = request.token_ids(0, request.known_tokens)
                draft = propose(known, ngram_max=ngram_max, ngram_min=ngram_min, count=room)
                if draft:
                    found[request.rid] = draft
        return found

    def _note(self, plan: Plan) -> None:
        """Tell the jobs what the scheduler did with their sequences."""
        for request, cached in plan.admitted:
            result = self._owner[request.rid].result
            if result.first_token_s is None:
                result.cached_tokens = cached
        for request, _ in plan.preempted:
            self._owner[request.rid].result.preemptions += 1
        for request, reason in plan.refused:
            job = self._owner[request.rid]
            self._forget(job, request.rid)
            job.result.error = reason
            self._refused.append(job)

    def _refuse(self) -> list[Delta]:
        """The last words of refused jobs: when a step ends, so that one which is undone loses none."""
        deltas = []
        for job in list(self._refused):
            deltas += end_lanes(job, "refused")
            self.close(job, "aborted")
        return deltas

    def _turns(self, granted: Sequence[Grant], row_starts: Sequence[int]) -> list[Turn]:
        found = []
        for place, grant in enumerate(granted):
            rows = range(row_starts[place], row_starts[place + 1])
            if rows:
                rid = grant.request.rid
                found.append(Turn(grant, self._owner[rid], self._lane.get(rid), rows))
        return found

    def _settle(
        self,
        plan: Plan,
        turns: Sequence[Turn],
        said: Mapping[RequestId, Said],
        heard: Mapping[RequestId, Heard],
        drafts: Mapping[RequestId, Sequence[int]],
    ) -> list[Delta]:
        """Commit what was computed, then say, fork, prune and finish."""
        now = time.perf_counter()
        speaking = {turn.grant.request.rid for turn in turns}
        self._kept.clear()
        deltas: list[Delta] = []
        for grant in plan.granted:
            if grant.request.rid not in speaking:
                self._computed(grant, grant.tokens)
        for turn in turns:
            job = turn.job
            if job.result.first_token_s is None:
                job.result.first_token_s = now - job.submitted
            if job.search is not None:
                self._hear(turn.grant, job.search, heard)
            elif turn.lane is not None and len(said[turn.grant.request.rid].token_ids) == len(turn.rows):
                deltas.append(self._say(turn, turn.lane, said[turn.grant.request.rid], drafts))
            else:
                self._computed(turn.grant, turn.grant.tokens)
        self.runner.commit([self._kept.pop(grant.request.rid) for grant in plan.granted])
        self.scheduler.end_step()
        for turn in turns:
            job = turn.job
            if job.search is not None:
                if job.search.complete:
                    deltas += self._search(job, job.search)
            elif turn.lane is not None and len(said[turn.grant.request.rid].token_ids) > len(turn.rows):
                deltas += self._split(job, turn.lane, said[turn.grant.request.rid])
        for delta in deltas:
            if delta.reason is not None and delta.rid in self.jobs:
                job = self.jobs[delta.rid]
                if job.search is None:
                    self.drop(job, job.lanes[delta.sample].request.rid, "finished")
                if not job.sequences:
                    self.close(job, "finished")
        return deltas

    def _computed(self, grant: Grant, tokens: int) -> None:
        """The first `tokens` of a grant hold."""
        self._kept[grant.request.rid] = tokens
        self.scheduler.computed(grant, tokens)

    def _say(self, turn: Turn, lane: Lane, said: Said, drafts: Mapping[RequestId, Sequence[int]]) -> Delta:
        """One sequence takes its new tokens; rejected drafts are rolled back."""
        grant, drafted = turn.grant, len(turn.rows) - 1
        token_ids = said.token_ids
        if drafted:
            token_ids = accept(drafts[grant.request.rid][:drafted], token_ids)
            self.spent.drafted += drafted
            self.spent.accepted += len(token_ids) - 1
        delta = lane.say(token_ids, said.logprobs[: len(token_ids)])
        grant.request.generated(delta.token_ids)
        kept = min(len(token_ids) - 1, len(delta.token_ids))
        self._computed(grant, grant.tokens - drafted + kept)
        return delta

    def _split(self, job: Job, first: Lane, said: Said) -> list[Delta]:
        """After the prompt: every further sample is a fork that begins with a token of its own."""
        parent = first.request
        lanes = [first]
        for index in range(1, job.params.n):
            child = parent.fork(f"{job.rid}.{index}")
            lane = Lane(job, index, child)
            lanes.append(lane)
            job.lanes.append(lane)
        deltas = [
            lane.say([token_id], [logprob])
            for lane, token_id, logprob in zip(lanes, said.token_ids, said.logprobs, strict=True)
        ]
        for lane, delta in zip(lanes[1:], deltas[1:], strict=True):
            self._fork(job, parent, lane.request, lane)
            lane.request.generated(delta.token_ids)
        parent.generated(deltas[0].token_ids)
        return deltas

    def _fork(self, job: Job, parent: Request, child: Request, lane: Lane | None) -> None:
        self.scheduler.fork(parent.rid, child, share=self.share_samples or lane is None)
        self._follow(job, child, lane)

    def _hear(self, grant: Grant, search: Search, heard: Mapping[RequestId, Heard]) -> None:
        """Note a beam's best continuations; it waits until the others were heard."""
        rid = grant.request.rid
        search.heard[rid] = heard[rid]
        self._computed(grant, grant.tokens)
        self.scheduler.hold(rid)

    def _search(self, job: Job, search: Search) -> list[Delta]:
        """All beams were heard: fork those with several children, prune those with none."""
        step = search.step()
        before, search.beams = search.beams, []
        taken = set()
        for parent, _, _ in step.survivors:
            beam = before[parent]
            if parent in taken:
                search.forks += 1
                beam = beam.fork(f"{job.rid}.{search.forks}")
                self._fork(job, before[parent], beam, None)
            taken.add(parent)
            search.beams.append(beam)
        for beam, (_, token_id, _) in zip(search.beams, step.survivors, strict=True):
            beam.generated([token_id])
            self.scheduler.resume(beam.rid)
        for index, beam in enumerate(before):
            if not step.children or not step.children[index]:
                self.drop(job, beam.rid, "finished")
        beams = [tuple(beam.rid for beam in each) for each in (before, search.beams)]
        self.moves.append(BeamMove(job.rid, beams[0], beams[1], step))
        return self._hypotheses(job, search) if step.done else []

    def _hypotheses(self, job: Job, search: Search) -> list[Delta]:
        job.result.completions = []
        deltas = []
        for index, (token_ids, score, reason) in enumerate(search.group.hypotheses):
            ids = list(token_ids)
            text = job.tokenizer.decode(ids[:-1] if reason == "stop" else ids)
            job.result.completions.append(Completion(ids, text, reason, score=score))
            deltas.append(Delta(job.rid, index, ids, text, reason))
        return deltas


def end_lanes(job: Job, reason: FinishReason) -> list[Delta]:
    """End the samples of a job that still speak; a beam search has said nothing yet and ends as one."""
    if job.search is not None:
        job.result.completions = [Completion(reason=reason)]
        return [Delta(job.rid, 0, [], "", reason)]
    deltas = [lane.end(reason) for lane in job.lanes if lane.checker.reason is None]
    for completion in job.result.completions[len(job.lanes) :]:  # samples that the prompt has not split into yet
        completion.reason = reason
    return deltas
