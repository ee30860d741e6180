"""A radix tree as flat rows, so that one of any depth can be pickled, copied and restored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvlab.memory.radix_node import Node, Order

if TYPE_CHECKING:
    from kvlab.memory.radix_tree import RadixTree

ROWS = ("_roots", "_locks", "_full_order", "_swa_order")


def nodes_of(tree: RadixTree) -> list[Node]:
    """Every node but the roots, parents before their children."""
    found: list[Node] = []
    ahead = [child for root in reversed(tree._roots.values()) for child in reversed((root.children or {}).values())]
    while ahead:
        node = ahead.pop()
        found.append(node)
        ahead += reversed((node.children or {}).values())
    return found


def flat(tree: RadixTree) -> dict[str, Any]:
    """The state without a reference from one node to another."""
    nodes, roots = nodes_of(tree), list(tree._roots.values())
    place = {id(node): index for index, node in enumerate([*roots, *nodes])}
    state = {name: value for name, value in vars(tree).items() if name not in ROWS}
    state["roots"] = list(tree._roots)
    state["nodes"] = [
        (
            node.number, place[id(node.parent)], node.end, node.token_bytes, node.page_bytes, node.live,
            node.full_lock, node.swa_lock,
        )
        for node in nodes
    ]  # fmt: skip
    state["locks"] = [
        (number, -1 if node is None else place[id(node)], swa_from) for number, (node, swa_from) in tree._locks.items()
    ]
    state["full_order"] = [place[id(node)] for node in tree._full_order]
    state["swa_order"] = [place[id(node)] for node in tree._swa_order]
    return state


def restored(tree: RadixTree, state: dict[str, Any]) -> None:
    """Give an empty tree the state that `flat` made."""
    rows = {name: state.pop(name) for name in ("roots", "nodes", "locks", "full_order", "swa_order")}
    vars(tree).update(state)
    tree._roots = {key: Node(-1, None, 0, b"", b"", True) for key in rows["roots"]}
    nodes = list(tree._roots.values())
    for number, parent, end, tokens, pages, live, full_lock, swa_lock in rows["nodes"]:
        above = nodes[parent]
        node = Node(number, above, end, tokens, pages, live)
        node.full_lock, node.swa_lock = full_lock, swa_lock
        if above.children is None:
            above.children = {}
        above.children[tree._key(node)] = node
        nodes.append(node)
    tree._locks = {number: (None if place < 0 else nodes[place], swa_from) for number, place, swa_from in rows["locks"]}
    tree._full_order, tree._swa_order = Order(), Order()
    for place in rows["full_order"]:
        tree._full_order.add(nodes[place].full_use)
    for place in rows["swa_order"]:
        tree._swa_order.add(nodes[place].swa_use)
