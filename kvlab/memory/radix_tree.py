"""A radix tree of cached prefixes whose sliding-window KV can die before its full-attention KV."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvlab.errors import InvalidInput, positive
from kvlab.events import EventLog
from kvlab.memory.radix_audit import audit
from kvlab.memory.radix_locks import RadixLocks
from kvlab.memory.radix_node import ID_BYTES, NO_PAGES, Node, Pages, joined
from kvlab.memory.radix_results import Evicted, Inserted, Lock, Match, id_bytes
from kvlab.memory.radix_snapshot import flat, restored
from kvlab.workload import Salt, TokenIds


class RadixTree(RadixLocks):
    """Prefixes of sequences, in nodes of whole pages. Pages are ids that the tree keeps and never looks into.

        position   0                    t          L
        full KV    [ node, a tombstone ][ node     ]      a match walks the full KV
        SWA KV       (dead)              live             and ends where the window behind it is live

    `match` changes nothing. A lock keeps a path from eviction, and the sliding-window (SWA) KV of its end: whole nodes,
    upward, until `window_tokens` are covered. Nodes split at the end of a lock and where an insert branches off, each
    half with a copy of its tokens. Two orders of use move at lock, unlock and insert: full eviction takes the least
    recently used leaf, SWA eviction the front of the least recently used live node. Without a window (None) every node
    is live and the tree is a plain radix cache.

    Every operation costs O(length + nodes on the path); evictions O(what goes). None grows with the tree.
    Source: SGLang's RadixAttention; article 002 for tombstones and islands.
    """

    def __init__(self, page_size: int, window_tokens: int | None, *, log: EventLog | None = None) -> None:
        window = None if window_tokens is None else positive("window_tokens", window_tokens)
        super().__init__(positive("page_size", page_size), window, log)

    # Looking

    def match(self, tokens: Sequence[int] | TokenIds, salt: Salt = None) -> Match:
        """The longest prefix that can be used: its full KV is cached, and its last `window_tokens` (or all) are live.

        Raises `InvalidInput` for what is not a flat list of integers.
        """
        window, page_bytes = self.window_tokens or 0, b""
        full = usable = run = 0
        dead, end = False, None
        for node, same in self._path(id_bytes(tokens), salt):
            start, full = full, full + same
            page_bytes += node.page_bytes
            if not node.live:
                dead = True
                continue
            if dead:
                run, dead = start, False
            if run == 0 or full - run >= window:
                usable, end = full, node
        return Match(usable, full, joined([page_bytes[: usable // self.page_size * ID_BYTES]]), end)

    # Growing

    def insert(
        self,
        tokens: Sequence[int] | TokenIds,
        pages: Sequence[int] | Pages,
        salt: Salt = None,
        *,
        owned_from: int = 0,
        dead_to: int = 0,
        kept: tuple[int, int] | None = None,
    ) -> Inserted:
        """Cache a computed prefix, one of `pages` for each page of its tokens.

            position    0 ........ owned_from ......... dead_to .............. len(tokens)
            the caller    the tree's         SWA freed        full and SWA KV
                                        kept: SWA KV, too

        From `owned_from` on the pages are the caller's. Where the tree has the tokens already they are `duplicates`:
        the tree keeps its own pages and takes over the SWA KV where its node was a tombstone and the caller's is live;
        the caller points its table at `pages` and frees them. The others become the tree's. `kept` is one more live
        span before `dead_to` (a branch-point island). If all is dead nothing is inserted.

        Raises `InvalidInput`, nothing changed, for positions that are not whole pages, an `owned_from` beyond what the
        tree has, and a live span shorter than the window, which no match could use.
        """
        ids, own = id_bytes(tokens), id_bytes(pages, "pages")
        length, size = len(ids) // ID_BYTES, self.page_size
        spans = self._spans(length, len(own) // ID_BYTES, owned_from, dead_to, kept)
        steps = self._path(ids, salt)
        there = sum(same for _, same in steps)
        if there < owned_from:
            raise InvalidInput(f"the tree has {there} of these tokens; from {owned_from} on they are not the caller's")
        if dead_to >= length:
            return Inserted(0, there, NO_PAGES, NO_PAGES, NO_PAGES, NO_PAGES)

        node = self._end_of(steps, salt)
        healed: list[Node] = []
        if there > owned_from:
            healed = [each for start, stop, live in spans if live for each in self._heal(node, start, min(stop, there))]
        self._touch(node)
        for start, stop, live in spans:
            if stop > there:
                start = max(start, there)
                part = own[start // size * ID_BYTES : stop // size * ID_BYTES]
                node = self._grow(node, ids[start * ID_BYTES : stop * ID_BYTES], part, live)
        mine = np.frombuffer(own, np.int32)
        if there <= owned_from:
            return Inserted(length, there, mine[owned_from // size :], NO_PAGES, NO_PAGES, NO_PAGES)
        return Inserted(
            length,
            there,
            self._pages_from(node, owned_from),
            mine[owned_from // size : there // size],
            joined([each.page_bytes for each in healed]),
            joined([mine[each.start // size : each.end // size].tobytes() for each in healed]),
        )

    def _spans(
        self, length: int, pages: int, owned_from: int, dead_to: int, kept: tuple[int, int] | None
    ) -> list[tuple[int, int, bool]]:
        """What the caller owns, as (start, stop, live)."""
        window, (first, last) = self.window_tokens or 0, kept or (0, 0)
        page = self.page_size
        if length % page or owned_from % page or dead_to % page or first % page or last % page:
            raise InvalidInput(
                f"{length} tokens, owned from {owned_from}, dead to {dead_to}, kept {kept} are not all whole pages "
                f"of {self.page_size}"
            )
        if pages * self.page_size != length or not 0 <= owned_from <= length or not 0 <= first <= last <= dead_to:
            raise InvalidInput(
                f"{pages} pages of {self.page_size} for {length} tokens, owned from {owned_from}, dead to {dead_to}, "
                f"kept {kept}: positions must lie within the tokens, the kept ones before dead_to"
            )
        if dead_to <= owned_from:
            return [(owned_from, length, True)] if owned_from < length else []
        runs = [(first, length)] if first < last == dead_to else [(first, last), (dead_to, length)]
        for start, stop in runs:
            if owned_from < start < stop and stop - start < window:
                raise InvalidInput(
                    f"live [{start}, {stop}) is shorter than the window of {window}: no match can use it"
                )
        cuts = [(0, first, False), (first, last, True), (last, dead_to, False), (dead_to, length, True)]
        return [(max(a, owned_from), b, live) for a, b, live in cuts if max(a, owned_from) < b]

    # Shrinking

    def evict_full(self, tokens: int) -> Evicted:
        """Drop least recently used leaves, and the tombstones that this leaves without children, until at least
        `tokens` tokens went; all that is not locked if that is less."""
        full: list[bytes] = []
        swa_tokens = gone = 0
        while gone < tokens and (leaf := self._full_order.oldest()) is not None:
            dropped = self._drop(leaf)
            full += [each.page_bytes for each in dropped]
            gone += sum(each.size for each in dropped)
            swa_tokens += sum(each.size for each in dropped if each.live)
        return Evicted(joined(full), NO_PAGES, gone, swa_tokens)

    def evict_swa(self, tokens: int) -> Evicted:
        """Free the SWA KV of at least `tokens` tokens: the front of the least recently used live node, in whole pages,
        becomes a tombstone. A leaf of which less than a window would stay live goes with its full KV. Less where less
        is unlocked."""
        size, window = self.page_size, self._window()
        full: list[bytes] = []
        swa: list[bytes] = []
        gone = full_tokens = 0
        while gone < tokens and (node := self._swa_order.oldest()) is not None:
            wanted = -(-(tokens - gone) // size) * size
            stays = node.size - wanted
            if not node.children and stays < max(window, 1):
                dropped = self._drop(node)
                full += [each.page_bytes for each in dropped]
                full_tokens += sum(each.size for each in dropped)
                gone += sum(each.size for each in dropped if each.live)
                continue
            if stays > 0:
                node = self._split(node, wanted)
            self._bury(node)
            swa.append(node.page_bytes)
            gone += node.size
        return Evicted(joined(full), joined(swa), full_tokens, gone)

    def bury_before(self, lock: Lock, position: int) -> Pages:
        """Make tombstones of the live, unlocked nodes of a locked path before `position`; the pages whose SWA KV the
        caller is to free."""
        self._window()
        node, swa = self._held(lock)[0], [b""]
        while node is not None and node.parent is not None:
            above = node.parent
            if node.live and node.swa_lock == 0 and node.start < position:
                part = self._split(node, position - node.start) if node.end > position else node
                self._bury(part)
                swa.append(part.page_bytes)
            node = above
        return joined(swa)

    def _window(self) -> int:
        if self.window_tokens is None:
            raise InvalidInput("this tree has no window, so it has no SWA KV to free; evict full KV")
        return self.window_tokens

    # The whole

    def audit(self) -> None:
        """Check nodes, locks, orders and sums against each other; `InvariantViolation` names what is broken."""
        audit(self)

    def __getstate__(self) -> dict[str, object]:
        return flat(self)

    def __setstate__(self, state: dict[str, object]) -> None:
        restored(self, state)
