"""The locks of a radix tree: what a running request keeps of its path."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvlab.errors import InvalidInput, StaleHandle
from kvlab.events import EventLog
from kvlab.memory.radix_node import ID_BYTES, Node, Pages, joined
from kvlab.memory.radix_results import Held, Lock, Match, id_bytes
from kvlab.memory.radix_spans import RadixSpans
from kvlab.workload import Salt, TokenIds


class RadixLocks(RadixSpans):
    """Nodes that handles keep: in the full pool the whole path, in the SWA pool whole nodes until the window is
    covered."""

    def __init__(self, page_size: int, window_tokens: int | None, log: EventLog | None) -> None:
        super().__init__(page_size, log)
        self.window_tokens = window_tokens
        self._locks: dict[int, Held] = {}
        self._lock_numbers = 0

    def lock(self, tokens: Sequence[int] | TokenIds, salt: Salt = None, *, trim: bool = False) -> Lock:
        """Keep the path of a matched prefix. With `trim`, the node in which the window begins is split there, so that
        no more than the window (in whole pages) has its SWA KV locked.

        Raises `InvalidInput`, nothing changed, where `match` would not return all of `tokens`.
        """
        ids = id_bytes(tokens)
        wanted = len(ids) // ID_BYTES
        if wanted % self.page_size:
            raise InvalidInput(f"a lock of {wanted} tokens does not end with a page of {self.page_size}")
        steps = self._path(ids, salt)
        there = sum(same for _, same in steps)
        if there < wanted:
            raise InvalidInput(f"the tree holds {there} of the {wanted} tokens to lock")
        return self._lock(steps[-1][0] if steps else None, wanted, trim)

    def lock_match(self, found: Match, *, trim: bool = False) -> Lock:
        """`lock` of what `match` found, without walking down again. Raises `StaleHandle`, nothing changed, where it
        was evicted since."""
        node = found.node
        if node is not None and node.parent is None:
            raise StaleHandle(f"the {found.tokens} tokens found were evicted since; match again")
        try:
            return self._lock(node, found.tokens, trim)
        except InvalidInput as error:
            raise StaleHandle(f"{error}: the window was evicted since the match; match again") from error

    def _lock(self, node: Node | None, wanted: int, trim: bool) -> Lock:
        """Lock the first `wanted` tokens of the path to `node`, which reaches there."""
        number = self._lock_numbers
        if node is None:
            self._lock_numbers += 1
            self._locks[number] = None, 0
            return Lock(number, 0, 0)
        window, start = self.window_tokens or 0, node.end - node.size
        while start >= wanted:
            node = node.parent
            assert node is not None
            start = node.end - node.size
        needed, each = max(0, wanted - window) if window else wanted, node
        while each.end > needed and each.parent is not None:
            if not each.live:
                raise InvalidInput(
                    f"only {wanted - each.end} tokens before position {wanted} are live, the window needs "
                    f"{min(window, wanted)}"
                )
            each = each.parent
        if node.end > wanted:
            node = self._split(node, wanted - start)
        if trim:
            self._cut(node, (wanted - window) // self.page_size * self.page_size)
        swa_from = self._take(node)
        self._lock_numbers += 1
        self._locks[number] = node, swa_from
        if self.log is not None:
            self.log.write("lock", node.number, swa_from)
        return Lock(number, wanted, swa_from)

    def _take(self, node: Node) -> int:
        """Count one more lock on the path to `node`; from where on its SWA KV is locked, too."""
        covered, window = 0, self.window_tokens or 0
        swa_from, each, above = node.end, node, node.parent
        while above is not None:
            if each.full_lock == 0:
                size = each.size
                self._full_order.remove(each.full_use)
                self.full_evictable -= size
                self.full_protected += size
            each.full_lock += 1
            if covered < window:
                size = each.size
                if each.swa_lock == 0:
                    self._swa_order.remove(each.swa_use)
                    self.swa_evictable -= size
                    self.swa_protected += size
                each.swa_lock += 1
                covered += size
                swa_from = each.end - size
            each, above = above, above.parent
        return swa_from

    def lock_takes(self, tokens: Sequence[int] | TokenIds, salt: Salt = None, *, trim: bool = False) -> tuple[int, int]:
        """How many evictable tokens of each pool (full, SWA) locking this matched prefix would protect."""
        ids = id_bytes(tokens)
        end, full, swa, covered = len(ids) // ID_BYTES, 0, 0, 0
        window = self.window_tokens or 0
        floor = (end - window) // self.page_size * self.page_size if trim else 0
        for node, same in reversed(self._path(ids, salt)):
            full += 0 if node.full_lock else same
            if covered < window:
                taken = min(same, end - max(floor, 0))
                swa += 0 if node.swa_lock else taken
                covered += taken
            end -= same
        return full, swa

    def readable(self, readers: Iterable[tuple[Lock, int]]) -> int:
        """Tokens of locked paths that at least one of the readers, (lock, first position it reads), still reads."""
        firsts: dict[int, tuple[Node, int]] = {}
        for lock, first in readers:
            node = self._held(lock)[0]
            while node is not None and node.parent is not None and node.end > first:
                known = firsts.get(node.number)
                firsts[node.number] = node, first if known is None else min(first, known[1])
                node = node.parent
        return sum(node.end - max(node.start, first) for node, first in firsts.values())

    def unlock(self, lock: Lock) -> None:
        """Give a lock back: what nobody else locks can be evicted, as the most recently used.

        Raises `InvalidInput` for what is no lock, `StaleHandle` for one that is not (any more) this tree's.
        """
        node, swa_from = self._held(lock)
        del self._locks[lock.number]
        if node is None:
            return
        if self.log is not None:
            self.log.write("unlock", node.number, swa_from)
        freed: list[Node] = []
        above = node.parent
        while above is not None:
            node.full_lock -= 1
            if node.full_lock == 0:
                size = node.size
                self._full_order.add(node.full_use)
                self.full_evictable += size
                self.full_protected -= size
            if node.end > swa_from:
                node.swa_lock -= 1
                if node.swa_lock == 0:
                    freed.append(node)
            node, above = above, above.parent
        for each in reversed(freed):
            size = each.size
            self._swa_order.add(each.swa_use)
            self.swa_evictable += size
            self.swa_protected -= size

    def _held(self, lock: Lock) -> Held:
        if not isinstance(lock, Lock):
            raise InvalidInput(f"unlocking needs the handle that lock() returned, not {lock!r}")
        held = self._locks.get(lock.number)
        if held is None or held[1] != lock.swa_from or (held[0].end if held[0] else 0) != lock.tokens:
            raise StaleHandle(f"{lock} is not held: it was given back already, or another tree gave it")
        return held

    def pages(self, lock: Lock) -> Pages:
        """The pages of a locked path, int32 `[lock.tokens / page_size]`."""
        node, found = self._held(lock)[0], []
        while node is not None and node.parent is not None:
            found.append(node.page_bytes)
            node = node.parent
        return joined(reversed(found))
