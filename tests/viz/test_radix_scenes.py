"""The scenes of the radix tree say what the policies' own books say, at every step, and look like it."""

import json
import re
from collections import Counter
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.radix_told import CHUNK, PAGE, WINDOW, Told, two_requests

from kvlab.errors import InvalidInput
from kvlab.events import EventLog, Replay
from kvlab.memory.radix_tree import RadixTree
from kvlab.policies.islands import RadixIslands
from kvlab.policies.radix_lazy import RadixLazy
from kvlab.viz import Picture, Player, conservation, player, radix_tree, strip_frames, token_strip, tree_frames
from kvlab.viz.reel import reel
from kvlab.viz.scenes.conservation import parts_of
from kvlab.viz.scenes.radix_tree_frames import moments
from kvlab.viz.scenes.radix_tree_state import Span, edges_of, strip_of
from kvlab.viz.scenes.token_strip import frontier_of, hold_of

KINDS = pytest.mark.parametrize("kind", [RadixLazy, RadixIslands])


def check(drawing):
    """A drawing that parses and fits its box, with a title, a description and a table."""
    assert drawing.title
    assert drawing.description
    assert drawing.table
    ElementTree.fromstring(Picture(drawing)._repr_mimebundle_()["image/svg+xml"])
    for part in drawing.parts:
        for rect in ElementTree.fromstring(f"<g>{part}</g>").iter("rect"):
            assert float(rect.get("width")) >= 0
    return drawing


def drawn(parts):
    return "".join(parts)


def assert_books(state, usage, window):
    """The gauges are the policy's own accounting, term by term."""
    edges = edges_of(state, window)
    for pool, books in usage.items():
        found = Counter()
        for (group, kind), count in parts_of(state, edges, pool).items():
            term = {"live": "live", "own": "live", "dead": "dead", "kept": "cached", "free": "free"}.get(kind, "open")
            found[term] += count
            assert (group == "free") == (kind == "free")
        assert found["live"] == books.live
        assert found["dead"] == books.dead
        assert found["cached"] == books.cached
        assert found["free"] == books.free
        assert found["open"] == books.reserved + books.internal


@KINDS
def test_the_gauges_are_the_books_of_the_policy_at_every_step(kind):
    told = two_requests(kind)
    told.release("A")
    told.end()
    for state, usage in zip(Replay(told.log).states(), told.usages, strict=True):
        assert_books(state, usage, WINDOW)
        check(conservation(state, window_tokens=WINDOW))


def test_a_window_that_is_off_by_one_is_noticed():
    told = two_requests(RadixLazy)
    with pytest.raises(AssertionError):
        assert_books(Replay(told.log).state(-1), told.usages[-1], WINDOW + 1)


ACTS = st.lists(
    st.tuples(st.sampled_from(["come", "chunk", "decode", "speculate", "finish", "abort"]), st.integers(0, 15)),
    max_size=25,
)


@given(st.sampled_from([RadixLazy, RadixIslands]), st.sampled_from([1, 4]), ACTS)
@settings(max_examples=40, deadline=None)
def test_any_serving_is_drawn_as_the_books_have_it(kind, page, acts):
    told = Told(kind, tokens=400, options={"page_size": page, "chunk_tokens": 16})
    for number, (act, luck) in enumerate(acts):
        rids = list(told.requests)
        if act == "come":
            if told.admit(number, [i % 7 + (i > 20) * (luck % 3) for i in range(10 + 3 * luck)], 40):
                told.end()
            continue
        if not rids:
            continue
        rid = rids[luck % len(rids)]
        request = told.requests[rid]
        if act in ("finish", "abort"):
            told.release(rid, "finished" if act == "finish" else "aborted")
            told.end()
            continue
        left = request.known_tokens - request.computed
        count = (
            min(16, left)
            if left
            else min(1 + luck if act == "speculate" else 1, request.limit_tokens - request.computed)
        )
        pages = -(-(request.computed + count) // page) * page
        books = told.policy.usage()
        if count < 1 or any(each.free + each.cached < pages for each in books.values()):
            continue
        told.step(rid, count, count if left else max(1, count - luck // 2))
    for frame, (state, usage) in enumerate(zip(Replay(told.log).states(), told.usages, strict=True)):
        assert_books(state, usage, WINDOW)
        if frame % 5 == 0:
            check(radix_tree(state, window_tokens=WINDOW))


@KINDS
def test_what_a_request_holds_is_what_its_strip_says(kind):
    told = Told(kind)
    told.prefill("A", [i % 50 for i in range(104)])
    for _ in range(40):
        told.step("A", 1)
    for state, usage in zip(Replay(told.log).states(), told.usages, strict=True):
        dead, live = hold_of(strip_of(state, "A", WINDOW))
        assert (dead, live) == (usage["swa"].dead, usage["swa"].live)


def test_after_three_chunks_the_lazy_row_holds_a_chunk_and_the_islands_a_window_and_a_page():
    frames = {
        label: Replay(two_requests(kind).log).state(3)
        for label, kind in (("lazy", RadixLazy), ("islands", RadixIslands))
    }
    picture = check(token_strip(frames, "A", window_tokens=WINDOW, scale_tokens=128))
    assert picture.title == "A, 96 tokens; of their SWA KV it holds: lazy 32, islands 12"
    assert picture.table == (
        ("policy", "tombstones", "islands kept", "dead", "live", "hold", "in flight", "frontier"),
        ("lazy", "0", "64", "25", "7", "32", "0", "0"),
        ("islands", "60", "24", "5", "7", "12", "0", "84"),
    )
    parts = drawn(picture.parts)
    assert "t = 84" in parts
    assert parts.count(">island<") == 2  # the lazy tree's unlocked chunks lie behind no tombstone
    assert "lazy: tokens 0 to 64, live in the tree, not held by the request, can be evicted" in parts


def test_the_frontier_in_the_picture_is_that_of_the_specification():
    for length in (32, 64, 96, 128):
        told = Told(RadixIslands)
        told.prefill("A", [i % 50 for i in range(length)])
        strip = strip_of(Replay(told.log).state(-1), "A", WINDOW)
        assert frontier_of(strip) == (length - WINDOW - PAGE) // PAGE * PAGE
        assert sum(hold_of(strip)) == WINDOW + PAGE


def test_decode_islands_are_named_behind_the_prompt():
    told = Told(RadixIslands)
    told.prefill("A", [i % 50 for i in range(64)])
    for _ in range(40):
        told.step("A", 1)
    frames = strip_frames({"islands": told.log}, "A", window_tokens=WINDOW)
    assert "decode islands" in drawn(frames[-1][0].parts)
    assert "decode islands" not in drawn(frames[4][0].parts)


def test_tombstones_have_a_stone_locked_spans_a_padlock_and_shared_ones_their_count():
    told = two_requests(RadixIslands)
    picture = check(radix_tree(Replay(told.log).state(-1), window_tokens=WINDOW))
    nodes = {tip: part for part in picture.parts for tip in re.findall(r'data-tip="(tokens [^"]+)"', part)}
    stones = [tip for tip, part in nodes.items() if "a5.7 5.7" in part]
    assert stones
    assert all("tombstone" in tip for tip in stones)
    assert len(stones) == sum("tombstone" in tip for tip in nodes)
    locked = [tip for tip, part in nodes.items() if "evenodd" in part]
    assert locked
    assert all("locked, can be read" in tip for tip in locked)
    assert "×2" in nodes["tokens 0 to 20, node 0, locked by A, B. SWA: 20 tombstone: SWA KV freed"]
    assert sum("×2" in part for part in picture.parts) == 1
    flags = re.findall(r'data-request="([^"]+)"', drawn(picture.parts))
    assert sorted(flags) == ["A", "B"]


def test_the_table_of_the_tree_says_what_is_drawn():
    told = Told(RadixIslands)
    told.prefill("A", [i % 50 for i in range(64)])
    told.step("A", 1)
    picture = check(radix_tree(Replay(told.log).state(-1), window_tokens=WINDOW))
    assert picture.title == "64 tokens in 4 nodes, 6 dead but pinned, 40 tombstones"
    assert picture.table == (
        ("tokens", "span", "after", "locked by", "full KV", "SWA KV"),
        ("0-20", "node 0", "root", "A", "20 live", "20 tombstone"),
        ("20-32", "node 1", "node 0", "A", "12 live", "12 kept"),
        ("32-52", "node 2", "node 1", "A", "20 live", "20 tombstone"),
        ("52-64", "node 3", "node 2", "A", "12 live", "6 dead, 6 live"),
        ("64-68", "request's own", "node 3", "A", "1 own, 3 empty", "1 own, 3 empty"),
    )


@KINDS
def test_a_chunk_is_seen_in_flight_before_its_commit(kind):
    told = two_requests(kind, decoded=3)
    frames = tree_frames(told.log, window_tokens=WINDOW)
    flying = [said for _, said in frames if "in flight" in said]
    assert flying == [
        f"{count} tokens of {rid} are in flight" for rid, count in (*[("A", 32)] * 3, ("A", 8), ("B", 30))
    ]
    assert len(frames) == len(Replay(told.log)) + len(flying)
    last = list(moments(told.log))[-1].state
    assert last == Replay(told.log).state(-1)
    for drawing, said in frames:
        check(drawing)
        assert ("flight" in drawn(cell for row in drawing.table for cell in row)) == ("are in flight" in said)
    assert "tombstone" in frames[4][1] if kind is RadixIslands else "tombstone" not in frames[4][1]


def test_reels_stay_small_and_are_the_same_every_time():
    logs = {label: two_requests(kind).log for label, kind in (("lazy", RadixLazy), ("islands", RadixIslands))}
    for make in (lambda: strip_frames(logs, "A", window_tokens=WINDOW),
                 lambda: tree_frames(logs["islands"], window_tokens=WINDOW)):  # fmt: skip
        frames = make()
        assert len(frames) >= 58
        assert frames == make()
        assert len({(drawing.width, drawing.height) for drawing, _ in frames}) <= 12
        cut = reel([drawing for drawing, _ in frames])
        assert len(json.dumps([cut.fragments, cut.frames, cut.rows, cut.tables])) < 150_000


def test_players_step_them_without_a_kernel():
    told = two_requests(RadixIslands, decoded=2)
    assert "tokens in" in repr(player(told.log, radix_tree, start=-1))
    shown = Player.from_drawings(strip_frames({"islands": told.log}, "A", window_tokens=WINDOW), start=4)
    assert "32 tokens enter the tree, 20 of them as a tombstone" in shown.captions[2]


def test_a_tree_alone_is_drawn_with_words_and_without_pools():
    log = EventLog()
    tree = RadixTree(1, None, log=log)
    tree.insert([1, 2, 3, 4, 5], [0, 1, 2, 3, 4])
    tree.insert([1, 2, 3, 8], [0, 1, 2, 5])
    lock = tree.lock([1, 2, 3, 8])
    log.step()
    state = Replay(log).state(-1)
    picture = check(radix_tree(state, words={number: f"<word {number}>" for number in state.tree}))
    assert "&lt;word" in drawn(picture.parts)
    assert "pool" not in drawn(picture.parts)
    assert any(row[3] == "1 lock" for row in picture.table)
    tree.unlock(lock)
    log.step()
    assert all(row[3] in ("locked by", "nobody") for row in radix_tree(Replay(log).state(-1)).table)


def test_without_sliding_layers_there_is_one_bar_a_node():
    told = Told(RadixIslands, window=None)
    told.prefill("A", list(range(40)))
    state = Replay(told.log).state(-1)
    picture = check(radix_tree(state))
    assert "SWA" not in drawn(picture.parts)
    with pytest.raises(InvalidInput, match="no pool 'swa'"):
        token_strip({"islands": state}, "A", window_tokens=WINDOW)


def test_an_empty_tree_says_so():
    told = Told()
    told.end()
    assert radix_tree(Replay(told.log).state(-1)).title == "The tree is empty"
    assert strip_of(Replay(told.log).state(-1), "A", WINDOW) == []


def test_evil_names_are_escaped():
    told = Told()
    evil = '<script>"&'
    told.prefill(evil, list(range(40)))
    state = Replay(told.log).state(-1)
    for picture in (radix_tree(state), token_strip({evil: state}, evil, window_tokens=WINDOW)):
        assert "<script>" not in drawn(check(picture).parts)


def test_what_cannot_be_drawn_is_refused():
    told = two_requests(RadixIslands, decoded=1)
    state = Replay(told.log).state(-1)
    with pytest.raises(InvalidInput, match="scale_tokens=50 cannot show"):
        radix_tree(state, scale_tokens=50)
    with pytest.raises(InvalidInput, match="scale_tokens=50 cannot show"):
        token_strip({"islands": state}, "A", window_tokens=WINDOW, scale_tokens=50)
    with pytest.raises(InvalidInput, match="one to 4 rows, not 0"):
        token_strip({}, "A", window_tokens=WINDOW)
    with pytest.raises(InvalidInput, match="window_tokens"):
        radix_tree(state, window_tokens=0)
    other = two_requests(RadixLazy, decoded=3)
    with pytest.raises(InvalidInput, match="do not tell the same steps"):
        strip_frames({"islands": told.log, "lazy": other.log}, "A", window_tokens=WINDOW)
    wide = Told(tokens=2000)
    for number in range(17):
        wide.prefill(number, [100 * number + i for i in range(20)])
    with pytest.raises(InvalidInput, match="17 branches; the picture has rows for 16"):
        radix_tree(Replay(wide.log).state(-1))


def test_neighbouring_pages_of_one_condition_are_one_span():
    told = Told(RadixLazy)
    told.prefill("A", [i % 50 for i in range(CHUNK)])
    assert strip_of(Replay(told.log).state(-1), "A", WINDOW) == [Span("dead", 0, 25), Span("live", 25, 32)]
