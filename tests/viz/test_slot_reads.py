"""Reads over the pool grid: a mark a slot, wrong and missed ones told apart by more than colour."""

from collections import Counter
from xml.etree import ElementTree

import pytest

from kvlab.errors import InvalidInput
from kvlab.events import Replay
from kvlab.viz import Picture, slot_reads
from kvlab.viz.palette import WARNING

A_SLOTS = [*range(112, 128), *range(16, 32), *range(48, 53)]  # blocks 7, 1, 3: 37 tokens


@pytest.fixture
def state(two_requests):
    return Replay(two_requests).state(1)


def marks(picture):
    """(dots, crosses, frames), the legend's own taken off."""
    parts = "".join(picture.parts)
    return parts.count("kv-plate") - 1, parts.count(f'stroke="{WARNING}"') - 1, parts.count("kv-ghost") - 1


def test_every_right_read_is_a_dot(state):
    picture = slot_reads(state, Counter(A_SLOTS), A_SLOTS)
    assert picture.title == "37 of 37 slots read, 0 wrongly read, 0 missed"
    assert marks(picture) == (37, 0, 0)
    assert picture.table == (
        ("block", "held by", "slots to read", "reads", "wrongly read", "missed"),
        ("1", "A", "16", "16", "0", "0"),
        ("3", "A", "5", "5", "0", "0"),
        ("7", "A", "16", "16", "0", "0"),
    )


def test_a_wrong_read_is_a_cross_and_a_missed_one_a_frame(state):
    picture = slot_reads(state, Counter([*A_SLOTS[:-1], 53, 90]), A_SLOTS)
    assert picture.title == "36 of 37 slots read, 2 wrongly read, 1 missed"
    assert marks(picture) == (36, 2, 1)
    assert picture.table[2] == ("3", "A", "5", "5", "1", "1")
    assert picture.table[3] == ("5", "nobody", "0", "1", "1", "0")


def test_slots_read_more_than_once_show_how_often(state):
    parts = "".join(slot_reads(state, Counter(A_SLOTS * 2), A_SLOTS).parts)
    assert parts.count("kv-badge-small") == 37
    assert ">2<" in parts


def test_a_read_that_happened_no_time_is_none(state):
    assert slot_reads(state, {48: 0}, [48]).title == "0 of 1 slots read, 0 wrongly read, 1 missed"


def test_nothing_read_and_nothing_wanted_is_a_plain_grid(state):
    picture = slot_reads(state, {}, [])
    assert marks(picture) == (0, 0, 0)
    assert picture.table[1] == ("-",) * 6


def test_it_is_the_same_twice_and_parses(state, four_samples):
    for each in (state, Replay(four_samples).state(3)):
        one, other = (slot_reads(each, Counter(A_SLOTS), A_SLOTS[1:]) for _ in range(2))
        assert one == other
        ElementTree.fromstring(Picture(one)._repr_mimebundle_()["image/svg+xml"])


@pytest.mark.parametrize(("reads", "wanted"), [({256: 1}, []), ({}, [-1])])
def test_slots_outside_the_pool_are_refused(state, reads, wanted):
    with pytest.raises(InvalidInput, match="slots 0 to 255"):
        slot_reads(state, reads, wanted)
