"""The whole of a radix tree, counted again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvlab.errors import require
from kvlab.memory.radix_node import Node
from kvlab.memory.radix_snapshot import nodes_of

if TYPE_CHECKING:
    from kvlab.memory.radix_tree import RadixTree


def audit(tree: RadixTree) -> None:
    """Check every node; `InvariantViolation` names the invariant that does not hold."""
    nodes = nodes_of(tree)
    require(all(root.children for root in tree._roots.values()), "a root without children was kept")
    pages = [page for node in nodes for page in node.pages.tolist()]
    require(len(pages) == len(set(pages)), "a page lies in two places of the tree")
    for node in nodes:
        _audit_node(tree, node)
    _audit_locks(tree, nodes)
    _audit_orders(tree, nodes)
    sums = Counter[str]()
    for node in nodes:
        sums["full protected" if node.full_lock else "full evictable"] += node.size
        if node.live:
            sums["swa protected" if node.swa_lock else "swa evictable"] += node.size
    kept = {
        "full evictable": tree.full_evictable, "full protected": tree.full_protected,
        "swa evictable": tree.swa_evictable, "swa protected": tree.swa_protected,
    }  # fmt: skip
    for name, value in kept.items():
        require(value == sums[name], f"the books say {value} {name} tokens, node by node there are {sums[name]}")


def _audit_node(tree: RadixTree, node: Node) -> None:
    parent, size = node.parent, tree.page_size
    assert parent is not None
    name = f"node {node.number} at [{node.start}, {node.end})"
    require(0 < node.size == len(node.tokens) == len(node.pages) * size, f"{name} is not of whole pages")
    require(node.start == parent.end, f"{name} does not begin where its parent ends, at {parent.end}")
    require((parent.children or {}).get(tree._key(node)) is node, f"{name} is not found under its first page")
    require(node.live or bool(node.children), f"{name} is a tombstone without children")
    require(node.live or node.swa_lock == 0, f"{name} is a tombstone with an SWA lock")
    require(0 <= node.swa_lock <= node.full_lock, f"{name} has {node.swa_lock} SWA locks, {node.full_lock} full ones")
    require(parent.parent is None or node.full_lock <= parent.full_lock, f"{name} is locked more than its parent")


def _audit_locks(tree: RadixTree, nodes: list[Node]) -> None:
    full, swa = Counter[int](), Counter[int]()
    for number, (last, swa_from) in tree._locks.items():
        node, covered = last, 0
        while node is not None and node.parent is not None:
            full[node.number] += 1
            if node.start >= swa_from:
                swa[node.number] += 1
                covered += node.size
            node = node.parent
        end = 0 if last is None else last.end
        require(covered >= min(tree.window_tokens or 0, end), f"lock {number} covers {covered} tokens of its window")
    for node in nodes:
        found = full[node.number], swa[node.number]
        require(
            found == (node.full_lock, node.swa_lock),
            f"node {node.number} counts {node.full_lock} full and {node.swa_lock} SWA locks, the handles {found}",
        )


def _audit_orders(tree: RadixTree, nodes: list[Node]) -> None:
    full, swa = ([node.number for node in order] for order in (tree._full_order, tree._swa_order))
    place = {number: index for index, number in enumerate(full)}
    require(len(place) == len(full) and len(set(swa)) == len(swa), "a node stands twice in an order of use")
    require(
        set(full) == {node.number for node in nodes if not node.full_lock}, "the full order is not the unlocked nodes"
    )
    require(
        set(swa) == {node.number for node in nodes if node.live and not node.swa_lock},
        "the SWA order is not the live nodes without an SWA lock",
    )
    for node in nodes:
        parent = node.parent
        if parent is not None and parent.number in place:
            require(place[node.number] < place[parent.number], f"node {node.number} was used after its parent")
