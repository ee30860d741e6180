"""PagedPrefix: what is found, what is never found, what it costs; and the public faults of prefix caches."""

import pickle
from collections.abc import Callable, Sequence

import pytest
from support.cases import GLOBAL, SLIDING

from kvlab.errors import InvalidInput, InvariantViolation, NeverFits, OutOfMemory
from kvlab.events import EventLog, Replay
from kvlab.policies.layout import Table
from kvlab.policies.prefix import PagedPrefix, PrefixStats
from kvlab.workload import Request, RequestId, Salt


def pool_of(blocks: int, **options: object) -> PagedPrefix:
    return PagedPrefix((GLOBAL,), 4 * blocks, block_size=4, **options)


def come(policy: PagedPrefix, rid: RequestId, tokens: Sequence[int], salt: Salt = None, output: int = 4) -> int | None:
    """Admit and compute; the tokens found in the cache, or None where there was no room."""
    request = Request(rid, list(tokens), output, salt=salt)
    peeked, before = policy.peek(request), policy.stats
    admission = policy.admit(request)
    policy.audit()
    if admission is None:
        assert policy.stats == before
        return None
    cached = admission.cached_tokens
    assert cached == peeked == request.computed
    policy.extend(rid, len(tokens) - cached)
    policy.commit(rid, list(tokens[cached:]))
    policy.audit()
    return cached


def append(policy: PagedPrefix, rid: RequestId, tokens: Sequence[int]) -> None:
    for token in tokens:
        policy.extend(rid, 1)
        policy.commit(rid, [token])
        policy.audit()


def blocks(policy: PagedPrefix, rid: RequestId) -> list[int]:
    (table,) = policy.layout(rid)
    assert isinstance(table, Table)
    return list(table.blocks)


A, B = list(range(100, 140)), list(range(200, 240))


@pytest.mark.parametrize(
    ("tokens", "hit"), [(1, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8), (11, 8), (12, 8), (13, 12), (14, 12)]
)
def test_at_least_one_token_is_computed(tokens: int, hit: int) -> None:
    """vllm #3193, #11186, #17999; nano-vllm #144: a fully cached prompt whose length is a multiple of the block."""
    policy = pool_of(10)
    assert come(policy, "a", A[:13]) == 0
    policy.release("a", "finished")
    assert come(policy, "b", A[:tokens]) == hit


def test_the_divergent_block_and_all_after_it_are_computed() -> None:
    policy = pool_of(20)
    come(policy, "a", A[:20])
    changed = [*A[:6], 7, *A[7:20]]
    assert come(policy, "b", changed) == 4
    assert blocks(policy, "b")[0] == blocks(policy, "a")[0]
    assert not set(blocks(policy, "b")[1:]) & set(blocks(policy, "a"))


def test_a_block_is_found_only_after_its_own_prefix() -> None:
    policy = pool_of(20)
    come(policy, "a", [*A[:4], *B[:8]])
    assert come(policy, "b", [*B[:8], 1]) == 0
    assert come(policy, "c", [*A[:4], *B[:8], 1]) == 12


@pytest.mark.parametrize(("one", "other"), [(None, "x"), (7, "7"), ("x", "y"), (None, "None"), (None, 0)])
def test_another_salt_finds_nothing(one: Salt, other: Salt) -> None:
    """vllm #44701: the same tokens under another salt, or one that only spells the same."""
    policy = pool_of(20)
    assert come(policy, "a", A[:13], one) == 0
    assert come(policy, "b", A[:13], other) == 0
    assert come(policy, "c", A[:13], other) == 12
    assert not set(blocks(policy, "a")) & set(blocks(policy, "c"))


def test_an_evicted_block_leaves_the_map() -> None:
    """vllm PR #4764; nano-vllm #163: a pool of 4, 8 tokens cached, 16 others come and go, the first 8 again."""
    policy = pool_of(4)
    come(policy, "a", A[:8])
    policy.release("a", "finished")
    assert policy.peek(Request("x", A[:9], 1)) == 8
    come(policy, "b", B[:12], output=4)
    append(policy, "b", B[12:16])
    policy.release("b", "finished")
    assert policy.stats.evicted_blocks == 2
    assert come(policy, "c", A[:8]) == 0


def test_new_blocks_never_evict_the_hits_of_the_same_admission() -> None:
    """vllm PR #10507: a pool of 4, 8 tokens cached; they come again with 8 more."""
    policy = pool_of(4)
    come(policy, "a", A[:8])
    policy.release("a", "finished")
    assert come(policy, "b", A[:15], output=1) == 8
    append(policy, "b", A[15:16])
    assert sorted(blocks(policy, "b")) == [0, 1, 2, 3]
    assert policy.stats.evicted_blocks == 0


def test_evictable_hits_are_not_also_room() -> None:
    """vllm PR #6849: a pool of 4, 2 blocks cached, 2 held; the cached 8 tokens and 4 more are refused."""
    policy = pool_of(4)
    come(policy, "a", A[:8])
    come(policy, "pinned", B[:8])
    policy.release("a", "finished")
    request = Request("b", A[:12], 4)
    before = pickle.dumps((policy, request))
    assert policy.peek(request) == 8
    assert policy.admit(request) is None
    assert pickle.dumps((policy, request)) == before
    policy.release("pinned", "finished")
    assert policy.admit(request) is not None


def test_identical_prompts_in_one_step_share_nothing_that_is_not_written() -> None:
    """vllm #7619, #7414; mini-sglang PR #142: the second finds nothing before the first is committed."""
    policy = pool_of(12)
    requests = [Request(rid, A[:12], 4) for rid in "ab"]
    for request in requests:
        assert policy.admit(request) is not None
        assert policy.extend(request.rid, 12).start == 0
    for request in requests:
        policy.commit(request.rid, A[:12])
        policy.audit()
    assert not set(blocks(policy, "a")) & set(blocks(policy, "b")), "identical content is not merged"
    assert come(policy, "c", A[:13]) == 12
    assert blocks(policy, "c")[:3] == blocks(policy, "a"), "a lookup finds the first copy"
    for rid in "ac":
        policy.release(rid, "finished")
    policy.release("b", "finished")
    come(policy, "full", B[:36])
    assert policy.peek(Request("d", A[:13], 4)) == 12, "the second copy outlives the first"
    policy.audit()


def test_only_blocks_full_of_accepted_tokens_are_registered() -> None:
    """vllm PR #18668: 8 accepted and 3 drafted tokens."""
    policy = pool_of(8)
    policy.admit(Request("a", A[:8], 8))
    policy.extend("a", 11)
    policy.commit("a", A[:8])
    policy.audit()
    assert sorted(policy.pool.prefixes.entries) == blocks(policy, "a") == [0, 1]
    policy.extend("a", 6)
    policy.commit("a", [1, 2, 3])
    append(policy, "a", [9])
    policy.release("a", "finished")
    assert come(policy, "b", [*A[:8], 1, 2, 3, 9, 5]) == 12
    assert come(policy, "c", [*A[:8], 1, 2, 3, 4, 5]) == 8


def test_the_first_evicted_are_tails_the_last_roots_of_the_longest_unused() -> None:
    log = EventLog()
    policy = pool_of(9, log=log)
    for rid, tokens in (("a", A[:13]), ("b", B[:13])):
        come(policy, rid, tokens)
        policy.release(rid, "finished")
    assert first_tokens(policy, policy.pool.cached()) == [A[8], A[4], A[0], B[8], B[4], B[0]]
    assert come(policy, "again", A[:5]) == 4
    policy.release("again", "finished")
    assert first_tokens(policy, policy.pool.cached()) == [A[8], A[4], B[8], B[4], B[0], A[0]]
    log.step()
    assert Replay(log).state(-1).cached("full") == policy.pool.cached()


def first_tokens(policy: PagedPrefix, registered: Sequence[int]) -> list[int]:
    """The first token of each block."""
    return [int.from_bytes(policy.pool.prefixes.entries[block].ids[:4], "little") for block in registered]


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    policy = pool_of(12)
    come(policy, "a", A[:9], output=20)
    append(policy, "a", A[9:14])
    (request,) = policy.admitted()
    request.generated(A[9:14])
    policy.release("a", "preempted")
    assert policy.admit(request) is not None
    assert request.computed == 12
    policy.extend("a", 2)
    policy.commit("a", A[12:14])
    policy.audit()


def test_generated_tokens_are_found_too() -> None:
    """A chat sends its transcript again: the answer is part of the next prompt."""
    policy = pool_of(20)
    come(policy, "turn 1", A[:10])
    append(policy, "turn 1", A[10:14])
    policy.release("turn 1", "finished")
    assert come(policy, "turn 2", [*A[:14], *B[:5]]) == 12


def test_a_quiet_run_registers_at_its_commit() -> None:
    policy = pool_of(8)
    policy.admit(Request("a", A[:2], 20))
    extension = policy.extend("a", 2)
    assert extension.quiet == 2
    policy.commit("a", A[:4])
    assert policy.peek(Request("b", A[:5], 1)) == 4
    policy.audit()


@pytest.mark.parametrize("samples", [2, 4])
def test_samples_through_the_cache_need_blocks_that_forks_do_not(samples: int) -> None:
    """A prompt of 10 tokens: the cache shares its two full blocks, a fork the partial one as well, until it is
    written: n - 1 copies. In the end both hold the same number of blocks."""
    cache, forks = pool_of(20), pool_of(20)
    for policy in (cache, forks):
        assert come(policy, "0", A[:10]) == 0
    for each in range(1, samples):
        assert come(cache, str(each), A[:10]) == 8
        forks.fork("0", forks.admitted()[0].fork(str(each)))
        forks.audit()
    assert 20 - cache.pool.free_blocks == 2 + samples
    assert 20 - forks.pool.free_blocks == 3
    for policy in (cache, forks):
        for each in range(samples):
            append(policy, str(each), [each])
    assert len(cache.drain_moves()) == 0
    assert len(forks.drain_moves()) == samples - 1
    assert cache.pool.free_blocks == forks.pool.free_blocks == 20 - 2 - samples


def test_a_fork_goes_on_with_the_chain_of_its_parent() -> None:
    policy = pool_of(20)
    come(policy, "a", A[:6])
    policy.fork("a", policy.admitted()[0].fork("child"))
    append(policy, "child", B[:2])
    append(policy, "a", A[6:8])
    assert policy.peek(Request("x", [*A[:6], *B[:2], 1], 1)) == 8
    assert policy.peek(Request("y", [*A[:8], 1], 1)) == 8


def test_a_fork_to_another_salt_is_refused() -> None:
    policy = pool_of(8)
    come(policy, "a", A[:6], "tenant")
    child = Request("child", A[:6], 4, salt="other")
    before = pickle.dumps((policy, child))
    with pytest.raises(InvalidInput, match="has the salt 'other' and cannot share the blocks of 'a'"):
        policy.fork("a", child)
    assert pickle.dumps((policy, child)) == before


def test_swapping_is_refused_with_the_way_out() -> None:
    policy = pool_of(8)
    come(policy, "a", A[:6])
    assert not policy.can_swap
    for call in (policy.swap_out, policy.swap_in):
        with pytest.raises(InvalidInput, match="PagedPrefix cannot swap; preempt by recomputing"):
            call("a")


def test_cached_bytes_are_those_of_registered_blocks_that_nobody_holds() -> None:
    policy = pool_of(10)
    come(policy, "a", A[:10])
    come(policy, "b", A[:10])
    assert policy.usage()["full"].cached == 0
    policy.release("a", "finished")
    assert policy.usage()["full"].cached == 0, "b holds them still"
    policy.release("b", "finished")
    usage = policy.usage()["full"]
    assert (usage.cached, usage.free, usage.owned) == (8 * 8, 32 * 8, 0)


def test_a_shared_prefix_is_counted_once() -> None:
    policy = PagedPrefix((GLOBAL, SLIDING), 80, block_size=4)
    come(policy, "a", A[:10])
    come(policy, "b", [*A[:9], 5])
    usage = policy.usage()["full"]
    assert usage.live + usage.dead == 12 * (8 + 12)
    policy.audit()


def test_the_watermark_counts_hits_that_nobody_holds() -> None:
    policy = pool_of(8, watermark_blocks=2)
    come(policy, "a", A[:16])
    policy.release("a", "finished")
    come(policy, "b", B[:12])
    assert come(policy, "c", A[:14]) is None
    assert come(policy, "d", A[:10]) == 8


def test_statistics_count_admissions_only() -> None:
    policy = pool_of(8)
    assert policy.stats == PrefixStats(0, 0, 0)
    assert policy.stats.hit_rate == 0
    come(policy, "a", A[:12])
    policy.release("a", "finished")
    come(policy, "b", A[:12])
    assert policy.stats == PrefixStats(24, 8, 0)
    assert policy.stats.hit_rate == pytest.approx(1 / 3)
    with pytest.raises(NeverFits):
        policy.admit(Request("huge", A, 4))
    assert come(policy, "c", B[:24]) is None
    assert policy.stats == PrefixStats(24, 8, 0)


def test_ids_that_are_none_are_refused_and_nothing_is_committed() -> None:
    policy = pool_of(8)
    policy.admit(Request("a", A[:4], 4))
    policy.extend("a", 4)
    before = pickle.dumps(policy)
    for bad in ([1, 2, 3, 1 << 40], [1.5, 2, 3, 4], ["a"]):
        with pytest.raises(InvalidInput, match="token ids"):
            policy.commit("a", bad)
        assert pickle.dumps(policy) == before
    policy.commit("a", A[:4])
    policy.audit()


def test_waiting_at_the_head_of_the_queue_hashes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = pool_of(12)
    come(policy, "a", A[:30])
    waiting = Request("b", [*A[:28], *B[:8]], 4)
    asked = []
    token_ids = Request.token_ids
    monkeypatch.setattr(
        Request, "token_ids", lambda self, start, stop: asked.append((start, stop)) or token_ids(self, start, stop)
    )
    assert policy.peek(waiting) == 28
    first = len(asked)
    assert first == 2
    for _ in range(5):
        assert policy.peek(waiting) == 28
    assert len(asked) == first
    other = Request("b", B[:36], 4)
    assert policy.peek(other) == 0, "another request under the same id"


def test_new_tokens_of_a_waiting_request_are_seen() -> None:
    policy = pool_of(12)
    come(policy, "a", A[:12])
    waiting = Request("b", A[:7], 20)
    assert policy.peek(waiting) == 4
    waiting.generated(A[7:13])
    assert policy.peek(waiting) == 12


def broken_chain(policy: PagedPrefix) -> None:
    policy._chains["a"].digest = bytes(32)


def broken_pending(policy: PagedPrefix) -> None:
    policy._chains["a"].pending = b""


def lost_chain(policy: PagedPrefix) -> None:
    del policy._chains["a"]


def unregistered(policy: PagedPrefix) -> None:
    policy.pool.prefixes.forget(blocks(policy, "a")[1])


def partial_registered(policy: PagedPrefix) -> None:
    policy.pool.register(blocks(policy, "a")[2:], policy._chains["a"].digest, bytes(16))


def another_salt(policy: PagedPrefix) -> None:
    policy.admitted()[0].salt = "x"


def cached_block_lost(policy: PagedPrefix) -> None:
    policy.pool._cached.popitem()


@pytest.mark.parametrize(
    "breakage",
    [broken_chain, broken_pending, lost_chain, unregistered, partial_registered, another_salt, cached_block_lost],
)
def test_the_audit_sees(breakage: Callable[[PagedPrefix], None]) -> None:
    policy = pool_of(10)
    come(policy, "b", B[:9])
    policy.release("b", "finished")
    come(policy, "a", A[:10])
    policy.audit()
    breakage(policy)
    with pytest.raises(InvariantViolation):
        policy.audit()


def test_memory_that_runs_out_evicts_first_and_refuses_last() -> None:
    policy = pool_of(6)
    come(policy, "a", A[:12])
    policy.release("a", "finished")
    come(policy, "b", B[:12], output=12)
    append(policy, "b", B[12:24])
    assert policy.stats.evicted_blocks == 3
    with pytest.raises(OutOfMemory, match="0 of 6 are free"):
        policy.extend("b", 1)
    policy.audit()
