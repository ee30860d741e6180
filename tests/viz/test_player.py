"""The player: what it shows where nothing runs, what it sends, and what it refuses."""

import json
from functools import partial
from xml.etree import ElementTree

import pytest
import traitlets

from kvlab.errors import InvalidInput
from kvlab.events import EventLog, Replay, to_ranges
from kvlab.viz import Player, computed_tokens, pages, player, pool_grid, region_strip, sharing, triangle_frames
from kvlab.viz.player_widget import STATE_MIME
from kvlab.viz.reel import unfolded

WIDGET = "application/vnd.jupyter.widget-view+json"


def bundle(shown):
    data, _ = shown._repr_mimebundle_()
    return data


def test_each_frame_is_exactly_what_the_scene_drew(two_requests):
    replay = Replay(two_requests)
    shown = player(two_requests, pages)
    assert len(shown.frames) == len(replay)
    for frame, state in enumerate(replay.states()):
        drawing = pages(state, replay.events(frame))
        assert "".join(shown.fragments[i] for i in unfolded(shown.frames[frame])) == "".join(drawing.parts)
        again = shown.drawing(frame)
        assert (again.title, again.table) == (drawing.title, drawing.table)


def test_it_shows_itself_as_widget_text_svg_and_state(two_requests):
    shown = player(two_requests, pages, start=1)
    data = bundle(shown)
    assert set(data) == {WIDGET, "text/plain", "image/svg+xml", STATE_MIME}
    assert data["text/plain"].splitlines() == [
        "37 tokens in 3 of 16 blocks, 11 slots empty",
        "frame 2 of 15: A prefills 37 tokens into blocks 7, 1, 3; 11 slots of block 3 stay empty",
        "request  tokens  block table  empty slots",
        "-------  ------  -----------  -----------",
        "A            37  7, 1, 3               11",
    ]
    root = ElementTree.fromstring(data["image/svg+xml"])
    assert root[0].text == "37 tokens in 3 of 16 blocks, 11 slots empty"
    assert root[1].text.startswith("2 of 15: A prefills 37 tokens")
    state = data[STATE_MIME]
    assert state["esm"] == "player"
    assert set(state["state"]) == {
        "captions", "fragments", "frames", "height", "rows", "step", "tables", "title", "titles", "width",
    }  # fmt: skip


def test_two_runs_store_the_same_bytes(four_samples):
    one, other = (bundle(player(four_samples, sharing, start=3)) for _ in range(2))
    one.pop(WIDGET), other.pop(WIDGET)
    assert json.dumps(one) == json.dumps(other)


def test_the_still_picture_follows_the_step(two_requests):
    shown = player(two_requests, pages)
    shown.step = 3
    assert "A writes its 39th token" in bundle(shown)["image/svg+xml"]
    assert bundle(shown)[STATE_MIME]["state"]["step"] == 3


def test_where_it_starts(two_requests):
    assert player(two_requests, pages).step == 0
    assert player(two_requests, pages, start=-1).step == 14
    with pytest.raises(InvalidInput, match="frames 0 to 14, not 15"):
        player(two_requests, pages, start=15)


def test_a_step_outside_the_log_is_refused_and_changes_nothing(two_requests):
    shown = player(two_requests, pages, start=2)
    with pytest.raises(traitlets.TraitError, match="frames 0 to 14, not 15"):
        shown.step = 15
    assert shown.step == 2


def test_several_scenes_are_drawn_together(two_requests):
    stacked, beside = (player(two_requests, pool_grid, sharing, start=2, columns=n) for n in (1, 2))
    assert stacked.height > beside.height
    assert stacked.width < beside.width
    text = "".join(stacked.drawing().parts)
    assert "58 tokens in 5 of 16 blocks" in text
    assert "5 blocks in memory, none shared" in text
    assert {"held by", "references"} <= {cell for row in stacked.drawing().table for cell in row}


def test_a_title_of_ones_own_stands_before_the_frames(two_requests):
    assert player(two_requests, pages, title="Lesson 02", start=1).heading(1).startswith("Lesson 02: 37 tokens")


def test_a_scene_with_options_is_a_partial(two_holes):
    shown = player(two_holes, partial(region_strip, pending=1024), start=-1)
    assert "is refused" in "".join(shown.drawing().parts)


def test_drawings_from_anywhere_can_be_stepped():
    shown = Player.from_drawings(triangle_frames(*computed_tokens(3, 5)))
    assert len(shown.captions) == 5
    assert shown.captions[0].startswith("Prefill")


def test_a_player_needs_a_scene_and_a_frame(two_requests):
    with pytest.raises(InvalidInput, match="which scene"):
        player(two_requests)
    with pytest.raises(InvalidInput, match="at least one frame"):
        Player.from_drawings([])


@pytest.mark.parametrize(("scene", "requests"), [(pool_grid, 4), (pages, 2)])
def test_sixty_frames_over_sixty_four_blocks_take_less_than_150_kb_in_a_notebook(scene, requests):
    log = EventLog([("header", "Paged", (("full", 1024, 16, 1, ((0, 64),)),))])
    free = [(i * 29) % 64 for i in range(64)]
    tokens = dict.fromkeys("ABCD"[:requests], 70)
    for rid in tokens:
        log.write("admit", rid, 70, 200, 0)
        log.write("grow", rid, "full", to_ranges(free.pop() for _ in range(5)))
        log.step([(rid, 70)])
    while len(Replay(log)) < 60:
        for rid in tokens:
            if tokens[rid] % 16 == 0:
                log.write("grow", rid, "full", to_ranges([free.pop()]))
            tokens[rid] += 1
        log.step([(rid, 1) for rid in tokens])
    state = bundle(player(log, scene))[STATE_MIME]
    assert len(json.dumps(state, indent=1)) < 150_000
