"""Faults that serving engines had in public, as small scenarios on our policies with the right outcome."""

import pytest
from support.cases import paged
from support.serving import Serving

from kvlab.errors import UnknownRequest
from kvlab.policies.layout import Table
from kvlab.policies.paged import Paged
from kvlab.shapes import LayerGroup
from kvlab.workload import Request


def windowed(window: int, slots: int = 160) -> Serving:
    groups = (LayerGroup("global", "full", (0,), None, 8), LayerGroup("sliding", "full", (1,), window, 8))
    return Serving(paged(4, slots=slots, groups=groups))


def come(server: Serving, rid: str, prompt: int) -> None:
    assert server.admit(Request(rid, prompt, 30)) is not None
    assert server.extend(rid, prompt)
    server.commit(rid, prompt)


def append(server: Serving, rid: str, tokens: int) -> None:
    for _ in range(tokens):
        assert server.extend(rid, 1)
        server.commit(rid, 1)
        server.check()


def test_a_fork_of_a_windowed_request_returns_every_block_once() -> None:
    """vllm #1556: 12 tokens, a window of 4, fork, 20 more on each side, free both."""
    server = windowed(4)
    come(server, "parent", 12)
    assert server.fork("parent", "child")
    for _ in range(20):
        append(server, "parent", 1)
        append(server, "child", 1)
    for rid in ("parent", "child"):
        server.release(rid, "finished")
        server.check()
    policy = server.policy
    assert isinstance(policy, Paged)
    assert sorted(policy.pool.next_free()) == list(range(40))


def test_a_fork_beyond_the_window_names_the_same_blocks_with_one_reference_more() -> None:
    """vllm PR #20512: 28 tokens, a window of 8, one more, fork."""
    server = windowed(8)
    come(server, "parent", 28)
    append(server, "parent", 1)
    policy = server.policy
    assert isinstance(policy, Paged)
    before = list(policy.pool.references)
    assert server.fork("parent", "child")
    (parent, _), (child, window) = policy.layout("parent"), policy.layout("child")
    assert isinstance(parent, Table)
    assert isinstance(child, Table)
    assert parent.blocks == child.blocks
    assert (window.start, window.end) == (22, 29)
    assert list(policy.pool.references) == [count + (count > 0) for count in before]


def test_a_request_released_twice_is_unknown_and_frees_nothing_twice() -> None:
    """vllm #42571, seen from the policy: a second release of the same request."""
    server = windowed(8)
    come(server, "a", 10)
    come(server, "b", 10)
    request = server.release("a", "finished")
    server.refused(UnknownRequest, lambda: server.policy.release("a", "finished"), request)
    come(server, "c", 10)
    server.check()
    server.check_contents()


def test_identical_prompts_in_one_step_share_nothing_that_is_not_written_yet() -> None:
    """vllm #7619: without a prefix cache two equal prompts have nothing in common."""
    server = windowed(8)
    for rid in ("a", "b"):
        assert server.admit(Request(rid, list(range(12)), 9)) is not None
        assert server.extend(rid, 12)
    for rid in ("a", "b"):
        server.policy.commit(rid, range(12))
    (one, _), (other, _) = server.policy.layout("a"), server.policy.layout("b")
    assert not set(one.slots().tolist()) & set(other.slots().tolist())


def test_prefill_and_decode_put_a_token_into_the_same_slot() -> None:
    """vllm-gaudi #1327: they computed it in two ways."""
    whole, pieces = windowed(8), windowed(8)
    come(whole, "a", 18)
    come(pieces, "a", 5)
    append(pieces, "a", 13)
    for one, other in zip(whole.policy.layout("a"), pieces.policy.layout("a"), strict=True):
        assert one.slots().tolist() == other.slots().tolist()


def test_a_preempted_request_starts_with_an_empty_table() -> None:
    """nano-vllm: a table kept from before the preemption pointed out of range."""
    server = windowed(8)
    come(server, "a", 10)
    append(server, "a", 3)
    request = server.release("a", "preempted")
    come(server, "b", 6)
    assert server.admit(request) is not None
    (table, _) = server.policy.layout("a")
    assert isinstance(table, Table)
    assert (list(table.blocks), table.end) == ([], 0)
    assert server.extend("a", 13)
    server.commit("a", 13)
    server.check()


@pytest.mark.parametrize("samples", [2, 3, 8])
def test_n_samples_of_one_prompt_make_n_minus_1_copies(samples: int) -> None:
    """Kwon et al. 2023, section 4.4: only the last block is copied, and the last sample writes in place."""
    server = windowed(8)
    come(server, "0", 10)
    for each in range(1, samples):
        assert server.fork("0", str(each))
    for each in range(samples):
        assert server.extend(str(each), 1)
    moves = server.policy.drain_moves()
    assert [(move.tokens, move.bytes, move.why) for move in moves] == [(2, 32, "copy-on-write")] * (samples - 1)
    assert len({move.target for move in moves}) == samples - 1
    assert len({move.source for move in moves}) == 1
