"""Bugs planted into the radix policies; the machines and the audits must catch every one."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from support.cases import SMALL_TREES
from support.machines import Bug, catches
from support.planted import (
    events_are_lost,
    fork_leaves_the_parents_quiet_run,
    moves_are_lost,
    moves_carry_one_token_too_few,
    quiet_is_one_too_large,
    refused_admission_touches_the_request,
)
from support.policy_machine import machine_of

from kvlab.memory.radix_results import Inserted
from kvlab.memory.radix_tree import RadixTree
from kvlab.memory.two_pools import TwoPools
from kvlab.policies.radix_base import RadixPolicy
from kvlab.policies.radix_books import RadixHolding

Lazy, Islands = machine_of(SMALL_TREES[:1]), machine_of(SMALL_TREES[1:])


def replaced(kind: type, name: str, make: Callable[[Any], Any]) -> Bug:
    """Method `name` as what `make` returns for it."""

    def bug(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(kind, name, make(getattr(kind, name)))

    bug.__name__ = make.__name__
    return bug


def the_frontier_is_the_window(frontier: Any) -> Any:
    """It frees what the next query still reads."""
    return lambda self, length: max(0, self._floor(length - self.window_tokens + self.page_size))


def the_request_keeps_reading_what_it_freed(drop: Any) -> Any:
    return lambda self, holding, start, stop: None


def duplicates_leak(point: Any) -> Any:
    def buggy(self: RadixPolicy, holding: RadixHolding, own: int, found: int, pages: list[int]) -> None:
        free, self.memory.free = self.memory.free, lambda pages, generations=None: None  # type: ignore[method-assign]
        try:
            point(self, holding, own, found, pages)
        finally:
            self.memory.free = free  # type: ignore[method-assign]

    return buggy


def the_table_keeps_its_duplicates(point: Any) -> Any:
    def buggy(self: RadixPolicy, holding: RadixHolding, own: int, found: int, pages: list[int]) -> None:
        kept = list(holding.pages)
        point(self, holding, own, found, pages)
        holding.pages[:] = kept

    return buggy


def healed_nodes_get_no_swa_page(adopt: Any) -> Any:
    return lambda self, takers, givers: None


def an_insert_says_that_dead_kv_is_live(insert: Any) -> Any:
    def buggy(self: RadixTree, *asked: Any, dead_to: int = 0, kept: Any = None, **more: Any) -> Inserted:
        done: Inserted = insert(self, *asked, dead_to=0, **more)
        return done

    return buggy


def only_the_last_page_is_rolled_back(trim: Any) -> Any:
    def buggy(self: RadixPolicy, holding: RadixHolding, tokens: int) -> None:
        trim(self, holding, max(tokens, (len(holding.pages) - 1) * self.page_size))

    return buggy


def the_last_token_may_be_found(peek: Any) -> Any:
    return lambda self, request: self.tree.match(request.token_ids(0, request.known_tokens), request.salt)


def what_a_lock_keeps_counts_as_room(takes: Any) -> Any:
    return lambda self, *asked, **more: (0, 0)


def nothing_is_evicted_for_the_swa_pool(evict: Any) -> Any:
    return lambda self, tokens: evict(self, 0)


def behind_the_window_is_live(readable: Any) -> Any:
    return lambda self, readers: readable(self, [(lock, 0) for lock, _ in readers])


def salts_are_not_told_to_the_tree(match: Any) -> Any:
    return lambda self, tokens, salt=None: match(self, tokens, None)


def a_forks_page_is_the_parents(fork: Any) -> Any:
    def buggy(self: RadixPolicy, parent: Any, child: Any) -> None:
        fork(self, parent, child)
        mine, its = self._held[parent], self._held[child.rid]
        its.pages[:] = mine.pages[: len(its.pages)]

    return buggy


def the_own_swa_kv_begins_a_page_late(own: Any) -> Any:
    def buggy(self: RadixHolding) -> int:
        position: int = own.fget(self)
        return position + self.size if self.evicted > self.protected else position

    return property(buggy)


BUGS: Sequence[Bug] = [
    replaced(RadixPolicy, "_frontier", the_frontier_is_the_window),
    replaced(RadixPolicy, "_drop_entries", the_request_keeps_reading_what_it_freed),
    replaced(RadixPolicy, "_point_at", duplicates_leak),
    replaced(RadixPolicy, "_point_at", the_table_keeps_its_duplicates),
    replaced(TwoPools, "adopt", healed_nodes_get_no_swa_page),
    replaced(RadixTree, "insert", an_insert_says_that_dead_kv_is_live),
    replaced(RadixPolicy, "_trim", only_the_last_page_is_rolled_back),
    replaced(RadixPolicy, "peek", the_last_token_may_be_found),
    replaced(RadixTree, "lock_takes", what_a_lock_keeps_counts_as_room),
    replaced(RadixTree, "evict_swa", nothing_is_evicted_for_the_swa_pool),
    replaced(RadixTree, "readable", behind_the_window_is_live),
    replaced(RadixTree, "match", salts_are_not_told_to_the_tree),
    replaced(RadixPolicy, "fork", a_forks_page_is_the_parents),
    replaced(RadixHolding, "own_swa_from", the_own_swa_kv_begins_a_page_late),
    quiet_is_one_too_large(RadixPolicy),
    fork_leaves_the_parents_quiet_run(RadixPolicy),
    moves_are_lost("fork"),
    moves_carry_one_token_too_few("fork"),
    refused_admission_touches_the_request(RadixPolicy),
    *(
        events_are_lost(kind)
        for kind in ("map", "unmap", "grow", "drop", "point", "skip", "node", "split", "leave", "lock")
    ),
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    catches(Islands, bug)


@pytest.mark.parametrize(
    "bug",
    [
        replaced(RadixPolicy, "_frontier", the_frontier_is_the_window),
        replaced(TwoPools, "adopt", healed_nodes_get_no_swa_page),
        replaced(RadixTree, "insert", an_insert_says_that_dead_kv_is_live),
        replaced(RadixTree, "readable", behind_the_window_is_live),
    ],
    ids=lambda bug: bug.__name__,
)
def test_a_lazy_cache_with_a_planted_bug_is_caught(bug: Bug) -> None:
    catches(Lazy, bug)
