"""The accumulator's picture: drawn from recorded numbers, right or wrong, the same each time."""

import math
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from kvlab.errors import InvalidInput
from kvlab.viz import Picture, Taken, accumulator, accumulator_frames
from kvlab.viz.palette import COLOURS
from kvlab.viz.scenes.taken import words

INF = math.inf
TAKEN = [
    Taken(5, (0.5, 1.0, -0.5, 0.0), -INF, 1.0, 0.0, 2.2, (0.1, -0.2)),
    Taken(2, (1.5, 3.0, 0.0, 1.0), 1.0, 3.0, 0.135, 1.7, (0.3, 0.4)),
    Taken(6, (2.0, 0.5, 2.5), 3.0, 3.0, 1.0, 2.76, (0.2, 0.2)),
]


def drawn(taken=TAKEN, blocks=8, block_size=4, shown=None):
    """A drawing that is the same twice and whose parts and whole parse as SVG."""
    one, other = (accumulator(taken, blocks, block_size, shown=shown) for _ in range(2))
    assert one == other
    ElementTree.fromstring(Picture(one)._repr_mimebundle_()["image/svg+xml"])
    for part in one.parts:
        ElementTree.fromstring(f"<g>{part}</g>")
    return one


def bars(drawing, low):
    """Width of each colour's bar with its top at `low` (the bars are the rectangles 24 high)."""
    pattern = r'<rect x="[\d.]+" y="([\d.]+)" width="([\d.]+)" height="24" fill="(#\w+)"/>'
    found = re.findall(pattern, "".join(drawing.parts))
    rows = sorted({float(y) for y, _, _ in found})
    return {fill: float(width) for y, width, fill in found if float(y) == rows[low]}


def test_there_is_a_frame_before_the_first_block_and_one_after_each():
    frames = accumulator_frames(TAKEN, 8, 4)
    assert len(frames) == 4
    assert len({(drawing.width, drawing.height) for drawing, _ in frames}) == 1
    assert frames[0][0].title == "0 of 3 blocks read"
    assert frames[2][0].title == "2 of 3 blocks read: maximum 3, sum 1.7"
    assert frames[2][1] == (
        "Block 2 is read: 1.5, 3, 0, 1. The maximum goes from 1 to 3: the earlier sum is multiplied by 0.135"
    )
    assert frames[3][1].endswith("None is above the maximum 3: the earlier sum is multiplied by 1")


def test_the_jump_of_the_maximum_and_the_factor_are_written_and_drawn():
    parts = "".join(drawn(shown=2).parts)
    assert "maximum 1 → 3" in parts
    assert "× 0.135" in parts
    assert parts.count("kv-copy-head") == 1
    still = "".join(drawn(shown=3).parts)
    assert "→" not in still
    assert "kv-copy-head" not in still


def test_the_earlier_sum_shrinks_by_the_factor_in_the_picture_too():
    picture = drawn(shown=2)
    before, after = bars(picture, 0), bars(picture, 1)
    blue, orange = COLOURS[0], COLOURS[1]
    assert list(before) == [blue]
    assert after[blue] / before[blue] == pytest.approx(0.135, rel=1e-2)
    assert (after[blue] + after[orange]) / before[blue] == pytest.approx(1.7 / 2.2, rel=1e-2)


def test_code_that_forgets_to_rescale_looks_different():
    forgotten = [TAKEN[0], replace(TAKEN[1], rescale=1.0, total=3.6), TAKEN[2]]
    picture = drawn(forgotten, shown=2)
    assert bars(picture, 1)[COLOURS[0]] == bars(picture, 0)[COLOURS[0]]
    assert "× 1<" in "".join(picture.parts)


def test_memory_shows_what_is_read_what_waits_and_where_the_arrow_starts():
    parts = "".join(drawn(shown=1).parts)
    assert parts.count("kv-free") == 5 + 1  # five other blocks and the legend
    assert [f"entry {i}" in parts for i in range(4)] == [True, True, True, False]
    assert "block 6, entry 2 of the table: 3 of 4 slots filled" in parts
    assert parts.count('class="kv-link"') == 1
    assert "".join(drawn(shown=3).parts).count("kv-link kv-faint") == 2


def test_the_table_says_the_same():
    assert drawn().table == (
        ("entry", "block", "scores", "maximum", "factor on the earlier sum", "sum"),
        ("0", "5", "0.5, 1, -0.5, 0", "1", "-", "2.2"),
        ("1", "2", "1.5, 3, 0, 1", "3", "0.135", "1.7"),
        ("2", "6", "2, 0.5, 2.5", "3", "1", "2.76"),
    )
    assert drawn(shown=0).table[1] == ("-", "-", "none read", "-∞", "-", "0")


@pytest.mark.parametrize("bad", [math.nan, INF, -INF, -3.0, 0.0])
@pytest.mark.parametrize("name", ["new_max", "total", "rescale"])
def test_numbers_of_broken_code_are_drawn_as_they_are(name, bad):
    broken = [TAKEN[0], replace(TAKEN[1], **{name: bad}), TAKEN[2]]
    for shown in range(4):
        parts = "".join(drawn(broken, shown=shown).parts)
        assert "nan" not in parts
        assert "inf" not in parts


def test_an_output_that_is_no_number_is_written_as_such():
    assert ">NaN<" in "".join(drawn([replace(TAKEN[0], output=(math.nan, 1.0))]).parts)


def test_wide_scores_and_long_blocks_still_fit():
    long = Taken(3, tuple(range(-8, 8)), -INF, 7.0, 0.0, 1.58, tuple([0.1] * 64))
    wide = replace(long, block=11, scores=(-2000.0, 2000.0), old_max=7.0, new_max=2000.0, rescale=0.0, total=1.0)
    picture = drawn([long, wide], blocks=12, block_size=16)
    assert "maximum 7 → 2,000" in "".join(picture.parts)
    assert accumulator_frames([long], 12, 16)[1][1].startswith("Block 3 is read: 16 scores.")


@pytest.mark.parametrize(
    ("taken", "match"),
    [([], "none"), ([replace(TAKEN[0], block=8)], "no block of a pool"), ([replace(TAKEN[0], scores=())], "no block")],
)
def test_what_cannot_be_drawn_is_refused(taken, match):
    with pytest.raises(InvalidInput, match=match):
        accumulator(taken, 8, 4)


def test_numbers_have_three_digits_and_large_ones_none_behind_the_point():
    assert [words(x) for x in (0.13534, 1.0, -2000.0, INF, -INF, math.nan)] == [
        "0.135", "1", "-2,000", "∞", "-∞", "NaN"
    ]  # fmt: skip
