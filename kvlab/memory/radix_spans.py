"""The nodes of a radix tree and their two orders of use: how spans grow, split, heal, die and leave."""

from __future__ import annotations

from kvlab.events import EventLog, to_ranges
from kvlab.memory.radix_node import ID_BYTES, Node, Order, Pages, common, joined
from kvlab.workload import Salt

RootKey = tuple[str, Salt]


class RadixSpans:
    """Paths of nodes, one root a salt. Sums of tokens are kept: a node is protected or evictable in the full pool, and
    where it is live in the SWA pool.

    Unlocked nodes stand in the full order, a parent always after its children: the oldest is a leaf. Live nodes whose
    SWA KV is unlocked stand in the SWA order, along a path from the front.
    """

    def __init__(self, page_size: int, log: EventLog | None) -> None:
        self.page_size = page_size
        self.log = log
        self.full_evictable = self.full_protected = self.swa_evictable = self.swa_protected = 0
        self._roots: dict[RootKey, Node] = {}
        self._full_order, self._swa_order = Order(), Order()
        self._numbers = 0

    def _path(self, ids: bytes, salt: Salt) -> list[tuple[Node, int]]:
        """The nodes that these ids run through and how many tokens of each, in whole pages."""
        node = self._roots.get((type(salt).__name__, salt))
        steps: list[tuple[Node, int]] = []
        at, page, length = 0, self.page_size * ID_BYTES, len(ids)
        while node is not None and node.children and at + page <= length:
            child = node.children.get(ids[at : at + page])
            if child is None:
                break
            own = child.token_bytes
            stop = at + len(own)
            if ids[at:stop] != own:
                same = common(own, ids[at:stop])
                steps.append((child, same - same % self.page_size))
                break
            steps.append((child, child.size))
            at, node = stop, child
        return steps

    def _cut(self, node: Node, position: int) -> None:
        """Split the node of the path to `node` that `position` lies in, if it lies inside one."""
        while position > 0 and node.end > position and node.parent is not None:
            if node.start <= position:
                if node.start < position:
                    self._split(node, position - node.start)
                return
            node = node.parent

    def _end_of(self, steps: list[tuple[Node, int]], salt: Salt) -> Node:
        """The node with which the path ends, split where it goes on otherwise; the root where there is no path."""
        if not steps:
            key = type(salt).__name__, salt
            if key not in self._roots:
                self._roots[key] = Node(-1, None, 0, b"", b"", True)
            return self._roots[key]
        node, same = steps[-1]
        return self._split(node, same) if same < node.size else node

    def _heal(self, node: Node, start: int, stop: int) -> list[Node]:
        """Make the tombstones of the path to `node` live within [start, stop); these nodes."""
        healed = []
        while node.parent is not None and node.end > start:
            above = node.parent
            if not node.live and node.start < stop:
                if node.start < start:
                    above = self._split(node, start - node.start)
                part = self._split(node, stop - node.start) if node.end > stop else node
                part.live = True
                if part.swa_lock == 0:
                    self._swa_order.add(part.swa_use)
                    self.swa_evictable += part.size
                if self.log is not None:
                    self.log.write("heal", part.number)
                healed.append(part)
            node = above
        return healed

    def _touch(self, node: Node) -> None:
        """The unlocked nodes of the path become the most recently used: in the full order a parent after its
        children, in the SWA order before them."""
        live = []
        while node.parent is not None:
            if node.full_lock == 0:
                self._full_order.remove(node.full_use)
                self._full_order.add(node.full_use)
            if node.live and node.swa_lock == 0:
                live.append(node)
            node = node.parent
        for each in reversed(live):
            self._swa_order.remove(each.swa_use)
            self._swa_order.add(each.swa_use)

    def _grow(self, parent: Node, token_bytes: bytes, page_bytes: bytes, live: bool) -> Node:
        """A new node under `parent`."""
        node = Node(self._numbers, parent, 0, token_bytes, page_bytes, live)
        node.end = parent.end + node.size
        self._numbers += 1
        if parent.children is None:
            parent.children = {}
        parent.children[self._key(node)] = node
        self.full_evictable += node.size
        if parent.parent is not None and parent.full_lock == 0:
            self._full_order.add_older(node.full_use, parent.full_use)
        else:
            self._full_order.add(node.full_use)
        if live:
            self.swa_evictable += node.size
            self._swa_order.add(node.swa_use)
        if self.log is not None:
            self.log.write("node", node.number, parent.number, parent.end, to_ranges(node.pages.tolist()), live)
        return node

    def _split(self, node: Node, tokens: int) -> Node:
        """Cut the first `tokens` tokens of a node off into a new parent of it, with the same locks; that parent.

        The node stays the end of the locks that end with it.
        """
        parent = node.parent
        assert parent is not None
        assert parent.children is not None
        assert 0 < tokens < node.size
        cut, page_cut = tokens * ID_BYTES, tokens // self.page_size * ID_BYTES
        own, pages = node.token_bytes, node.page_bytes
        front = Node(self._numbers, parent, parent.end + tokens, own[:cut], pages[:page_cut], node.live)
        self._numbers += 1
        front.full_lock, front.swa_lock = node.full_lock, node.swa_lock
        node.token_bytes, node.page_bytes = own[cut:], pages[page_cut:]
        node.size -= tokens
        node.parent = front
        parent.children[self._key(front)] = front
        front.children = {self._key(node): node}
        if node.full_use.newer is not None:
            self._full_order.add_newer(front.full_use, node.full_use)
        if node.swa_use.newer is not None:
            self._swa_order.add_older(front.swa_use, node.swa_use)
        if self.log is not None:
            self.log.write("split", node.number, front.number, front.end, page_cut // ID_BYTES)
        return front

    def _key(self, node: Node) -> bytes:
        return node.token_bytes[: self.page_size * ID_BYTES]

    def _pages_from(self, node: Node, position: int) -> Pages:
        found = []
        while node.parent is not None and node.end > position:
            cut = max(0, position - node.start) // self.page_size
            found.append(node.page_bytes[cut * ID_BYTES :])
            node = node.parent
        return joined(reversed(found))

    def _bury(self, node: Node) -> None:
        node.live = False
        self._swa_order.remove(node.swa_use)
        self.swa_evictable -= node.size
        if self.log is not None:
            self.log.write("tombstone", node.number)

    def _drop(self, leaf: Node) -> list[Node]:
        """Take an unlocked leaf out of the tree, and the tombstones above it that are left without children."""
        dropped, node = [], leaf
        while True:
            parent = node.parent
            assert parent is not None
            assert parent.children is not None
            del parent.children[self._key(node)]
            self._full_order.remove(node.full_use)
            self.full_evictable -= node.size
            if node.live:
                self._swa_order.remove(node.swa_use)
                self.swa_evictable -= node.size
            if self.log is not None:
                self.log.write("leave", node.number)
            node.parent = None
            dropped.append(node)
            if parent.children or parent.live or parent.full_lock:
                break
            node = parent
        self._forget_root(parent)
        return dropped

    def _forget_root(self, node: Node) -> None:
        if node.parent is None and not node.children:
            self._roots = {key: root for key, root in self._roots.items() if root is not node}
