"""Bugs planted into the prefix cache; the machines and the audits must catch every one."""

import hashlib
from collections.abc import Sequence
from typing import Any

import pytest
from support.cases import SMALL_CACHES
from support.machines import Bug, Counted, catches
from support.planted import (
    events_are_lost,
    fork_leaves_the_parents_quiet_run,
    moves_are_lost,
    quiet_is_one_too_large,
    refused_admission_touches_the_request,
)
from support.policy_machine import machine_of
from support.prefix_machine import PrefixMachine

from kvlab.memory import hash_chain
from kvlab.memory.block_pool import BlockPool
from kvlab.memory.caching_pool import CachingPool
from kvlab.memory.hash_chain import Chain, Digest, Prefixes
from kvlab.policies import prefix
from kvlab.policies.base import Admission, TokenList
from kvlab.policies.prefix import PagedPrefix
from kvlab.workload import Request, RequestId, Salt

Served = machine_of(SMALL_CACHES)


def a_fully_cached_prompt_computes_nothing(patch: pytest.MonkeyPatch) -> None:
    hits = PagedPrefix._hits

    def buggy(self: PagedPrefix, request: Request) -> list[int]:
        request.known_tokens += 1
        try:
            return hits(self, request)
        finally:
            request.known_tokens -= 1

    patch.setattr(PagedPrefix, "_hits", buggy)


def a_block_handed_out_again_keeps_its_prefix(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Prefixes, "forget", lambda self, block: None)


def a_block_handed_out_again_is_still_found(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Prefixes, "forget", lambda self, block: self._entries.pop(block))
    patch.setattr(Prefixes, "audit", lambda self: None)


def hits_stay_evictable_until_new_blocks_are_taken(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: CachingPool, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._references[block] += 1

    patch.setattr(CachingPool, "touch", buggy)


def evictable_hits_count_as_room(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: PagedPrefix, request: Request, hits: Sequence[int]) -> int:
        return self.slots_needed(request) // self.block_size - len(hits)

    patch.setattr(PagedPrefix, "_blocks_taken", buggy)


def hits_are_charged_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        PagedPrefix, "_blocks_taken", lambda self, request, hits: self.slots_needed(request) // self.block_size
    )


def root_is(named: Any) -> Bug:
    def bug(patch: pytest.MonkeyPatch) -> None:
        def buggy(salt: Salt) -> Digest:
            return hashlib.sha256(named(salt).encode()).digest()

        for module in (hash_chain, prefix):
            patch.setattr(module, "root", buggy)

    return bug


def only_the_blocks_own_tokens_are_hashed(patch: pytest.MonkeyPatch) -> None:
    class Alone:
        def __init__(self, parent_and_ids: bytes) -> None:
            self.ids = parent_and_ids[32:]

        def digest(self) -> bytes:
            return hashlib.sha256(self.ids).digest()

    patch.setattr(hash_chain, "sha256", Alone)


def rejected_drafts_are_registered(patch: pytest.MonkeyPatch) -> None:
    commit = PagedPrefix.commit

    def buggy(self: PagedPrefix, rid: RequestId, token_ids: TokenList) -> None:
        drafted = self._held[rid].granted if rid in self._held else 0
        commit(self, rid, token_ids)
        holding, size = self._held[rid], self.block_size
        index, used = divmod(holding.committed, size)
        if used and drafted >= (index + 1) * size and self.pool.references[holding.table.blocks[index]] == 1:
            ids = self._chains[rid].pending + bytes(4 * (size - used))
            self.pool.register(holding.table.blocks[index : index + 1], self._chains[rid].digest, ids)

    patch.setattr(PagedPrefix, "commit", buggy)


def extended_tokens_are_registered_before_they_are_computed(patch: pytest.MonkeyPatch) -> None:
    admit = PagedPrefix.admit

    def buggy(self: PagedPrefix, request: Request) -> Admission | None:
        admission = admit(self, request)
        if admission is not None and request.known_tokens - request.computed > self.block_size:
            (block,) = self.pool.next_free()[:1]
            start, chain = request.computed, self._chains[request.rid]
            ids = request.token_ids(start, start + self.block_size).tobytes()
            if block not in self.pool.prefixes.entries:
                self.pool.prefixes.register([block], chain.digest, ids)
        return admission

    patch.setattr(PagedPrefix, "admit", buggy)


def roots_are_evicted_first(patch: pytest.MonkeyPatch) -> None:
    shelve = CachingPool._shelve
    patch.setattr(CachingPool, "_shelve", lambda self, freed: shelve(self, freed[::-1]))


def the_latest_are_evicted_first(patch: pytest.MonkeyPatch) -> None:
    shelve = CachingPool._shelve

    def buggy(self: CachingPool, freed: Sequence[int]) -> None:
        shelve(self, freed)
        for block in freed:
            if block in self._cached:
                self._cached.move_to_end(block, last=False)

    patch.setattr(CachingPool, "_shelve", buggy)


def blocks_without_a_prefix_wait_like_the_others(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: CachingPool, freed: Sequence[int]) -> None:
        for block in freed:
            if block in self.prefixes.entries:
                self._cached[block] = None
            else:
                self._free.insert(0, block)

    patch.setattr(CachingPool, "_shelve", buggy)


def nothing_is_kept(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: CachingPool, freed: Sequence[int]) -> None:
        for block in freed:
            if block in self.prefixes.entries:
                self.prefixes.forget(block)
        BlockPool._shelve(self, freed)

    patch.setattr(CachingPool, "_shelve", buggy)


def a_lookup_finds_the_latest_copy(patch: pytest.MonkeyPatch) -> None:
    register = Prefixes.register

    def buggy(self: Prefixes, blocks: Sequence[int], parent: Digest, ids: bytes) -> Digest:
        last = register(self, blocks, parent, ids)
        for block in blocks:
            digest = self._entries[block].digest
            first = self._first[digest]
            if first != block:
                del self._others[digest][block]
                self._others[digest][first] = None
                self._first[digest] = block
        return last

    patch.setattr(Prefixes, "register", buggy)


def the_second_copy_is_lost_with_the_first(patch: pytest.MonkeyPatch) -> None:
    def buggy(self: Prefixes, block: int) -> None:
        digest = self._entries.pop(block).digest
        if self._first.get(digest) == block:
            del self._first[digest]
            for other in self._others.pop(digest, {}):
                del self._entries[other]
        else:
            self._others[digest].pop(block)

    patch.setattr(Prefixes, "forget", buggy)


def a_fork_and_its_parent_continue_one_chain(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Chain, "copy", lambda self: self)


def refused_admissions_count(patch: pytest.MonkeyPatch) -> None:
    admit = PagedPrefix.admit

    def buggy(self: PagedPrefix, request: Request) -> Admission | None:
        admission = admit(self, request)
        if admission is None:
            self._queried_tokens += request.known_tokens
        return admission

    patch.setattr(PagedPrefix, "admit", buggy)


def revived_blocks_are_not_live(patch: pytest.MonkeyPatch) -> None:
    admit = PagedPrefix.admit

    def buggy(self: PagedPrefix, request: Request) -> Admission | None:
        before = self.books.filled_slots
        admission = admit(self, request)
        self.books.filled_slots = before
        return admission

    patch.setattr(PagedPrefix, "admit", buggy)


BOTH = (Served, PrefixMachine)
BUGS: dict[str, tuple[Bug, tuple[type[Counted], ...]]] = {
    "a fully cached prompt computes nothing": (a_fully_cached_prompt_computes_nothing, BOTH),
    "a block handed out again keeps its prefix": (a_block_handed_out_again_keeps_its_prefix, BOTH),
    "a block handed out again is still found": (a_block_handed_out_again_is_still_found, BOTH),
    "hits stay evictable": (hits_stay_evictable_until_new_blocks_are_taken, BOTH),
    "evictable hits count as room": (evictable_hits_count_as_room, (PrefixMachine,)),
    "hits are charged twice": (hits_are_charged_twice, BOTH),
    "the salt is ignored": (root_is(lambda salt: ""), BOTH),
    "salts that spell the same are the same": (root_is(str), BOTH),
    "only the block's own tokens are hashed": (only_the_blocks_own_tokens_are_hashed, BOTH),
    "rejected drafts are registered": (rejected_drafts_are_registered, BOTH),
    "tokens are registered before they are computed": (extended_tokens_are_registered_before_they_are_computed, BOTH),
    "roots are evicted first": (roots_are_evicted_first, BOTH),
    "the latest are evicted first": (the_latest_are_evicted_first, BOTH),
    "blocks without a prefix wait like the others": (blocks_without_a_prefix_wait_like_the_others, (PrefixMachine,)),
    "nothing is kept": (nothing_is_kept, BOTH),
    "a lookup finds the latest copy": (a_lookup_finds_the_latest_copy, BOTH),
    "the second copy is lost with the first": (the_second_copy_is_lost_with_the_first, (PrefixMachine,)),
    "a fork and its parent continue one chain": (a_fork_and_its_parent_continue_one_chain, BOTH),
    "refused admissions count": (refused_admissions_count, BOTH),
    "revived blocks are not live": (revived_blocks_are_not_live, BOTH),
    "quiet is one too large": (quiet_is_one_too_large(PagedPrefix), (Served,)),
    "a fork leaves the parent's quiet run": (fork_leaves_the_parents_quiet_run(PagedPrefix), (Served,)),
    "copy-on-write without its move": (moves_are_lost("copy-on-write"), (Served,)),
    "a refused admission touches the request": (refused_admission_touches_the_request(PagedPrefix), (Served,)),
    "register events lost": (events_are_lost("register"), (Served,)),
    "evict events lost": (events_are_lost("evict"), (Served,)),
}


@pytest.mark.parametrize(
    ("name", "machine"),
    [(name, machine) for name, (_, machines) in BUGS.items() for machine in machines],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_the_machine_catches(name: str, machine: type[Counted]) -> None:
    catches(machine, BUGS[name][0])
