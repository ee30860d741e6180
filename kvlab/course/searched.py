"""What the engine did with the samples and beams of a prompt, read from its log and from the moves of a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kvlab.engine.engine import Engine
from kvlab.engine.outputs import BeamMove
from kvlab.engine.tokenizer import Tokenizer
from kvlab.errors import InvalidInput
from kvlab.events import EventLog, Replay
from kvlab.viz import BeamNode, Drawing, beam_tree

PASSAGE: Final = (
    "In the beginning God created the heaven and the earth. And the earth was without form, and void; and darkness "
    "was upon the face of the deep. And the Spirit of God moved upon the face of the waters. And God said, Let there "
    "be light: and there was light. And God saw the light, that it was good: and God divided the light from the "
    "darkness. And God called the light Day, and the darkness he called Night. And the evening and the morning were "
    "the first day. And God said, Let there be a firmament in the midst of the waters, and let it divide the waters "
    "from the waters. And God made the firmament, and divided the waters which were under the firmament from the "
    "waters which were above the firmament: and it was so. And God called the firmament Heaven. And the evening and "
    "the morning were the second day. And God said, Let the waters under the heaven be gathered together unto one "
    "place, and let the dry land appear: and it was so. And God called the dry land Earth; and the gathering together "
    "of the waters called he Seas: and God saw that it was good."
)
"""Genesis 1, 1 to 10, King James Bible; 200 tokens and more."""


class Held(NamedTuple):
    """The pool after one step: blocks in memory, and entries of all tables, the blocks if nobody shared any."""

    blocks: int
    entries: int


def blocks_held(log: EventLog) -> list[Held]:
    """For each step of a log how many blocks the running sequences held; the pool is called `full`."""
    found = []
    for state in Replay(log).states():
        tables = [request.tables.get("full", []) for request in state.running()]
        found.append(Held(len({block for table in tables for block in table}), sum(map(len, tables))))
    return found


def saved_by_sharing(steps: Sequence[Held]) -> float:
    """Fraction of the blocks that sharing saves, averaged over the steps. Raises `InvalidInput` where none held any."""
    alone = sum(each.entries for each in steps)
    if not alone:
        raise InvalidInput("no step holds a block; nothing can have been saved")
    return 1 - sum(each.blocks for each in steps) / alone


def branches(moves: Sequence[BeamMove]) -> Iterator[int]:
    """For each fork of a beam search the number of tokens that its parent had said and computed."""
    for said, move in enumerate(moves):
        for _ in range(len(set(move.after) - set(move.before))):
            yield said


def beam_frames(engine: Engine, moves: Sequence[BeamMove]) -> list[tuple[Drawing, str]]:
    """A picture of each step of a beam search that ran alone in `engine`: the tree, and the blocks of the live beams
    once each has written its token. The step that ends the search has no beams left to draw."""
    replay = Replay(engine.log or EventLog())
    steps: list[list[BeamNode]] = []
    frames = []
    for number, move in enumerate(moves):
        if not move.step.done:
            steps.append(candidates(move, engine.tokenizer, first=number == 0))
            state = replay.state(number + 2)  # frame 1 reads the prompt, the next one writes the first tokens
            frames.append((beam_tree(steps, state, replay.events(number + 2)), told(move)))
    return frames


def candidates(move: BeamMove, tokenizer: Tokenizer, *, first: bool) -> list[BeamNode]:
    """The continuations that a step looked at, best first: those that live on, and those that were pruned or ended."""
    became = dict(zip(move.step.survivors, move.after, strict=True))
    return [
        BeamNode(
            became.get(each),
            None if first else move.before[each.parent],
            tokenizer.decode([each.token_id]).replace("\n", "↵").strip() or "␣",
            each.score,
            alive=each in became,
        )
        for each in move.step.ranked
    ]


def told(move: BeamMove) -> str:
    """A step in words: who goes on as several, and who is dropped."""
    said = []
    for beam, children in zip(move.before, move.step.children, strict=True):
        place = move.before.index(beam)
        names = [after for each, after in zip(move.step.survivors, move.after, strict=True) if each.parent == place]
        if children > 1:
            said.append(f"{beam} goes on as {', '.join(map(str, names[:-1]))} and {names[-1]}")
        elif not children:
            said.append(f"{beam} is dropped")
    return "; ".join(said) or "each beam goes on"
