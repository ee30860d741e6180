"""A strip a layer: dead tokens look dead, freed ones are gone, and the block at the edge of the window stays."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawings import boxes, reel_bytes, sound, texts

from kvlab.errors import InvalidInput
from kvlab.events import EventLog, Replay
from kvlab.shapes import LayerGroup, ModelShape
from kvlab.viz import LayerKV, layer_strips, layers_in, layers_of, player, request_layers
from kvlab.viz.scenes.layer_strips import LIVE

GEMMA = ModelShape.preset("gemma-4-31b").groups()
SMALL = (
    LayerGroup("global", "global", (2, 5), None, 2 * 256),
    LayerGroup("sliding", "sliding", (0, 1, 3, 4), 64, 1024),
)
LIVE_PATH = f'fill="{LIVE}"'


def live_area(drawing):
    """Of the strips: the solid paths come before the first rectangle of the total."""
    path = next(part for part in drawing.parts if part.startswith("<path") and LIVE_PATH in part)
    return sum(width * height for _, _, width, height in boxes(path))


def test_fifty_of_sixty_layers_keep_three_quarters_that_nobody_can_read():
    picture = sound(layer_strips, layers_of(GEMMA, 4096))
    assert picture.title == "4,096 tokens: in 50 of 60 layers, 3,072 are dead"
    assert [row[1:] for row in picture.table[1:]] == [
        ("sliding", "1,024", "3,072", "0", "3.12 GiB"),
        ("global", "4,096", "0", "0", "320 MiB"),
    ]
    assert picture.table[2][0] == "5, 11, 17, 23, 29, 35, 41, 47, 53, 59"
    assert texts(picture).count("5 sliding") == 10
    assert "3.44 GiB in memory, 2.34 GiB of it dead" in texts(picture)
    assert {"32 %", "68 % dead"} <= set(texts(picture))


def test_what_is_solid_has_the_area_of_the_live_tokens():
    whole = live_area(layer_strips(layers_of(GEMMA, 1024), scale_tokens=4096)) * 4
    part = live_area(layer_strips(layers_of(GEMMA, 4096)))
    assert part / whole == pytest.approx((50 * 1024 + 10 * 4096) / (60 * 4096), rel=1e-3)


def test_after_freeing_only_the_head_of_the_boundary_block_is_dead():
    picture = sound(layer_strips, layers_of(GEMMA, 4150, {"sliding": 24 * 128}), block_tokens=128)
    assert picture.title == "4,150 tokens: 50 of 60 layers have freed 3,072; 54 dead ones stay"
    shown = texts(picture)
    assert {"freed", "54 dead", "74 live", "128 live"} <= set(shown)
    assert "Position 3,126 is the first that can be read; block 24 stays although 54 of its tokens are dead" in shown
    assert "24: 3,072 to 3,199" in shown
    assert "1.14 GiB in memory, 42.2 MiB of it dead; 3.48 GiB if nothing were freed" in shown
    assert "32 %" in shown
    exact = layer_strips(layers_of(GEMMA, 4096, {"sliding": 24 * 128}), block_tokens=128)
    assert exact.title == "4,096 tokens: 50 of 60 layers have freed the 3,072 that they can never read again"
    assert "Position 3,072 is the first that can be read: it is the first of block 24" in texts(exact)


def test_freeing_the_boundary_block_too_is_shown_as_a_loss():
    picture = sound(layer_strips, layers_of(GEMMA, 4150, {"sliding": 25 * 128}), block_tokens=128)
    assert picture.title == "4,150 tokens: 50 of 60 layers have lost 74 that their window still covers"
    assert "Too much was freed: 74 positions inside the window can no longer be read" in texts(picture)
    assert "freed too early" in texts(picture)
    assert not any("kv-ghost" in part for part in layer_strips(layers_of(GEMMA, 4150)).parts)


def test_before_the_window_is_full_nothing_is_dead():
    picture = sound(layer_strips, layers_of(SMALL, 64), scale_tokens=240, block_tokens=16)
    assert picture.title == "64 tokens: inside every window, nothing is dead yet"
    assert layer_strips(layers_of(SMALL, 65), scale_tokens=240).title == "65 tokens: in 4 of 6 layers, 1 is dead"
    assert {"0 sliding", "2 global", "5 global"} <= set(texts(picture))


def test_a_model_without_windows_and_one_without_global_layers():
    assert "all 2 layers" in sound(layer_strips, layers_of(SMALL[:1], 100), block_tokens=16).title
    assert "4 of 4 layers" in sound(layer_strips, layers_of(SMALL[1:], 100), block_tokens=16).title


def windowed(tokens):
    log = EventLog()
    log.write("header", "HybridWindowFree", (("global", 512, 32, 512, ()), ("sliding", 512, 16, 1024, ())))
    log.write("admit", "A", tokens, 240, 0)
    log.write("grow", "A", "global", ((0, -(-tokens // 32)),))
    log.write("grow", "A", "sliding", ((0, -(-tokens // 16)),))
    log.write("drop", "A", "sliding", 0, (tokens - 64) // 16)
    log.step([("A", tokens)])
    return log


def test_a_replayed_state_says_where_each_group_begins():
    state = Replay(windowed(150)).state(-1)
    layers = layers_in(state, "A", SMALL)
    assert [(kv.layer, kv.held, kv.readable, kv.dead) for kv in layers[:3]] == [
        (0, 80, 86, 6),
        (1, 80, 86, 6),
        (2, 0, 0, 0),
    ]
    assert layers == layers_of(SMALL, 150, {"sliding": 80})
    scene = partial(request_layers, rid="A", groups=SMALL, scale_tokens=240)
    assert "6 dead" in texts(sound(scene, state))
    assert player(windowed(150), scene).titles == [
        "0 tokens: inside every window, nothing is dead yet",
        "150 tokens: 4 of 6 layers have freed 80; 6 dead ones stay",
    ]


@pytest.mark.parametrize("event", [("grow", "A", "sliding", ((3, 4),)), ("region", "A", "sliding", 192, 64, 64)])
def test_a_ring_holds_the_last_window_and_nothing_dead(event):
    log = EventLog()
    log.write("header", "HybridRing", (("global", 512, 32, 512, ()), ("sliding", 512, 64, 1024, ())))
    log.write("admit", "A", 150, 240, 0)
    log.write("grow", "A", "global", ((0, 5),))
    log.write(*event)
    log.step([("A", 150)])
    log.write("release", "A", "finished")
    log.step()
    replay = Replay(log)
    first = layers_in(replay.state(1), "A", SMALL)[0]
    assert (first.held, first.dead, first.live, first.lost) == (86, 0, 64, 0)
    assert layers_in(replay.state(2), "A", SMALL)[0].end == 0
    assert layers_in(replay.state(2), "B", SMALL)[0].end == 0


@given(st.integers(0, 400), st.integers(0, 400), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_any_layers_can_be_drawn_and_add_up(tokens, held, block):
    held = min(held, tokens)
    layers = layers_of(SMALL, tokens, {"sliding": held})
    sound(layer_strips, layers, scale_tokens=max(1, tokens) + 7, block_tokens=block)
    for kv in layers:
        assert kv.live + kv.dead + kv.freed == kv.end
        assert kv.lost == max(0, min(kv.end, kv.held) - kv.readable)


def test_sixty_frames_of_sixty_layers_stay_small():
    frames = []
    for tokens in range(130, 8192, 135):
        layers = layers_of(GEMMA, tokens, {"sliding": max(0, tokens - 1024) // 128 * 128})
        frames.append((layer_strips(layers, scale_tokens=8192, block_tokens=128), f"{tokens} tokens"))
    assert len({(drawing.width, drawing.height) for drawing, _ in frames}) == 1
    assert reel_bytes(frames) < 150_000


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(InvalidInput, match="no layers"):
        layer_strips([])
    with pytest.raises(InvalidInput, match="100 tokens; scale_tokens=99"):
        layer_strips(layers_of(SMALL, 100), scale_tokens=99)
    with pytest.raises(InvalidInput, match="block_tokens"):
        layer_strips(layers_of(SMALL, 100), block_tokens=0)
    with pytest.raises(InvalidInput, match=r"named \['windows'\]; there are \['global', 'sliding'\]"):
        layers_of(SMALL, 100, {"windows": 3})
    with pytest.raises(InvalidInput, match="layer 3 holds"):
        LayerKV(3, True, 11, 0, 10, 1)
