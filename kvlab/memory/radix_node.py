"""A span of a cached path, and the two orders in which spans were last used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from kvlab.workload import TokenIds

Pages: TypeAlias = npt.NDArray[np.int32]
ID_BYTES: Final = 4
NO_PAGES: Final[Pages] = np.frombuffer(b"", np.int32)


class Node:
    """The tokens at [start, end) of every sequence that runs through it, and one page for each `page_size` of them.

    `live`: its sliding-window KV is there; where not, it is a tombstone and only its full-attention KV is. Locks are
    counted; `full_lock` is that of the whole path above a lock, `swa_lock` that of the part within the window.

    Ids are kept as int32 bytes: a slice of bytes is a copy, so that an edge never pins the prompt that it came from,
    and equal edges are compared at the speed of memory.
    """

    __slots__ = (
        "children", "end", "full_lock", "full_use", "live", "number", "page_bytes", "parent", "size", "swa_lock",
        "swa_use", "token_bytes",
    )  # fmt: skip

    def __init__(
        self, number: int, parent: Node | None, end: int, token_bytes: bytes, page_bytes: bytes, live: bool
    ) -> None:
        self.number = number
        self.parent = parent
        self.end = end
        self.size = len(token_bytes) // ID_BYTES
        self.token_bytes = token_bytes
        self.page_bytes = page_bytes
        self.live = live
        self.full_lock = self.swa_lock = 0
        self.children: dict[bytes, Node] | None = None
        self.full_use, self.swa_use = Use(self), Use(self)

    @property
    def start(self) -> int:
        """Position of its first token."""
        return self.end - self.size

    @property
    def tokens(self) -> TokenIds:
        """Its token ids, int32 `[size]`, read only."""
        return np.frombuffer(self.token_bytes, np.int32)

    @property
    def pages(self) -> Pages:
        """Its pages, int32 `[size / page_size]`, read only."""
        return np.frombuffer(self.page_bytes, np.int32)


class Use:
    """A node's place in one order; `newer` is None while it has none."""

    __slots__ = ("newer", "node", "older")

    def __init__(self, node: Node | None) -> None:
        self.node = node
        self.older: Use | None = None
        self.newer: Use | None = None


class Order:
    """Nodes from the least to the most recently used one; every change costs O(1)."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends = ends = Use(None)
        ends.older = ends.newer = ends

    def oldest(self) -> Node | None:
        """The least recently used node."""
        assert self._ends.newer is not None
        return self._ends.newer.node

    def add(self, use: Use) -> None:
        """Enter as the most recently used one."""
        self._between(self._ends.older, use, self._ends)

    def add_newer(self, use: Use, than: Use) -> None:
        """Enter just after another."""
        self._between(than, use, than.newer)

    def add_older(self, use: Use, than: Use) -> None:
        """Enter just before another."""
        self._between(than.older, use, than)

    def remove(self, use: Use) -> None:
        """Leave the order."""
        older, newer = use.older, use.newer
        assert older is not None
        assert newer is not None
        older.newer, newer.older = newer, older
        use.older = use.newer = None

    def __iter__(self) -> Iterator[Node]:
        use = self._ends.newer
        while use is not None and use.node is not None:
            yield use.node
            use = use.newer

    def _between(self, older: Use | None, use: Use, newer: Use | None) -> None:
        assert older is not None
        assert newer is not None
        use.older, use.newer = older, newer
        older.newer = newer.older = use


def common(one: bytes, other: bytes) -> int:
    """How many ids both begin with."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length // ID_BYTES
    first, second = (np.frombuffer(each, np.int32, length // ID_BYTES) for each in (one, other))
    return int((first != second).argmax())


def joined(parts: Iterable[bytes]) -> Pages:
    """Pages of several nodes, one after the other; read only."""
    data = b"".join(parts)
    return np.frombuffer(data, np.int32) if data else NO_PAGES
