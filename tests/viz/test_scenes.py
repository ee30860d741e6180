"""Scenes draw what the log says, the same each time, and their tables agree with the state."""

import re
from functools import partial
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvlab.errors import InvalidInput
from kvlab.events import EventLog, Replay, State, to_ranges
from kvlab.viz import (
    Picture,
    block_tables,
    pages,
    pool_grid,
    region_strip,
    reservation_bars,
    sharing,
)

PAGED = (pages, pool_grid, block_tables, sharing)
CONTIGUOUS = (reservation_bars, region_strip, partial(region_strip, pending=1024))
SHOWN = re.compile(r'data-tip="block (\d+): ([^"]*?), (\d+) of (\d+) slots filled')


def drawn(scene, log, frame):
    replay = Replay(log)
    return scene(replay.state(frame), replay.events(frame % len(replay)))


def check(scene, state, events=()):
    """A drawing that parses, fits its box, is the same twice, and has a title, a description and a table."""
    one, other = scene(state, events), scene(state, events)
    assert one == other
    assert one.title
    assert one.description
    assert len(one.table) >= 1
    root = ElementTree.fromstring(Picture(one)._repr_mimebundle_()["image/svg+xml"])
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(rect.get("width")) >= 0
        assert float(rect.get("height")) >= 0
    for part in one.parts:
        ElementTree.fromstring(f"<g>{part}</g>")
    return one


@pytest.mark.parametrize("scene", PAGED, ids=lambda scene: scene.__name__)
@pytest.mark.parametrize("log", ["two_requests", "four_samples", "swapped_and_preempted"])
def test_every_frame_of_a_paged_log_can_be_drawn(scene, log, request):
    replay = Replay(request.getfixturevalue(log))
    for frame, state in enumerate(replay.states()):
        check(scene, state, replay.events(frame))


@pytest.mark.parametrize("scene", CONTIGUOUS, ids=["bars", "strip", "strip and a pending request"])
@pytest.mark.parametrize("log", ["four_reservations", "two_holes"])
def test_every_frame_of_a_contiguous_log_can_be_drawn(scene, log, request):
    replay = Replay(request.getfixturevalue(log))
    for frame, state in enumerate(replay.states()):
        check(scene, state, replay.events(frame))


def test_lesson_02_shows_the_tables_the_blocks_and_eleven_empty_slots(two_requests):
    picture = drawn(pages, two_requests, 1)
    assert picture.title == "37 tokens in 3 of 16 blocks, 11 slots empty"
    assert picture.table == (("request", "tokens", "block table", "empty slots"), ("A", "37", "7, 1, 3", "11"))
    parts = "".join(picture.parts)
    assert "37 tokens, 3 blocks, 11 slots empty" in parts
    assert "block 3: A, 5 of 16 slots filled, 11 empty" in parts
    assert [f"A:{i}" for i in range(3)] == sorted(set(re.findall(r'data-entry="([^"]+)"', parts)))
    assert parts.count('class="kv-link"') == 3


def test_an_entry_and_its_block_carry_the_same_number(two_requests):
    picture = drawn(pages, two_requests, 2)
    entries = dict(re.findall(r'data-entry="([^"]+)" data-block="(\d+)"', "".join(picture.parts)))
    assert entries == {"A:0": "7", "A:1": "1", "A:2": "3", "B:0": "4", "B:1": "0"}


def test_only_what_the_frame_touched_is_outlined(two_requests):
    assert "".join(drawn(pool_grid, two_requests, 1).parts).count("kv-touched") == 3
    assert "".join(drawn(pool_grid, two_requests, 3).parts).count("kv-touched") == 2
    assert "".join(pool_grid(Replay(two_requests).state(3)).parts).count("kv-touched") == 0


def test_a_shared_block_has_its_owners_stripes_and_a_badge(four_samples):
    parts = "".join(drawn(pool_grid, four_samples, 2).parts)
    assert parts.count("×4") == 63
    cell = re.search(r'<g data-tip="block 62: shared by A, B, C and D, 8 of 16.*?</g>', parts).group()
    assert len(set(re.findall(r'fill="(#\w+)"', cell))) == 4


def test_a_copy_is_an_arrow_in_its_frame_only(four_samples):
    copies = ["kv-copy-head" in "".join(drawn(pool_grid, four_samples, frame).parts) for frame in range(8)]
    assert copies == [False, False, False, True, True, True, False, False]


def test_lesson_03_folds_the_trunk_and_splits_at_the_partial_block(four_samples):
    before, after = drawn(sharing, four_samples, 2), drawn(sharing, four_samples, 6)
    assert before.table[1:] == (
        ("A, B, C, D", "4", "0-61", "0-61", "16 of 16"),
        ("A, B, C, D", "4", "62", "62", "8 of 16"),
    )
    assert "62 blocks, stored once for 4" in "".join(before.parts)
    assert "+ 60 more" in "".join(before.parts)
    assert before.title == "63 blocks in memory instead of 252"
    assert after.title == "66 blocks in memory instead of 252, 3 copies so far"
    assert [row[0] + row[3] for row in after.table[1:]] == ["A, B, C, D0-61", "A63", "B64", "C65", "D62"]


def test_the_copy_of_a_partial_block_is_told_with_its_tokens(four_samples):
    assert "copy 8 tokens" in "".join(drawn(sharing, four_samples, 3).parts)


def test_sharing_draws_trees_that_branch_more_than_once():
    log = EventLog([("header", "Paged", (("full", 160, 16, 1, ((0, 10),)),))])
    log.write("admit", "A", 32, 160, 0)
    log.write("grow", "A", "full", ((0, 2),))
    log.write("fork", "A", "B")
    log.step([("A", 32)])
    log.step([("B", 32)])
    log.write("grow", "A", "full", ((2, 3),))
    log.write("grow", "B", "full", ((3, 4),))
    log.write("fork", "B", "C")
    log.step([("A", 16), ("B", 16), ("C", 16)])
    table = drawn(sharing, log, -1).table
    assert [(row[0], row[3]) for row in table[1:]] == [("A, B, C", "0-1"), ("A", "2"), ("B, C", "3")]


def test_lesson_01_counts_3270_780_and_12334(four_reservations):
    picture = drawn(reservation_bars, four_reservations, -1)
    assert picture.title == "20.0 % of 16,384 reserved slots hold a token"
    assert picture.table[-1] == ("all", "16,384", "3,270", "780", "12,334")
    assert picture.table[1] == ("A", "4,096", "300", "150", "3,646")
    assert "never used (internal): 12,334 (75.3 %)" in "".join(picture.parts)


def test_rounding_up_has_its_own_hatch_and_column():
    log = EventLog([("header", "ContiguousPow2", (("full", 1024, 1, 1, ()),))])
    log.write("admit", "A", 200, 450, 0)
    log.write("region", "A", "full", 0, 456, 512)
    log.step([("A", 300)])
    picture = drawn(reservation_bars, log, -1)
    assert picture.table[1] == ("A", "512", "300", "150", "6", "56")
    assert "lost to rounding up (external)" in picture.table[0]


def test_two_holes_do_not_make_one(two_holes):
    picture = drawn(partial(region_strip, pending=1024), two_holes, -1)
    parts = "".join(picture.parts)
    assert picture.title == "1,024 slots are free; the largest hole has 512"
    assert parts.count("too small") == 2
    assert "a request for 1,024 is refused, though 1,024 slots are free" in parts
    assert ("1,024", "512", "free", "0") in picture.table


def test_a_request_that_fits_is_shown_under_its_hole(two_holes):
    parts = "".join(drawn(partial(region_strip, pending=512), two_holes, -1).parts)
    assert "a request for 512 fits at slot 1,024" in parts
    assert "too small" not in parts


def test_copies_and_their_original_are_told_apart_until_the_blocks_are_handed_out_again(four_samples):
    after = drawn(sharing, four_samples, -1)
    parts = "".join(after.parts)
    assert [parts.count(words) for words in ("copy of 62", "the original")] == [3, 1]
    assert [row[-1] for row in after.table] == [
        "last one is",
        "-",
        "copy of 62",
        "copy of 62",
        "copy of 62",
        "the original",
    ]
    assert "copy of" not in "".join(drawn(sharing, four_samples, 3).parts)  # the arrow says it
    four_samples.write("release", "D", "finished")
    four_samples.write("admit", "E", 16, 32, 0)
    four_samples.write("grow", "E", "full", ((62, 63),))
    four_samples.step([("E", 16)])
    anew = drawn(sharing, four_samples, -1)
    assert "original" not in "".join(anew.parts)
    assert len(anew.table[0]) == 5


def test_a_copy_of_one_token_is_a_token():
    log = EventLog([("header", "Paged", (("full", 160, 16, 1, ((0, 10),)),))])
    log.write("admit", "A", 17, 160, 0)
    log.write("grow", "A", "full", ((0, 2),))
    log.step([("A", 17)])
    log.write("fork", "A", "B")
    log.write("copy", "B", "full", 1, 1, 2)
    log.step([("B", 1)])
    assert "copy 1 token<" in "".join(drawn(sharing, log, -1).parts)


def test_a_cached_block_is_neither_held_nor_free():
    log = EventLog([("header", "PagedPrefix", (("full", 64, 16, 1, ((0, 4),)),))])
    log.write("admit", "A", 33, 48, 0)
    log.write("grow", "A", "full", ((0, 3),))
    log.write("register", "full", 0, "aaaa", "root")
    log.write("register", "full", 1, "bbbb", "aaaa")
    log.step([("A", 33)])
    assert "kv-hatch" not in "".join(drawn(pool_grid, log, -1).parts)
    log.write("release", "A", "finished")
    log.step()
    cached = check(pool_grid, Replay(log).state(-1))
    assert cached.title == "All 4 blocks of 16 slots are free, 2 cached"
    assert cached.table[1:] == (("nobody, cached", "2", "0-1", "32 of 32"), ("nobody", "2", "2-3", "-"))
    assert "block 1: cached, nobody holds it" in "".join(cached.parts)


@pytest.mark.parametrize("block_size", [1, 2, 3, 7, 16, 48, 64])
@pytest.mark.parametrize("blocks", [1, 16, 64, 200, 256, 1024])
def test_the_grid_fits_any_pool(blocks, block_size):
    log = EventLog([("header", "Paged", (("full", blocks * block_size, block_size, 1, ((0, blocks),)),))])
    log.write("admit", 0, block_size, block_size, 0)
    log.write("grow", 0, "full", ((blocks - 1, blocks),))
    log.step([(0, max(1, block_size // 2))])
    picture = check(pool_grid, Replay(log).state(-1), Replay(log).events(1))
    assert picture.width == 720
    for box in re.findall(
        r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', "".join(picture.parts)
    ):
        x, y, width, height = map(float, box)
        assert x + width <= 721
        assert y + height <= picture.height


def test_what_cannot_be_drawn_is_refused_with_what_can(two_requests, four_reservations):
    with pytest.raises(InvalidInput, match=r"no pool 'host'.*\['full'\]"):
        drawn(partial(pool_grid, pool="host"), two_requests, 1)
    with pytest.raises(InvalidInput, match="region_strip"):
        drawn(pages, four_reservations, 1)
    with pytest.raises(InvalidInput, match="no pool"):
        region_strip(State())
    with pytest.raises(InvalidInput, match="pool_grid"):
        drawn(reservation_bars, two_requests, 1)
    huge = EventLog([("header", "Paged", (("full", 16 * 30_469, 16, 1, ((0, 30_469),)),))])
    with pytest.raises(InvalidInput, match="30,469 blocks"):
        drawn(pool_grid, huge, 0)


@st.composite
def paged_logs(draw):
    """A few requests that prefill, decode, fork with copy-on-write, and leave, over a pool of 24 blocks of 4."""
    log = EventLog([("header", "Paged", (("full", 96, 4, 1, ((0, 24),)),))])
    free = draw(st.permutations(range(24)))
    tables: dict[str, list[int]] = {}
    tokens: dict[str, int] = {}
    for number in range(draw(st.integers(1, 12))):
        act = draw(st.sampled_from(["admit", "write", "fork", "leave"]))
        rid = draw(st.sampled_from(sorted(tables))) if tables else None
        if act == "admit" or rid is None:
            rid, count = f"r{number}", draw(st.integers(1, 9))
            if -(-count // 4) > len(free):
                continue
            tables[rid], tokens[rid] = [free.pop() for _ in range(-(-count // 4))], count
            log.write("admit", rid, count, count + 8, 0)
            log.write("grow", rid, "full", to_ranges(tables[rid]))
            log.step([(rid, count)])
        elif act == "fork":
            tables[f"r{number}"], tokens[f"r{number}"] = list(tables[rid]), tokens[rid]
            log.write("fork", rid, f"r{number}")
            log.step()
        elif act == "leave":
            log.write("release", rid, "finished")
            log.step()
            gone = tables.pop(rid)
            free += [block for block in gone if not any(block in table for table in tables.values())]
        elif free:
            index, last = divmod(tokens[rid], 4)
            if last == 0:
                tables[rid].append(free.pop())
                log.write("grow", rid, "full", to_ranges(tables[rid][-1:]))
            elif sum(tables[rid][index] in table for table in tables.values()) > 1:
                source, tables[rid][index] = tables[rid][index], free.pop()
                log.write("copy", rid, "full", index, source, tables[rid][index])
            tokens[rid] += 1
            log.step([(rid, 1)])
    return log


@given(paged_logs())
@settings(max_examples=40)
def test_any_paged_log_is_drawn_as_its_state_says(log):
    replay = Replay(log)
    for frame, state in enumerate(replay.states()):
        events = replay.events(frame)
        holders, filled = state.holders("full"), state.filled("full")
        grid = check(pool_grid, state, events)
        shown = {int(block): (who, int(count)) for block, who, count, _ in SHOWN.findall("".join(grid.parts))}
        assert {block: count for block, (_, count) in shown.items()} == filled
        assert all(("shared by" in who) == (len(holders[block]) > 1) for block, (who, _) in shown.items())
        assert sum(int(row[1]) for row in grid.table[1:-1]) == len(holders)
        tables = check(block_tables, state, events).table
        held = {row[0]: row[1] for row in tables[1:] if row[1] != "-"}
        assert held == {request.rid: str(request.tokens) for request in state.running()}
        shared = check(sharing, state, events).table
        assert sum(_count(row[3]) for row in shared[1:]) == len(holders)
        check(pages, state, events)


def _count(spans):
    ends = (each.partition("-") for each in spans.split(", "))
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)
