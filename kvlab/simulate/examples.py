"""The worked examples of article 003, run on the real policies: the ledger, the tour and the lessons all use these."""

from __future__ import annotations

from typing import Final

from kvlab.events import EventLog
from kvlab.memory.block_table import BlockTable
from kvlab.memory.contiguous import FirstFit
from kvlab.policies.base import Policy, Usage
from kvlab.policies.contiguous import ContiguousMax
from kvlab.policies.paged import Paged
from kvlab.shapes import ModelShape
from kvlab.workload import Request

BLOCK_SIZE: Final = 16
MAX_MODEL_TOKENS: Final = 4096
FOUR_REQUESTS: Final = ((200, 100, 450), (1200, 300, 1800), (50, 20, 300), (800, 600, 1500))
"""(prompt, generated so far, final length) of the four requests of step 1."""


def serve(policy: Policy, request: Request, tokens: int) -> None:
    """Admit `request` and commit its first `tokens` tokens in one go."""
    policy.admit(request)
    policy.extend(request.rid, tokens)
    policy.commit(request.rid, request.token_ids(0, tokens))


def four_requests(policy: Policy, log: EventLog | None = None) -> dict[str, Usage]:
    """Bring the four requests A to D to where the article's snapshot finds them; the accounting there."""
    for rid, (prompt, generated, final) in zip("ABCD", FOUR_REQUESTS, strict=True):
        request = Request(rid, prompt, final - prompt, output_tokens=final - prompt)
        request.generated(generated)
        serve(policy, request, prompt + generated)
        if log is not None:
            log.step([(rid, prompt + generated)])
    policy.audit()
    return policy.usage()


def four_reserved(log: EventLog | None = None) -> ContiguousMax:
    """Step 1: a region of 4,096 slots for each of the four requests (Llama 3.1 8B)."""
    policy = ContiguousMax(
        ModelShape.preset("llama-3.1-8b").groups(),
        len(FOUR_REQUESTS) * MAX_MODEL_TOKENS,
        max_model_tokens=MAX_MODEL_TOKENS,
        log=log,
    )
    four_requests(policy, log)
    return policy


def four_paged(block_size: int = BLOCK_SIZE, log: EventLog | None = None) -> Paged:
    """Step 3: the same four requests, in the same memory, in blocks."""
    groups = ModelShape.preset("llama-3.1-8b").groups()
    policy = Paged(groups, len(FOUR_REQUESTS) * MAX_MODEL_TOKENS, block_size=block_size, log=log)
    four_requests(policy, log)
    return policy


def split_holes() -> FirstFit:
    """Step 1: 4,096 slots hold 1,024 + 512 + 2,048 and 512 free; then the 512-slot request finishes."""
    region = FirstFit(4096)
    starts = [region.allocate(slots).start for slots in (1024, 512, 2048)]
    region.free(starts[1])
    return region


def request_a(log: EventLog | None = None) -> Paged:
    """Step 3's pool: 12 blocks, of which request Z has just given back 3, 1, 7, in this order.

    Z got 7, 1 and 3 from the eight requests of one block each that finished before it, those of blocks 3, 1, 7 last.
    """
    groups = ModelShape.preset("llama-3.1-8b").groups()
    before = Paged(groups, 12 * BLOCK_SIZE)
    for rid in range(8):
        serve(before, Request(rid, BLOCK_SIZE - 1, 1), BLOCK_SIZE - 1)
    for rid in (6, 5, 4, 2, 0, 3, 1, 7):
        before.release(rid, "finished")
    policy = Paged(groups, 12 * BLOCK_SIZE, order=before.pool.next_free(), log=log)
    serve(policy, Request("Z", 40, 8), 40)
    if log is not None:
        log.step([("Z", 40)])
    policy.release("Z", "finished")
    if log is not None:
        log.step()
    return policy


def decode(policy: Policy, request: Request, tokens: int, log: EventLog | None = None) -> None:
    """Generate `tokens` tokens one at a time, a frame of the log each."""
    for _ in range(tokens):
        policy.extend(request.rid, 1)
        request.generated(1)
        policy.commit(request.rid, request.token_ids(request.computed, request.computed + 1))
        if log is not None:
            log.step([(request.rid, 1)])


def parallel_samples(
    samples: int = 4,
    prompt: int = 1000,
    generated: int = 200,
    *,
    share: bool = True,
    log: EventLog | None = None,
) -> Paged:
    """Step 4: `samples` answers to one prompt, forked after the prefill (or each on its own with `share=False`)."""
    total = -(-(prompt + generated) // BLOCK_SIZE) * samples
    policy = Paged(ModelShape.preset("llama-3.1-8b").groups(), total * BLOCK_SIZE, block_size=BLOCK_SIZE, log=log)
    first = Request("s1", prompt, generated, output_tokens=generated)
    serve(policy, first, prompt)
    if log is not None:
        log.step([("s1", prompt)])
    group = [first]
    for number in range(2, samples + 1):
        if share:
            child = first.fork(f"s{number}")
            policy.fork("s1", child)
        else:
            child = Request(f"s{number}", prompt, generated, output_tokens=generated)
            serve(policy, child, prompt)
        group.append(child)
    if log is not None:
        log.step([] if share else [(each.rid, prompt) for each in group[1:]])
    for _ in range(generated):
        for request in group:
            policy.extend(request.rid, 1)
            request.generated(1)
            policy.commit(request.rid, request.token_ids(request.computed, request.computed + 1))
        if log is not None:
            log.step([(request.rid, 1) for request in group])
    policy.audit()
    return policy


def last_block_utilisation(tokens: int, block_size: int = BLOCK_SIZE) -> float:
    """Tokens over slots when only last blocks are partly empty: a table at each of the `block_size` lengths around
    `tokens`, every fill of the last block once."""
    policy = Paged(ModelShape.preset("opt-13b").groups(), 2 * tokens * block_size + block_size, block_size=block_size)
    first = tokens - block_size // 2
    held = slots = 0
    for length in range(first, first + block_size):
        table = BlockTable(policy.pool, block_size)
        table.append(length)
        held += length
        slots += len(table.blocks) * block_size
        table.release()
    return held / slots
