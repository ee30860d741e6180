"""What a radix policy remembers of a request, and the accounting of its two pools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from kvlab.errors import require
from kvlab.memory.radix_results import Lock
from kvlab.memory.radix_snapshot import nodes_of
from kvlab.memory.radix_tree import RadixTree
from kvlab.memory.two_pools import NO_PAGE, TwoPools
from kvlab.policies.base import Holding, Usage
from kvlab.policies.layout import Slots, Table
from kvlab.shapes import LayerGroup
from kvlab.workload import Request, TokenIds

FULL: Final = "full"
SWA: Final = "swa"


class RadixHolding(Holding):
    """A request over a locked path of the tree.

        position  0 ........ lock.swa_from ... protected ... evicted ....... committed ... granted
        full      [------------ the tree's, locked ------][------------ the request's ----------]
        SWA         dead, or    [---- locked --------------] freed     [------- the request's ---]

    `protected` is the length of the locked path. `pages` and `swa` are the tables, -1 where the SWA page is not the
    request's to read; `generations` those of its own pages when it got them, 0 for the tree's. Until `prefill_tokens`
    are committed it is in its prompt. `island_at` is the length at its last insert, `branch_at` how much of its prompt
    the tree had the full KV of.
    """

    __slots__ = (
        "_ids", "branch_at", "evicted", "generations", "island_at", "lock", "pages", "prefill_tokens",
        "size", "swa",
    )  # fmt: skip

    def __init__(self, request: Request, lock: Lock, size: int, prefill_tokens: int) -> None:
        super().__init__(request, lock.tokens)
        self.lock = lock
        self.size = size
        self.prefill_tokens = prefill_tokens
        self.island_at = lock.tokens
        self.branch_at = self.evicted = 0
        self.pages: list[int] = []
        self.swa: list[int] = []
        self.generations: list[int] = []
        self._ids: TokenIds = np.empty(64, np.int32)

    @property
    def protected(self) -> int:
        """Tokens of the locked path."""
        return self.lock.tokens

    @property
    def own_swa_from(self) -> int:
        """Where the request's own SWA KV begins."""
        return max(self.lock.tokens, self.evicted)

    @property
    def own(self) -> tuple[list[int], list[int]]:
        """Its own pages and their generations."""
        first = self.lock.tokens // self.size
        return self.pages[first:], self.generations[first:]

    def ids(self, stop: int) -> TokenIds:
        """The first `stop` committed token ids."""
        return self._ids[:stop]

    def remember(self, start: int, token_ids: TokenIds) -> None:
        """These ids stand at positions from `start` on."""
        stop = start + len(token_ids)
        if stop > len(self._ids):
            grown = np.empty(max(stop, 2 * len(self._ids)), np.int32)
            grown[:start] = self._ids[:start]
            self._ids = grown
        self._ids[start:stop] = token_ids

    def table(self, group: LayerGroup, start: int, stop: int) -> Table:
        """The layout of positions [start, stop) in one group."""
        return Table(self.pages if group.pool == FULL else self.swa, self.size, start, stop)


def slots_of(holding: RadixHolding, groups: Sequence[LayerGroup], start: int, stop: int) -> tuple[Slots, ...]:
    """Slots of positions [start, stop) in each group's pool."""
    return tuple(holding.table(group, start, stop).slots() for group in groups)


class RadixBooks:
    """Counts the bytes of both pools from sums that the tree and the pools keep; costs O(admitted requests)."""

    def __init__(
        self, groups: Sequence[LayerGroup], tree: RadixTree, pools: TwoPools, capacities: dict[str, int]
    ) -> None:
        self.groups = groups
        self.tree = tree
        self.pools = pools
        self.size = pools.page_size
        self.capacities = capacities
        self.scales = Counter[str]()
        for group in groups:
            self.scales[group.pool] += group.bytes_per_token
        self.sliding = next((group for group in groups if group.pool == SWA), None)

    def usage(self, held: Collection[RadixHolding]) -> dict[str, Usage]:
        """The terms now. A page fits anywhere: only the slack behind the last page is external."""
        reserved = empty = computed = swa_computed = dead = 0
        first_read = self.sliding.first_readable if self.sliding is not None else (lambda length: 0)
        readers: list[tuple[Lock, int]] = []
        for each in held:
            length, request = each.request.computed, each.request
            hole = len(each.pages) * self.size - length
            empty += hole
            reserved += min(hole, max(0, request.final_tokens - length))
            computed += length - each.protected
            swa_computed += length - each.own_swa_from
            first = first_read(length)
            dead += max(0, first - each.own_swa_from)
            readers.append((each.lock, first))
        internal = empty - reserved
        tree, swa = self.tree, self.pools.swa
        terms = {
            FULL: (
                tree.full_protected + computed,
                0,
                reserved,
                internal,
                tree.full_evictable,
                self.pools.full.free_blocks,
            )
        }
        if swa is not None:
            read = tree.readable(readers)
            terms[SWA] = (
                read + swa_computed - dead, tree.swa_protected - read + dead, reserved, internal, tree.swa_evictable,
                swa.free_blocks,
            )  # fmt: skip
        return {pool: self._bytes(pool, *found) for pool, found in terms.items()}

    def _bytes(self, pool: str, live: int, dead: int, reserved: int, internal: int, cached: int, free: int) -> Usage:
        scale, blocks = self.scales[pool], self.pools.full if pool == FULL else self.pools.swa
        assert blocks is not None
        slack = self.capacities[pool] - blocks.blocks * self.size
        terms = (live, dead, reserved, internal, cached, slack, free * self.size)
        return Usage(*(each * scale for each in terms))

    # Counted again

    def audit(self, held: Collection[RadixHolding]) -> None:
        """Check tables, tree, pools and sums against each other; `InvariantViolation` names what is broken."""
        self.tree.audit()
        self.pools.audit()
        owner: dict[int, str] = {}
        for node in nodes_of(self.tree):
            for page in node.pages.tolist():
                owner[page] = f"node {node.number}"
                mapped = self.pools.swa_of[page] != NO_PAGE
                require(
                    self.pools.swa is None or mapped == node.live,
                    f"page {page} of node {node.number} {'has' if mapped else 'has no'} SWA page, "
                    f"and the node is {'live' if node.live else 'a tombstone'}",
                )
        for each in held:
            self._audit_holding(each)
            for page in each.own[0]:
                require(page not in owner, f"page {page} of {each.request.rid!r} is also that of {owner.get(page)}")
                owner[page] = f"request {each.request.rid!r}"
        in_use = {page for page, count in enumerate(self.pools.full.references) if count}
        require(set(owner) == in_use, f"pages {sorted(in_use ^ set(owner))} are held by nobody, or free and held")
        locks = {each.lock.number for each in held}
        require(len(locks) == len(held) and locks == set(self.tree._locks), "locks and requests do not pair up")
        usage, recounted = self.usage(held), self._recounted(held)
        require(usage == recounted, f"the books say {usage}, slot by slot it is {recounted}")
        for pool, found in usage.items():
            require(found.capacity == self.capacities[pool] * self.scales[pool], f"{pool}: {found} is not the pool")

    def _audit_holding(self, each: RadixHolding) -> None:
        name, size = f"request {each.request.rid!r}", self.size
        require(
            each.committed <= each.request.computed <= max(each.limit, each.committed) <= len(each.pages) * size,
            f"{name} has {each.committed} tokens committed, {each.request.computed} computed, a limit of {each.limit} "
            f"and pages for {len(each.pages) * size}",
        )
        require(len(each.pages) == len(each.swa) == len(each.generations), f"{name} has tables of different length")
        cut = each.protected // size
        require(each.pages[:cut] == self.tree.pages(each.lock).tolist(), f"{name} does not name the pages it locks")
        require(each.own[1] == self.pools.generations(each.own[0]), f"{name} holds a page from before it was freed")
        for index, (page, swa) in enumerate(zip(each.pages, each.swa, strict=True)):
            position = index * size
            kept = each.lock.swa_from <= position < each.protected or position >= each.own_swa_from
            require(
                swa == (self.pools.swa_of[page] if kept else NO_PAGE),
                f"entry {index} of the SWA table of {name} is {swa}; page {page} has {self.pools.swa_of[page]}",
            )
            require(
                self.pools.swa is None or not kept or swa != NO_PAGE,
                f"{name} can read position {position}: no SWA page",
            )

    def _recounted(self, held: Collection[RadixHolding]) -> dict[str, Usage]:
        terms: dict[str, dict[int, int]] = {pool: {} for pool in self.capacities}
        for each in held:
            for group in self.groups:
                found = terms[group.pool]
                first, length = group.first_readable(each.request.computed), each.request.computed
                table = each.pages if group.pool == FULL else each.swa
                for index, page in enumerate(table):
                    for position in range(index * self.size, (index + 1) * self.size) if page != NO_PAGE else ():
                        slot = page * self.size + position % self.size
                        if position < length:
                            term = 0 if position >= first else 1
                        else:
                            term = 2 if position < each.request.final_tokens else 3
                        found[slot] = min(term, found.get(slot, term))
        usage = {}
        for pool, found in terms.items():
            blocks = self.pools.full if pool == FULL else self.pools.swa
            assert blocks is not None
            counts = Counter(found.values())
            used = sum(1 for count in blocks.references if count) * self.size
            usage[pool] = self._bytes(
                pool, counts[0], counts[1], counts[2], counts[3], used - len(found), blocks.blocks - used // self.size
            )
        return usage
