"""From memory to the engine: what is drawn wide is what is moved, and the three counts are written beside it."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawings import reel_bytes, sound, texts

from kvlab.errors import InvalidInput
from kvlab.viz import RouteBytes, gather_frames, gather_path, gather_steps
from kvlab.viz.palette import WARNING, colour
from kvlab.viz.scenes.gather_counts import ROUTES, Progress, steps

USEFUL, PADDED = 56 * 1024 * 16384, 512 * 128 * 16384
GATHER = RouteBytes("gather", "pages", USEFUL, PADDED, 3 * PADDED)
SLICE = RouteBytes("contiguous PA", "slice", USEFUL, 4 * USEFUL, 4 * USEFUL)
RING = RouteBytes("ring", "ring", USEFUL, USEFUL, USEFUL)
TABLE = [7, 1, 16, 3]


def test_the_three_counts_are_written_in_the_units_that_were_asked_for():
    picture = sound(gather_path, [GATHER, SLICE, RING], decimal=True)
    assert picture.title == "gather moves 3.22 GB, contiguous PA 3.76 GB, ring 940 MB"
    assert picture.table[1:] == (
        ("gather", "scattered pages", "yes", "940 MB", "1.07 GB", "3.22 GB"),
        ("contiguous PA", "one slice", "no", "940 MB", "3.76 GB", "3.76 GB"),
        ("ring", "rings", "no", "940 MB", "940 MB", "940 MB"),
    )
    assert {"1.07 GB read, then written", "1.07 GB read again", "940 MB read", "29 %", "25 %", "100 %"} <= set(
        texts(picture)
    )
    assert "1 GiB read again" in texts(gather_path([GATHER]))


def test_the_width_of_a_path_is_its_bytes():
    parts = gather_path([GATHER, SLICE, RING]).parts
    solid = [re.search(r'height="([\d.]+)"', part) for part in parts if f'fill="{colour(0)}"' in part]
    heights = [float(each.group(1)) for each in solid if each and 'y="' in each.string]
    bands = [height for height in heights if height not in (11.0, 17.0, 12.0)]
    assert bands == pytest.approx([bands[0]] * 3, abs=0.02)  # the useful bytes are the same on all three
    copy = next(part for part in parts if WARNING in part and "kv-tint" in part)
    wide = float(re.search(r'height="([\d.]+)"', copy).group(1))
    assert wide / bands[0] == pytest.approx(2 * PADDED / USEFUL, rel=1e-2)


def test_only_a_route_that_copies_has_a_workspace():
    with_copy = "".join(gather_path([GATHER]).parts)
    without = "".join(gather_path([RING]).parts)
    assert "a copy" in with_copy
    assert "a copy" not in without
    assert "the copy: read and written" in with_copy
    assert WARNING not in without
    assert "padding, holes, other requests" not in without


@pytest.mark.parametrize(
    ("counts", "match"),
    [
        (("pages", 10, 9, 27), "must hold"),
        (("pages", 0, 9, 27), "must hold"),
        (("ring", 5, 9, 8), "must hold"),
        (("pages", 9, 9, 26), "at least 27"),
        (("table", 9, 9, 27), "pages, slice, ring, not 'table'"),
    ],
)
def test_counts_that_cannot_be_are_refused(counts, match):
    with pytest.raises(InvalidInput, match=match):
        RouteBytes("gather", *counts)
    with pytest.raises(InvalidInput, match="no route"):
        gather_path([])


def test_each_block_makes_three_trips_by_the_workspace_and_one_from_the_ring():
    frames = gather_frames(TABLE, 24)
    assert len(frames) == 18
    assert [drawing.title for drawing, _ in frames][::4] == [
        "Step 0, blocks moved: gather 0, slice 0, ring 0",
        "Step 4, blocks moved: gather 8, slice 4, ring 4",
        "Step 8, blocks moved: gather 12, slice 8, ring 4",
        "Step 12, blocks moved: gather 12, slice 12, ring 4",
        "Step 16, blocks moved: gather 12, slice 16, ring 4",
    ]
    assert frames[1][1] == (
        "Gather reads block 7 and writes it into the workspace; the engine waits. The slice reads block 0, "
        "for nothing: it is not the request's. From the ring the engine reads part 1 of 4"
    )
    assert frames[5][1].startswith("The engine reads the copy of block 7: its third trip")
    assert frames[5][0].table[1:] == (
        ("gather", "4", "1 of 4", "9"),
        ("slice", "0", "2 of 4", "5"),
        ("ring", "0", "4 of 4", "4"),
    )
    assert "engine: done at step 8" in texts(frames[-1][0])
    assert reel_bytes(frames) < 60_000


def test_an_arrow_leaves_what_moves_and_none_is_left_at_the_end():
    links = [sum("kv-link" in part for part in gather_steps(TABLE, 24, step=i).parts) for i in (0, 3, 6, 9, 17)]
    assert links == [0, 3, 2, 1, 1]


@given(st.permutations(range(9)), st.integers(1, 8))
@settings(max_examples=25, deadline=None)
def test_any_table_is_drawn_at_any_step_and_ends_with_all_its_blocks(order, count):
    table = order[:count]
    for step in (0, count, steps(table)):
        sound(gather_steps, table, 9, step=step)
    for route in ROUTES:
        done = Progress(route, table, steps(table))
        assert done.useful == count
        assert done.moved == {"gather": 3 * count, "slice": max(table) + 1, "ring": count}[route]


@pytest.mark.parametrize(
    ("table", "pool", "step", "match"),
    [
        ([], 24, 0, "table of 0"),
        ([1, 1], 24, 0, "different blocks"),
        ([24], 24, 0, "different blocks of a pool of 24"),
        ([1], 31, 0, "pool of 31"),
        ([1], 24, 3, "steps 0 to 2, not 3"),
        ([1], 24, -1, "steps 0 to 2"),
    ],
)
def test_tables_that_cannot_be_drawn_are_refused(table, pool, step, match):
    with pytest.raises(InvalidInput, match=match):
        gather_steps(table, pool, step=step)
