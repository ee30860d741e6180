"""The plainest accounting: who owns each slot, what is in it, and what that leaves for others. Nothing incremental."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvlab.policies.base import Usage
from kvlab.policies.layout import Layout, Region, Ring, Table
from kvlab.shapes import LayerGroup
from kvlab.workload import Request, RequestId
from support.cases import PolicyCase, Pool
from support.contiguous_machine import free_buddies, runs_of_free

LIVE, DEAD, RESERVED, INTERNAL, EXTERNAL = range(5)


class Owner(NamedTuple):
    """An admitted request as the tests know it: how many tokens it has and where the policy says they lie."""

    request: Request
    computed: int
    layouts: tuple[Layout, ...]


@dataclass(frozen=True)
class Books:
    """The state of all pools, worked out from the layouts alone."""

    case: PolicyCase
    groups: tuple[LayerGroup, ...]
    owners: Mapping[RequestId, Owner]
    registered: Collection[int] = ()
    _terms: dict[str, dict[int, int]] = field(default_factory=dict)

    def term(self, owner: Owner, group: LayerGroup, position: int) -> int:
        """What the slot of a position is to its owner."""
        if position < owner.computed:
            return LIVE if position >= group.first_readable(owner.computed) else DEAD
        return RESERVED if position < owner.request.final_tokens else INTERNAL

    def slots(self, owner: Owner, group: LayerGroup, layout: Layout) -> Iterator[tuple[int, int]]:
        """(slot, term) for everything the owner holds in this group's pool."""
        match layout:
            case Table():
                for index, block in enumerate(layout.blocks):
                    for offset in range(layout.block_size):
                        position = index * layout.block_size + offset
                        yield block * layout.block_size + offset, self.term(owner, group, position)
            case Ring():
                for offset in range(layout.window_tokens):
                    written = range(offset, owner.computed, layout.window_tokens)
                    position = written[-1] if written else offset
                    yield layout.first_slot + offset, self.term(owner, group, position)
            case Region():
                assert self.case.asked is not None
                asked = self.case.asked(owner.request)
                for position in range(self.case.taken(owner.request)):
                    term = self.term(owner, group, position) if position < asked else EXTERNAL
                    yield layout.first_slot + position, term

    def terms(self, group: LayerGroup) -> dict[int, int]:
        """Slot -> the first term that applies to it for any of its owners; worked out once."""
        if group.name in self._terms:
            return self._terms[group.name]
        found = self._terms[group.name] = {}
        for owner in self.owners.values():
            layout = owner.layouts[self.groups.index(group)]
            for slot, term in self.slots(owner, group, layout):
                found[slot] = min(term, found.get(slot, term))
        return found

    def owned(self, pool: str) -> set[int]:
        """Slots of the pool that somebody holds."""
        return {slot for group in self.groups if group.pool == pool for slot in self.terms(group)}

    def free_units(self, pool: str) -> int:
        """Whole free blocks or rings."""
        size = self.case.pools[pool]
        return size.slots // size.unit - len({slot // size.unit for slot in self.owned(pool)})

    def cached_blocks(self, pool: str) -> int:
        """Registered blocks that nobody owns; they are among the free ones."""
        owned = {slot // self.case.pools[pool].unit for slot in self.owned(pool)}
        return len(set(self.registered) - owned)

    def holes(self, pool: str) -> list[int]:
        """Sizes of what one region could still take."""
        size = self.case.pools[pool]
        owned = self.owned(pool)
        slots = [0 if slot in owned else None for slot in range(size.slots)]
        return [hole.size for hole in (free_buddies if size.placement == "buddy" else runs_of_free)(slots)]

    def usage(self, pool: str, pending_tokens: int | None) -> Usage:
        """The accounting identity of one pool."""
        size = self.case.pools[pool]
        groups = [group for group in self.groups if group.pool == pool]
        found = [0] * 5
        for group in groups:
            for term, count in Counter(self.terms(group).values()).items():
                found[term] += count * group.bytes_per_token
        scale = sum(group.bytes_per_token for group in groups)
        slack = size.slots % size.unit
        if size.placement != "blocks" and pending_tokens is not None:
            slack = sum(hole for hole in self.holes(pool) if hole < pending_tokens)
        external = found[EXTERNAL] + slack * scale
        cached = self.cached_blocks(pool) * size.unit * scale if self.registered else 0
        free = size.slots * scale - sum(found[:EXTERNAL]) - external - cached
        return Usage(*found[:EXTERNAL], cached=cached, external=external, free=free)

    def holders(self, block: int) -> int:
        """How many tables name a block."""
        return sum(
            block in each.blocks for o in self.owners.values() for each in o.layouts[:1] if isinstance(each, Table)
        )

    def room_to_extend(self, owner: Owner, count: int) -> bool:
        """Whether `count` more tokens have a place."""
        stop = owner.computed + count
        layout = owner.layouts[0]
        if isinstance(layout, Region):
            assert self.case.asked is not None
            return stop <= self.case.asked(owner.request)
        assert isinstance(layout, Table)
        size = layout.block_size
        needed = -(-stop // size) - len(layout.blocks)
        copied = owner.computed % size > 0 and self.holders(layout.blocks[-1]) > 1
        return needed + copied <= self.free_units("full")

    def quiet_after(self, owner: Owner) -> int:
        """Tokens that fit after the extended ones without another call, from the layout after the extension."""
        layout = owner.layouts[0]
        if isinstance(layout, Region):
            assert self.case.asked is not None
            return self.case.asked(owner.request)
        assert isinstance(layout, Table)
        return len(layout.blocks) * layout.block_size

    def room_to_fork(self, parent: Owner, child: Request) -> bool:
        """Whether what a fork copies has a place."""
        return all(
            any(hole >= self.case.taken(child) for hole in self.holes(group.pool))
            if isinstance(layout, Region)
            else not isinstance(layout, Ring) or self.free_units(group.pool) > 0
            for group, layout in zip(self.groups, parent.layouts, strict=True)
        )

    def room_to_admit(self, request: Request, hits: Sequence[int] = ()) -> bool:
        """Whether a request can come in now that finds `hits` in the cache: it takes those that nobody holds, too."""
        if self.case.asked is not None:
            return any(hole >= self.case.taken(request) for hole in self.holes("full"))
        needed = -(-request.known_tokens // self.case.pools["full"].unit)
        needed -= sum(self.holders(block) > 0 for block in hits)
        watermark = self.case.watermark if self.owners else 0
        others = all(self.free_units(pool) > 0 for pool in self.case.pools if pool != "full")
        return others and needed + watermark <= self.free_units("full")


def host_usage(host: Pool, tables: Iterable[tuple[list[int], int]], bytes_per_token: int) -> Usage:
    """The accounting of host memory: whole blocks of swapped-out tables, filled as far as their tokens go."""
    filled: dict[int, int] = {}
    for blocks, tokens in tables:
        for index, block in enumerate(blocks):
            filled[block] = min(host.unit, tokens - index * host.unit)
    slack, held = host.slots % host.unit, len(filled) * host.unit
    live = sum(filled.values())
    free = host.slots - slack - held
    terms = (live, 0, 0, held - live, 0, slack, free)
    return Usage(*(each * bytes_per_token for each in terms))
