"""The shapes of a step on a device that makes a graph for each: which there are, and how a batch is cut into them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

from kvlab.device.buckets import Buckets
from kvlab.errors import positive

MOVED_AT_ONCE: Final = 2048
"""Tokens of KV that are copied or swapped in one call, a layer; longer moves are cut."""


@dataclass(frozen=True)
class Rounding:
    """How the sizes of a step are rounded up: the smallest bucket of each, and each next one twice as large.

    `requests` that compute their next token, `chunk` tokens of a prompt, `context` tokens that a request reads,
    `moved` tokens of KV that are copied or swapped. Larger numbers mean fewer graphs to warm up and more padding.
    """

    requests: int = 1
    chunk: int = 32
    context: int = 256
    moved: int = 64

    def __post_init__(self) -> None:
        for name in ("requests", "chunk", "context", "moved"):
            positive(name, getattr(self, name))

    def copies(self, slots: int) -> Buckets:
        """Tokens that are moved at once in pools of at most `slots`."""
        return _from(self.moved, min(slots, MOVED_AT_ONCE))


class Shape(NamedTuple):
    """A graph: `requests` with `queries` tokens each, which read at most `context` tokens, their own included."""

    requests: int
    queries: int
    context: int


class Part(NamedTuple):
    """The requests of a batch that one graph computes, by their index."""

    shape: Shape
    requests: Sequence[int]


@dataclass(frozen=True)
class Shapes:
    """Every shape of an engine. Requests with up to `short` tokens (the next one, and its drafts) are computed
    together; a longer chunk of a prompt is computed alone."""

    requests: Buckets
    chunk: Buckets
    context: Buckets
    short: int

    @classmethod
    def of(
        cls, rounding: Rounding, *, max_running: int, token_budget: int, context_tokens: int, drafts: int = 0
    ) -> Shapes:
        """For a scheduler's limits, requests of at most `context_tokens`, and `drafts` a step."""
        return cls(
            _from(rounding.requests, max_running),
            _from(rounding.chunk, min(token_budget, context_tokens)),
            _from(rounding.context, context_tokens),
            min(1 + drafts, context_tokens),
        )

    def parts(self, starts: Sequence[int], lengths: Sequence[int]) -> list[Part]:
        """A batch in parts. Request r has the tokens [starts[r], starts[r + 1]) and reads lengths[r].

        Raises `InvalidInput` where the batch is larger than its largest shape.
        """
        counts = [stop - start for start, stop in pairwise(starts)]
        together = [request for request, count in enumerate(counts) if count <= self.short]
        found = []
        if together:
            queries = self.short if any(counts[request] > 1 for request in together) else 1
            context = self.context.bucket(max(lengths[request] for request in together))
            found.append(Part(Shape(self.requests.bucket(len(together)), queries, context), together))
        for request, count in enumerate(counts):
            if count > self.short:
                shape = Shape(1, self.chunk.bucket(count), self.context.bucket(lengths[request]))
                found.append(Part(shape, [request]))
        return found

    def reachable(self) -> list[Shape]:
        """Every shape that `parts` can give, to warm up."""
        found = [
            Shape(requests, queries, context)
            for queries in sorted({1, self.short})
            for requests in self.requests.reachable()
            for context in self.context.reachable(min(2, queries))
        ]
        below = self.short
        if below < self.chunk.limit:
            for queries in self.chunk.reachable(below + 1):
                found += [Shape(1, queries, context) for context in self.context.reachable(below + 1)]
                below = queries
        return found

    def asked(self, shape: Shape) -> int:
        """Rows of logits that a graph computes."""
        return shape.requests * min(shape.queries, self.short)

    @cached_property
    def rows(self) -> Buckets:
        """Rows of logits of a step."""
        return Buckets(self.requests.limit * self.short)


def _from(first: int, limit: int) -> Buckets:
    return Buckets(limit, min(first, limit))
