"""The radix tree: the state machine against the plainest model, and the cases that public engines got wrong."""

import pickle
from collections.abc import Callable

import numpy as np
import pytest
from support.machines import keeps_its_invariants
from support.radix_machine import RadixMachine

from kvlab.errors import InvalidInput, StaleHandle
from kvlab.memory.radix_results import Lock
from kvlab.memory.radix_snapshot import nodes_of
from kvlab.memory.radix_tree import RadixTree

IDS = list(range(1000))


def test_the_tree_is_its_plainest_model_for_ten_thousand_operations() -> None:
    keeps_its_invariants(RadixMachine)


def tree_with(*spans: tuple[int, int], window: int | None = 8, page: int = 1) -> RadixTree:
    """Islands on one path: (dead_to, length) each, in order of length."""
    tree = RadixTree(page, window)
    there = 0
    for dead_to, length in spans:
        tree.insert(IDS[:length], range(length // page), owned_from=there, dead_to=dead_to)
        there = length
    return tree


def shape(tree: RadixTree) -> list[tuple[int, int, bool, int, int]]:
    """(start, end, live, full locks, SWA locks) of every node."""
    return sorted((n.start, n.end, n.live, n.full_lock, n.swa_lock) for n in nodes_of(tree))


def test_a_match_ends_where_the_window_before_it_is_live() -> None:
    tree = tree_with((20, 32), (52, 64), page=4)
    usable = {length: tree.match(IDS[:length]).tokens for length in range(4, 68, 4)}
    assert usable == {n: 0 if n < 28 else 28 if n < 32 else 32 if n < 60 else n for n in range(4, 64, 4)} | {64: 64}
    assert "dead" in tree.match(IDS[:24]).why()
    assert "not cached" in tree.match(IDS[:64]).why()


def test_matching_every_length_makes_no_node() -> None:
    tree = tree_with((20, 32), page=4)
    before = shape(tree)
    for length in range(33):
        tree.match(IDS[:length])
    assert shape(tree) == before == [(0, 20, False, 0, 0), (20, 32, True, 0, 0)]


def test_a_match_between_islands_falls_back_to_the_older_one() -> None:  # sglang #36131, #34565
    tree = tree_with((24, 32), (56, 64))
    asked = [*IDS[:48], *[-1] * 16]
    assert tree.match(asked).tokens == 32
    assert tree.match(asked).full_tokens == 48
    tree.insert(IDS[:64], range(1000, 1064), dead_to=56, kept=(40, 48))
    assert tree.match(asked).tokens == 48


def test_a_leaf_that_is_all_dead_is_not_inserted() -> None:  # sglang #29860
    tree = tree_with(window=4, page=8)
    assert tree.insert(IDS[:16], [0, 1], dead_to=16).tokens == 0
    assert shape(tree) == []
    tree.insert(IDS[:16], [0, 1], dead_to=8)
    assert tree.match(IDS[:20]).tokens == 16


def test_a_tail_shorter_than_the_window_is_refused() -> None:
    tree = tree_with(window=8, page=4)
    before = pickle.dumps(tree)
    for options in ({"dead_to": 28}, {"dead_to": 16, "kept": (8, 12)}):
        with pytest.raises(InvalidInput, match="shorter than the window"):
            tree.insert(IDS[:32], range(8), **options)
    assert pickle.dumps(tree) == before


def test_unlocking_without_the_boundary_leaves_the_other_lock() -> None:  # sglang #27038
    tree = tree_with((0, 20), window=4)
    a, b = tree.lock(IDS[:10]), tree.lock(IDS[:20])
    with pytest.raises(InvalidInput, match="handle"):
        tree.unlock(None)  # type: ignore[arg-type]
    with pytest.raises(StaleHandle):
        tree.unlock(b._replace(swa_from=0))
    tree.unlock(b)
    assert shape(tree) == [(0, 10, True, 1, 1), (10, 20, True, 0, 0)]
    assert tree.evict_swa(100).swa_tokens == 10
    assert tree.match(IDS[:20]).tokens == 10
    tree.unlock(a)
    tree.audit()


def test_a_lock_takes_whole_nodes_or_only_the_window() -> None:  # sglang #26777
    whole = tree_with((0, 64), page=4)
    whole.lock(IDS[:64])
    assert whole.swa_protected == 64
    trimmed = tree_with((0, 64), page=4)
    lock = trimmed.lock(IDS[:64], trim=True)
    assert (trimmed.swa_protected, trimmed.full_protected, lock.swa_from) == (8, 64, 56)


def test_a_boundary_stays_with_the_front_half_of_a_split() -> None:
    tree = tree_with((0, 20), window=4)
    far = tree.lock(IDS[:20])
    near = tree.lock(IDS[:10])
    assert shape(tree) == [(0, 10, True, 2, 2), (10, 20, True, 1, 1)]
    tree.unlock(far)
    assert shape(tree) == [(0, 10, True, 1, 1), (10, 20, True, 0, 0)]
    tree.unlock(near)
    tree.audit()


def test_swa_eviction_takes_the_front_of_a_path() -> None:  # sglang #35515
    tree = tree_with((0, 40))
    gone = tree.evict_swa(8)
    assert (gone.swa_pages.tolist(), gone.full_tokens) == (list(range(8)), 0)
    assert tree.match(IDS[:40]).tokens == 40
    assert tree.match(IDS[:12]).tokens == 0
    assert tree.evict_swa(32).full_tokens == 40, "less than a window would have stayed"
    assert shape(tree) == []


def test_full_eviction_takes_the_least_recently_used_leaf_and_childless_tombstones() -> None:
    tree = tree_with((20, 32))
    tree.insert([*IDS[:24], *range(-9, 0)], range(100, 133))
    tree.unlock(tree.lock(IDS[:32]))
    gone = tree.evict_full(1)
    assert gone.full_tokens == 9
    assert tree.match(IDS[:32]).tokens == 32
    assert tree.evict_full(1).full_tokens == 8
    assert tree.evict_full(99).full_tokens == 24
    assert tree.evict_full(1).full_tokens == 0


def test_a_second_run_heals_the_part_whose_window_it_still_has() -> None:
    tree = tree_with((20, 32))
    held = tree.lock(IDS[:32])
    done = tree.insert(IDS[:16], range(100, 116), dead_to=4)
    assert done.duplicates.tolist() == list(range(100, 116))
    assert done.pages.tolist() == list(range(16)), "the runner's pages stay"
    assert (done.takers.tolist(), done.givers.tolist()) == (list(range(4, 16)), list(range(104, 116)))
    assert [span[:3] for span in shape(tree)] == [(0, 4, False), (4, 16, True), (16, 20, False), (20, 32, True)]
    assert tree.match(IDS[:16]).tokens == 16
    tree.unlock(held)
    tree.audit()


def test_edges_are_copies() -> None:
    tree, ids, pages = RadixTree(1, None), np.arange(10_000, dtype=np.int32), np.arange(10_000, dtype=np.int32)
    tree.insert(ids, pages)
    tree.insert(np.concatenate([ids[:5000], ids[:20]]), np.arange(10_000, 15_020, dtype=np.int32))
    ids[:], pages[:] = 0, 0
    assert tree.match(range(10_000)).pages.tolist() == list(range(10_000))
    kept = sum(len(node.token_bytes) + len(node.page_bytes) for node in nodes_of(tree))
    assert kept == 4 * 2 * 10_020, "a node keeps more than its own ids"


def test_a_path_of_two_thousand_nodes_needs_no_recursion() -> None:
    tree = RadixTree(1, 4)
    for length in range(1, 2001):
        tree.insert(np.arange(length), np.arange(length), owned_from=length - 1)
    lock = tree.lock(np.arange(2000))
    copied = pickle.loads(pickle.dumps(tree))
    assert copied.swa_protected == tree.swa_protected == 4
    copied.unlock(lock)
    copied.audit()
    assert copied.evict_full(2000).full_tokens == 2000


def test_salts_share_nothing() -> None:
    tree = RadixTree(1, 4)
    for salt in (None, "1", 1):
        tree.insert(IDS[:8], range(8), salt) if salt is None else None
        assert tree.match(IDS[:8], salt).tokens == (8 if salt is None else 0)


BAD: list[Callable[[RadixTree], object]] = [
    lambda tree: tree.match([0.5]),
    lambda tree: tree.match(["a"]),
    lambda tree: tree.match([[1, 2]]),
    lambda tree: tree.match([1 << 40]),
    lambda tree: tree.insert([1, 2, 3], [0]),
    lambda tree: tree.insert([1, 2], [0, 1]),
    lambda tree: tree.insert([1, 2], [0.5]),
    lambda tree: tree.insert(IDS[:8], range(4), owned_from=6),
    lambda tree: tree.insert(IDS[:8], range(4), owned_from=-2),
    lambda tree: tree.insert(IDS[:8], range(4), dead_to=3),
    lambda tree: tree.insert(IDS[:8], range(4), dead_to=2, kept=(2, 4)),
    lambda tree: tree.lock(IDS[:3]),
    lambda tree: tree.lock(IDS[:6]),
    lambda tree: tree.unlock(7),  # type: ignore[arg-type]
    lambda tree: tree.bury_before(None, 2),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_bad_input_is_refused_and_changes_nothing(number: int) -> None:
    tree = RadixTree(2, 4)
    tree.insert(IDS[:4], range(2))
    before = pickle.dumps(tree)
    with pytest.raises(InvalidInput):
        BAD[number](tree)
    assert pickle.dumps(tree) == before


@pytest.mark.parametrize(("page", "window"), [(0, 4), (-1, 4), (1, 0), (True, 4), (1.5, 4)])
def test_pages_and_windows_below_one_are_refused(page: int, window: int) -> None:
    with pytest.raises(InvalidInput):
        RadixTree(page, window)


def test_another_trees_lock_is_refused() -> None:
    one, other = tree_with((0, 8)), tree_with((0, 20))
    lock = one.lock(IDS[:8])
    with pytest.raises(StaleHandle):
        other.unlock(lock)
    with pytest.raises(StaleHandle):
        other.pages(Lock(99, 8, 0))
