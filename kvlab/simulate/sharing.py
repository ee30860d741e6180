"""What sharing saves: samples and beams of one prompt on the real `Paged` policy, beside each sequence on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from kvlab.errors import InvalidInput, positive
from kvlab.events import EventLog
from kvlab.policies.paged import Paged
from kvlab.shapes import ModelShape
from kvlab.simulate.examples import serve
from kvlab.workload import Request, Workload

PROPOSED: Final = 2
"""Next tokens that each beam proposes in a step."""
SHARE_LOW, SHARE_HIGH = 0.3, 0.95
"""A proposed token takes a share drawn from this range of the probability that the ones before it left."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """What the sequences of one prompt or more did, summed over their decode steps.

    `held_blocks` is blocks in memory times steps, `alone_blocks` the same if no two tables shared a block.
    `copied_bytes` is what copy-on-write copied; `branches` sequences began as a fork, and copying the parent's cache
    whole each time, as one contiguous region a sequence must, would have moved `branch_bytes`.
    """

    held_blocks: int = 0
    alone_blocks: int = 0
    copied_bytes: int = 0
    branches: int = 0
    branch_bytes: int = 0

    @property
    def saving(self) -> float:
        """Fraction of the blocks that sharing saves, averaged over time."""
        return 1 - self.held_blocks / self.alone_blocks

    def __add__(self, other: Sharing) -> Sharing:
        return Sharing(
            self.held_blocks + other.held_blocks,
            self.alone_blocks + other.alone_blocks,
            self.copied_bytes + other.copied_bytes,
            self.branches + other.branches,
            self.branch_bytes + other.branch_bytes,
        )


class _Group:
    """The sequences of one prompt; they are all equally long, and nobody else uses the policy."""

    def __init__(self, policy: Paged, prompt: Request, log: EventLog | None) -> None:
        self.policy = policy
        self.log = log
        self.sequences = [prompt]
        self.so_far = Sharing()
        serve(policy, prompt, prompt.prompt_tokens)
        if log is not None:
            log.step([(prompt.rid, prompt.prompt_tokens)])

    def branch(self, parent: Request, name: str) -> Request:
        """Fork `parent`; nothing is copied before one of the two writes."""
        child = parent.fork(name)
        self.policy.fork(parent.rid, child)
        self.so_far += Sharing(branches=1, branch_bytes=parent.computed * self.policy.bytes_per_token)
        return child

    def write(self, count: int = 1) -> None:
        """Each sequence writes `count` tokens, at most to the end of its last block."""
        policy = self.policy
        for each in self.sequences:
            policy.extend(each.rid, count)
            each.generated(count)
            policy.commit(each.rid, each.token_ids(each.computed, each.computed + count))
        alone = -(-self.sequences[0].computed // policy.block_size) * len(self.sequences)
        self.so_far += Sharing(
            held_blocks=count * (policy.pool.blocks - policy.pool.free_blocks),
            alone_blocks=count * alone,
            copied_bytes=sum(move.bytes for move in policy.drain_moves()),
        )
        if self.log is not None:
            self.log.step([(each.rid, count) for each in self.sequences])

    def finish(self) -> Sharing:
        """Release every sequence."""
        for each in self.sequences:
            self.policy.release(each.rid, "finished")
        return self.so_far


class Beams:
    """Beam search over block tables with made-up scores: which beams branch and which are dropped is drawn by `seed`.

    In a step each beam proposes its two likeliest next tokens; of all candidates the `width` with the best sums of log
    probabilities survive. A beam that none of them continues is released, one that several continue is forked. A
    stand-in for a model: its scores have the form of real ones, not their values. `so_far` has the sums.
    """

    def __init__(
        self, policy: Paged, prompt_tokens: int, steps: int, width: int, *, seed: int = 0, log: EventLog | None = None
    ) -> None:
        self._group = _Group(policy, Request("b1", prompt_tokens, steps, output_tokens=steps), log)
        self._rng = np.random.default_rng(seed)
        self._scores = [0.0]
        self.width = positive("width", width)

    @property
    def so_far(self) -> Sharing:
        """The sums over the steps done."""
        return self._group.so_far

    @property
    def sequences(self) -> list[Request]:
        """The beams that are alive, b1 first."""
        return self._group.sequences

    def step(self) -> list[int]:
        """Choose, branch, drop, write a token each. The parent of every beam, as an index into the beams before."""
        parents, self._scores = self._chosen()
        self._branch(parents)
        self._group.write()
        return parents

    def run(self, steps: int) -> Sharing:
        """`steps` steps; the sums so far."""
        for _ in range(steps):
            self.step()
        return self.so_far

    def finish(self) -> Sharing:
        """Release every beam; the sums."""
        return self._group.finish()

    def _chosen(self) -> tuple[list[int], list[float]]:
        """The parents of the survivors and their scores; a survivor stands where its parent stood if it can."""
        before = len(self._scores)
        proposed = PROPOSED if before == self.width else max(PROPOSED, self.width)
        shares = self._rng.uniform(SHARE_LOW, SHARE_HIGH, (before, proposed))
        left = np.cumsum(np.log1p(-shares), axis=1) - np.log1p(-shares)
        candidates = (np.array(self._scores)[:, None] + np.log(shares) + left).ravel()
        best = np.argsort(-candidates, kind="stable")[: self.width]
        survivors = [(int(each) // proposed, float(candidates[each])) for each in best]
        places: list[tuple[int, float] | None] = [None] * self.width
        moved = []
        for parent, score in survivors:
            if places[parent] is None:
                places[parent] = (parent, score)
            else:
                moved.append((parent, score))
        rest = iter(moved)
        placed = [next(rest) if place is None else place for place in places]
        return [parent for parent, _ in placed], [score for _, score in placed]

    def _branch(self, parents: list[int]) -> None:
        group, before = self._group, self._group.sequences
        for place, each in enumerate(before):
            if parents[place] != place:
                group.policy.release(each.rid, "aborted")
        group.sequences = [
            before[parent] if parent == place else group.branch(before[parent], f"b{place + 1}")
            for place, parent in enumerate(parents)
        ]
        if group.log is not None and parents != list(range(len(before))):
            group.log.step()


def parallel(policy: Paged, request: Request, samples: int) -> Sharing:
    """`samples` answers to the prompt of `request`, each as long as its output."""
    group = _Group(policy, request, None)
    group.sequences += [group.branch(request, f"{request.rid}/{n}") for n in range(1, positive("samples", samples))]
    while request.computed < request.final_tokens:
        room = policy.block_size - request.computed % policy.block_size
        group.write(min(room, request.final_tokens - request.computed))
    return group.finish()


def beam_search(policy: Paged, request: Request, width: int) -> Sharing:
    """A beam search of `width` from the prompt of `request`, as long as its output; the request's id is the seed."""
    steps = request.final_tokens - request.prompt_tokens
    beams = Beams(policy, request.prompt_tokens, steps, width, seed=request.conversation)
    beams.run(steps)
    return beams.finish()


Run: TypeAlias = Callable[[Paged, Request, int], Sharing]


def saving(workload: Workload, run: Run, width: int, *, requests: int, seed: int = 0) -> float:
    """Fraction of blocks saved on `requests` requests drawn from the workload, averaged over their decode steps.

    A request counts as long as it decodes, as it would in a server that is always full; so long answers weigh more.
    Raises `InvalidInput` if the workload has fewer requests.
    """
    if not 1 <= requests <= len(workload):
        raise InvalidInput(f"{workload.name} has {len(workload)} requests, not {requests}")
    rows = np.random.default_rng(seed).permutation(len(workload))[:requests]
    longest = int((workload.prompt_tokens + workload.output_tokens)[rows].max())
    policy = Paged(ModelShape.preset("opt-13b").groups(), (longest + 32) * (width + 1))
    return total(run(policy, workload.request(int(row)), width) for row in rows).saving


def total(runs: Iterable[Sharing]) -> Sharing:
    """The sum of several."""
    return sum(runs, Sharing())
