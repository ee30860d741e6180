"""Chats of real length: what was sent before, how they arrive, what a cache of them finds."""

import numpy as np
import pytest

from kvlab.course.chat_traffic import Chats, engine_arms, sent_before
from kvlab.engine.engine import Engine
from kvlab.errors import InvalidInput, NeverFits
from kvlab.workload import Workload, multi_turn, sharegpt


def test_a_turn_was_sent_before_up_to_the_answer_of_the_turn_before_it():
    prompts, outputs, conversation = np.array([10, 25, 7, 31]), np.array([5, 2, 9, 3]), np.array([0, 0, 1, 0])
    found = sent_before(Workload("hand-made", prompts, outputs, conversation))
    assert found.tolist() == [0, 15, 0, 0], "the last row follows another conversation's"


def test_no_turn_of_sharegpt_was_sent_whole():
    trace = sharegpt("all")
    assert (sent_before(trace) < trace.prompt_tokens).all()


@pytest.fixture(scope="module")
def chats() -> Chats:
    return Chats.of_sharegpt(20, at_once=5, limit_tokens=2048)


def test_turns_of_a_conversation_come_in_order_and_each_once(chats: Chats):
    assert len(set(chats.order)) == len(chats.order)
    for conversation in np.unique(chats.workload.conversation[list(chats.order)]):
        rows = [row for row in chats.order if chats.workload.conversation[row] == conversation]
        assert rows == np.flatnonzero(chats.workload.conversation == conversation).tolist()


def test_no_more_chats_are_open_at_once_than_asked(chats: Chats):
    conversation = chats.workload.conversation[list(chats.order)].tolist()
    spans = [(conversation.index(each), len(conversation) - conversation[::-1].index(each)) for each in {*conversation}]
    assert max(sum(first <= turn < end for first, end in spans) for turn in range(len(conversation))) <= 5


def test_a_pool_for_everything_finds_all_but_block_ends_and_last_tokens(chats: Chats):
    total = chats.workload.prompt_tokens + chats.workload.output_tokens
    stats = chats.through(int(total[list(chats.order)].max()) * 20)
    rows = list(chats.order)
    before = sent_before(chats.workload)[rows]
    whole = np.minimum(np.maximum(before - 1, 0), chats.workload.prompt_tokens[rows] - 1) // 16 * 16
    assert (stats.queried_tokens, stats.hit_tokens, stats.evicted_blocks) == (chats.prompt_tokens, whole.sum(), 0)
    assert stats.hit_rate < chats.resent


def test_a_small_pool_finds_less(chats: Chats):
    assert chats.through(2048).hit_rate < chats.through(16384).hit_rate


@pytest.mark.parametrize(("count", "at_once"), [(0, 0), (3, 4), (10**6, 2)])
def test_chats_that_there_are_not_are_refused(count: int, at_once: int):
    with pytest.raises(InvalidInput, match="conversations to draw from"):
        Chats.of_sharegpt(count, at_once=at_once)


def test_a_turn_longer_than_the_pool_is_refused():
    with pytest.raises(NeverFits, match="the whole pool holds"):
        Chats(multi_turn(1, 3, 400, 100), range(3)).through(160)


def test_the_three_engines_do_what_their_names_say():
    engine = Engine.from_pretrained("embedded")
    arms = engine_arms(engine, prompts=2, tokens=40, answer=2)
    found = {name: [result.cached_tokens for result in run()] for name, run in arms.items()}
    assert found == {"no cache": [0, 0], "nothing found": [0, 0], "all but a block": [32, 32]}
