"""The checks of lesson 04 accept right answers however they are written, and name the fault of wrong ones."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kvlab.course.attention_walk import readable as right_mask
from kvlab.course.attention_walk import take_in as right_take_in
from kvlab.course.lesson_04 import FASTER, NO_NAN, check_readable, check_take_in


def in_the_lesson(m, total, acc, scores, values):
    new_m = torch.maximum(m, scores.max())
    shrink = torch.exp(m - new_m)
    weights = torch.exp(scores - new_m)
    return new_m, total * shrink + weights.sum(), acc * shrink + weights @ values


def token_by_token(m, total, acc, scores, values):
    for score, value in zip(scores, values, strict=True):
        new = max(m, score)
        shrink, weight = math.exp(m - new), math.exp(score - new)
        m, total, acc = new, total * shrink + weight, acc * shrink + weight * value
    return [m, total, acc]


def with_the_ones_before_as_one_more_key(m, total, acc, scores, values):
    everything = torch.cat([m.reshape(1), scores])
    weights = torch.exp(everything - everything.max())
    sums = torch.cat([total.reshape(1), torch.ones_like(scores)])
    return everything.max(), (weights * sums).sum(), weights @ torch.cat([acc[None], values])


def never_rescales(m, total, acc, scores, values):
    new_m = torch.maximum(m, scores.max())
    weights = torch.exp(scores - new_m)
    return new_m, total + weights.sum(), acc + weights @ values


def rescales_the_sum_only(m, total, acc, scores, values):
    new_m, total, _ = in_the_lesson(m, total, acc, scores, values)
    return new_m, total, acc + torch.exp(scores - new_m) @ values


def takes_the_maximum_of_the_block(m, total, acc, scores, values):
    new_m = scores.max()
    shrink, weights = torch.exp(m - new_m), torch.exp(scores - new_m)
    return new_m, total * shrink + weights.sum(), acc * shrink + weights @ values


def takes_no_maximum(m, total, acc, scores, values):
    weights = torch.exp(scores)
    return torch.maximum(m, scores.max()), total + weights.sum(), acc + weights @ values


def rescales_the_wrong_way(m, total, acc, scores, values):
    new_m = torch.maximum(m, scores.max())
    shrink = torch.exp(new_m - m) if m > -torch.inf else 0.0
    weights = torch.exp(scores - new_m)
    return new_m, total * shrink + weights.sum(), acc * shrink + weights @ values


def shares_within_the_block(m, total, acc, scores, values):
    new_m, total, _ = in_the_lesson(m, total, acc, scores, values)
    return new_m, total, acc * torch.exp(m - new_m) + scores.softmax(0) @ values


def changes_acc_in_place(m, total, acc, scores, values):
    new_m, total, new_acc = in_the_lesson(m, total, acc, scores, values)
    acc.copy_(new_acc)
    return new_m, total, acc


def raises_the_weights_after_the_fact(m, total, acc, scores, values):
    """Right on small scores only: e to the power of the maximum overflows."""
    new_m = torch.maximum(m, scores.max())
    before = torch.exp(m)
    weights = torch.exp(scores)
    scale = torch.exp(-new_m)
    return new_m, (total * before + weights.sum()) * scale, (acc * before + weights @ values) * scale


@pytest.mark.parametrize("right", [in_the_lesson, token_by_token, with_the_ones_before_as_one_more_key, right_take_in])
def test_take_in_may_be_written_in_more_than_one_way(right: Callable[..., object]):
    assert check_take_in(right).passed, check_take_in(right)


@pytest.mark.parametrize(
    ("wrong", "tried", "expected", "found"),
    [
        (never_rescales, "block 1 of three", "l, the sum of exp(score - m) over all scores so far: 1.553", "2.736"),
        (rescales_the_sum_only, "block 1 of three", "acc, the values", "[1, 0.3679, 1, 0.3679, 0, 0]"),
        (takes_the_maximum_of_the_block, "block 2 of three", "m, the largest score so far: 3", "0"),
        (takes_no_maximum, "block 0 of three", "l, the sum of exp(score - m)", "3.718"),
        (rescales_the_wrong_way, "the maximum before is 1", "l, the sum", "11.48"),
        (shares_within_the_block, "block 0 of three", "acc, the values", "[0.7311, 0.2689, 0, 0, 0, 0]"),
        (changes_acc_in_place, "block 0 of three", "acc as it was", "acc was changed in place"),
        (raises_the_weights_after_the_fact, "from -2000 to 2000", "acc / l, as the dense softmax", "nan"),
        (lambda m, total, acc, scores, values: (m, total), "block 0", "three values are returned", "(tensor(-inf"),
        (lambda m, total, acc, scores, values: (m, total, values), "block 0", "acc has 6 components", "(tensor(-inf"),
    ],
)
def test_a_wrong_take_in_is_named(wrong: Callable[..., object], tried: str, expected: str, found: str):
    check = check_take_in(wrong)
    assert not check.passed
    rows = dict(check.rows)
    assert tried in rows["tried"]
    assert expected in rows["expected"]
    assert found in rows["found"]


def by_loop(entry: int, block_size: int, length: int, window: int | None = None) -> list[bool]:
    found = []
    for offset in range(block_size):
        position = entry * block_size + offset
        found.append(position <= length - 1 and (window is None or length - position <= window))
    return found


def as_numpy(entry: int, block_size: int, length: int, window: int | None = None) -> object:
    return right_mask(entry, block_size, length, window).numpy()


def shifted(by: int, window_by: int = 0) -> Callable[..., Tensor]:
    """A mask whose end lies `by` off, its window `window_by` too long."""

    def readable(entry: int, block_size: int, length: int, window: int | None = None) -> Tensor:
        own = None if window is None else window + by + window_by
        return right_mask(entry, block_size, length + by, own)

    return readable


def forgets_the_window(entry: int, block_size: int, length: int, window: int | None = None) -> Tensor:
    return right_mask(entry, block_size, length)


def forgets_the_entry(entry: int, block_size: int, length: int, window: int | None = None) -> Tensor:
    return right_mask(0, block_size, length, window)


def whole_blocks(entry: int, block_size: int, length: int, window: int | None = None) -> Tensor:
    mask = right_mask(entry, block_size, length, window)
    return mask.any().expand(block_size)


@pytest.mark.parametrize("right", [right_mask, by_loop, as_numpy])
def test_a_mask_may_be_written_in_more_than_one_way(right: Callable[..., Tensor]):
    assert check_readable(right).passed, check_readable(right)


@pytest.mark.parametrize(
    ("wrong", "tried", "found"),
    [
        (shifted(1), "readable(2, 16, 37, None)", "positions 32 to 37): position 37 holds no token yet"),
        (shifted(-1), "readable(2, 16, 37, None)", "position 36, the newest token, is left out"),
        (shifted(0, 1), "readable(1, 16, 37, 20)", "position 16 is behind the window of 20"),
        (shifted(0, -1), "readable(1, 16, 37, 20)", "position 17 is left out"),
        (whole_blocks, "whole_blocks(2, 16, 37, None)", "position 37 holds no token yet"),
        (forgets_the_window, "forgets_the_window(0, 16, 37, 20)", "position 0 is behind the window of 20"),
        (forgets_the_entry, "forgets_the_entry(2, 16, 37, None)", "position 37 holds no token yet"),
    ],
)
def test_a_wrong_mask_is_named(wrong: Callable[..., Tensor], tried: str, found: str):
    check = check_readable(wrong)
    assert not check.passed
    rows = dict(check.rows)
    assert tried in rows["tried"]
    assert found in rows["found"]


@pytest.mark.parametrize("mask", [None, [0, 1], torch.ones(16), [True] * 15])
def test_what_is_no_mask_is_said(mask: object):
    def readable(entry: int, block_size: int, length: int, window: int | None = None) -> object:
        return mask

    assert "True or False for each of the 16 slots" in dict(check_readable(readable).rows)["found"]


def test_the_wrong_answers_name_the_misconceptions():
    whys = {item.name: [o.why for o in item.options if not o.correct] for item in (FASTER, NO_NAN)}
    assert whys["04-faster"][0].startswith("PagedAttention does not make attention faster.")
    assert whys["04-no-nan"][-1].startswith("0 times NaN is NaN.")
