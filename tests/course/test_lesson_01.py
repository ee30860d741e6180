"""The checks of lesson 01 name what is wrong with plausible answers and accept right ones."""

import pytest

from kvlab.course import quiz
from kvlab.course.checks import CHECK_MIME
from kvlab.course.lesson_01 import MERGING, ORACLE, beside_published, check_classify, check_coalesce
from kvlab.memory.contiguous import Hole


def shown(check):
    return check._repr_mimebundle_()[CHECK_MIME]


def classify(prompt, generated, final, reserved):
    used = prompt + generated
    return used, final - used, reserved - final


def classify_by_slot(prompt, generated, final, reserved):
    counts = [0, 0, 0]
    for slot in range(reserved):
        counts[0 if slot < prompt + generated else 1 if slot < final else 2] += 1
    return counts


@pytest.mark.parametrize("right", [classify, classify_by_slot])
def test_slots_classified_rightly_pass(right):
    assert check_classify(right).passed


WRONG_CLASSIFY = [
    (lambda p, g, f, r: (p + g, f - p - g, r - p - g), "never: 3646", "never: 3796", "never counts later slots"),
    (lambda p, g, f, r: (g, f - g, r - f), "used: 300", "used: 100", "the prompt is forgotten"),
    (lambda p, g, f, r: (p + g, f - g, r - f), "later: 150", "later: 350", "later counts the prompt again"),
    (lambda p, g, f, r: (p + g, f - p - g, 4096 - f), "never: 212", "never: 3796", "only right for a region of 4,096"),
    (lambda p, g, f, r: (p + g, r - p - g), "three counts: used, later, never", "(300, 3796)", "two counts"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "expected", "found", "why"), WRONG_CLASSIFY, ids=[row[3] for row in WRONG_CLASSIFY])
def test_a_wrong_count_is_named(wrong, expected, found, why):
    said = shown(check_classify(wrong))
    assert said["status"] == "not yet"
    assert (said["expected"], said["found"]) == (expected, found)


def coalesce(holes):
    merged = []
    for start, size in holes:
        if merged and sum(merged[-1]) == start:
            start, before = merged.pop()
            size += before
        merged.append((start, size))
    return merged


def coalesce_by_ends(holes):
    starts = {start for start, _ in holes}
    ends = {start + size for start, size in holes}
    return [Hole(a, b - a) for a, b in zip(sorted(starts - ends), sorted(ends - starts), strict=True)]


@pytest.mark.parametrize("right", [coalesce, coalesce_by_ends])
def test_holes_merged_rightly_pass(right):
    assert check_coalesce(right).passed


def unchanged(holes):
    return holes


def only_pairs(holes):
    merged, at = [], 0
    while at < len(holes):
        start, size = holes[at]
        if at + 1 < len(holes) and start + size == holes[at + 1][0]:
            size, at = size + holes[at + 1][1], at + 1
        merged.append((start, size))
        at += 1
    return merged


def everything(holes):
    return [(holes[0][0], sum(size for _, size in holes))] if holes else []


def forgets_the_last(holes):
    merged, current = [], None
    for start, size in holes:
        if current and sum(current) == start:
            current = (current[0], current[1] + size)
        else:
            if current:
                merged.append(current)
            current = (start, size)
    return merged


def in_place(holes):
    holes[:] = coalesce(holes)
    return holes


WRONG_COALESCE = [
    (unchanged, "no two holes that touch", "[(0, 512), (512, 256)]"),
    (only_pairs, "no two holes that touch", "[(0, 1024), (1024, 512)]"),
    (everything, "[(0, 64), (128, 128)]", "[(0, 192)]"),
    (forgets_the_last, "free slots: 768", "free slots: 0"),
    (in_place, "the arguments as they were", "was changed to"),
    (len, "a list of (start, size) pairs", "2"),
]


@pytest.mark.parametrize(
    ("wrong", "expected", "found"), WRONG_COALESCE, ids=[row[0].__name__ for row in WRONG_COALESCE]
)
def test_a_wrong_free_list_is_named(wrong, expected, found):
    said = shown(check_coalesce(wrong))
    assert said["status"] == "not yet"
    assert said["expected"] == expected
    assert found in said["found"]


def test_merging_holes_that_do_not_touch_is_caught_on_the_two_holes_of_the_article():
    def joins_all_but_three(holes):
        return coalesce(holes) if len(holes) != 2 or sum(holes[0]) == holes[1][0] else everything(holes)

    said = shown(check_coalesce(joins_all_but_three))
    assert said["tried"] == "joins_all_but_three([(1024, 512), (3584, 512)])"
    assert said["found"] == "[(1024, 1024)]"


@pytest.mark.parametrize("item", [MERGING, ORACLE], ids=lambda item: item.name)
def test_every_wrong_option_of_a_quiz_says_why(item):
    states = [quiz(item, letter).state for letter, _ in item.lettered()]
    assert sorted(states) == ["right", *["wrong"] * (len(states) - 1)]
    assert all(len(option.why) > 40 for option in item.options)


def test_published_and_modelled_values_stand_in_columns_of_their_own():
    shown = beside_published("requests in flight", {"Orca (Max)": 7.0}, "in_flight", digits=2)
    head, _, first, *_ = shown.splitlines()
    assert head.split("  ")[1].strip() == "published"
    assert head.count("modelled") == 3
    assert first.split() == ["Orca", "(Max)", "7.00", "7.00", "7.00", "7.00"]
