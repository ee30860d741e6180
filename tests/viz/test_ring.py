"""The ring's clock: K and V wrap together, the hand stands at position % W, and whatever is wrong looks wrong."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawings import reel_bytes, sound, texts

from kvlab.errors import InvalidInput
from kvlab.viz import RingSlots, ring_after, ring_clock, ring_clocks, ring_frames
from kvlab.viz.palette import colour
from kvlab.viz.scenes.ring_slots import counted, said


def written(window, tokens):
    """The plainest ring: every position written in turn."""
    slots = [None] * window
    overwritten = None
    for position in range(tokens):
        overwritten = slots[position % window]
        slots[position % window] = position
    return RingSlots(tuple(slots), tuple(slots), tokens, tokens % window, overwritten)


@given(st.integers(1, 40), st.integers(0, 200))
@settings(max_examples=60, deadline=None)
def test_a_ring_after_some_tokens_is_the_ring_that_wrote_them(window, tokens):
    ring = ring_after(window, tokens)
    assert ring == written(window, tokens)
    assert (ring.missing, ring.torn, ring.stale) == ([], [], [])
    sound(ring_clock, ring)


def cells(drawing, fill):
    """Sectors of the clock in one colour."""
    return sum(part.count("A") for part in drawing.parts if part.startswith("<path") and f'fill="{fill}"' in part) // 2


def test_the_colour_changes_where_the_ring_wraps_in_k_and_in_v():
    picture = sound(ring_clock, ring_after(16, 21))
    assert picture.title == "21 tokens in a ring of 16 slots: positions 5 to 20"
    assert cells(picture, colour(0)) == 2 * 11
    assert cells(picture, colour(1)) == 2 * 5
    shown = texts(picture)
    assert {"lap 1: from position 0", "lap 2: from position 16", "next write: 21 % 16 = 5", "5 to 20"} <= set(shown)
    assert shown.count("4") == 4  # the number of the slot twice, the overwritten position twice
    assert shown.count("20") == 5  # in K and V, clock and memory, and as the query's position
    assert picture.table[5] == ("4", "20", "20", "written last over 4")
    assert picture.table[6] == ("5", "5", "5", "next write")


def pointer_of(drawing):
    part = next(part for part in drawing.parts if "kv-copy-head" in part)
    return tuple(map(float, re.search(r"M(-?[\d.]+) (-?[\d.]+)", part).groups()))


def test_the_hand_goes_round_once_in_a_window():
    places = [pointer_of(ring_clock(ring_after(8, tokens))) for tokens in range(17)]
    assert places[0] == places[8] == places[16]
    assert len(set(places)) == 8
    assert places[0][0] > 155 > places[7][0]  # right of 12 o'clock, then left of it
    assert places[0][1] < 155 < places[4][1]


def test_around_the_window_one_slot_is_empty_none_is_and_one_is_overwritten():
    each = [(f"{tokens} tokens", ring_after(8, tokens)) for tokens in (7, 8, 9)]
    picture = sound(ring_clocks, each)
    assert picture.title == "3 rings of 8 slots: each holds exactly its window"
    assert {"1 slot empty, masked", "full", "full; position 0 overwritten"} <= set(texts(picture))
    assert [row[2:] for row in picture.table[1:]] == [
        ("7", "positions 0 to 6", "-"),
        ("0", "positions 0 to 7", "-"),
        ("1", "positions 1 to 8", "-"),
    ]


def test_a_pointer_that_was_reset_loses_what_the_query_still_needs():
    right = ring_after(8, 12)
    broken = replace(
        right, keys=(12, *right.keys[1:]), values=(12, *right.values[1:]), tokens=13, pointer=1, overwritten=8
    )
    picture = sound(ring_clock, broken)
    assert picture.title == "13 tokens in a ring of 8: position 8 is missing"
    assert "next write: slot 1, not 13 % 8" in texts(picture)
    assert (broken.missing, broken.stale) == ([8], [4])
    assert said(broken) == (
        "Position 12 is written to slot 0 (K and V), over position 8. "
        "Wrong: the query still needs position 8, and the ring has lost it"
    )
    assert picture.table[5][3] == "outside the window"
    assert any("kv-torn" in part and part.count("A") >= 2 for part in picture.parts)
    assert ring_clocks([("good", right), ("bad", broken)]).title == "2 rings of 8 slots: 1 of them wrong"


def test_values_that_did_not_turn_with_their_keys_are_wrong_in_every_slot():
    right = ring_after(8, 12)
    torn = replace(right, values=(*right.values[1:], right.values[0]))
    picture = sound(ring_clock, torn)
    assert picture.title == "12 tokens in a ring of 8: K and V disagree in 8 slots"
    assert [row[3].split(", ")[-1] for row in picture.table[1:]] == ["K is not V"] * 8
    assert said(torn).endswith(
        "K and V disagree in 8 slots; the query still needs positions 4 to 11, and the ring has lost them"
    )


def test_keys_without_values_leave_the_inner_circle_empty():
    right = ring_after(8, 12)
    for half in (replace(right, values=(None,) * 8), replace(right, keys=(None,) * 8)):
        picture = sound(ring_clock, half)
        assert cells(picture, colour(0)) == cells(picture, colour(1)) == 4
        assert (
            sum(part.count("A") // 2 for part in picture.parts if part.startswith("<path") and "kv-free" in part) == 8
        )


def test_an_empty_ring_and_one_of_a_thousand_slots():
    assert said(ring_after(8, 0)) == "The ring is empty: 8 slots, all masked"
    assert sound(ring_clock, ring_after(8, 0)).title == "0 tokens in a ring of 8 slots: nothing"
    picture = sound(ring_clock, ring_after(1024, 4200))
    assert "3,176 to 4,095" in texts(picture)
    assert [row[0] for row in picture.table[1:]] == ["0", "103", "104", "1,023"]
    sound(ring_clock, ring_after(1024, 700))
    sound(ring_clock, ring_after(1, 3))


def test_sixty_steps_stay_small_and_are_told():
    frames = ring_frames([ring_after(16, tokens) for tokens in range(60)])
    assert reel_bytes(frames) < 150_000
    assert len({(drawing.width, drawing.height) for drawing, _ in frames}) <= 2
    assert frames[3][1] == "Position 2 is written to slot 2 (K and V); 13 slots are empty and masked"
    assert frames[17][1] == "Position 16 is written to slot 0 (K and V), over position 0, which just left the window"


def test_positions_are_listed_shortly():
    assert [counted(each) for each in ([3], [3, 4, 5], [3, 5], list(range(0, 20, 2)))] == [
        "position 3", "positions 3 to 5", "positions 3, 5", "10 positions"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"keys": ()}, "0 and 8"),
        ({"values": (1,)}, "8 and 1"),
        ({"pointer": 8}, "no write slot 8"),
        ({"tokens": -1}, "with -1 tokens"),
    ],
)
def test_what_is_no_ring_is_refused(change, match):
    with pytest.raises(InvalidInput, match=match):
        replace(ring_after(8, 3), **change)


def test_no_ring_or_too_many_side_by_side_are_refused():
    with pytest.raises(InvalidInput, match="window"):
        ring_after(0, 3)
    for count in (0, 5):
        with pytest.raises(InvalidInput, match=f"not {count}"):
            ring_clocks([("a", ring_after(8, 3))] * count)
