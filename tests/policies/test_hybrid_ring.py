"""Rings and pages in one arena: what moves, what is refused, and what the articles' shapes make of it."""

from itertools import count
from random import Random

import pytest
from support.cases import GLOBAL, LONGEST, RINGS, SLIDING, SMALL_ARENAS
from support.machines import Bug, catches
from support.planted import (
    fork_leaves_the_parents_quiet_run,
    moves_are_lost,
    moves_carry_one_token_too_few,
    moves_come_out_in_reverse,
    quiet_is_one_too_large,
)
from support.policy_machine import machine_of
from support.serving import Serving

from kvlab.errors import InvalidInput, KvlabError, NeverFits, OutOfMemory
from kvlab.memory.block_table import BlockTable
from kvlab.policies.by_name import policy_by_name
from kvlab.policies.hybrid_ring import HybridRing
from kvlab.policies.paged import Paged
from kvlab.policies.ring_books import RingBooks
from kvlab.shapes import LayerGroup, ModelShape
from kvlab.workload import Request

GEMMA = ModelShape.preset("gemma-4-31b")
PAGE = 256


def come(policy: HybridRing, rid: int, tokens: int) -> bool:
    """Admit a request of so many tokens and prefill it; whether there was room."""
    request = Request(rid, tokens, 1)
    if policy.admit(request) is None:
        return False
    try:
        policy.extend(rid, tokens)
    except OutOfMemory:
        policy.release(rid, "preempted")
        return False
    policy.commit(rid, range(tokens))
    return True


def gemma(tokens: int = 60_000) -> HybridRing:
    return HybridRing(GEMMA.groups(), tokens, block_size=PAGE)


def test_short_contexts_fill_the_arena_with_rings_and_long_ones_with_pages() -> None:
    short = gemma()
    rids = count()
    while come(short, next(rids), 100):
        short.drain_moves()
    assert short.arena.rings > 0.9 * short.arena.rows
    long = gemma()
    assert come(long, 0, 400_000)
    assert long.arena.broken_rows > 0.5 * long.arena.rows
    for policy in (short, long):
        policy.audit()


def test_a_random_mix_moves_the_balance_back_and_forth_and_strands_nothing() -> None:
    """A ring is refused only when the free pages do not add up to one, whatever came before; and every refusal of an
    admission is explained by the free pages alone."""
    policy, random, rids = gemma(30_000), Random(0), count()
    arena = policy.arena
    held: list[int] = []
    balances, evacuated = [], 0
    for phase in range(12):
        longest = 60_000 if phase % 2 else 300
        for _ in range(60):
            tokens = random.randrange(1, longest)
            room = -(-tokens // PAGE) + arena.pages_per_row <= arena.free_blocks
            rid = next(rids)
            if tokens + 1 <= (arena.blocks - arena.pages_per_row) * PAGE:
                came = come(policy, rid, tokens)
                assert came == room
                held += [rid] * came
            evacuated += sum(move.bytes for move in policy.drain_moves() if move.why == "evacuate")
            while held and (not room or random.random() < 0.3):
                policy.release(held.pop(random.randrange(len(held))), "finished")
                room = True
        policy.audit()
        balances.append(arena.rings / arena.rows)
    assert max(balances[0::2]) > 2 * min(balances[1::2]), balances
    assert evacuated > 0, "no page ever made room for a ring"
    while held:
        policy.release(held.pop(), "finished")
    assert arena.whole_rows == arena.rows


def test_an_evacuation_moves_shared_pages_and_every_table_follows() -> None:
    """Two forks share a page of the row that a third request needs whole; both go on with their own tokens."""
    case = RINGS[0]
    random, moved_shared = Random(0), 0
    for _ in range(60):
        server, rids = Serving(case), count()
        for _ in range(40):
            before = len(server.log.events)
            if random.random() < 0.3 and server.admitted:
                parent = random.choice(list(server.admitted))
                server.fork(parent, next(rids))
            elif random.random() < 0.4 and server.admitted:
                server.release(random.choice(list(server.admitted)), "finished")
            else:
                request = Request(next(rids), random.randrange(1, 20), LONGEST - 20)
                if server.admit(request) is not None and server.extend(request.rid, request.known_tokens):
                    server.commit(request.rid, request.known_tokens)
            server.flush()
            server.check()
            server.check_contents()
            told = [event for event in server.log.events[before:] if event[0] == "relocate"]
            holders = server.state.holders("page")
            moved_shared += sum(len(holders.get(event[3], ())) > 1 for event in told)
    assert moved_shared > 3, "no shared page was ever evacuated"


def test_ring_bytes_equal_global_page_bytes_at_10_240_tokens() -> None:
    """From the arena's own accounting: a request that needs as many pages as its ring takes the place of."""
    policy = gemma()
    assert come(policy, 0, 10_240)
    pages = sum(map(bool, policy.arena.references))
    assert pages == policy.arena.pages_per_row == 40
    assert policy.ring_bytes == policy.row_bytes == pages * PAGE * policy.paged.bytes_per_token


def usable(groups: tuple[LayerGroup, ...], tokens: int = 4096) -> float:
    """Bytes that one request takes when every layer keeps everything, over those that it takes with a ring."""
    stock, ring = Paged(groups, 20_000, block_size=128), HybridRing(groups, 20_000, block_size=PAGE)
    for policy in (stock, ring):
        policy.admit(Request("r", tokens, 1))
        policy.extend("r", tokens)
        policy.commit("r", range(tokens))
        policy.audit()
    return stock.usage()["full"].owned / ring.usage()["arena"].owned


def test_usable_kv_at_4_096_tokens_over_keeping_everything() -> None:
    full, sliding = GEMMA.groups()
    one_tensor = LayerGroup(full.name, full.pool, full.layers, None, full.bytes_per_token // 2)
    assert usable((full, sliding)) == pytest.approx(3.14, abs=0.005)
    assert usable((one_tensor, sliding)) == pytest.approx(3.5, abs=0.0005)


def test_a_chunk_longer_than_the_window_names_slots_that_come_round() -> None:
    policy = HybridRing((GLOBAL, SLIDING), 60, block_size=4)
    policy.admit(Request("r", 17, 3))
    pages, ring = policy.extend("r", 17).slots()
    assert list(ring) == [position % 5 for position in range(17)]
    assert len(set(pages.tolist())) == 17
    policy.commit("r", range(17))
    table, rings = policy.layout("r")
    assert (table.end, rings.start, rings.end) == (17, 13, 17)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: HybridRing((GLOBAL,), 100), "one group of sliding layers and one of global ones, not 0 and 1"),
        (lambda: HybridRing((SLIDING,), 100), "not 1 and 0"),
        (lambda: HybridRing((GLOBAL, SLIDING, SLIDING), 100), "not 2 and 1"),
        (lambda: HybridRing((GLOBAL, SLIDING), 3, block_size=4), "one ring takes 64 "),
        (lambda: HybridRing((GLOBAL, SLIDING), 0), "capacity_tokens"),
        (lambda: HybridRing((GLOBAL, SLIDING), 100, block_size=0), "block_size"),
        (lambda: HybridRing((GLOBAL, LayerGroup("s", "full", (2,), 0, 12)), 100), "window_tokens of s"),
        (lambda: HybridRing((GLOBAL, SLIDING), 100, host_tokens=3), "hold a ring of 5 and a page"),
        (lambda: HybridRing((GLOBAL, SLIDING), 100, watermark_blocks=-1), "watermark_blocks"),
    ],
)
def test_what_cannot_be_built_is_refused_at_construction(build, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        build()


def test_a_request_that_never_fits_beside_its_ring_is_refused_for_good() -> None:
    policy = HybridRing((GLOBAL, SLIDING), 20, block_size=4)
    room = (policy.arena.blocks - policy.arena.pages_per_row) * 4
    with pytest.raises(NeverFits, match=f"beside its ring the arena holds {room}"):
        policy.admit(Request("r", room, 1))
    assert policy.admit(Request("r", room - 1, 1)) is not None


def tables_do_not_follow(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockTable, "relocate", lambda self, moved: None)


def a_full_ring_has_nothing_dead(patch: pytest.MonkeyPatch) -> None:
    usage = RingBooks.usage

    def buggy(self, held):
        found = usage(self, held)
        return found._replace(live=found.live + found.dead, dead=0)

    patch.setattr(RingBooks, "usage", buggy)


def a_ring_is_not_given_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("kvlab.memory.arena.Arena.give_ring", lambda self, row: None)


@pytest.mark.parametrize(
    "bug",
    [
        moves_are_lost("evacuate"),
        moves_are_lost("fork"),
        moves_are_lost("swap in"),
        moves_carry_one_token_too_few("evacuate"),
        moves_carry_one_token_too_few("fork"),
        moves_come_out_in_reverse,
        quiet_is_one_too_large(HybridRing),
        fork_leaves_the_parents_quiet_run(HybridRing),
        tables_do_not_follow,
        a_full_ring_has_nothing_dead,
        a_ring_is_not_given_back,
    ],
)
def test_the_machine_catches_a_planted_bug(bug: Bug) -> None:
    catches(machine_of(SMALL_ARENAS), bug)


def test_refusals_are_the_projects_own() -> None:
    policy = HybridRing((GLOBAL, SLIDING), 60, block_size=4)
    policy.admit(Request("r", 5, 5))
    for call in (lambda: policy.swap_out("r"), lambda: policy.layout("s"), lambda: policy.release("r", "tired")):
        with pytest.raises(KvlabError):
            call()


def test_it_has_a_name() -> None:
    policy = policy_by_name("ring", (GLOBAL, SLIDING), 60, block_size=4, max_model_tokens=LONGEST)
    assert isinstance(policy, HybridRing)
    assert policy.pools()["page"].block_size == 4
