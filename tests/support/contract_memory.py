"""Clauses of the contract: where tokens lie, what is counted, and what forks, rollbacks, swaps and releases leave."""

from collections.abc import Callable

from kvlab.errors import InvalidInput, KvlabError, UnknownRequest
from kvlab.events import EventLog
from kvlab.policies.base import Policy, ReleaseReason
from kvlab.workload import Request
from support.cases import PolicyCase
from support.contract import come, serving, slots_of
from support.lockstep import Lockstep, both_ways, without_steps
from support.serving import Serving

REASONS: tuple[ReleaseReason, ...] = ("finished", "aborted", "preempted")


def it_is_a_policy_and_a_fresh_one_is_empty(case: PolicyCase) -> None:
    server = serving(case)
    policy = server.policy
    assert isinstance(policy, Policy)
    assert {group.pool for group in policy.groups} == set(case.pools)
    assert policy.can_swap == (case.host is not None)
    assert isinstance(policy.reads_tokens, bool)
    assert policy.drain_moves() == []
    for usage in policy.usage().values():
        assert usage.owned == usage.cached == 0
        assert sum(usage.shares().values()) == 1


def a_rollback_ends_the_quiet_run(case: PolicyCase) -> None:
    server = serving(case, 5)
    assert server.extend("r0", 3)
    server.commit("r0", 2)
    server.refused(InvalidInput, lambda: server.policy.commit("r0", range(1)))
    assert server.extend("r0", 1)
    server.check()


def a_rollback_of_everything_leaves_the_memory_as_it_was(case: PolicyCase) -> None:
    server = serving(case, 5, 7)
    usage, slots = server.policy.usage(), slots_of(server, "r1")
    for count in (1, 4, 9):
        assert server.extend("r1", count)
        server.commit("r1", 0)
        assert server.policy.usage() == usage
        assert slots_of(server, "r1") == slots
        server.check()


def accepted_drafts_lie_where_single_tokens_would(case: PolicyCase) -> None:
    drafts, singles = serving(case, 5, 7), serving(case, 5, 7)
    for accepted, extended in ((1, 4), (0, 3), (2, 3), (3, 3)):
        assert drafts.extend("r0", extended)
        drafts.commit("r0", accepted)
        for _ in range(accepted):
            assert singles.extend("r0", 1)
            singles.commit("r0", 1)
        drafts.check()
        assert slots_of(drafts, "r0") == slots_of(singles, "r0")
        assert drafts.policy.usage() == singles.policy.usage()


def a_quiet_run_needs_no_call_and_the_books_are_exact_within_it(case: PolicyCase) -> None:
    server = serving(case, 5, 3)
    for rid in ("r0", "r1", "r0"):
        assert server.extend(rid, 1)
        server.quiet(rid, 1)
        while server.admitted[rid].written < min(server.admitted[rid].room, 6):
            server.quiet(rid, 1)
            server.check()
        server.commit(rid, server.admitted[rid].written)
        server.check()


def calling_at_every_token_and_at_the_end_of_quiet_runs_is_the_same(case: PolicyCase) -> None:
    preempted = forked = 0
    for seed in range(3):
        every, quiet, every_log, quiet_log = both_ways(case, seed)
        for step, (one, other) in enumerate(zip(every, quiet, strict=True)):
            assert one == other, f"after step {step} of seed {seed}"
        assert without_steps(every_log) == without_steps(quiet_log)
        preempted += sum(event[0] == "release" and event[2] == "preempted" for event in every_log)
        forked += sum(event[0] == "fork" for event in every_log)
    assert forked
    assert preempted or case.asked is not None, "the schedule never ran out of memory"


def a_policy_without_a_log_does_the_same(case: PolicyCase) -> None:
    silent, told = (Lockstep(case.build(log), 5, every_token=False).run() for log in (None, EventLog()))
    assert silent == told


def a_fork_shares_the_past_and_not_the_future(case: PolicyCase) -> None:
    for prompt in (3, 4, 7, 16):
        server = serving(case, prompt)
        assert server.fork("r0", "child")
        assert server.fork("child", "grandchild")
        for count in (1, 1, 4):
            for rid in ("r0", "grandchild", "child"):
                assert server.extend(rid, count)
            for rid in ("child", "r0", "grandchild"):
                server.commit(rid, count)
                server.check()
        server.release("r0", "finished")
        server.check_contents()
        assert server.extend("child", 1)
        server.commit("child", 1)
        server.check()


def a_fork_before_the_first_token_is_an_empty_request(case: PolicyCase) -> None:
    server = Serving(case)
    assert server.admit(Request("r0", 5, 10)) is not None
    assert server.fork("r0", "child")
    for rid in ("child", "r0"):
        assert server.extend(rid, 5)
        server.commit(rid, 5)
    server.check()


def a_fork_ends_the_quiet_run_of_its_parent(case: PolicyCase) -> None:
    server = serving(case, 5)
    assert server.extend("r0", 1)
    server.commit("r0", 1)
    assert server.fork("r0", "child")  # looks that neither side may write
    for rid in ("r0", "child"):
        assert server.extend(rid, 1)
        server.quiet(rid, server.admitted[rid].room)
        server.check()


def every_reason_gives_everything_back_also_in_the_middle_of_a_step(case: PolicyCase) -> None:
    empty = case.build(None).usage()
    for reason in REASONS:
        server = serving(case, 5, 9, 3)
        assert server.fork("r0", "child")
        assert server.extend("r1", 4)
        assert server.extend("r2", 1)
        server.quiet("r2", 1)
        for rid in ("r0", "r1", "r2", "child"):
            assert server.release(rid, reason).computed == 0
            server.check()
        for pool, usage in server.policy.usage().items():
            assert usage.owned == 0
            assert usage.free + usage.cached == empty[pool].free
        assert {state.status for state in server.state.requests.values()} == {reason}


def a_preempted_request_comes_back_with_its_output(case: PolicyCase) -> None:
    server = serving(case, 5)
    for _ in range(3):
        assert server.extend("r0", 1)
        server.commit("r0", 1)
    request = server.release("r0", "preempted")
    assert (request.known_tokens, request.computed) == (8, 0)
    assert server.admit(request) is not None
    assert server.extend("r0", 8 - request.computed)
    server.commit("r0", 8 - request.computed)
    server.check()


def a_swapped_request_is_away_and_comes_back_intact(case: PolicyCase) -> None:
    server = serving(case, 7, 6)
    if not server.policy.can_swap:
        return
    assert server.fork("r0", "child")
    assert server.swap_out("r0")
    server.check()
    request = server.swapped["r0"].request
    asked: list[tuple[type[KvlabError], Callable[[], object]]] = [
        (UnknownRequest, lambda: server.policy.extend("r0", 1)),
        (UnknownRequest, lambda: server.policy.layout("r0")),
        (UnknownRequest, lambda: server.policy.swap_out("r0")),
        (InvalidInput, lambda: server.policy.admit(request)),
        (InvalidInput, lambda: server.policy.fork("r1", server.admitted["r1"].request.fork("r0"))),
        (InvalidInput, lambda: server.policy.release("r0", "tired")),
    ]
    for error, call in asked:
        server.refused(error, call, request)
    come(server, "new", 9)
    assert server.swap_out("child")
    assert server.swap_in("r0")
    assert server.extend("r0", 2)
    server.commit("r0", 2)
    assert server.swap_in("child")
    server.check()
    server.flush()
    server.check_contents()


def pending_tokens_move_free_bytes_to_external_and_change_nothing_else(case: PolicyCase) -> None:
    server = serving(case, 5, 9, 3, 6)
    for rid in ("r0", "r2"):
        server.release(rid, "finished")
    plain = server.policy.usage()
    for pending in (0, 1, 8, 33, 1000):
        server.check(pending)
        for pool, usage in server.policy.usage(pending).items():
            assert usage.external + usage.free == plain[pool].external + plain[pool].free
            assert usage[:5] == plain[pool][:5]
            assert usage.external >= plain[pool].external
