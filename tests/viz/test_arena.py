"""The arena's picture: rings, pages and free memory in one grid, the balance below, moves as arrows."""

import random
from functools import partial

import pytest
from support.drawings import boxes, reel_bytes, sound, texts

from kvlab.errors import InvalidInput
from kvlab.events import EventLog, Replay, to_ranges
from kvlab.viz import ArenaRows, Superblock, arena_grid, arena_in, arena_picture, player

MIB = 2**20
A, B, C, NOBODY = ("A",), ("B",), ("C",), ()
ORDERS = {"A": 0, "B": 1, "C": 2}


def arena(*rows, moves=(), pages=4):
    made = [
        Superblock()
        if each is None
        else Superblock(ring=each)
        if isinstance(each, str)
        else Superblock(pages=tuple(each))
        for each in rows
    ]
    return ArenaRows(tuple(made), pages, 20 * MIB, tuple(moves), ORDERS)


MIXED = arena("A", "B", None, [A, NOBODY, B, NOBODY], [C, C, ("A", "C"), A])
TIGHT = arena("A", "B", [A, NOBODY, NOBODY, NOBODY], [C, C, ("A", "C"), NOBODY])


def test_rings_pages_and_what_is_free_are_counted_and_listed():
    picture = sound(arena_picture, MIXED)
    assert picture.title == "2 rings, 6 pages in 2 broken superblocks, 1 free superblock"
    assert picture.table == (
        ("superblocks", "what it is", "held by", "pages held", "pages free"),
        ("0", "ring", "A", "-", "-"),
        ("1", "ring", "B", "-", "-"),
        ("3", "pages", "A, B", "2", "2"),
        ("4", "pages", "A, C", "4", "0"),
        ("2", "free", "nobody", "-", "-"),
    )
    assert {"×2", "rings 40 %", "pages 30 %"} <= set(texts(picture))
    assert "One more ring fits: 1 superblock is whole and free" in texts(picture)


def test_the_bar_has_the_shares_of_the_bytes():
    parts = "".join(arena_picture(MIXED).parts)
    bar = [part for part in arena_picture(MIXED).parts if 'height="28"' in part][:-1]
    widths = [float(part.split('width="')[1].split('"')[0]) for part in bar]
    assert widths == pytest.approx([758 * share for share in (0.4, 0.3, 0.1, 0.2)], abs=0.02)
    assert parts.count("<circle") == 2 + 1  # two rings and the legend


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            TIGHT,
            "No superblock is whole, but 4 pages are free: "
            "one more ring fits once superblock 2's 1 page has moved (20 MiB)",
        ),
        (arena("A", [A, NOBODY, B, NOBODY], [C, C, C, NOBODY]), "No more ring fits: 3 free pages, and a ring takes 4"),
        (arena("A", "B"), "No more ring fits: 0 free pages, and a ring takes 4"),
        (arena(None, None), "One more ring fits: 2 superblocks are whole and free"),
    ],
)
def test_it_says_whether_one_more_ring_fits(rows, words):
    assert words in texts(sound(arena_picture, rows))


def test_pages_that_moved_are_arrows_from_where_they_were():
    moved = arena("A", "B", "C", [C, C, ("A", "C"), A], moves=[(8, 15)])
    picture = sound(arena_picture, moved)
    assert "1 page moved out of superblock 2: 20 MiB copied" in texts(picture)
    assert picture.table[-1] == ("-", "moved", "8 to 15", "1", "-")
    arrows = [part for part in picture.parts if "kv-link" in part]
    assert len(arrows) == 1
    assert "kv-ghost" in arrows[0]
    assert "kv-touched" in arrows[0]


def test_pages_that_go_to_one_superblock_share_an_arrow():
    moves = [(8, 13), (9, 14), (10, 17)]
    after = arena("A", "B", "C", [C, A, A, C], [C, A, NOBODY, NOBODY], moves=moves)
    arrows = [part for part in sound(arena_picture, after).parts if "kv-link" in part]
    assert [part.count("kv-touched") for part in arrows] == [2, 1]
    assert "3 pages moved out of superblock 2: 60 MiB copied" in texts(arena_picture(after))


def test_a_relocation_of_a_log_is_drawn_and_told():
    log = logged(RINGS[0])
    log.write("relocate", "page", 16, 12)
    log.write("admit", "C", 80, 90, 0)
    log.write("grow", "C", "ring", ((4, 5),))
    log.write("grow", "C", "page", ((13, 16), (8, 10)))
    log.step([("C", 80)])
    shown = player(log, arena_grid)
    assert shown.captions[3] == (
        "To make room, block 16 moves to block 12: every table follows. "
        "C prefills 80 tokens into blocks 13, 14, 15, 8, 9; block 9 is full now"
    )
    assert shown.captions[1] == (
        "A prefills 32 tokens into blocks 16, 17; block 17 is full now. "
        "B takes block 1 of the ring pool; B takes block 16 of the page pool"
    )
    assert shown.captions[2].startswith("A finishes: block 0 of the ring pool is free again: block 17 of the page pool")
    assert arena_in(Replay(log).state(3)).moves == ((16, 12),)
    assert arena_in(Replay(log).state(3)).rows[3].pages[0] == B
    assert arena_in(Replay(log).state(2)).moves == ()


def test_a_superblock_whose_pages_are_all_free_is_whole_again():
    rows = arena("A", [NOBODY] * 4)
    assert (rows.count("free"), rows.spare_pages, rows.emptiest) == (1, 0, None)
    assert "One more ring fits: 1 superblock is whole and free" in texts(sound(arena_picture, rows))


def logged(ring_event):
    """Five superblocks of four pages: A has a ring and two pages, B a ring and shares one of them."""
    log = EventLog()
    log.write("header", "HybridRing", (("ring", 5 * 64, 64, 1024, ()), ("page", 5 * 4 * 16, 16, 1024, ())))
    for rid, row in (("A", 0), ("B", 1)):
        log.write("admit", rid, 32, 64, 0)
        log.write(*ring_event(rid, row))
    log.write("grow", "A", "page", ((16, 18),))
    log.write("grow", "B", "page", ((16, 17),))
    log.step([("A", 32)])
    log.write("release", "A", "finished")
    log.step()
    return log


RINGS = [
    lambda rid, row: ("grow", rid, "ring", ((row, row + 1),)),
    lambda rid, row: ("region", rid, "ring", row * 64, 64, 64),
]


@pytest.mark.parametrize("ring_event", RINGS, ids=["a block", "a region"])
def test_the_arena_of_a_log(ring_event):
    replay = Replay(logged(ring_event))
    rows = arena_in(replay.state(1))
    assert [each.kind for each in rows.rows] == ["ring", "ring", "free", "free", "pages"]
    assert rows.rows[0].ring == "A"
    assert rows.rows[4].pages == (("A", "B"), ("A",), (), ())
    assert (rows.page_bytes, rows.row_bytes, rows.orders) == (16 * 1024, 64 * 1024, {"A": 0, "B": 1})
    drawn = [part for part in sound(arena_grid, replay.state(1)).parts if 'data-tip="page 1' in part]
    assert [part.split('data-tip="')[1].split('"')[0] for part in drawn] == [
        "page 16: A, B (shared)", "page 17: A", "page 18: free", "page 19: free"
    ]  # fmt: skip
    last = next(part for part in sound(arena_grid, replay.state(1)).parts if ">4</text>" in part)
    left, width = (float(last.split(f' {name}="')[1].split('"')[0]) for name in ("x", "width"))
    assert all(left < float(part.split(' x="')[1].split('"')[0]) < left + width for part in drawn)
    after = arena_in(replay.state(2))
    assert [each.kind for each in after.rows] == ["free", "ring", "free", "free", "pages"]
    assert after.used_pages == 1
    for frame in (1, 2):
        assert sound(arena_grid, replay.state(frame)).title.startswith("1 ring" if frame == 2 else "2 rings")


def test_small_pages_are_runs_with_the_area_of_their_pages():
    owners = [A] * 13 + [B] * 7 + [NOBODY] * 20
    rows = arena(*["C"] * 15, owners, pages=40)
    picture = sound(arena_picture, rows)
    area = {}
    for part in picture.parts:
        if "superblock 15: " in part:
            key = "A" if "of A" in part else "B" if "of B" in part else "free"
            area[key] = sum(width * height for _, _, width, height in boxes(part))
    assert area["A"] / area["free"] == pytest.approx(13 / 20, rel=0.05)
    assert area["B"] / area["free"] == pytest.approx(7 / 20, rel=0.05)


def long_log(rows=16, per_row=40, steps=60):
    rng, log = random.Random(7), EventLog()
    log.write(
        "header",
        "HybridRing",
        (("ring", rows * 1024, 1024, 819_200, ()), ("page", rows * per_row * 256, 256, 81_920, ())),
    )
    free, pages, live = list(range(rows)), [], {}
    for rid in range(steps):
        if len(free) > 2 and rng.random() < 0.7:
            row, need = free.pop(0), rng.randint(1, 30)
            while len(pages) < need:
                pages += range(free[-1] * per_row, free.pop() * per_row + per_row)
            log.write("admit", rid, 100, 200, 0)
            log.write("grow", rid, "ring", ((row, row + 1),))
            log.write("grow", rid, "page", to_ranges(pages[:need]))
            live[rid], pages = (row, pages[:need]), pages[need:]
        elif live:
            gone = rng.choice(list(live))
            row, held = live.pop(gone)
            free, pages = sorted([*free, row]), pages + held
            log.write("release", gone, "finished")
        log.step()
    return log


def test_sixty_frames_of_real_size_stay_small():
    replay = Replay(long_log())
    frames = [(arena_grid(state, replay.events(i)), "") for i, state in enumerate(replay.states())]
    assert len(frames) == 61
    assert reel_bytes(frames) < 150_000


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (partial(arena), "at least one superblock"),
        (partial(arena, [A, A, A]), "superblock 0 is a ring or has 4 pages"),
        (partial(ArenaRows, (Superblock("A", (A, A)),), 2, 1), "not both"),
        (partial(arena, "A", "B", moves=[(3, 8)]), r"0 to 7; not so in \[\(3, 8\)\]"),
        (lambda: arena_picture(arena(*["A"] * 97)), "97 superblocks"),
        (lambda: arena_picture(arena("A", pages=129)), "129 pages"),
    ],
)
def test_what_is_no_arena_is_refused(make, match):
    with pytest.raises(InvalidInput, match=match):
        make()


def test_a_log_without_such_pools_is_refused(two_requests):
    with pytest.raises(InvalidInput, match=r"no pool \['page', 'ring'\]"):
        arena_in(Replay(two_requests).state(-1))
    log = EventLog()
    log.write("header", "HybridRing", (("ring", 3 * 64, 64, 1, ()), ("page", 4 * 16, 16, 1, ())))
    with pytest.raises(InvalidInput, match="4 pages do not lie in 3 equal"):
        arena_in(Replay(log).state(0))
