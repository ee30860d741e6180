"""PagedAttention with a prefix cache: full blocks are named by a hash chain and found again after they were freed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvlab.errors import InvalidInput, require
from kvlab.events import EventLog, to_ranges
from kvlab.memory.block_pool import Reuse
from kvlab.memory.block_table import BlockTable
from kvlab.memory.caching_pool import CachingPool
from kvlab.memory.hash_chain import ID_BYTES, Chain, Wanted, id_bytes, root
from kvlab.memory.host_swap import HostSwap
from kvlab.policies.base import Admission, ReleaseReason, TokenList
from kvlab.policies.paged import Paged
from kvlab.shapes import LayerGroup
from kvlab.workload import Request, RequestId


class PrefixStats(NamedTuple):
    """Totals over all admissions: tokens asked for and found in the cache; blocks that lost their prefix."""

    queried_tokens: int
    hit_tokens: int
    evicted_blocks: int

    @property
    def hit_rate(self) -> float:
        """Found / asked for; 0 before the first admission."""
        return self.hit_tokens / self.queried_tokens if self.queried_tokens else 0.0


class PagedPrefix(Paged):
    """`Paged`, and an admission takes over the blocks of the longest cached prefix of its tokens.

    A block is registered at the commit that fills it, under a digest of its tokens, the block before it and the
    request's salt. It stays when its last holder goes: cached, and evicted when no other block is free, tails first.
    A hit is capped at `(known - 1) // block_size` blocks: the last token is always computed, because its logits are
    needed. Blocks of equal content that were written separately stay separate; a lookup finds the first of them.

    Samples of one prompt share its full blocks through the cache, or all of it by `fork` as in `Paged`. There is no
    swapping: a preempted request finds its own blocks again unless they were evicted meanwhile.

    Source: vLLM's automatic prefix caching.
    """

    pool: CachingPool
    reads_tokens = True

    def __init__(
        self,
        groups: Sequence[LayerGroup],
        capacity_tokens: int,
        *,
        block_size: int = 16,
        watermark_blocks: int = 0,
        order: Sequence[int] | None = None,
        log: EventLog | None = None,
    ) -> None:
        super().__init__(
            groups, capacity_tokens, block_size=block_size, watermark_blocks=watermark_blocks, order=order, log=log
        )
        self._chains: dict[RequestId, Chain] = {}
        self._wanted = Wanted()
        self._queried_tokens = self._hit_tokens = 0

    def _new_pool(self, blocks: int, reuse: Reuse, order: Sequence[int] | None) -> CachingPool:
        return CachingPool(blocks, order=order, log=self.log)

    @property
    def stats(self) -> PrefixStats:
        """What the cache has been good for so far."""
        return PrefixStats(self._queried_tokens, self._hit_tokens, self.pool.evicted)

    def peek(self, request: Request) -> int:
        """The tokens that admitting the request now would find in the cache; changes nothing."""
        return len(self._hits(request)) * self.block_size

    def _hits(self, request: Request) -> list[int]:
        wanted = self._wanted
        if wanted.request is not request:
            wanted = self._wanted = Wanted(request, self.block_size)
        most = (request.known_tokens - 1) // self.block_size
        find, digests, hits = self.pool.prefixes.find, wanted.digests, []
        for index in range(1, most + 1):
            if index == len(digests):
                wanted.more(request, most)
            block = find(digests[index])
            if block is None:
                break
            hits.append(block)
        return hits

    def admit(self, request: Request) -> Admission | None:
        """See `Policy.admit`: the cached prefix is taken now, other blocks as the rest is extended.

        Blocks found that nobody holds come out of the free ones, so there must be room for them too.
        """
        self._refuse_for_good(request)
        hits, size, cached = self._hits(request), self.block_size, self.pool.cached_blocks
        if self._blocks_taken(request, hits) + self._watermark() > self.pool.free_blocks:
            return None
        self.pool.touch(hits)
        table = BlockTable(self.pool, size)
        table.replace(hits, len(hits) * size)
        self.books.filled_slots += (cached - self.pool.cached_blocks) * size
        self._chains[request.rid] = Chain(self._wanted.digests[len(hits)])
        self._wanted = Wanted()
        self._queried_tokens += request.known_tokens
        self._hit_tokens += table.tokens
        admission = self._enter(request, table)
        if self.log is not None and hits:
            self.log.write("grow", request.rid, "full", to_ranges(hits))
        return admission

    def _blocks_taken(self, request: Request, hits: Sequence[int]) -> int:
        """Free blocks that admitting and prefilling takes: new ones, and hits that nobody holds."""
        held = sum(self.pool.references[block] > 0 for block in hits)
        return self.slots_needed(request) // self.block_size - held

    def commit(self, rid: RequestId, token_ids: TokenList) -> None:
        """See `Policy.commit`: the blocks that these tokens fill are registered."""
        holding, ids = self._holding(rid), id_bytes(token_ids)
        first = holding.committed // self.block_size
        super().commit(rid, token_ids)
        full = holding.committed // self.block_size
        chain = self._chains[rid]
        chain.pending += ids
        if full > first:
            filled = (full - first) * self.block_size * ID_BYTES
            blocks = holding.table.blocks[first:full]
            chain.digest = self.pool.register(blocks, chain.digest, chain.pending[:filled])
            chain.pending = chain.pending[filled:]

    def fork(self, parent: RequestId, child: Request) -> None:
        """See `Paged.fork`. Raises `InvalidInput` where the child's salt is another."""
        salt = self._holding(parent).request.salt
        if salt != child.salt:
            raise InvalidInput(
                f"request {child.rid!r} has the salt {child.salt!r} and cannot share the blocks of {parent!r}, "
                f"whose salt is {salt!r}; admit it instead"
            )
        super().fork(parent, child)
        self._chains[child.rid] = self._chains[parent].copy()

    def release(self, rid: RequestId, reason: ReleaseReason) -> None:
        """See `Policy.release`: registered blocks that nobody else holds stay cached."""
        super().release(rid, reason)
        del self._chains[rid]

    def _host(self) -> HostSwap:
        raise InvalidInput(
            f"{type(self).__name__} cannot swap; preempt by recomputing: what is still cached is found again"
        )

    def audit(self) -> None:
        """See `Policy.audit`: each table's full blocks are registered in one chain, and no other block of it is."""
        super().audit()
        require(set(self._chains) == set(self._held), "a request has no chain, or a chain no request")
        entries, size = self.pool.prefixes.entries, self.block_size
        for rid, holding in self._held.items():
            chain, digest = self._chains[rid], root(holding.request.salt)
            full = holding.committed // size
            for index, block in enumerate(holding.table.blocks):
                entry = entries.get(block)
                if index >= full:
                    require(entry is None, f"block {block} is registered but not full of committed tokens")
                    continue
                require(
                    entry is not None and entry.parent == digest and len(entry.ids) == size * ID_BYTES,
                    f"entry {index} of the table of {rid!r} is not registered after the one before it",
                )
                digest = entries[block].digest
            require(
                chain.digest == digest and len(chain.pending) == (holding.committed - full * size) * ID_BYTES,
                f"the chain of {rid!r} is not where its tokens are",
            )
