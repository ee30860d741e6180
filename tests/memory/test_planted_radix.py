"""Bugs planted into the radix tree; its machine must catch every one."""

from collections.abc import Callable
from typing import Any

import pytest
from support.machines import Bug, catches
from support.radix_machine import RadixMachine

from kvlab.memory import radix_spans
from kvlab.memory.radix_node import Node, Order, common
from kvlab.memory.radix_results import Held, Lock, Match, id_bytes
from kvlab.memory.radix_tree import RadixTree

Spanned = tuple[int, int, bool]


def replaced(name: str, make: Callable[[Any], Any], kind: type = RadixTree) -> Bug:
    """Method `name` wrapped by what `make` returns for it."""

    def bug(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(kind, name, make(getattr(kind, name)))

    bug.__name__ = make.__name__
    return bug


def a_match_needs_no_live_window(match: Any) -> Any:
    def buggy(self: RadixTree, tokens: Any, salt: Any = None) -> Match:
        found = match(self, tokens, salt)
        return found._replace(tokens=found.full_tokens)

    return buggy


def a_match_wants_one_token_more_than_the_window(match: Any) -> Any:
    def buggy(self: RadixTree, tokens: Any, salt: Any = None) -> Match:
        window, self.window_tokens = self.window_tokens, (self.window_tokens or 0) + 1
        try:
            return match(self, tokens, salt)
        finally:
            self.window_tokens = window

    return buggy


def a_match_moves_the_order(match: Any) -> Any:
    def buggy(self: RadixTree, tokens: Any, salt: Any = None) -> Match:
        found = match(self, tokens, salt)
        for node, _ in self._path(id_bytes(tokens), salt)[-1:]:
            self._touch(node)
        return found

    return buggy


def a_split_forgets_the_tombstone(split: Any) -> Any:
    def buggy(self: RadixTree, node: Node, tokens: int) -> Node:
        front = split(self, node, tokens)
        front.live = True
        return front

    return buggy


def a_split_forgets_the_locks(split: Any) -> Any:
    def buggy(self: RadixTree, node: Node, tokens: int) -> Node:
        front = split(self, node, tokens)
        front.swa_lock = 0
        return front

    return buggy


def a_lock_stops_below_its_boundary(take: Any) -> Any:
    def buggy(self: RadixTree, node: Node | None) -> int:
        window, self.window_tokens = self.window_tokens, max(0, (self.window_tokens or 0) - 1) or None
        try:
            return take(self, node)
        finally:
            self.window_tokens = window

    return buggy


def an_unlock_forgets_the_boundary(held: Any) -> Any:
    def buggy(self: RadixTree, lock: Lock) -> Held:
        return held(self, lock)[0], 0

    return buggy


def nothing_is_healed(heal: Any) -> Any:
    return lambda self, node, start, stop: []


def whole_nodes_are_healed(heal: Any) -> Any:
    return lambda self, node, start, stop: heal(self, node, 0, stop)


def an_insert_moves_nothing(touch: Any) -> Any:
    return lambda self, node: None


def the_frontier_may_lie_inside_a_node(spans: Any) -> Any:
    def buggy(self: RadixTree, *asked: Any) -> list[Spanned]:
        found = spans(self, *asked)
        return [(found[0][0], found[-1][1], True)] if found else found

    return buggy


def childless_tombstones_stay(drop: Any) -> Any:
    def buggy(self: RadixTree, leaf: Node) -> list[Node]:
        parent = leaf.parent
        assert parent is not None
        live, parent.live = parent.live, True
        try:
            return drop(self, leaf)
        finally:
            parent.live = live

    return buggy


def swa_eviction_takes_whole_nodes(evict: Any) -> Any:
    def buggy(self: RadixTree, tokens: int) -> Any:
        oldest = self._swa_order.oldest()
        return evict(self, max(tokens, oldest.size) if oldest and tokens > 0 else tokens)

    return buggy


def the_order_is_last_in_first_out(add: Any) -> Any:
    return lambda self, use: self._between(self._ends, use, self._ends.newer)


BUGS = [
    replaced("match", a_match_needs_no_live_window),
    replaced("match", a_match_wants_one_token_more_than_the_window),
    replaced("match", a_match_moves_the_order),
    replaced("_split", a_split_forgets_the_tombstone),
    replaced("_split", a_split_forgets_the_locks),
    replaced("_take", a_lock_stops_below_its_boundary),
    replaced("_held", an_unlock_forgets_the_boundary),
    replaced("_heal", nothing_is_healed),
    replaced("_heal", whole_nodes_are_healed),
    replaced("_touch", an_insert_moves_nothing),
    replaced("_spans", the_frontier_may_lie_inside_a_node),
    replaced("_drop", childless_tombstones_stay),
    replaced("evict_swa", swa_eviction_takes_whole_nodes),
    replaced("add", the_order_is_last_in_first_out, Order),
]


def edges_share_only_their_first_page(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(radix_spans, "common", lambda one, other: min(len(one), len(other)) // 4)
    assert common is not radix_spans.common


@pytest.mark.parametrize("bug", [*BUGS, edges_share_only_their_first_page], ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    catches(RadixMachine, bug)
