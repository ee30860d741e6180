"""The log: saved and loaded whole, replayed forward and back, and picky about what it does not understand."""

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.errors import InvalidInput
from kvlab.events import Event, EventLog, Replay, State, apply, from_ranges, to_ranges
from kvlab.policies.paged import Paged
from kvlab.shapes import LayerGroup
from kvlab.workload import Request

GROUPS = (LayerGroup("global", "full", (0,), None, 4),)
HEADER: Event = ("header", "Paged", (("full", 16, 4, 4, ((0, 4),)),))


def lively_log(steps: int = 150) -> EventLog:
    """Requests that come, grow, fork, swap and go, one frame a step."""
    log, rng = EventLog(), random.Random(7)
    policy = Paged(GROUPS, 6000, block_size=4, host_tokens=2000, log=log)
    running: list[Request] = []
    away: list[Request] = []
    for step in range(steps):
        committed = []
        for request in running:
            policy.extend(request.rid, 1)
            policy.commit(request.rid, [0])
            committed.append((request.rid, 1))
        action = rng.random()
        if action < 0.4 and len(running) < 6:
            request = Request(f"r{step % 11}" if step % 3 else step, rng.randint(1, 9), 30)
            if request.rid not in {each.rid for each in running + away}:
                policy.admit(request)
                policy.extend(request.rid, request.prompt_tokens)
                policy.commit(request.rid, [0] * request.prompt_tokens)
                committed.append((request.rid, request.prompt_tokens))
                running.append(request)
        elif action < 0.6 and 0 < len(running) < 8:
            log.step(committed)
            committed = []
            running.append(running[0].fork(f"child{step}"))
            policy.fork(running[0].rid, running[-1])
        elif action < 0.7 and len(running) > 1 and not away:
            away.append(running.pop())
            policy.swap_out(away[-1].rid)
        elif action < 0.8 and away:
            running.append(away.pop())
            policy.swap_in(running[-1].rid)
        elif running:
            policy.release(running.pop(rng.randrange(len(running))).rid, "finished")
        log.step(committed)
    return log


def table_state(*events: Event) -> State:
    state = State()
    for event in (HEADER, ("admit", "a", 6, 9, 0), ("grow", "a", "full", ((0, 2),)), *events):
        apply(state, event)
    return state


@given(st.lists(st.integers(0, 60)))
def test_ranges_give_back_the_ids_in_order(ids: list[int]) -> None:
    ranges = to_ranges(ids)
    assert from_ranges(ranges) == ids
    assert all(start < stop for start, stop in ranges)
    assert all(a[1] != b[0] for a, b in pairwise(ranges)), "two runs could be one"


def test_ranges_of_a_descending_run_stay_single() -> None:
    assert to_ranges([7, 8, 9, 3]) == ((7, 10), (3, 4))
    assert to_ranges([3, 2, 1]) == ((3, 4), (2, 3), (1, 2))
    assert to_ranges([]) == ()


def test_a_saved_log_comes_back_equal_and_as_tuples(tmp_path: Path) -> None:
    log = lively_log()
    log.write("admit", 'a "quoted"\u2028 name', 1, 2, 0)
    path = tmp_path / "log.jsonl"
    log.save(path)
    loaded = EventLog.load(path)
    assert loaded.events == log.events
    assert all(isinstance(event, tuple) for event in loaded)
    assert list(Replay(loaded.events[:-1]).states()) == list(Replay(log.events[:-1]).states())
    assert [entry.name for entry in tmp_path.iterdir()] == ["log.jsonl"]


def test_request_ids_keep_their_type_through_a_file(tmp_path: Path) -> None:
    log = EventLog([("admit", 7, 1, 2, 0), ("admit", "7", 1, 2, 0), ("step", ((7, 1), ("7", 1)))])
    log.save(tmp_path / "log")
    assert set(Replay(EventLog.load(tmp_path / "log")).state(-1).requests) == {7, "7"}


def test_an_interrupted_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    EventLog([("step", ())]).save(path)
    old = path.read_bytes()
    with pytest.raises(TypeError):
        EventLog([("step", ()), ("admit", object())]).save(path)
    assert path.read_bytes() == old


@pytest.mark.parametrize("line", ["", "{", "7", "{}", "[]", "[3]", "null", '"step"', '["step", '])
def test_a_malformed_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log.jsonl"
    EventLog([("step", ())]).save(path)
    path.write_text(path.read_text() + line + '\n["step", []]\n')
    with pytest.raises(InvalidInput, match=r"log\.jsonl, line 3: "):
        EventLog.load(path)


@pytest.mark.parametrize("text", ["", '["kvlab-events-2"]\n', '["step", []]\n'])
def test_a_file_that_is_no_event_log_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="is not an event log"):
        EventLog.load(path)


def test_a_file_that_is_no_text_or_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="not UTF-8"):
        EventLog.load(tmp_path / "log")
    with pytest.raises(InvalidInput, match="cannot read the event log"):
        EventLog.load(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="cannot read the event log"):
        EventLog.load(tmp_path)


@pytest.mark.parametrize("keyframe_every", [1, 2, 7, 64, 1000])
def test_going_back_is_the_same_as_going_forward(keyframe_every: int) -> None:
    log = lively_log()
    forward = list(Replay(log).states())
    frames = list(range(len(forward)))
    random.Random(keyframe_every).shuffle(frames)
    replay = Replay(log, keyframe_every=keyframe_every)
    assert len(replay) == len(forward) > 150
    for frame in [*frames, *reversed(range(len(forward)))]:
        assert replay.state(frame) == forward[frame]
    assert replay.state(-1) == forward[-1]
    assert {kind for frame in frames for kind, *_ in replay.events(frame)} >= {"fork", "copy", "swap_out", "swap_in"}


def test_a_state_is_your_own_copy() -> None:
    replay = Replay(lively_log(), keyframe_every=4)
    for frame in (0, 4, 9, -1):
        state = replay.state(frame)
        state.requests.clear()
        state.pools.clear()
        state.moved.append(("spoilt",))
        assert replay.state(frame) != state
        assert replay.state(frame).pools


def test_frame_0_is_the_empty_machine_and_an_unfinished_frame_counts() -> None:
    events: list[Event] = [HEADER, ("admit", "a", 1, 2, 0), ("step", ()), ("grow", "a", "full", ((2, 3),))]
    replay = Replay(events)
    assert len(replay) == 3
    assert replay.state(0).pools["full"].free_order == [0, 1, 2, 3]
    assert replay.state(0).requests == {}
    assert replay.events(2) == (("grow", "a", "full", ((2, 3),)),)
    assert len(Replay([])) == 1
    assert Replay([]).state(0) == State()


def test_the_header_tells_the_geometry_of_each_pool() -> None:
    state = State()
    apply(state, ("header", "Fake", (("full", 67, 16, 8, ((2, 4), (0, 2))), ("rings", 24, 1, 12, ()))))
    full, rings = state.pools["full"], state.pools["rings"]
    assert (full.name, full.capacity, full.block_size, full.bytes_per_token) == ("full", 67, 16, 8)
    assert (full.blocks, full.free_order) == (4, [2, 3, 0, 1])
    assert (rings.blocks, rings.bytes_per_token, state.policy) == (24, 12, "Fake")


def test_a_swapped_table_is_on_the_host_and_its_moves_belong_to_their_own_frame() -> None:
    out: Event = ("swap_out", "a", "full", ((5, 7),))
    back: Event = ("swap_in", "a", "full", ((3, 4), (0, 1)))
    start: list[Event] = [HEADER, ("admit", "a", 6, 9, 0), ("grow", "a", "full", ((0, 2),))]
    replay = Replay([*start, out, ("step", ()), back, ("step", ()), ("step", ())], keyframe_every=2)
    away = replay.state(1)
    assert (away.requests["a"].status, away.requests["a"].tables, away.requests["a"].host) == (
        "swapped",
        {},
        {"full": [5, 6]},
    )
    assert away.holders("full") == {}
    assert away.running() == []
    home = replay.state(2)
    assert (home.requests["a"].status, home.requests["a"].tables, home.requests["a"].host) == (
        "running",
        {"full": [3, 0]},
        {},
    )
    assert [replay.state(frame).moved for frame in range(4)] == [[], [out], [back], []]
    assert replay.state(-4) == replay.state(0)


@pytest.mark.parametrize("frame", [3, -4, 100])
def test_a_frame_outside_the_log_is_refused(frame: int) -> None:
    with pytest.raises(InvalidInput, match=f"frames 0 to 2, not {frame}"):
        Replay([HEADER, ("step", ()), ("step", ())]).state(frame)


@pytest.mark.parametrize("every", [0, -1])
def test_a_keyframe_distance_below_one_is_refused(every: int) -> None:
    with pytest.raises(InvalidInput, match="keyframe_every"):
        Replay([], keyframe_every=every)


def test_an_unknown_event_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="unknown event kind 'lose'; known are admit, arrive, copy"):
        apply(State(), ("lose", 3))


@pytest.mark.parametrize(
    "event",
    [
        ("grow", "nobody", "full", ((0, 1),)),
        ("grow", "a", "full"),
        ("grow", "a", "full", 7),
        ("trim", "a", "full", 3),
        ("trim", "a", "other", 1),
        ("drop", "a", "full", 2, 1),
        ("drop", "a", "full", 0, 3),
        ("drop", "a", "full", 1, -1),
        ("copy", "a", "full", 0, 9, 3),
        ("copy", "a", "full", 5, 1, 3),
        ("region", "nobody", "full", 0, 1, 1),
        ("fork", "nobody", "b"),
        ("swap_out", "nobody", "full", ()),
        ("swap_in", "nobody", "full", ()),
        ("release", "nobody", "finished"),
        ("step", (("nobody", 1),)),
        ("admit", "b"),
    ],
)
def test_an_event_that_does_not_fit_what_came_before_is_refused(event: Event) -> None:
    with pytest.raises(InvalidInput, match="does not fit what came before"):
        table_state(event)


def test_tables_follow_their_events() -> None:
    state = table_state(
        ("step", (("a", 6),)), ("fork", "a", "b"), ("copy", "b", "full", 1, 1, 3), ("drop", "a", "full", 0, 1)
    )
    assert state.requests["a"].tables["full"] == [None, 1]
    assert state.requests["b"].tables["full"] == [0, 3]
    assert (state.copies, state.moved) == (1, [("copy", "b", "full", 1, 1, 3)])
    assert state.holders("full") == {1: ["a"], 0: ["b"], 3: ["b"]}
    assert state.filled("full") == {1: 2, 0: 4, 3: 2}
    apply(state, ("trim", "b", "full", 1))
    assert state.requests["b"].tables["full"] == [0]
    apply(state, ("step", (("b", -2),)))
    assert (state.requests["b"].tokens, state.requests["b"].known) == (4, 6)


def test_registered_blocks_are_cached_once_nobody_holds_them_tails_first() -> None:
    chain: list[Event] = [("register", "full", 0, "r1", "r0"), ("register", "full", 1, "r2", "r1")]
    state = table_state(*chain, ("fork", "a", "b"), ("release", "a", "finished"))
    assert state.registered == {"full": {0: ("r1", "r0"), 1: ("r2", "r1")}}
    assert state.cached("full") == [], "b holds them"
    apply(state, ("release", "b", "finished"))
    assert state.cached("full") == [1, 0]
    for event in (("admit", "c", 6, 9, 4), ("grow", "c", "full", ((0, 1), (2, 3)))):
        apply(state, event)
    assert (state.cached("full"), state.requests["c"].cached, state.requests["c"].tokens) == ([1], 4, 4)
    apply(state, ("release", "c", "finished"))
    assert state.cached("full") == [1, 0], "the one used last is evicted last"
    apply(state, ("evict", "full", 1))
    assert (state.cached("full"), state.registered) == ([0], {"full": {0: ("r1", "r0")}})
    assert state.cached("other") == []


@pytest.mark.parametrize(
    "event", [("evict", "full", 1), ("evict", "other", 0), ("register", "full", 0, "x", "y"), ("register", "full", 0)]
)
def test_a_block_is_registered_once_and_evicted_only_when_it_is(event: Event) -> None:
    with pytest.raises(InvalidInput, match="does not fit what came before"):
        table_state(("register", "full", 0, "r1", "r0"), event)


def test_a_name_used_again_gets_a_place_at_the_end_and_keeps_its_colour() -> None:
    state = table_state(("release", "a", "finished"), ("admit", "b", 1, 2, 0), ("admit", "c", 1, 2, 0))
    apply(state, ("admit", "a", 3, 9, 0))
    apply(state, ("release", "b", "aborted"))
    apply(state, ("fork", "a", "b"))
    apply(state, ("admit", "d", 1, 2, 0))
    assert [request.rid for request in state.running()] == ["c", "a", "b", "d"]
    assert {rid: request.order for rid, request in state.requests.items()} == {"a": 0, "b": 1, "c": 2, "d": 3}


def test_a_step_says_how_many_tokens_by_plain_numbers() -> None:
    log = EventLog()
    log.step({"a": 2, "b": 1}.items())
    assert log.events == [("step", (("a", 2), ("b", 1)))]
    assert json.loads(json.dumps(log.events)) == [["step", [["a", 2], ["b", 1]]]]


def test_a_request_waits_from_its_arrival_and_keeps_its_place_in_the_order() -> None:
    state = table_state(("arrive", "b", 5), ("arrive", "c", 7), ("admit", "c", 7, 9, 0), ("admit", "b", 5, 9, 0))
    assert [(each.rid, each.order) for each in state.requests.values()] == [("a", 0), ("c", 2), ("b", 1)]
    waiting = table_state(("arrive", "b", 5)).requests["b"]
    assert (waiting.status, waiting.tokens, waiting.known) == ("waiting", 0, 5)


def test_one_that_waits_or_was_preempted_can_be_refused_and_nobody_else() -> None:
    assert table_state(("arrive", "b", 5), ("refuse", "b", "too long")).requests["b"].status == "refused"
    assert table_state(("release", "a", "preempted"), ("refuse", "a", "too long")).requests["a"].status == "refused"
    with pytest.raises(InvalidInput, match="the request is running, not in the queue"):
        table_state(("refuse", "a", "too long"))
    with pytest.raises(InvalidInput, match="the request is running already"):
        table_state(("arrive", "a", 6))
    with pytest.raises(InvalidInput, match="does not fit"):
        table_state(("refuse", "nobody", "too long"))


def test_a_copy_remembers_its_original_until_either_block_is_handed_out_again() -> None:
    copied = (("fork", "a", "b"), ("copy", "b", "full", 1, 1, 2))
    assert table_state(*copied).origin == {"full": {2: 1}}
    left = (*copied, ("release", "a", "finished"))
    assert table_state(*left).origin == {"full": {2: 1}}
    assert table_state(*left, ("grow", "b", "full", ((1, 2),))).origin == {"full": {}}
    assert table_state(*left, ("admit", "c", 4, 9, 0), ("grow", "c", "full", ((3, 4),))).origin == {"full": {2: 1}}
