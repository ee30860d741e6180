"""The servers before paging: one contiguous reservation a request, held from its first token to its last.

Orca's three variants as Kwon et al. 2023 (section 6.1) define them: they differ in how much they reserve. Regions are
placed by a buddy allocator; what its rounding costs counts as external fragmentation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal

from kvlab.errors import InvalidInput, NeverFits, OutOfMemory, positive, require
from kvlab.events import EventLog
from kvlab.memory import contiguous as memory
from kvlab.policies.base import (
    Admission,
    Extension,
    Holding,
    PolicyBase,
    Pool,
    ReleaseReason,
    TokenList,
    Usage,
    checked_commit,
    checked_reason,
)
from kvlab.policies.layout import Layout, Region, Slots
from kvlab.shapes import LayerGroup
from kvlab.workload import Request, RequestId

Placement = Literal["buddy", "first-fit"]
_ALLOCATORS: dict[str, Callable[[int], memory.RegionAllocator]] = {
    "buddy": memory.Buddy,
    "first-fit": memory.FirstFit,
}


class RegionHolding(Holding):
    """A holding with its region."""

    __slots__ = ("region",)

    def __init__(self, request: Request, region: memory.Region, committed: int = 0) -> None:
        super().__init__(request, committed)
        self.region = region


class Contiguous(PolicyBase[RegionHolding], ABC):
    """Common to the three: `reservation(request)` says how many slots a request asks for.

    `capacity_tokens` slots in one pool named "full"; `max_model_tokens` is the longest sequence the model can hold.
    """

    def __init__(
        self,
        groups: Sequence[LayerGroup],
        capacity_tokens: int,
        *,
        max_model_tokens: int,
        placement: Placement = "buddy",
        log: EventLog | None = None,
    ) -> None:
        super().__init__(groups, log)
        if placement not in _ALLOCATORS:
            raise InvalidInput(f"placement must be one of {', '.join(_ALLOCATORS)}, not {placement!r}")
        self.max_model_tokens = positive("max_model_tokens", max_model_tokens)
        self.regions: memory.RegionAllocator = _ALLOCATORS[placement](positive("capacity_tokens", capacity_tokens))
        if log is not None:
            log.write("header", type(self).__name__, (("full", capacity_tokens, 1, self.bytes_per_token, ()),))

    @abstractmethod
    def reservation(self, request: Request) -> int:
        """Slots reserved for the request's whole life."""

    def pools(self) -> dict[str, Pool]:
        """See `Policy.pools`: a region may begin at any slot."""
        return {"full": Pool(self.regions.slots, 1)}

    def slots_needed(self, request: Request) -> int:
        """See `Policy.slots_needed`: the reservation, as the allocator rounds it."""
        return self.regions.rounded(self.reservation(request))

    def admit(self, request: Request) -> Admission | None:
        """See `Policy.admit`."""
        self._refuse_admitted(request.rid)
        asked = self.reservation(request)
        if request.limit_tokens > self.max_model_tokens or self.regions.rounded(asked) > self.regions.largest_region():
            raise NeverFits(
                f"request {request.rid!r} may reach {request.limit_tokens} tokens and reserves "
                f"{self.regions.rounded(asked)} slots; the model holds {self.max_model_tokens} tokens and the largest "
                f"region {self.regions.largest_region()} slots"
            )
        if not self.regions.can_allocate(asked):
            return None
        region = self.regions.allocate(asked)
        request.computed = 0
        self._take(RegionHolding(request, region))
        if self.log is not None:
            self.log.write("admit", request.rid, request.known_tokens, request.final_tokens, 0)
            self.log.write("region", request.rid, "full", region.start, region.asked, region.size)
        return Admission(0)

    def _take(self, holding: RegionHolding) -> None:
        holding.limit = holding.committed
        self._held[holding.request.rid] = holding

    def extend(self, rid: RequestId, count: int) -> Extension:
        """See `Policy.extend`; the whole reservation is quiet."""
        holding = self._holding(rid)
        holding.settled("extend")
        stop = holding.committed + positive("tokens to extend by", count)
        if stop > holding.region.asked:
            raise OutOfMemory(f"request {rid!r} asks for token {stop} of a reservation of {holding.region.asked}")
        holding.granted = stop
        holding.limit = holding.region.asked

        def slots_of(start: int, end: int) -> tuple[Slots, ...]:
            return tuple(Region(holding.region.start, start, end).slots() for _ in self.groups)

        return Extension(holding.committed, count, holding.limit - stop, slots_of)

    def commit(self, rid: RequestId, token_ids: TokenList) -> None:
        """See `Policy.commit`."""
        holding = self._holding(rid)
        stop = checked_commit(holding, token_ids)
        if stop < holding.granted:
            holding.limit = stop
        holding.committed = holding.granted = holding.request.computed = stop

    def layout(self, rid: RequestId) -> tuple[Layout, ...]:
        """See `Policy.layout`: one region for every group, live from the group's window on."""
        holding = self._holding(rid)
        end = holding.request.computed
        return tuple(Region(holding.region.start, group.first_readable(end), end) for group in self.groups)

    def fork(self, parent: RequestId, child: Request) -> None:
        """See `Policy.fork`: the child takes a region of its own and everything is copied into it."""
        holding = self._holding(parent)
        self._refuse_admitted(child.rid)
        holding.settled("fork")
        region = self.regions.allocate(max(self.reservation(child), holding.committed))
        child.computed = holding.committed
        self._take(RegionHolding(child, region, holding.committed))
        holding.limit = holding.committed
        if holding.committed:
            self._move("full", holding.region.start, "full", region.start, holding.committed, "fork")
        if self.log is not None:
            self.log.write("fork", parent, child.rid)
            self.log.write("region", child.rid, "full", region.start, region.asked, region.size)

    def release(self, rid: RequestId, reason: ReleaseReason) -> None:
        """See `Policy.release`."""
        holding = self._holding(rid)
        checked_reason(reason)
        self.regions.free(holding.region.start)
        del self._held[rid]
        holding.request.computed = 0
        if self.log is not None:
            self.log.write("release", rid, reason)

    def usage(self, pending_tokens: int | None = None) -> dict[str, Usage]:
        """See `Policy.usage`; `pending_tokens` is the region the next request needs."""
        used = {"live": 0, "dead": 0, "reserved": 0, "internal": 0}
        rounding = 0
        for holding in self._held.values():
            computed, asked = holding.request.computed, holding.region.asked
            final = min(asked, max(computed, holding.request.final_tokens))
            dead = sum(g.bytes_per_token * g.first_readable(computed) for g in self.groups)
            used["live"] += computed * self.bytes_per_token - dead
            used["dead"] += dead
            used["reserved"] += (final - computed) * self.bytes_per_token
            used["internal"] += (asked - final) * self.bytes_per_token
            rounding += holding.region.rounding
        holes = self.regions.holes()
        too_small = sum(hole.size for hole in holes if pending_tokens is not None and hole.size < pending_tokens)
        free = sum(hole.size for hole in holes) - too_small
        scale = self.bytes_per_token
        return {"full": Usage(**used, cached=0, external=(rounding + too_small) * scale, free=free * scale)}

    def audit(self) -> None:
        """See `Policy.audit`."""
        self.regions.audit()
        owner: dict[int, RequestId] = {}
        for rid, holding in self._held.items():
            request = holding.request
            require(
                holding.committed <= request.computed <= holding.limit and holding.granted <= holding.region.asked,
                f"request {rid!r} has {request.computed} tokens computed, {holding.committed} committed and a limit of "
                f"{holding.limit} in a region of {holding.region.asked}",
            )
            for slot in range(holding.region.start, holding.region.start + holding.region.size):
                require(slot not in owner, f"slot {slot} belongs to {owner.get(slot)!r} and {rid!r}")
                owner[slot] = rid
        free = sum(hole.size for hole in self.regions.holes())
        require(len(owner) + free == self.regions.slots, f"{len(owner)} owned + {free} free slots are not all")
        for pool, usage in self.usage().items():
            require(min(usage) >= 0, f"a term of the accounting of pool {pool!r} is negative: {usage}")
            require(
                usage.capacity == self.regions.slots * self.bytes_per_token,
                f"the accounting of pool {pool!r} adds up to {usage.capacity} bytes",
            )


class ContiguousMax(Contiguous):
    """Reserves the longest sequence the model can hold."""

    def reservation(self, request: Request) -> int:
        """`max_model_tokens`, whatever the request."""
        return self.max_model_tokens


class ContiguousPow2(Contiguous):
    """Reserves the prompt and the output rounded up to a power of two (at most twice what will be needed)."""

    def reservation(self, request: Request) -> int:
        """Prompt + the next power of two of the true output, or of `max_tokens` where that isn't known."""
        output = request.final_tokens - request.prompt_tokens
        return min(self.max_model_tokens, request.prompt_tokens + (1 << (output - 1).bit_length()))


class ContiguousOracle(Contiguous):
    """Reserves exactly what the request will need, as if the output length were known in advance."""

    def reservation(self, request: Request) -> int:
        """Prompt + true output (`max_tokens` where it isn't known)."""
        return request.final_tokens
