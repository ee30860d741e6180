"""The checks of lesson 06 accept right answers however they are written, and name the fault of wrong ones."""

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest

from kvlab.course.lesson_06 import CHAIN, VLLM, check_lookup, check_names
from kvlab.course.prefix_walk import names_of
from kvlab.memory.hash_chain import id_bytes, root


def in_the_lesson(ids, block_size, salt=None):
    parent, found = root(salt), []
    for start in range(0, len(ids) - block_size + 1, block_size):
        parent = sha256(parent + id_bytes(ids[start : start + block_size])).digest()
        found.append(parent)
    return found


def the_whole_prefix_each_time(ids, block_size, salt=None):
    ends = range(block_size, len(ids) + 1, block_size)
    return [sha256(f"{salt!r}: {ids[:end]}".encode()).hexdigest() for end in ends]


def nested_tuples(ids, block_size, salt=None):
    parent, found = (salt,), []
    for block in range(len(ids) // block_size):
        parent = (parent, *ids[block * block_size : (block + 1) * block_size])
        found.append(hash(parent))
    return tuple(found)


def each_block_alone(ids, block_size, salt=None):
    blocks = range(len(ids) // block_size)
    return [sha256(root(salt) + id_bytes(ids[b * block_size : (b + 1) * block_size])).digest() for b in blocks]


def forgets_the_salt(ids, block_size, salt=None):
    return in_the_lesson(ids, block_size)


def names_the_last_block_too(ids, block_size, salt=None):
    parent, found = root(salt), []
    for start in range(0, len(ids), block_size):
        parent = sha256(parent + id_bytes(ids[start : start + block_size])).digest()
        found.append(parent)
    return found


def the_salt_and_the_ids_as_digits(ids, block_size, salt=None):
    parent, found = str(salt), []
    for start in range(0, len(ids) - block_size + 1, block_size):
        parent = sha256((parent + "".join(map(str, ids[start : start + block_size]))).encode()).hexdigest()
        found.append(parent)
    return found


def the_sum_of_the_ids(ids, block_size, salt=None):
    parent, found = root(salt), []
    for start in range(0, len(ids) - block_size + 1, block_size):
        parent = sha256(parent + id_bytes([sum(ids[start : start + block_size])])).digest()
        found.append(parent)
    return found


def the_place_for_the_past(ids, block_size, salt=None):
    blocks = range(len(ids) // block_size)
    return [sha256(root(salt) + id_bytes([b, *ids[b * block_size : (b + 1) * block_size]])).digest() for b in blocks]


def salts_the_second_block(ids, block_size, salt=None):
    found = in_the_lesson(ids, block_size)
    return [*found[:1], *(sha256(root(salt) + name).digest() for name in found[1:])]


def takes_the_ids_apart(ids, block_size, salt=None):
    parent, found = root(salt), []
    while len(ids) >= block_size:
        parent = sha256(parent + id_bytes(ids[:block_size])).digest()
        del ids[:block_size]
        found.append(parent)
    return found


@pytest.mark.parametrize("right", [in_the_lesson, the_whole_prefix_each_time, nested_tuples, names_of])
def test_names_may_be_made_in_more_than_one_way(right: Callable[..., Any]):
    assert check_names(right).passed, check_names(right)


@pytest.mark.parametrize(
    ("wrong", "tried", "expected", "found"),
    [
        (each_block_alone, "position 0 another", "every block has another name", "equal names: blocks [1, 2, 3, 4]"),
        (forgets_the_salt, "salt 'ben'", "under the salts None, 'anna' and 'ben'", "equal names"),
        (names_the_last_block_too, "7 tokens: no block is full", "a list of 0 names", "1 names"),
        (the_salt_and_the_ids_as_digits, "[12, 3]", "[1, 23] and [12, 3]: 2 different names", "equal names"),
        (the_sum_of_the_ids, "the first two exchanged", "two orders of the same tokens", "equal names"),
        (the_place_for_the_past, "position 0 another", "every block has another name", "blocks [1, 2, 3, 4]"),
        (salts_the_second_block, "salt 'ben'", "block 0 under the salts None, 'anna' and 'ben'", "equal names"),
        (takes_the_ids_apart, "40 tokens", "the ids as they were", "the list of ids was changed"),
        (lambda ids, block_size, salt=None: [], "40 tokens", "a list of 5 names", "0 names"),
        (lambda ids, block_size, salt=None: None, "40 tokens", "a list of 5 names", "None"),
    ],
)
def test_wrong_names_are_told_from_right_ones(wrong: Callable[..., Any], tried: str, expected: str, found: str):
    check = check_names(wrong)
    assert not check.passed
    rows = dict(check.rows)
    assert tried in rows["tried"]
    assert expected in rows["expected"]
    assert found in rows["found"]


def capped(names, find, tokens, block_size):
    blocks = []
    for name in names[: (tokens - 1) // block_size]:
        block = find(name)
        if block is None:
            break
        blocks.append(block)
    return blocks


def one_taken_back(names, find, tokens, block_size):
    found = []
    for name in names:
        if (block := find(name)) is None:
            break
        found.append(block)
    if len(found) * block_size == tokens:
        found.pop()
    return tuple(found)


def not_capped(names, find, tokens, block_size):
    return capped(names, find, tokens + 1, block_size)


def capped_a_block_too_low(names, find, tokens, block_size):
    return capped(names, find, tokens - 1, block_size)


def always_one_block_less(names, find, tokens, block_size):
    return capped(names[:-1], find, tokens, block_size)


def goes_on_behind_a_gap(names, find, tokens, block_size):
    found = [find(name) for name in names[: (tokens - 1) // block_size]]
    return [block for block in found if block is not None]


def keeps_the_none(names, find, tokens, block_size):
    return [find(name) for name in names[: (tokens - 1) // block_size]]


def takes_block_0_for_none(names, find, tokens, block_size):
    blocks = []
    for name in names[: (tokens - 1) // block_size]:
        if not find(name):
            break
        blocks.append(find(name))
    return blocks


@pytest.mark.parametrize("right", [capped, one_taken_back])
def test_a_lookup_may_be_written_in_more_than_one_way(right: Callable[..., Any]):
    assert check_lookup(right).passed, check_lookup(right)


@pytest.mark.parametrize(
    ("wrong", "tried", "found"),
    [
        (not_capped, "16 tokens in blocks of 16", "nothing is left to compute, so there are no logits"),
        (capped_a_block_too_low, "17 tokens in blocks of 16", "blocks []: 17 to compute"),
        (always_one_block_less, "17 tokens in blocks of 16", "blocks []: 17 to compute"),
        (goes_on_behind_a_gap, "the second block was evicted", "went on behind a block that is not cached"),
        (keeps_the_none, "the second block was evicted", "None is no block"),
        (takes_block_0_for_none, "65 tokens in blocks of 16", "block 0 was taken for none"),
        (lambda names, find, tokens, block_size: [], "17 tokens in blocks of 16", "blocks []"),
        (lambda names, find, tokens, block_size: None, "15 tokens in blocks of 16", "None"),
    ],
)
def test_a_wrong_lookup_is_named(wrong: Callable[..., Any], tried: str, found: str):
    check = check_lookup(wrong)
    assert not check.passed
    rows = dict(check.rows)
    assert tried in rows["tried"]
    assert found in rows["found"]


def test_the_wrong_answers_name_the_misconceptions():
    whys = {item.name: [o.why for o in item.options if not o.correct] for item in (VLLM, CHAIN)}
    assert whys["06-vllm"][0].startswith("PagedAttention and vLLM are not the same thing.")
    assert "equal tokens" in whys["06-chain"][0]
