"""Freeing KV that a running kernel still reads: safe in one ordered queue, and caught in two.

A host that runs ahead of its device commits a chunk while the chunk's kernel still waits. The commit of an island frees
KV that this very kernel will read, and the pages go to somebody else. What keeps the read right is order, not liveness:
whoever writes there is queued behind it. Source: article 002, "Why eager freeing is safe under overlap scheduling".
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from kvlab.errors import InvalidInput, OutOfMemory, positive
from kvlab.policies.layout import Slots
from kvlab.policies.radix_base import RadixPolicy
from kvlab.policies.radix_books import SWA
from kvlab.workload import Request, RequestId


class Token(NamedTuple):
    """Whose KV a slot holds, and of which position."""

    rid: RequestId
    position: int


class Kernel(NamedTuple):
    """One chunk of one request on its way: writes the SWA KV of [start, stop), then reads from `first` on."""

    rid: RequestId
    first: int
    start: int
    stop: int
    slots: Slots
    """Of the positions [first, stop)."""


@dataclass
class Outcome:
    """What the device saw. A read is clobbered where a slot holds another token than the kernel was queued for. An
    overwrite is live where a kernel that is queued later still has to read what was there."""

    reads: int = 0
    clobbered: list[tuple[Token, Token | None]] = field(default_factory=list)
    overwrites: int = 0
    live_overwrites: int = 0


class Device:
    """Queues of kernels and the SWA memory they work on. Each queue is in order; between queues anything goes."""

    def __init__(self, queues: int, window_tokens: int) -> None:
        self.queues: list[deque[Kernel]] = [deque() for _ in range(positive("queues", queues))]
        self.window_tokens = window_tokens
        self.memory: dict[int, Token] = {}
        self.outcome = Outcome()

    def __len__(self) -> int:
        return sum(map(len, self.queues))

    def run_one(self, rng: random.Random) -> None:
        """Run the next kernel of a queue that has one."""
        queue = rng.choice([each for each in self.queues if each])
        kernel, seen = queue.popleft(), self.outcome
        for position, slot in enumerate(kernel.slots.tolist(), start=kernel.first):
            if position >= kernel.start:
                self._write(slot, Token(kernel.rid, position))
        for position, slot in enumerate(kernel.slots.tolist(), start=kernel.first):
            seen.reads += 1
            expected, found = Token(kernel.rid, position), self.memory.get(slot)
            if found != expected:
                seen.clobbered.append((expected, found))

    def _write(self, slot: int, token: Token) -> None:
        before = self.memory.get(slot)
        if before is not None and before.rid != token.rid:
            self.outcome.overwrites += 1
            waiting = (kernel for queue in self.queues for kernel in queue)
            self.outcome.live_overwrites += any(
                kernel.rid == before.rid and kernel.first <= before.position for kernel in waiting
            )
        self.memory[slot] = token


def in_flight(
    policy: RadixPolicy,
    prompts: Iterable[int],
    *,
    chunk_tokens: int,
    queues: int = 1,
    ahead: int = 4,
    seed: int = 0,
) -> Outcome:
    """Prefill prompts of these lengths, with nothing in common, while the host stays up to `ahead` kernels ahead.

    The host takes turns between the requests that are admitted; request i uses queue i % `queues`. Raises
    `InvalidInput` for a policy without an SWA pool.
    """
    if policy.window_tokens is None:
        raise InvalidInput("only sliding-window KV is freed early; give a policy with sliding layers")
    rng = random.Random(seed)
    device = Device(queues, policy.window_tokens)
    waiting = deque(Request(rid, tokens, 1, conversation=seed * 1000 + rid) for rid, tokens in enumerate(prompts))
    running: deque[Request] = deque()
    while waiting or running:
        if waiting and policy.admit(waiting[0]) is not None:
            running.append(waiting.popleft())
        request = running.popleft()
        count = min(chunk_tokens, request.known_tokens - request.computed)
        try:
            kernel = _queued(policy, request, count)
        except OutOfMemory:
            policy.release(request.rid, "preempted")
            waiting.append(request)
            continue
        device.queues[int(request.rid) % queues].append(kernel)
        policy.commit(request.rid, request.token_ids(kernel.start, kernel.stop))
        if request.computed == request.known_tokens:
            policy.release(request.rid, "finished")
        else:
            running.append(request)
        while len(device) > ahead:
            device.run_one(rng)
    while len(device):
        device.run_one(rng)
    return device.outcome


def _queued(policy: RadixPolicy, request: Request, count: int) -> Kernel:
    """Extend the request; the kernel that will compute its next `count` tokens, as the tables are now."""
    start = request.computed
    policy.extend(request.rid, count)
    sliding = next(index for index, group in enumerate(policy.groups) if group.pool == SWA)
    first = policy.groups[sliding].first_readable(start)
    table = policy.table(request.rid, policy.groups[sliding], first, start + count)
    return Kernel(request.rid, first, start, start + count, table.slots())
