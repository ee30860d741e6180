"""Checks and quizzes of lesson 05: who runs in a step, and who goes when memory runs out."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

from kvlab.course.checks import Trial, exercise
from kvlab.course.quiz import Option, Quiz
from kvlab.course.small_server import Job, NextStep, Preempt, SmallServer, job
from kvlab.memory.block_pool import BlockPool

POOL_FULL: Final = Quiz(
    "05-pool-full",
    "A server with a paged KV cache has run out of free blocks, and a request needs one more. What happens to the KV?",
    (
        Option(
            "Paging moves the blocks that were used least recently to the CPU's memory.",
            why="Paging is how KV is laid out inside the GPU's memory, no more. Moving KV to the CPU is swapping, a "
            "step of its own that a server may have or not. And no block is used less than others: each decode step "
            "reads every block of its request.",
        ),
        Option(
            "Several requests lose a block each, so that nobody loses much.",
            why="A request that lacks one block can't compute its next token. Half a request is of no use: this would "
            "stop several instead of one.",
        ),
        Option(
            "The scheduler takes all blocks of one request. They are computed again later, or fetched back.",
            why="All or nothing, and the request is not lost: its tokens are known, and KV follows from tokens.",
            correct=True,
        ),
        Option(
            "The request that came last ends with an error.",
            why="It only waits. An error is for a request that the whole pool could not hold.",
        ),
    ),
)

HALF: Final = Quiz(
    "05-half",
    "A needs one block. A scheduler takes only the last block of C and leaves C's other blocks where they are. "
    "What is wrong with that?",
    (
        Option(
            "Nothing: C goes on with the blocks it has.",
            why="C's next token reads the keys and values of all tokens before it. One missing block forbids it.",
        ),
        Option(
            "C's text changes.",
            why="It would not: once C has a block again, the lost tokens are computed again and give the same KV.",
        ),
        Option(
            "C can't run, and its other blocks keep memory that nobody can use.",
            why="A's next block, and the one after, would have to come from somebody who still runs. Kept blocks are "
            "of use only if others may take them at any time: that is the prefix cache of lesson 06.",
            correct=True,
        ),
        Option(
            "A single block can't be freed.",
            why="The pool frees any block. The reason is the request, not the pool.",
        ),
    ),
)


def reference_next_step(
    budget: int, running: Sequence[Job], waiting: Sequence[Job], pool: BlockPool
) -> tuple[dict[str, int], list[str]]:
    """What exercise 1 asks for."""
    plan, refused, free = {}, [], pool.free_blocks
    for request in running:
        plan[request.name] = min(request.pending, budget)
        budget -= plan[request.name]
    for request in waiting:
        if request.most > pool.blocks:
            refused.append(request.name)
        elif budget == 0 or request.needs > free:
            break
        else:
            plan[request.name] = min(request.pending, budget)
            budget -= plan[request.name]
            free -= request.needs
    return plan, refused


@exercise(
    "Who runs in the next step",
    hint="Three cases for each request in the queue, in its order: at its longest it has more blocks than the whole "
    "pool (refuse it, look at the next); no budget or too few free blocks now (stop: nobody overtakes); else it "
    "gets tokens, and budget and free blocks shrink.",
)
def check_next_step(trial: Trial, next_step: NextStep) -> None:
    """`next_step(budget, running, waiting, pool)` -> the reference's plan, and the impossible refused."""
    a = [("A", 40, 39)]
    for budget, blocks, running, waiting in (
        (64, 8, a, [("B", 28, 0, 49)]),
        (16, 8, a, [("B", 28, 0, 49)]),
        (64, 8, a, [("B", 28, 0, 49), ("C", 24, 0, 40)]),
        (64, 6, a, [("B", 28, 0, 49), ("C", 20, 0, 40), ("D", 10, 0, 16)]),
        (16, 8, a, [("B", 28, 0, 49), ("C", 24, 0, 40)]),
        (64, 8, a, [("X", 100, 0, 160), ("B", 28, 0, 49)]),
        (64, 8, [], [("X", 160, 0, 200), ("B", 28, 0, 49)]),
        (16, 8, [*a, ("B", 28, 14)], [("C", 24, 0, 40)]),
    ):
        _compare(trial, next_step, budget, blocks, running, waiting)
    rng = random.Random(5)
    for _ in range(60):
        names = iter("ABCDEFGH")
        running = [(next(names), known, known - rng.choice((1, 1, 5))) for known in rng.sample(range(8, 60), 2)]
        waiting = [(next(names), known, 0, known + rng.randint(1, 90)) for known in rng.sample(range(1, 120), 4)]
        _compare(trial, next_step, rng.choice((8, 24, 60)), rng.randint(8, 12), running, waiting)


def _compare(
    trial: Trial,
    next_step: NextStep,
    budget: int,
    blocks: int,
    running: Sequence[tuple[str, int, int]],
    waiting: Sequence[tuple[str, int, int, int]],
) -> None:
    pool = BlockPool(blocks)
    in_memory = [_job(name, known, computed, known + 20) for name, known, computed in running]
    for each in in_memory:
        each.blocks = pool.allocate(each.needs)
    queue = [_job(*each) for each in waiting]
    expected, refuse = reference_next_step(budget, in_memory, queue, pool)
    free, copies = pool.free_blocks, (list(in_memory), list(queue))
    told = ", ".join(f"{each.name} (pending {each.pending})" for each in in_memory) or "nobody"
    asked = ", ".join(f"{each.name} (pending {each.pending}, needs {each.needs}, most {each.most})" for each in queue)
    trial.trying(f"budget {budget}; {free} of {blocks} blocks free; running {told}; waiting {asked}")
    found = next_step(budget, *copies, pool)
    trial.holds("a pair: the plan, and the names of the refused", isinstance(found, tuple) and len(found) == 2, found)
    plan, refused = found
    trial.equal("plan", _positive(plan), _positive(expected))
    never = {each.name for each in queue if each.most > blocks}
    trial.holds(f"refused: {refuse}", set(refuse) <= set(refused) <= never, f"refused: {list(refused)}")
    untouched = (pool.free_blocks, *copies) == (free, in_memory, queue)
    trial.holds("pool and queues as they were: this only decides", untouched, "something was taken or moved")


def _job(name: str, known: int, computed: int, most_tokens: int) -> Job:
    made = job(name, known, most_tokens - known)
    made.computed = computed
    return made


def _positive(plan: object) -> object:
    return {name: tokens for name, tokens in plan.items() if tokens} if isinstance(plan, Mapping) else plan


def requests() -> tuple[list[Job], list[int]]:
    """The three of the first picture, and after how many steps they come."""
    return [job("A", 40, 25), job("B", 28, 21), job("C", 24, 16)], [0, 1, 3]


@exercise(
    "All memory of the request that came last",
    hint="Five lines: take the last one out of `running`; give all its blocks to the pool; its list of blocks is empty "
    "then; none of its tokens is computed; it stands first in the queue. The tokens themselves stay: they are known.",
)
def check_preempt(trial: Trial, preempt: Preempt) -> None:
    """`preempt(running, waiting, pool)`: one whole request leaves, and every text is as if nothing had happened."""
    pool = BlockPool(8)
    running = [_job("A", 47, 46, 65), _job("B", 34, 33, 49), _job("C", 30, 29, 40)]
    for each in running:
        each.blocks = pool.allocate(each.needs)
    (a, b, c), d = running, _job("D", 10, 0, 20)
    waiting, tokens, blocks = [d], list(c.tokens), list(c.blocks)
    trial.trying("A, B and C run, in this order of arrival, and hold all 8 blocks; D waits")
    preempt(running, waiting, pool)
    trial.equal("running", _names(running), ["A", "B"])
    trial.equal("free blocks (C had 2)", pool.free_blocks, 2)
    freed = not any(pool.references[block] for block in blocks)
    trial.holds("C's own blocks are the free ones", freed and a.blocks + b.blocks == list(range(6)), pool.next_free())
    trial.equal("C's blocks", list(c.blocks), [])
    trial.equal("C's tokens that are computed", c.computed, 0)
    trial.holds("C still knows its 30 tokens", c.tokens == tokens, f"{len(c.tokens)} tokens")
    trial.equal("waiting", _names(waiting), ["C", "D"])
    for blocks_there in (8, 9, 7):
        trial.trying(f"A, B and C of the first picture, served with {blocks_there} blocks and with 40")
        roomy, tight = (_texts(preempt, count) for count in (40, blocks_there))
        trial.equal("texts", tight, roomy)


def _names(jobs: Sequence[Job]) -> list[str]:
    return [each.name for each in jobs]


def _texts(preempt: Preempt, blocks: int) -> dict[str, str]:
    return SmallServer(reference_next_step, preempt, blocks).serve(*requests())


def compared(texts: Mapping[str, str], undisturbed: Mapping[str, str]) -> str:
    """A line a request: its text, and whether it is that of an undisturbed run."""
    rows = []
    for name, text in texts.items():
        same = "the same" if text == undisturbed[name] else f"not {undisturbed[name]!r}"
        rows.append(f"{name}: {text!r:30} {same}")
    return "\n".join(rows)
