"""The Gantt of steps: every row says what the log says, a preempted one is gone and comes back."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.errors import InvalidInput
from kvlab.events import EventLog, Replay
from kvlab.viz import Picture, Player, timeline, timeline_frames
from kvlab.viz.palette import COLOURS
from kvlab.viz.scenes.serving_rows import served


def opened():
    return EventLog([("header", "Paged", (("full", 4096, 16, 1, ((0, 256),)),))])


@pytest.fixture
def served_four():
    """A decodes all along, B finds a prefix, is preempted and comes back, C can never fit, D waits."""
    log = opened()
    for rid, prompt in (("A", 30), ("B", 20), ("C", 9000)):
        log.write("arrive", rid, prompt)
    log.write("admit", "A", 30, 60, 0)
    log.write("admit", "B", 20, 60, 16)
    log.write("refuse", "C", "9,000 tokens in a pool of 4,096")
    log.step([("A", 30), ("B", 4)])
    log.step([("A", 1), ("B", 1)])
    log.write("release", "B", "preempted")
    log.write("arrive", "D", 8)
    log.step([("A", 1)])
    log.step([("A", 1)])
    log.write("admit", "B", 22, 60, 16)
    log.step([("A", 4), ("B", 6)])
    log.write("release", "A", "finished")
    log.write("admit", "D", 8, 20, 0)
    log.step([("B", 1), ("D", 8)])
    log.write("release", "D", "aborted")
    return log


def check(drawing):
    """It parses, is within its box, and no rectangle is inside out."""
    root = ElementTree.fromstring(Picture(drawing)._repr_mimebundle_()["image/svg+xml"])
    assert root[0].text == drawing.title
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(rect.get("width")) >= 0
        assert float(rect.get("height")) >= 0
    for part in drawing.parts:
        ElementTree.fromstring(f"<g>{part}</g>")
    return drawing


def tips(drawing):
    return re.findall(r'data-tip="([^"]+)"', "".join(drawing.parts))


def test_a_row_vanishes_and_comes_back(swapped_and_preempted):
    picture = check(timeline(swapped_and_preempted))
    assert picture.table[1:] == (
        ("A", "10", "prefills 10 at 1; waits in memory 2; decodes 3; preempted 4; prefills 11 (11 of them again) at 5"),
        ("B", "10", "prefills 10 at 2; on the host 3; decodes 4-5"),
    )
    assert picture.title == "2 requests, 5 steps: 1 preemption, 1 swap to the host, 11 tokens computed again"


def test_each_row_says_who_prefilled_decoded_waited_or_was_refused(served_four):
    picture = check(timeline(served_four))
    assert picture.table == (
        ("request", "prompt", "what it did, by step"),
        ("A", "30", "prefills 30 at 1; decodes 2-4; decodes 4 at 5; finished after 5"),
        ("B", "20", "prefills 4 (16 in the cache) at 1; decodes 2; preempted 3-4; "
         "prefills 6 (5 of them again, 16 in the cache) at 5; decodes 6"),
        ("C", "9,000", "refused after 0: 9,000 tokens in a pool of 4,096"),
        ("D", "8", "waits 3-5; prefills 8 at 6; aborted after 6"),
    )  # fmt: skip
    assert "refused: 9,000 tokens in a pool of 4,096" in "".join(picture.parts)
    assert "B, step 3: preempted" in tips(picture)
    assert "D, step 3: waits" in tips(picture)


def test_the_gap_of_a_preempted_row_has_a_torn_edge_and_no_bar(served_four):
    parts = timeline(served_four).parts
    assert sum("kv-torn" in part and "Z" not in part for part in parts) >= 2  # the tear and its legend
    gap = [part for part in parts if "B, step 3" in part or "B, step 4" in part]
    assert len(gap) == 2
    assert all("kv-dots" in part and "<rect" not in part for part in gap)


def test_what_is_told_by_colour_is_told_by_form_too(served_four):
    drawing = timeline(served_four)
    parts = {tip: part for part in drawing.parts for tip in re.findall(r'data-tip="([^"]+)"', part)}
    height = {tip: [float(h) for h in re.findall(r'height="([\d.]+)" fill="#', part)] for tip, part in parts.items()}
    assert height["A, step 1: prefills 30 tokens"] == [18]
    assert height["A, step 2: decodes a token"] == [8]
    assert height["B, step 1: prefills 4 tokens (16 in the cache)"] == [18, 17]  # solid, and a pale lead-in
    assert "kv-slots" in parts["B, step 5: prefills 6 tokens (5 of them again, 16 in the cache)"]
    assert parts["A, step 5: decodes 4 tokens"].count("z") == 4  # a stripe a token


def test_prefills_carry_their_tokens(served_four):
    numbers = re.findall(r"kv-number kv-middle[^>]*>([\d,]+)<", "".join(timeline(served_four).parts))
    assert sorted(numbers) == ["30", "4", "6", "8"]


def test_a_long_chunked_prefill_has_one_number_beside_it():
    log = opened()
    log.write("admit", "A", 300, 400, 0)
    for _ in range(3):
        log.step([("A", 100)])
    for _ in range(77):
        log.step([("A", 1)])
    parts = "".join(timeline(log).parts)
    assert parts.count(">300<") == 1
    assert ">100<" not in parts
    assert timeline(log).table[1] == ("A", "300", "prefills 300 at 1-3; decodes 4-80")


def static_batch():
    log = opened()
    for rid in "ABC":
        log.write("arrive", rid, 4)
    for rid in "AB":
        log.write("admit", rid, 4, 9, 0)
    log.step([("A", 4), ("B", 4)])
    log.step([("A", 1), ("B", 1)])
    log.write("release", "A", "finished")
    log.step([("B", 1)])
    log.step([("B", 1)])
    log.write("release", "B", "finished")
    log.write("admit", "C", 4, 9, 0)
    log.step([("C", 4)])
    log.write("release", "C", "finished")
    log.step()
    return log


def test_a_static_batch_goes_on_without_those_that_finished():
    picture = check(timeline(static_batch(), places=True))
    assert picture.table[1:] == (
        ("A", "4", "prefills 4 at 1; decodes 2; finished after 2; its place stays empty 3-4"),
        ("B", "4", "prefills 4 at 1; decodes 2-4; finished after 4"),
        ("C", "4", "waits 1-4; prefills 4 at 5; finished after 5"),
    )
    assert picture.title == "3 requests, 6 steps: 2 places left empty"
    assert "place" not in "".join(timeline(static_batch()).parts)


def test_a_request_released_before_its_step_ends_has_that_step():
    log = opened()
    log.write("admit", "A", 4, 9, 0)
    log.step([("A", 4)])
    log.write("release", "A", "finished")
    log.step([("A", 1)])
    assert timeline(log).table[1][2] == "prefills 4 at 1; decodes 2; finished after 2"


def test_rolled_back_held_and_forked():
    log = opened()
    log.write("admit", 7, 4, 40, 0)
    log.step([(7, 4)])
    log.step([(7, 3)])
    log.step([(7, -2)])
    log.write("fork", 7, "child")
    log.step([(7, 0), ("child", 1)])
    picture = check(timeline(log))
    assert picture.table[1:] == (
        ("r7", "4", "prefills 4 at 1; decodes 3 at 2; rolls back 2 at 3; waits in memory 4"),
        ("child", "7", "decodes 4"),
    )


def test_the_frames_grow_step_by_step_in_a_box_that_stays(served_four):
    frames = timeline_frames(served_four)
    assert len(frames) == len(Replay(served_four)) == 8
    assert len({(drawing.width, drawing.height) for drawing, _ in frames}) == 1
    assert frames[-1][0] == timeline(served_four) == timeline(Replay(served_four))
    for (before, _), (after, _) in pairwise(frames):
        assert set(tips(before)) <= set(tips(after))
    assert [caption for _, caption in frames[:4]] == [
        "Nothing has happened yet",
        "C is refused for good: 9,000 tokens in a pool of 4,096. A prefills 30 tokens. "
        "B prefills 4 tokens (16 in the cache)",
        "A and B decode a token each",
        "B is preempted: all its memory is taken away. A decodes a token. D waits in the queue",
    ]
    assert frames[5][1].startswith("A decodes 4 tokens. B comes back and prefills 6 tokens")
    assert frames[7][1] == "D is aborted"
    assert timeline(served_four, frame=2) == frames[2][0]


def test_the_table_of_an_earlier_frame_knows_nothing_of_later_ones(served_four):
    assert timeline(served_four, frame=0).table[1:] == tuple((rid, "-", "-") for rid in "ABCD")
    assert timeline(served_four, frame=3).table[2][2].endswith("decodes 2; preempted 3")


def test_marks_of_later_frames_are_not_drawn_yet(served_four):
    refused = ["refused: 9,000" in "".join(timeline(served_four, frame=frame).parts) for frame in range(3)]
    assert refused == [False, True, True]
    tears = [sum("kv-torn" in part for part in timeline(served_four, frame=frame).parts) for frame in range(8)]
    assert tears == sorted(tears)
    assert tears[3] == tears[2] + 1


def test_a_preempted_request_that_queues_again_is_still_without_its_memory():
    log = opened()
    log.write("admit", "A", 4, 9, 0)
    log.step([("A", 4)])
    log.write("release", "A", "preempted")
    log.write("arrive", "A", 4)
    log.step()
    assert timeline(log).table[1][2] == "prefills 4 at 1; preempted 2"


def test_names_and_reasons_are_escaped_and_cut():
    log = opened()
    evil = '<script>"&\n\x00'
    log.write("arrive", evil, 10)
    log.write("refuse", evil, "<b>" * 200)
    log.step()
    picture = check(timeline(log))
    assert "<script>" not in "".join(picture.parts)
    assert "<b>" not in "".join(picture.parts)
    assert not re.search(r"[\n\t\x00]", "".join(cell for row in picture.table for cell in row))


@pytest.mark.parametrize("log", [EventLog(), opened()])
def test_an_empty_log_says_so(log):
    picture = check(timeline(log))
    assert picture.title == "0 requests, 0 steps"
    assert "No request has come." in "".join(picture.parts)


def test_twelve_requests_over_eighty_steps_fit_with_a_cell_each():
    log = opened()
    for number in range(12):
        log.write("admit", number, 20, 200, 0)
        log.step([(number, 20), *((each, 1) for each in range(number))])
    for _ in range(68):
        log.step([(each, 1) for each in range(12)])
    picture = check(timeline(log))
    assert picture.width == 760
    assert picture.height < 480
    assert len([tip for tip in tips(picture) if ", step " in tip]) == sum(80 - n for n in range(12))
    assert len(Picture(picture)._repr_mimebundle_()["image/svg+xml"]) < 200_000
    for x, width in re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', "".join(picture.parts)):
        assert float(x) + float(width) <= 760


def test_sixty_four_requests_over_a_thousand_steps_are_still_drawn():
    log = opened()
    for number in range(64):
        log.write("admit", number, 20, 2000, 0)
    log.step([(number, 20) for number in range(64)])
    for step in range(999):
        log.step([(step % 64, 1)])
    picture = check(timeline(log))
    assert picture.height < 1600
    assert len(picture.parts) < 64 * 40
    assert "r0, steps 2-64: waits in memory" not in tips(picture)  # it decoded in step 2
    assert "r1, steps 4-66: waits in memory" in tips(picture)


def test_what_cannot_be_drawn_is_refused(served_four):
    log = opened()
    for number in range(65):
        log.write("arrive", number, 4)
    with pytest.raises(InvalidInput, match="65 requests; a timeline has rows for 64"):
        timeline(log)
    with pytest.raises(InvalidInput, match="frames 0 to 7, not 8"):
        timeline(served_four, frame=8)
    with pytest.raises(InvalidInput, match="does not fit"):
        timeline(EventLog([("step", (("nobody", 1),))]))


def test_a_player_steps_it_without_a_kernel(served_four):
    shown = Player.from_drawings(timeline_frames(served_four), start=3)
    assert shown.drawing().parts
    assert "B is preempted" in repr(shown)
    assert COLOURS[1] in "".join(shown.drawing().parts)


@given(st.data())
@settings(max_examples=60)
def test_any_serving_adds_up(data):
    """Tokens in the cells are those of the log, and every request has a cell for each step."""
    log, alive, away, computed = opened(), [], [], 0
    for number in range(data.draw(st.integers(0, 14))):
        act = data.draw(st.sampled_from(["arrive", "preempt", "back", "finish", "step"]))
        if act == "arrive":
            log.write("arrive", number, 9)
            log.write("admit", number, 9, 99, data.draw(st.integers(0, 8)))
            alive.append(number)
        elif act == "back" and away:
            log.write("admit", away[0], 12, 99, data.draw(st.integers(0, 8)))
            alive.append(away.pop(0))
        elif act in ("preempt", "finish") and alive:
            rid = alive.pop(data.draw(st.integers(0, len(alive) - 1)))
            log.write("release", rid, "preempted" if act == "preempt" else "finished")
            away += [rid] if act == "preempt" else []
        else:
            tokens = [(rid, data.draw(st.integers(0, 5))) for rid in alive]
            computed += sum(count for _, count in tokens)
            log.step(tokens)
    read = served(log)
    assert all(len(row.cells) == read.steps for row in read.rows)
    assert sum(cell.tokens for row in read.rows for cell in row.cells) == computed
    assert all(cell.again <= cell.tokens for row in read.rows for cell in row.cells)
    assert read.frames == len(Replay(log))
    check(timeline(log))
