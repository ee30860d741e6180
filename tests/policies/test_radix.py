"""The radix policies: the specification's numbers, rules, triggers, the hold, and what is refused."""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases import GLOBAL, SLIDING

from kvlab.errors import InvalidInput, NeverFits, OutOfMemory
from kvlab.policies.base import Policy
from kvlab.policies.by_name import policy_by_name
from kvlab.policies.island_config import IslandConfig, Split
from kvlab.policies.islands import RadixIslands, require_islands
from kvlab.policies.radix_base import RadixPolicy
from kvlab.policies.radix_lazy import RadixLazy
from kvlab.shapes import LayerGroup, ModelShape
from kvlab.workload import Request

BOTH = pytest.mark.parametrize("kind", [RadixLazy, RadixIslands])


def groups(window: int) -> tuple[LayerGroup, ...]:
    return LayerGroup("global", "full", (0,), None, 1), LayerGroup("sliding", "full", (1,), window, 1)


def make(
    kind: type[RadixLazy | RadixIslands] = RadixIslands, w: int = 8, p: int = 4, cp: int = 32, tokens: int = 2000,
    **options: Any,
) -> RadixLazy | RadixIslands:  # fmt: skip
    return kind(groups(w), tokens, page_size=p, chunk_tokens=cp, **options)


def prefill(policy: RadixPolicy, rid: Any, ids: Any, cp: int, *, output: int = 500, salt: Any = None) -> Request:
    """Admit and compute the prompt in chunks."""
    request = Request(rid, ids, output, salt=salt)
    assert policy.admit(request) is not None
    while request.computed < request.known_tokens:
        step(policy, request, min(cp, request.known_tokens - request.computed))
    return request


def step(policy: RadixPolicy, request: Request, count: int, accepted: int | None = None) -> None:
    """Extend and commit known tokens or, after them, made ones."""
    start = request.computed
    accepted = count if accepted is None else accepted
    policy.extend(request.rid, count)
    new = max(0, start + accepted - request.known_tokens)
    request.generated([7 + position % 5 for position in range(request.known_tokens, request.known_tokens + new)])
    policy.commit(request.rid, request.token_ids(start, start + accepted))
    policy.audit()


def live_and_locked(policy: RadixPolicy) -> tuple[int, int]:
    """SWA tokens of the tree: all live ones, and those that somebody locks."""
    return policy.tree.swa_protected + policy.tree.swa_evictable, policy.tree.swa_protected


def test_four_chunks_leave_four_islands_and_lock_one() -> None:
    policy = make()
    prefill(policy, "a", range(128), 32)
    assert live_and_locked(policy) == (48, 12)


def test_rule_b_leaves_one_island() -> None:
    policy = make(rule="B")
    prefill(policy, "a", range(128), 32)
    assert live_and_locked(policy) == (12, 12)


def test_a_window_longer_than_the_chunk_leaves_rule_a_nothing_to_free() -> None:
    policy = make(w=16, cp=8)
    prefill(policy, "a", range(64), 8)
    assert live_and_locked(policy) == (64, 16)
    lean = make(w=16, cp=8, rule="B")
    prefill(lean, "a", range(64), 8)
    assert live_and_locked(lean)[0] < 64


@pytest.mark.parametrize(
    ("kind", "options", "reused"),
    [
        (RadixIslands, {}, [0, 0, 0, 0, 0]),
        (RadixIslands, {"branch_islands": True}, [0, 0, 40, 40, 40]),
        (RadixLazy, {}, [0, 40, 40, 40, 40]),
    ],
)
def test_a_prefix_that_ends_in_mid_chunk_is_lost_until_an_island_is_planted(kind, options, reused) -> None:
    policy = make(kind, cp=80, **options)
    found = []
    for number in range(5):
        request = Request(number, [*range(40), *range(1000 * (number + 1), 1000 * (number + 1) + 40)], 1)
        admission = policy.admit(request)
        assert admission is not None
        found.append(admission.cached_tokens)
        step(policy, request, 80 - admission.cached_tokens)
        policy.release(number, "finished")
        policy.audit()
    assert found == reused


def test_no_chunk_loses_its_match_and_a_prompt_sent_again_finds_all_but_its_last_page() -> None:
    """Over small windows, pages and chunks; a frontier of floor(L - w) would lose both."""
    for w in range(1, 9):
        for p in (1, 2, 4):
            for chunk in range(1, 14):
                policy = make(w=w, p=p, cp=max(chunk, p))
                prefill(policy, "a", range(50), chunk)
                again = policy.peek(Request("b", range(50), 1))
                assert again.tokens == again.full_tokens == 49 // p * p, (w, p, chunk)
                policy.release("a", "finished")
                assert policy.peek(Request("b", [*range(50), 1], 1)).tokens == 50 // p * p


def fired(trigger: str, lengths: list[int]) -> list[int]:
    policy = make(w=2, p=1, cp=64, interval=16, trigger=trigger)
    request = prefill(policy, "a", range(1), 1)
    policy._held["a"].island_at = 0
    at, before = [], policy.stats.decode_islands
    for length in lengths:
        step(policy, request, length - request.computed)
        if policy.stats.decode_islands > before:
            at, before = [*at, length], policy.stats.decode_islands
    return at


def test_progress_fires_where_a_multiple_is_never_met() -> None:
    steps = [9, 17, 26, 34]
    assert fired("progress", steps) == [17, 34]
    assert fired("modulo", steps) == []
    assert fired("modulo", [9, 16, 31, 32]) == [16, 32]


def test_the_cadence_follows_the_length_also_after_a_preemption() -> None:  # sglang #33404
    policy = make(w=4, p=2, cp=8, interval=10)
    request = prefill(policy, "a", range(6), 8)
    for _ in range(200):
        step(policy, request, 3, 2)
        if policy.stats.decode_islands >= 3:
            break
        if request.computed % 14 == 0:
            policy.release("a", "preempted")
            assert policy.admit(request) is not None
            while request.computed < request.known_tokens:
                step(policy, request, min(8, request.known_tokens - request.computed))
    assert policy.stats.decode_islands == 3, "the trigger starved"


def test_others_find_what_a_running_request_has_said() -> None:
    for kind, found in ((RadixIslands, 36), (RadixLazy, 16)):
        policy = make(kind, cp=32, **({"interval": 8} if kind is RadixIslands else {}))
        request = prefill(policy, "a", range(16), 32)
        for _ in range(20):
            step(policy, request, 1)
        agent = Request("b", [*request.token_ids(0, request.known_tokens), 1, 2, 3], 4)
        assert policy.peek(agent).tokens in (found, found - 4)
        policy.release("a", "finished")
        assert policy.peek(agent).tokens == 36


def hold(policy: RadixPolicy) -> tuple[int, int]:
    usage = policy.usage()["swa"]
    return usage.live, usage.dead


@pytest.mark.parametrize(("w", "p", "cp"), [(1024, 64, 16_384), (8, 4, 32), (64, 16, 256)])
def test_the_hold_of_a_running_request_is_a_chunk_or_a_window_and_a_page(w: int, p: int, cp: int) -> None:
    lazy, islands = make(RadixLazy, w, p, cp, 20 * cp), make(RadixIslands, w, p, cp, 20 * cp)
    for policy in (lazy, islands):
        prefill(policy, "a", np.arange(2 * cp), cp)
    assert hold(lazy) == (w - 1, cp - w + 1)
    assert hold(islands) == (w - 1, p + 1)
    for length in range(cp + 1, cp + 2 * p, max(1, p // 8)):
        policy = make(RadixIslands, w, p, cp, 20 * cp)
        prefill(policy, "a", np.arange(length), cp)
        whole = length // p * p
        if length % cp >= w + 2 * p or whole == cp:
            assert w + p <= sum(hold(policy)) - (length - whole) <= w + 2 * p - 1
    assert lazy.usage()["full"] == islands.usage()["full"]


def test_the_hold_while_decoding_never_exceeds_two_windows_with_islands() -> None:
    policy, lazy = make(RadixIslands, 16, 4, 64), make(RadixLazy, 16, 4, 64)
    for each in (policy, lazy):
        request = prefill(each, "a", range(128), 64)
        most = 0
        for _ in range(120):
            step(each, request, 1)
            most = max(most, sum(hold(each)))
        assert (most <= 2 * (16 + 2 * 4)) == (each is policy)


def test_the_frontier_at_the_articles_constants() -> None:
    policy = make(RadixIslands, 1024, 64, 16_384, 20_000)
    assert policy._frontier(16_384) == 15_296
    assert {length - policy._frontier(length // 64 * 64) for length in range(4096, 4160)} == set(range(1088, 1152))


def test_a_shape_without_sliding_layers_has_one_plain_radix_cache() -> None:
    shape = ModelShape.preset("llama-3.1-8b").groups()
    logs = []
    for kind in (RadixLazy, RadixIslands):
        policy = kind(shape, 800, page_size=4, chunk_tokens=16)
        request = prefill(policy, "a", range(50), 16)
        for _ in range(30):
            step(policy, request, 1)
        policy.release("a", "finished")
        assert set(policy.usage()) == set(policy.pools()) == {"full"}
        assert policy.peek(Request("b", range(100), 1)).tokens == 48
        logs.append((policy.usage(), policy.stats._replace(decode_islands=0)))
    assert logs[0] == logs[1]


def test_everything_drains_back_to_the_baseline() -> None:
    for kind in (RadixLazy, RadixIslands):
        policy = make(kind, cp=32)
        empty = policy.usage()
        for rid, reason in (("a", "finished"), ("b", "aborted"), ("c", "preempted")):
            request = prefill(policy, rid, [*range(40), *range(ord(rid), ord(rid) + 30)], 32)
            for _ in range(20):
                step(policy, request, 3, 2)
            policy.fork(rid, request.fork("child"))
            policy.release(rid, reason)
            policy.release("child", "finished")
            policy.audit()
        gone = policy.tree.evict_full(10_000)
        policy.memory.free(gone.full_pages.tolist())
        policy.audit()
        assert policy.usage() == empty


def test_salts_share_nothing() -> None:
    policy = make()
    prefill(policy, "a", range(40), 32, salt=1)
    for salt, found in ((1, 36), ("1", 0), (None, 0)):
        assert policy.peek(Request("b", range(40), 1, salt=salt)).tokens == found


def test_the_same_prompt_twice_at_once_names_no_freed_page() -> None:  # mini-sglang PR #142
    policy = make()
    both = [Request(rid, range(60), 4) for rid in "ab"]
    for request in both:
        assert policy.admit(request) is not None
    for count in (32, 28):
        for request in both:
            policy.extend(request.rid, count)
        for request in both:
            policy.commit(request.rid, request.token_ids(request.computed, request.computed + count))
            policy.audit()
    tables = [policy.layout(rid)[0].blocks for rid in "ab"]
    assert tables[0] == tables[1]
    assert policy.usage()["full"].live == 60


def test_an_abort_in_the_second_chunk_frees_it_once_and_leaves_the_first() -> None:  # sglang #36926, #38355
    policy = make(RadixIslands, w=4, p=4, cp=8)
    request = Request("a", range(24), 4)
    assert policy.admit(request) is not None
    step(policy, request, 8)
    policy.extend("a", 8)
    policy.release("a", "aborted")
    policy.audit()
    assert (policy.tree.full_evictable, policy.tree.full_protected) == (8, 0)
    assert policy.memory.full.free_blocks == 500 - 2


def test_a_hit_can_say_why_it_is_not_longer() -> None:  # vllm #57610
    asked = Request("b", [*range(18), *range(90, 99)], 1)
    for chunk, found in ((12, 16), (24, 0)):
        policy = make(w=8, p=4, cp=chunk)
        prefill(policy, "a", range(24), chunk)
        match = policy.peek(asked)
        assert (match.tokens, match.full_tokens) == (found, 16)
        assert ("dead" in match.why()) == (found < 16)


def test_swa_kv_that_was_freed_is_not_inserted_as_live() -> None:  # sglang #30845, #29350
    policy = make(RadixLazy, w=4, p=2, cp=6)
    request = prefill(policy, "a", range(2), 6)
    for _ in range(18):
        step(policy, request, 1)
    policy.release("a", "finished")
    policy.audit()
    ids = [0, 1, *(7 + position % 5 for position in range(2, 20))]
    assert policy.peek(Request("b", [*ids, 1], 1)).tokens == 20
    assert policy.peek(Request("b", [*ids[:10], 99, 99], 1))[:2] == (2, 10), "only the prompt's page has its window"


@BOTH
@pytest.mark.parametrize(
    "options",
    [
        {"p": 0}, {"w": 0}, {"ratio": 0}, {"ratio": 1.5}, {"ratio": -0.1}, {"ratio": True}, {"cp": 3}, {"cp": 0},
        {"tokens": 0}, {"tokens": 3}, {"w": 8, "p": 8, "tokens": 100, "ratio": 0.1}, {"p": 8, "w": 4, "tokens": 8},
    ],
    ids=str,
)  # fmt: skip
def test_sizes_that_cannot_be_are_refused(kind: Any, options: dict[str, Any]) -> None:  # sglang #37610 is the last
    with pytest.raises(InvalidInput):
        make(kind, **options)


def test_other_bad_choices_are_refused() -> None:
    for options in ({"rule": "C"}, {"trigger": "often"}, {"interval": 0}, {"rule": "B", "branch_islands": True}):
        with pytest.raises(InvalidInput):
            make(**options)
    with pytest.raises(InvalidInput, match="without a window"):
        RadixLazy((SLIDING,), 100)
    with pytest.raises(InvalidInput, match="one window"):
        RadixLazy((GLOBAL, SLIDING, replace(SLIDING, window_tokens=9)), 100)


def test_tokens_that_are_no_integers_are_refused() -> None:
    policy = make()
    assert policy.admit(Request("a", range(8), 4)) is not None
    policy.extend("a", 8)
    before = pickle.dumps(policy)
    for ids in ([0.5] * 8, ["a"] * 8, [[1] * 8] * 8, [1 << 40] * 8):
        with pytest.raises(InvalidInput):
            policy.commit("a", ids)  # type: ignore[arg-type]
    assert pickle.dumps(policy) == before


def test_a_request_that_the_swa_pool_cannot_serve_alone_never_fits() -> None:
    policy = make(cp=32, tokens=200, ratio=0.3)
    with pytest.raises(NeverFits, match="SWA"):
        policy.admit(Request("a", range(100), 50))
    assert policy.admit(Request("a", range(50), 4)) is not None


def test_a_chunk_longer_than_room_is_kept_for_is_refused() -> None:
    policy = make(cp=16)
    assert policy.admit(Request("a", range(50), 4)) is not None
    with pytest.raises(InvalidInput, match="token budget"):
        policy.extend("a", 17)


def test_a_fork_without_a_page_for_its_copy_is_refused() -> None:
    policy = make(cp=16, tokens=24)
    request = prefill(policy, "a", range(18), 16, output=2)
    child = request.fork("b")
    policy.fork("a", child)
    before = pickle.dumps(policy)
    with pytest.raises(OutOfMemory):
        policy.fork("a", request.fork("c"))
    assert pickle.dumps(policy) == before
    other = request.fork("d")
    other.salt = 5
    with pytest.raises(InvalidInput, match="salt"):
        policy.fork("a", other)


def test_a_request_alone_is_always_served_however_little_memory_its_hit_leaves() -> None:
    """A lazy cache holds one long live node; a prompt that goes on from it cannot lock all of it and be computed."""
    for kind in (RadixLazy, RadixIslands):
        policy = make(kind, w=4, p=1, cp=4, tokens=60, ratio=0.5)
        long = prefill(policy, "a", range(4), 4, output=30)
        for _ in range(20):
            step(policy, long, 1)
        policy.release("a", "finished")
        request = Request("b", [*long.token_ids(0, 24), *range(100, 120)], 8)
        assert policy.admit(request) is not None
        while request.computed < 50:
            step(policy, request, min(4, max(1, request.known_tokens - request.computed)))


class Almost(RadixIslands):
    """Inherits everything."""


def test_islands_are_enabled_by_the_exact_type() -> None:
    require_islands(make())
    for other in (make(RadixLazy), policy_by_name("prefix", groups(8), 100, max_model_tokens=10), object()):
        with pytest.raises(InvalidInput, match="not a"):
            require_islands(other)
    with pytest.raises(InvalidInput, match="Almost"):
        Almost(groups(8), 100, page_size=4)


def test_the_switch_and_the_split_move_together() -> None:
    config = IslandConfig(Split(980_000, 0.17), Split(740_000, 0.32), requests=48)
    shape = groups(1024)
    policy = config.policy(shape)
    assert (type(policy), policy.full_tokens, policy.swa_tokens) == (RadixIslands, 980_000, 166_600)
    assert config.swa_floor(1024) == 68_608
    with pytest.raises(InvalidInput, match="802,816"):
        replace(config, islands=False).policy(shape)
    off = replace(config, islands=False, requests=13).policy(shape)
    assert (type(off), off.full_tokens, off.swa_tokens) == (RadixLazy, 740_000, 236_800)
    with pytest.raises(InvalidInput, match=r"at least 0\."):
        replace(config, islands=False, requests=13, ample=config.lean).policy(shape)
    for ratio in (0, 1.01, -1):
        with pytest.raises(InvalidInput):
            Split(1000, ratio)


def test_both_have_a_name() -> None:
    for name, kind in (("radix", RadixLazy), ("islands", RadixIslands)):
        policy = policy_by_name(name, groups(8), 200, block_size=4, max_model_tokens=64)
        assert type(policy) is kind
        assert isinstance(policy, Policy)


def test_the_hold_on_the_articles_uniform_mix() -> None:
    """Prompts of 1 to 32,768 tokens, each with more than a window decoded: about 9.8k held when lazy, and a share of
    the chunk in flight (16,384 among 21 requests) makes it 10.6k. Islands hold a window and a page, twice at most: the
    last island, and what was decoded since."""
    w, p, cp = 1024, 64, 16_384
    found: dict[str, list[int]] = {"lazy": [], "islands": []}
    for prompt in range(512, 32_768, 1024):
        for name, kind in (("lazy", RadixLazy), ("islands", RadixIslands)):
            policy = make(kind, w, p, cp, 60_000)
            request = Request("a", prompt, 4096)
            assert policy.admit(request) is not None
            while request.computed < prompt + 1280:
                start = request.computed
                count = min(cp, prompt - start) if start < prompt else 64
                policy.extend("a", count)
                request.generated(max(0, start + count - request.known_tokens))
                policy.commit("a", request.token_ids(start, start + count))
            found[name].append(sum(hold(policy)))
    lazy, islands = (sum(each) / len(each) for each in found.values())
    assert lazy + cp / 21 == pytest.approx(10_572, rel=0.02)
    assert islands <= 2 * (w + 2 * p)
    assert max(found["islands"]) < min(cp, lazy)
