"""Clauses of the contract: what is refused, by which error, and that nothing changes."""

from collections.abc import Callable

from kvlab.errors import InvalidInput, NeverFits, UnknownRequest
from kvlab.workload import Request
from support.cases import PolicyCase
from support.contract import come, fill, serving
from support.serving import Serving


def a_request_that_is_not_there_is_unknown(case: PolicyCase) -> None:
    server = serving(case, 5)
    gone = server.release("r0", "finished")
    policy = server.policy
    for rid in ("r0", "nobody", 0, ""):
        calls: list[Callable[[], object]] = [
            lambda rid=rid: policy.extend(rid, 1),
            lambda rid=rid: policy.layout(rid),
            lambda rid=rid: policy.commit(rid, range(0)),
            lambda rid=rid: policy.release(rid, "finished"),
            lambda rid=rid: policy.fork(rid, gone.fork("child")),
        ]
        for call in calls:
            server.refused(UnknownRequest, call, gone)
        if policy.can_swap:
            server.refused(UnknownRequest, lambda rid=rid: policy.swap_out(rid))
            server.refused(UnknownRequest, lambda rid=rid: policy.swap_in(rid))


def a_second_admission_under_one_id_is_refused(case: PolicyCase) -> None:
    server = serving(case, 5)
    for request in (server.admitted["r0"].request, Request("r0", 2, 2)):
        server.refused(InvalidInput, lambda request=request: server.policy.admit(request), request)
    come(server, 0, 3)
    come(server, "0", 4)
    server.check()
    assert set(server.admitted) == {"r0", 0, "0"}


def a_request_larger_than_the_memory_never_fits_even_when_the_memory_is_empty(case: PolicyCase) -> None:
    server = serving(case)
    for prompt, output in ((1, 500), (500, 1)):
        request = Request("huge", prompt, output, output_tokens=1)
        request.computed = 3
        server.refused(NeverFits, lambda request=request: server.policy.admit(request), request)


def an_admission_without_room_is_answered_none_and_works_again_after_a_release(case: PolicyCase) -> None:
    server = serving(case)
    held = fill(server)
    late = Request("late", 6, 10, output_tokens=10)
    late.computed = 4
    assert server.admit(late) is None
    for rid in held:
        server.release(rid, "finished")
    assert server.admit(late) is not None
    assert late.computed == 0
    server.check()


def an_extension_or_a_fork_without_room_is_refused_and_changes_nothing(case: PolicyCase) -> None:
    server = serving(case)
    held = fill(server)
    refusals = 0
    for count in (1, 2, 30, 500):
        for rid in held:
            refusals += not server.extend(rid, count)
            server.commit(rid, 0)
    assert refusals >= len(held), "500 more tokens fit"
    for number in range(40):
        server.fork(held[0], f"child-{number}")
    server.check()
    server.flush()
    server.check_contents()


def counts_below_one_are_refused(case: PolicyCase) -> None:
    server = serving(case, 5)
    for count in (0, -1):
        server.refused(InvalidInput, lambda count=count: server.policy.extend("r0", count))


def an_extension_waits_for_the_commit_of_the_last_one(case: PolicyCase) -> None:
    server = serving(case, 5)
    assert server.extend("r0", 2)
    server.refused(InvalidInput, lambda: server.policy.extend("r0", 1))
    server.commit("r0", 2)
    assert server.extend("r0", 1)
    server.quiet("r0", 1)
    server.refused(InvalidInput, lambda: server.policy.extend("r0", 1))
    server.commit("r0", 1)
    assert server.extend("r0", 1)


def a_commit_beyond_what_may_be_written_is_refused(case: PolicyCase) -> None:
    server = Serving(case)
    assert server.admit(Request("r0", 5, 10)) is not None
    policy = server.policy
    server.refused(InvalidInput, lambda: policy.commit("r0", range(1)))
    assert server.extend("r0", 5)
    room = server.admitted["r0"].room
    server.refused(InvalidInput, lambda: policy.commit("r0", range(room + 1)))
    server.commit("r0", room)
    server.refused(InvalidInput, lambda: policy.commit("r0", range(1)))
    server.check()


def an_unsettled_parent_is_not_forked(case: PolicyCase) -> None:
    server = serving(case, 5)
    child = server.admitted["r0"].request.fork("child")
    assert server.extend("r0", 1)
    server.refused(InvalidInput, lambda: server.policy.fork("r0", child), child)
    server.quiet("r0", 1)
    server.refused(InvalidInput, lambda: server.policy.fork("r0", child), child)
    server.commit("r0", 1)
    assert server.fork("r0", "child")


def a_fork_onto_an_id_in_use_is_refused(case: PolicyCase) -> None:
    server = serving(case, 5, 6)
    for rid in ("r0", "r1"):
        child = server.admitted["r0"].request.fork(rid)
        server.refused(InvalidInput, lambda child=child: server.policy.fork("r0", child), child)


def an_unknown_reason_is_refused(case: PolicyCase) -> None:
    server = serving(case, 5)
    for reason in ("tired", "", None):
        server.refused(InvalidInput, lambda reason=reason: server.policy.release("r0", reason))


def swapping_is_refused_where_it_cannot_be(case: PolicyCase) -> None:
    server = serving(case, 5)
    if not server.policy.can_swap:
        for call in (server.policy.swap_out, server.policy.swap_in):
            server.refused(InvalidInput, lambda call=call: call("r0"))
        return
    server.refused(UnknownRequest, lambda: server.policy.swap_in("r0"))
    assert server.extend("r0", 1)
    server.refused(InvalidInput, lambda: server.policy.swap_out("r0"))
    server.quiet("r0", 1)
    server.refused(InvalidInput, lambda: server.policy.swap_out("r0"))


def a_swap_without_room_is_refused_and_changes_nothing(case: PolicyCase) -> None:
    server = serving(case)
    if not server.policy.can_swap:
        return
    held = fill(server)
    away = [rid for rid in held if server.swap_out(rid)]
    assert away
    assert len(away) < len(held), "the host took everything"
    fill(server, name="g")
    assert not all(server.swap_in(rid) for rid in away)
    server.check()
    server.flush()
    server.check_contents()
