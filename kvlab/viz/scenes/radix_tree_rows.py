"""On which row each span of a radix tree lies: a path goes straight on, its later branches go below."""

from __future__ import annotations

from collections.abc import Sequence

from kvlab.viz.scenes.radix_tree_state import Edge


def rows_of(edges: Sequence[Edge]) -> list[int]:
    """The row of each edge; the first child of a node lies on the row of its parent."""
    children: dict[int, list[int]] = {}
    for index, edge in enumerate(edges):
        children.setdefault(edge.parent, []).append(index)
    rows = [0] * len(edges)
    used = 0
    ahead = [(index, place > 0) for place, index in reversed(list(enumerate(children.get(-1, []))))]
    above = {-1: 0}
    while ahead:
        index, branches = ahead.pop()
        edge = edges[index]
        if branches:
            used += 1
            rows[index] = used
        else:
            rows[index] = above[edge.parent]
        if not edge.owner:
            above[edge.number] = rows[index]
            below = list(enumerate(children.get(edge.number, [])))
            ahead += [(child, place > 0) for place, child in reversed(below)]
    return rows
