"""Lesson 03: the checks of both exercises, and the quizzes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np

from kvlab.course.checks import Trial, exercise
from kvlab.course.quiz import Option, Quiz
from kvlab.course.shared_samples import BLOCKS, Samples, Write, copy_on_write, unbalanced
from kvlab.memory.block_pool import BlockPool
from kvlab.memory.block_table import BlockTable
from kvlab.simulate.examples import BLOCK_SIZE

NextBeams: TypeAlias = Callable[[BlockPool, list[list[int]], Sequence[int]], list[list[int]]]
"""next_beams(pool, tables, parents): the tables of the survivors; survivor i continues beam `parents[i]`."""


@exercise("A write to a shared block", hint="Who else reads this block? `pool.references` counts them.")
def check_write(trial: Trial, write: Write) -> None:
    """Three copies, 114 blocks, the last writer in place, and everyone reads back what they wrote."""
    run = Samples(write)
    original = run.tables[0][-1]
    trial.trying("four samples of a 1,000-token prompt write one token each")
    run.generate(1)
    _sound(trial, run)
    trial.equal("copies", run.copies, 3)
    trial.equal("s4, the last writer, stays in block", run.tables[3][-1], original)
    trial.trying("they go on to 200 tokens each")
    run.generate(199)
    _sound(trial, run)
    trial.equal("copies", run.copies, 3)
    trial.equal("blocks", run.blocks, 114)
    trial.trying("all four finish")
    run.release()
    trial.equal("blocks still in use", run.blocks, 0)
    trial.trying("a prompt of 1,008 tokens, which fills its last block; one token each")
    run = Samples(write, prompt=1008)
    run.generate(1)
    _sound(trial, run)
    trial.equal("copies", run.copies, 0)
    _like_the_real_table(trial, write)


def _sound(trial: Trial, run: Samples) -> None:
    trial.holds("every sequence reads back its own tokens", not run.misread(), run.misread())
    wrong = unbalanced(run.pool, run.tables)
    trial.holds("each block has as many references as tables name it", not wrong, wrong)
    run.pool.audit()


def _like_the_real_table(trial: Trial, write: Write) -> None:
    """Forks and writes in a random order; `BlockTable` on a pool of its own is the oracle."""
    trial.trying("300 forks and writes in a random order, beside kvlab's own BlockTable")
    rng = np.random.default_rng(3)
    run = Samples(write, samples=1, prompt=37)
    oracle = [BlockTable(BlockPool(BLOCKS), BLOCK_SIZE)]
    oracle[0].append(37)
    copies = 0
    for _ in range(300):
        which = int(rng.integers(len(oracle)))
        if rng.random() < 0.05 and len(oracle) < 12:
            run.fork(which)
            oracle.append(oracle[which].fork())
        else:
            run.put(which)
            copies += oracle[which].append() is not None
    _sound(trial, run)
    trial.equal("copies", run.copies, copies)
    trial.equal("blocks", run.blocks, BLOCKS - oracle[0].pool.free_blocks)


@exercise("Pruning a beam", hint="Take every new reference before you give an old one back.")
def check_next_beams(trial: Trial, next_beams: NextBeams) -> None:
    """64 steps of a beam of four: counts balance, nobody loses a block, every beam reads back its own text."""
    rng = np.random.default_rng(5)
    run = Samples(copy_on_write, samples=1, prompt=40, name="b")
    pool = run.pool
    for step in range(64):
        scores = rng.normal(size=2 * len(run.tables))  # two candidates a beam
        parents = [0] * 4 if step == 0 else [int(each) // 2 for each in np.argsort(-scores)[:4]]
        texts = [list(run.texts[parent]) for parent in parents]
        trial.trying(f"step {step}: the survivors continue the beams {parents} of {len(run.tables)}")
        found = next_beams(pool, run.tables, parents)
        trial.holds("a list of four tables", isinstance(found, list) and len(found) == 4, found)
        trial.holds(
            "four lists, as each beam will grow its own",
            len({id(table) for table in found}) == 4,
            "the same list twice",
        )
        run.tables, run.texts = found, texts
        _sound(trial, run)
        for beam in range(4):
            run.put(beam)
        _sound(trial, run)
    trial.trying("all four finish")
    run.release()
    trial.equal("blocks still in use", run.blocks, 0)


PROMPT_KV: Final = Quiz(
    "03-prompt-kv",
    "Four answers are sampled from one prompt. Which keys and values must each of the four have for itself?",
    (
        Option(
            "All of the prompt's, because each answer reads the prompt in its own way.",
            why="Samples of one prompt do not need their own prompt KV. An answer reads the prompt with its own "
            "queries; the keys and values it reads are the same numbers for all four.",
        ),
        Option(
            "The prompt's from the moment when the answers differ.",
            why="A token's keys and values depend on the tokens before it. Nothing that is written later, by anybody, "
            "changes those of the prompt.",
        ),
        Option(
            "Those of its own answer, and a copy of the prompt's last block if that one was not full.",
            why="The copy is there for the empty slots behind the prompt, where each answer puts other tokens.",
            correct=True,
        ),
        Option(
            "None: blocks are shared, so all four write into the same ones.",
            why="Then each would read the others' tokens as its own. Reading can be shared, writing cannot.",
        ),
    ),
)

FULL_BLOCK: Final = Quiz(
    "03-full-block",
    "The prompt now has 1,008 tokens, which is 63 full blocks. Four samples write their first token. How many copies?",
    (
        Option("4", why="No sample writes into a block that another one reads."),
        Option("3", why="That was for a prompt that ends inside a block. This one ends at the edge of one."),
        Option(
            "63, since all prompt blocks are shared",
            why="Being shared is no reason to copy. Being written is, and nobody writes into a full block.",
        ),
        Option("0", why="Each sample's first token needs a new block anyway; full blocks are only read.", correct=True),
    ),
)
