"""What the prefix cache adds to the paged manager, for `kvlab bench pool`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from time import perf_counter
from typing import Final

import numpy as np

from kvlab.memory.caching_pool import CachingPool
from kvlab.memory.hash_chain import Wanted, root
from kvlab.policies.paged import Paged
from kvlab.policies.prefix import PagedPrefix
from kvlab.shapes import LayerGroup, ModelShape
from kvlab.workload import Request, TokenIds

CALLS: Final = 4
VOCABULARY: Final = 50_000


def prompts(tokens: int, seed: int = 0) -> Iterator[TokenIds]:
    """Endless prompts that have nothing in common; the same few hundred again and again."""
    drawn = np.random.default_rng(seed).integers(0, VOCABULARY, (400, tokens), np.int32)
    return cycle(drawn)


def register(tokens: int, block_size: int) -> Callable[[], float]:
    """Hash the tokens block by block and enter them into the map."""
    pool = CachingPool(CALLS * tokens // block_size)
    source, start = prompts(tokens), root(None)

    def timed() -> float:
        asked = [(pool.allocate(tokens // block_size), next(source).tobytes()) for _ in range(CALLS)]
        started = perf_counter()
        for blocks, ids in asked:
            pool.register(blocks, start, ids)
        taken = perf_counter() - started
        for blocks, _ in asked:
            pool.free(blocks)
        return taken / CALLS

    return timed


def lookup(tokens: int, block_size: int, *, hit: bool, hashed: bool) -> Callable[[], float]:
    """`peek` of a prompt that is cached whole or not at all; its digests known already, or still to be made."""
    policy = PagedPrefix(_groups(), 40 * tokens, block_size=block_size)
    source = prompts(tokens + 1)
    cached, other = (Request(rid, next(source), 1) for rid in ("cached", "other"))
    _serve(policy, cached, tokens)
    request = Request("asks", (cached if hit else other).token_ids(0, tokens + 1), 1)
    policy.peek(request)

    def timed() -> float:
        started = perf_counter()
        for _ in range(CALLS):
            if not hashed:
                policy._wanted = Wanted()
            policy.peek(request)
        return (perf_counter() - started) / CALLS

    return timed


def prefill(kind: type[Paged], tokens: int, block_size: int) -> Callable[[], float]:
    """Admit, extend and commit a prompt of which nothing is cached, in a pool whose blocks have all been used."""
    policy = kind(_groups(), (CALLS + 20) * tokens, block_size=block_size)
    source = prompts(tokens)

    def timed() -> float:
        requests = [Request(rid, next(source), 1) for rid in range(CALLS)]
        ids = [request.token_ids(0, tokens) for request in requests]
        started = perf_counter()
        for request, own in zip(requests, ids, strict=True):
            policy.admit(request)
            policy.extend(request.rid, tokens)
            policy.commit(request.rid, own)
        taken = perf_counter() - started
        for request in requests:
            policy.release(request.rid, "finished")
        return taken / CALLS

    for _ in range(3):
        timed()
    return timed


def decode(tokens: int, block_size: int, requests: int) -> Callable[[], float]:
    """`extend` and `commit` where a block is full and they are called at all: one in `block_size` decode steps."""
    policy = PagedPrefix(_groups(), 4 * requests * tokens, block_size=block_size)
    source = prompts(tokens + block_size)

    def timed() -> float:
        answers = []
        for rid in range(requests):
            ids = next(source)
            _serve(policy, Request(rid, ids[:tokens], block_size), tokens)
            answers.append(ids[tokens:].tolist())
        started = perf_counter()
        for rid, ids in enumerate(answers):
            extension = policy.extend(rid, 1)
            policy.commit(rid, ids[: 1 + extension.quiet])
        taken = perf_counter() - started
        for rid in range(requests):
            policy.release(rid, "finished")
        return taken / requests

    return timed


def _groups() -> tuple[LayerGroup, ...]:
    return ModelShape.preset("llama-3.1-8b").groups()


def _serve(policy: PagedPrefix, request: Request, tokens: int) -> None:
    policy.admit(request)
    start = request.computed
    policy.extend(request.rid, tokens - start)
    policy.commit(request.rid, request.token_ids(start, tokens))
