"""What lesson 03 reads from the engine: blocks held at each step, what sharing saved, and the moves of a search."""

import pytest

from kvlab.course.searched import PASSAGE, Held, beam_frames, blocks_held, branches, candidates, saved_by_sharing, told
from kvlab.engine.beams import BeamStep, Survivor
from kvlab.engine.engine import Engine
from kvlab.engine.outputs import BeamMove
from kvlab.engine.sampling import SamplingParams
from kvlab.errors import InvalidInput
from kvlab.events import EventLog
from kvlab.policies.paged import Paged
from kvlab.policies.prefix import PagedPrefix

RANKED = (Survivor(1, 11, -1.0), Survivor(1, 12, -1.5), Survivor(0, 11, -2.0), Survivor(2, 11, -3.0))
MOVE = BeamMove("b", ("x", "y", "z"), ("y", "new", "x"), BeamStep(RANKED[:3], (1, 2, 0), (), False, RANKED))


class Words:
    def decode(self, token_ids):
        return {11: " the", 12: "\n"}[token_ids[0]]


def engine(policy, log, block_size=16, **options):
    def made(groups):
        return policy(groups, 1024, block_size=block_size, log=log)

    return Engine.from_pretrained("embedded", made, **options)


@pytest.mark.parametrize(
    ("policy", "samples", "copies", "again"), [(Paged, "fork", 3, 0), (PagedPrefix, "cache", 0, 24)]
)
def test_four_samples_hold_24_blocks_either_way(policy, samples, copies, again):
    log = EventLog()
    served = engine(policy, log, samples=samples)
    prompt = served.tokenizer.encode(PASSAGE)
    assert len(prompt) >= 256
    served.generate([prompt[:200]], SamplingParams(n=4, max_tokens=40, seed=3, ignore_eos=True))
    steps = blocks_held(log)
    assert steps[:3] == [(0, 0), (13, 13), (16, 52)]
    assert max(steps) == (24, 60)
    assert served.cache.bytes_copied == copies * 8 * served.policy.bytes_per_token
    assert served.spent.tokens == 200 + 4 * 39 + again


def test_what_sharing_saves_is_an_average_over_steps():
    assert saved_by_sharing([Held(5, 5), Held(6, 15)]) == pytest.approx(1 - 11 / 20)
    with pytest.raises(InvalidInput, match="no step holds a block"):
        saved_by_sharing([Held(0, 0)])


def test_a_move_in_words_and_as_candidates():
    assert told(MOVE) == "y goes on as y and new; z is dropped"
    nodes = candidates(MOVE, Words(), first=False)
    assert [node.beam for node in nodes] == ["y", "new", "x", None]
    assert [node.parent for node in nodes] == ["y", "y", "x", "z"]
    assert [node.label for node in nodes] == ["the", "↵", "the", "the"]
    assert [node.alive for node in nodes] == [True, True, True, False]
    assert {node.parent for node in candidates(MOVE, Words(), first=True)} == {None}


def test_a_branch_copies_what_its_parent_had_said():
    assert list(branches([MOVE, MOVE])) == [0, 1]


def test_a_search_is_drawn_over_the_blocks_of_its_live_beams():
    log, moves = EventLog(), []
    served = engine(Paged, log, block_size=4, watch=moves.append)
    served.generate(["And the king said unto the"], SamplingParams(beams=3, max_tokens=5, ignore_eos=True))
    frames = beam_frames(served, moves)
    assert len(moves) == 5
    assert len(frames) == 4, "the fifth ends the search"
    became = [[row[4] for row in drawing.table if row[0].isdigit()] for drawing, _ in frames]
    assert [len(rows) - rows.count("pruned") for rows in became] == [3, 6, 9, 12]
    assert [rows.count("pruned") for rows in became] == [3, 6, 9, 12]
    assert frames[0][1] == "r0 goes on as r0, r0.1 and r0.2"
    assert 0 < saved_by_sharing(blocks_held(log)) < 1
