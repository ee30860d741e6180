"""The walk that lesson 04 takes apart: equal to the routes, its reads counted, its pictures' numbers the code's own."""

import math
from dataclasses import replace

import pytest
import torch

from kvlab.attention import routes
from kvlab.course.attention_walk import (
    Memory,
    as_mask,
    compared,
    picture_table,
    readable,
    record,
    take_in,
    two_requests,
    walk,
)
from kvlab.errors import InvalidInput


@pytest.mark.parametrize("window", [None, 1, 5, 16, 20, 37, 100])
def test_the_walk_equals_every_route_and_reads_each_slot_once(window: int | None):
    two = two_requests()
    memory = two.memory()
    output = walk(two.query, memory, two.table, readable, window)
    step = replace(two.step, window_tokens=window)
    for name in ("reference", "blockwise", "gather"):
        assert compared(routes()[name](step, two.store)[0][0, 0], output) == "equals the reference", name
    assert sorted(memory.reads.elements()) == sorted(two.wanted(window))


def test_lesson_02s_requests_lie_where_the_policy_put_them():
    two = two_requests()
    assert (list(two.table.blocks), two.table.end) == ([7, 1, 3], 37)
    assert [request.tokens for request in two.state.running()] == [37, 30]
    two.policy.audit()


def test_only_slots_of_tokens_hold_numbers_unless_an_earlier_request_left_some():
    poisoned, used = two_requests(), two_requests(poison=False)
    owned = {slot for layout in poisoned.step.layouts for slot in layout.slots().tolist()}
    for slot in range(poisoned.store.slots):
        keys, _ = poisoned.store.read(torch.tensor([slot]).numpy())
        assert bool(torch.isnan(keys).any()) == (slot not in owned)
    assert not torch.isnan(used.store.keys).any()
    slots = poisoned.table.slots()
    assert torch.equal(poisoned.store.read(slots)[0], used.store.read(slots)[0])
    assert torch.equal(poisoned.query, used.query)


def test_one_slot_too_many_and_one_too_few_do_what_the_lesson_says():
    poisoned, used = two_requests(), two_requests(poison=False)
    right = walk(poisoned.query, poisoned.memory(), poisoned.table, readable)

    def off_by(count: int, two=poisoned):
        return walk(two.query, two.memory(), two.table, lambda e, size, length, w: readable(e, size, length + count, w))

    assert compared(off_by(1), right) == "NaN"
    assert compared(off_by(-1), right) == "another answer"
    assert compared(off_by(1, used), right) == "another answer"
    assert compared(off_by(0, used), right) == "equals the reference"


def test_the_pictures_request_lies_in_blocks_5_2_and_6():
    table = picture_table()
    assert (list(table.blocks), table.block_size, table.end) == ([5, 2, 6], 4, 11)


def test_a_record_holds_what_the_code_did():
    first, second, third = record(take_in)
    assert [each.block for each in (first, second, third)] == [5, 2, 6]
    assert (first.old_max, first.new_max) == (-math.inf, 1.0)
    assert (second.old_max, second.new_max, second.rescale) == (1.0, 3.0, pytest.approx(math.exp(-2)))
    assert (third.new_max, third.rescale) == (3.0, 1.0)
    assert third.total == pytest.approx(sum(math.exp(s - 3) for each in (first, second, third) for s in each.scores))


def test_the_record_of_code_that_forgets_to_rescale_shows_a_factor_of_1():
    def forgets(m, total, acc, scores, values):
        new_m = torch.maximum(m, scores.max())
        weights = torch.exp(scores - new_m)
        return new_m, total + weights.sum(), acc + weights @ values

    assert [each.rescale for each in record(forgets)[1:]] == [1.0, 1.0]


def test_the_record_of_a_starter_that_does_nothing_can_be_made():
    taken = record(lambda m, total, acc, scores, values: (m, total, acc))
    assert {each.new_max for each in taken} == {-math.inf}
    assert all(math.isnan(each.output[0]) for each in taken)


@pytest.mark.parametrize("mask", [[True] * 15, [1] * 16, torch.zeros(16), None, True])
def test_what_is_no_mask_is_refused_and_nothing_is_counted(mask: object):
    memory = Memory(two_requests().store)
    with pytest.raises(InvalidInput, match="each of the 16 slots"):
        memory.read(7, mask)
    assert not memory.reads


def test_a_mask_may_be_a_list():
    assert as_mask([True, False], 2).tolist() == [True, False]


def test_outputs_are_compared_in_words():
    zero = torch.zeros(3)
    assert compared(zero, zero) == "equals the reference"
    assert compared(zero + 1e-6, zero) == "equals the reference"
    assert compared(zero + 1e-4, zero) == "another answer"
    assert compared(torch.tensor([0.0, math.nan, 0.0]), zero) == "NaN"
