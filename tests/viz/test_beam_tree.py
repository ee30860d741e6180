"""The beam tree: what leads to a live beam is strong, what was pruned is pale; its blocks below."""

import math
import re
from xml.etree import ElementTree

import pytest

from kvlab.errors import InvalidInput
from kvlab.events import Replay
from kvlab.viz import BeamNode, Picture, beam_tree, sharing
from kvlab.viz.palette import COLOURS, colour

STEPS = [
    [("A", None, "the", -0.4, True), ("B", None, "a", -1.1, True), (None, None, "to", -2.9, False)],
    [("A", "A", "Lord", -0.9, True), ("D", "A", "king", -1.2, True), (None, "B", "man", -2.6, False)],
    [("A", "A", "said", -1.1, True), BeamNode(None, "D", ".", -1.3, False, True), ("E", "D", "went", -1.9, True)],
]


def drawn(*arguments, **options):
    one, other = (beam_tree(*arguments, **options) for _ in range(2))
    assert one == other
    assert one.description
    ElementTree.fromstring(Picture(one)._repr_mimebundle_()["image/svg+xml"])
    for part in one.parts:
        ElementTree.fromstring(f"<g>{part}</g>")
    return one


def boxes(drawing):
    return {tip: part for part in drawing.parts for tip in re.findall(r'data-tip="([^"]+)"', part)}


def box(drawing, token):
    return next(part for tip, part in boxes(drawing).items() if tip.startswith(f"&#x27;{token}&#x27;"))


def test_the_title_counts_and_the_table_lists_every_candidate():
    picture = drawn(STEPS)
    assert picture.title == "2 live beams after 3 steps, 2 candidates pruned, 1 finished"
    assert picture.table == (
        ("step", "after", "token", "score", "became"),
        ("1", "prompt", "the", "-0.40", "A"),
        ("1", "prompt", "a", "-1.10", "B"),
        ("1", "prompt", "to", "-2.90", "pruned"),
        ("2", "A", "Lord", "-0.90", "A"),
        ("2", "A", "king", "-1.20", "D"),
        ("2", "B", "man", "-2.60", "pruned"),
        ("3", "A", "said", "-1.10", "A"),
        ("3", "D", ".", "-1.30", "finished"),
        ("3", "D", "went", "-1.90", "E"),
    )


def test_only_what_leads_on_is_strong():
    picture = drawn(STEPS)
    strong = [token for token in ("the", "a", "to", "Lord", "king", "man", "said", "went")
              if "kv-curve" in box(picture, token)]  # fmt: skip
    assert strong == ["the", "Lord", "king", "said", "went"]
    assert "kv-struck" in box(picture, "man")
    assert "kv-cell" in box(picture, "a")
    assert "kv-fits" in box(picture, ".")
    assert sum(part.startswith("<path") and "kv-thread" in part for part in picture.parts) == 6


def test_at_an_earlier_step_its_own_beams_are_the_live_ones():
    assert "kv-curve" in box(drawn(STEPS[:1]), "a")


def test_boxes_of_one_parent_stand_together():
    crossed = [
        STEPS[0],
        [("B", "B", "man", -1.2, True), ("A", "A", "Lord", -0.9, True), ("D", "A", "king", -1.5, True)],
    ]
    order = [tip.split("&#x27;")[1] for tip in boxes(drawn(crossed))]
    picture = drawn(crossed)
    rows = {token: float(re.search(r'<rect x="[\d.]+" y="([\d.]+)"', box(picture, token)).group(1)) for token in order}
    assert rows["Lord"] < rows["king"] < rows["man"]


def test_with_a_state_its_blocks_are_below_in_the_colours_of_the_beams(four_samples):
    replay = Replay(four_samples)
    state, events = replay.state(4), replay.events(4)
    step = [(rid, None, f"token {rid}", -1.0, True) for rid in "DCBA"]
    picture = drawn([step], state, events)
    parts = "".join(picture.parts)
    assert "65 blocks in memory instead of 252, 2 copies so far" in parts
    assert "62 blocks, stored once for 4" in parts
    for order, rid in enumerate("ABCD"):
        assert colour(order) in box(picture, f"token {rid}")
    assert all(row in [line[: len(row)] for line in picture.table] for row in sharing(state, events).table)
    assert COLOURS[0] in box(drawn([step]), "token D")  # alone: in order of appearance


def test_only_the_last_steps_of_a_long_search_are_drawn():
    steps = [[("A", "A" if i else None, f"t{i}", -float(i), True)] for i in range(500)]
    picture = drawn(steps)
    assert "494 steps …" in "".join(picture.parts)
    assert picture.table[1][0] == "1-494"
    assert len(picture.table) == 2 + 6
    assert picture.width == 760


def test_before_the_first_step():
    assert "No step has been taken." in "".join(drawn([]).parts)
    assert drawn([]).title == "0 live beams after 0 steps, 0 candidates pruned"


def test_tokens_are_escaped_and_scores_may_be_infinite():
    picture = drawn([[("<a>", None, "</svg>\n\t\x00&", -math.inf, True), (None, None, "", math.nan, False)]])
    assert "</svg>" not in "".join(picture.parts)
    assert [row[3] for row in picture.table[1:]] == ["-∞", "NaN"]
    assert not re.search(r"[\n\t\x00]", "".join(cell for row in picture.table for cell in row))


@pytest.mark.parametrize(
    ("steps", "match"),
    [
        ([[("A", "A", "x", 0.0, True)]], "step 1 continues the prompt"),
        (
            [STEPS[0], [("A", "Z", "x", 0.0, True)]],
            "step 2: 'Z' is no live beam of the step before; those are 'A', 'B'",
        ),
        ([STEPS[0], [("A", None, "x", 0.0, True)]], "step 2: None is no live beam"),
        ([[("A", None, "x", 0.0, True), ("A", None, "y", 0.0, True)]], "a name of its own"),
        ([[(None, None, "x", 0.0, True)]], "a name of its own"),
        ([[(None, None, "x", 0.0, False)] * 25], "25 candidates"),
    ],
)
def test_steps_that_do_not_fit_together_are_refused(steps, match):
    with pytest.raises(InvalidInput, match=match):
        beam_tree(steps)
