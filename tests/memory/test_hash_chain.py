"""The hash chain: what is named alike, what never is, and that the audit hashes again."""

import pickle
from collections.abc import Callable
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.errors import InvalidInput, InvariantViolation
from kvlab.memory.hash_chain import Prefixes, Wanted, id_bytes, link, root, short
from kvlab.workload import Request, Salt

SALTS = st.none() | st.integers() | st.text()


def ids(*tokens: int) -> bytes:
    return np.array(tokens, "<i4").tobytes()


@given(SALTS, SALTS)
def test_only_the_same_salt_has_the_same_root(one: Salt, other: Salt) -> None:
    assert (root(one) == root(other)) == (type(one) is type(other) and one == other)


@pytest.mark.parametrize(("one", "other"), [(7, "7"), (None, "None"), (None, ""), (0, None), ("a", "A"), (-1, "-1")])
def test_salts_that_look_alike_are_different(one: Salt, other: Salt) -> None:
    assert root(one) != root(other)


def test_a_salt_of_lone_surrogates_is_a_salt_like_any_other() -> None:
    assert root("\ud800") != root("\udc00")


def test_a_link_is_sha256_of_the_parent_and_the_ids() -> None:
    parent = root(None)
    assert link(parent, ids(1, 2)) == sha256(parent + b"\x01\0\0\0\x02\0\0\0").digest()
    assert link(parent, ids(1, 2)) != link(parent, ids(2, 1)) != link(root(1), ids(2, 1))
    assert short(parent) == parent.hex()[:8]


def test_where_one_block_ends_and_the_next_begins_matters() -> None:
    once = link(root(None), ids(1, 2, 3, 4))
    twice = link(link(root(None), ids(1, 2)), ids(3, 4))
    assert once != twice


@given(st.lists(st.integers(0, 2**31 - 1), max_size=20))
def test_ids_have_the_same_bytes_however_they_come(tokens: list[int]) -> None:
    expected = np.array(tokens, np.int32).tobytes()
    for given_as in (tokens, tuple(tokens), np.array(tokens, np.int32), np.array(tokens, np.int64)):
        assert id_bytes(given_as) == expected
    assert id_bytes(range(len(tokens))) == np.arange(len(tokens), dtype=np.int32).tobytes()


def test_a_strided_array_of_ids_has_the_bytes_of_its_own_elements() -> None:
    assert id_bytes(np.arange(10, dtype=np.int32)[::3]) == ids(0, 3, 6, 9)


@pytest.mark.parametrize(
    "tokens", [[1 << 31], [-(1 << 31) - 1], [1.5], ["a"], [None], np.zeros((2, 2), np.int32), np.array([0.5]), 5]
)
def test_what_are_no_ids_is_refused(tokens: object) -> None:
    with pytest.raises(InvalidInput, match="token ids must be a flat list of 32-bit integers"):
        id_bytes(tokens)


@pytest.mark.parametrize("blocks", [1, 2, 7, 8, 9, 16, 17, 40])
def test_wanted_digests_are_hashed_step_by_step_and_are_those_of_the_chain(blocks: int) -> None:
    request = Request("a", list(range(100, 100 + 3 * blocks)), 5)
    wanted, rounds = Wanted(request, 3), 0
    while len(wanted.digests) <= blocks:
        wanted.more(request, blocks)
        rounds += 1
    digest = root(None)
    for index in range(blocks):
        digest = link(digest, request.token_ids(3 * index, 3 * index + 3).tobytes())
        assert wanted.digests[index + 1] == digest
    assert len(wanted.digests) == blocks + 1
    assert rounds <= 2 + blocks.bit_length()


def test_the_first_look_hashes_one_block_only() -> None:
    request = Request("a", list(range(100)), 5)
    wanted = Wanted(request, 1)
    wanted.more(request, 99)
    assert len(wanted.digests) == 2


def test_wanted_digests_are_no_state() -> None:
    request = Request("a", list(range(100)), 5)
    wanted = Wanted(request, 1)
    before = pickle.dumps(wanted)
    wanted.more(request, 99)
    assert pickle.dumps(wanted) == before
    assert pickle.loads(before).request is None


def three_blocks() -> tuple[Prefixes, list[bytes]]:
    prefixes = Prefixes()
    last = prefixes.register([5, 9], root(None), ids(1, 2, 3, 4))
    prefixes.register([7], last, ids(5, 6))
    return prefixes, [prefixes.entries[block].digest for block in (5, 9, 7)]


def test_registered_blocks_are_found_by_their_digests() -> None:
    prefixes, digests = three_blocks()
    assert [prefixes.find(digest) for digest in digests] == [5, 9, 7]
    assert prefixes.find(root(None)) is None
    assert prefixes.entries[7].parent == digests[1]
    prefixes.audit()


def test_of_equal_blocks_the_first_is_found_until_it_is_forgotten() -> None:
    prefixes, digests = three_blocks()
    for block in (2, 3, 4):
        assert prefixes.register([block], root(None), ids(1, 2)) == digests[0]
    found = []
    for block in (5, 3, 2, 4):
        found.append(prefixes.find(digests[0]))
        prefixes.forget(block)
        prefixes.audit()
    assert found == [5, 2, 2, 4]
    assert prefixes.find(digests[0]) is None
    assert prefixes.find(digests[1]) == 9, "a block is registered on its own, whatever became of its parent"


def other_tokens(prefixes: Prefixes) -> None:
    prefixes._entries[9] = prefixes._entries[9]._replace(ids=ids(3, 5))


def other_parent(prefixes: Prefixes) -> None:
    prefixes._entries[9] = prefixes._entries[9]._replace(parent=root(1))


def lost_entry(prefixes: Prefixes) -> None:
    del prefixes._entries[9]


def lost_digest(prefixes: Prefixes) -> None:
    del prefixes._first[prefixes._entries[9].digest]


def named_twice(prefixes: Prefixes) -> None:
    prefixes._others[prefixes._entries[9].digest] = {9: None}


def wrong_block(prefixes: Prefixes) -> None:
    prefixes._first[prefixes._entries[9].digest] = 7


def empty_others(prefixes: Prefixes) -> None:
    prefixes._others[prefixes._entries[9].digest] = {}


def others_without_a_first(prefixes: Prefixes) -> None:
    prefixes._others[root(1)] = {1: None}


@pytest.mark.parametrize(
    "breakage",
    [
        other_tokens, other_parent, lost_entry, lost_digest, named_twice, wrong_block, empty_others,
        others_without_a_first,
    ],
)  # fmt: skip
def test_the_audit_sees(breakage: Callable[[Prefixes], None]) -> None:
    prefixes, _ = three_blocks()
    prefixes.audit()
    breakage(prefixes)
    with pytest.raises(InvariantViolation):
        prefixes.audit()
