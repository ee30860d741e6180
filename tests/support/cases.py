"""The policies that must keep the contract, each with what the plainest accounting needs to know of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvlab.events import EventLog
from kvlab.policies.base import Policy
from kvlab.policies.contiguous import ContiguousMax, ContiguousOracle, ContiguousPow2
from kvlab.policies.hybrid_ring import HybridRing
from kvlab.policies.islands import RadixIslands
from kvlab.policies.paged import Paged
from kvlab.policies.prefix import PagedPrefix
from kvlab.policies.radix_lazy import RadixLazy
from kvlab.shapes import LayerGroup
from kvlab.workload import Request
from support.two_groups import WINDOW, TwoGroups

GLOBAL = LayerGroup("global", "full", (0, 1), None, 8)
SLIDING = LayerGroup("sliding", "full", (2, 3, 4), 5, 12)
LONGEST = 32


@dataclass(frozen=True)
class Pool:
    """Slots of one pool and how they are handed out: in blocks, rings, or regions placed in one of two ways."""

    slots: int
    unit: int = 1
    placement: Literal["blocks", "buddy", "first-fit"] = "blocks"


@dataclass(frozen=True)
class PolicyCase:
    """`build` makes a fresh policy; `asked` says how many slots a request reserves, where a policy reserves."""

    name: str
    build: Callable[[EventLog | None], Policy]
    pools: Mapping[str, Pool]
    asked: Callable[[Request], int] | None = None
    watermark: int = 0
    host: Pool | None = None

    def __str__(self) -> str:
        return self.name

    def taken(self, request: Request) -> int:
        """Slots that the request's reservation takes, rounding included."""
        assert self.asked is not None
        asked = self.asked(request)
        if self.pools["full"].placement == "first-fit":
            return asked
        return next(1 << digit for digit in range(20) if 1 << digit >= asked)


def asked_max(request: Request) -> int:
    """The longest sequence."""
    return LONGEST


def asked_pow2(request: Request) -> int:
    """The prompt and the smallest power of two that holds the output."""
    output = request.final_tokens - request.prompt_tokens
    return min(LONGEST, request.prompt_tokens + next(1 << d for d in range(20) if 1 << d >= output))


def asked_oracle(request: Request) -> int:
    """The true total."""
    return request.final_tokens


ASKED = {ContiguousMax: asked_max, ContiguousPow2: asked_pow2, ContiguousOracle: asked_oracle}


def contiguous(
    kind: type[ContiguousMax | ContiguousPow2 | ContiguousOracle],
    placement: Literal["buddy", "first-fit"],
    *,
    slots: int = 172,
    groups: tuple[LayerGroup, ...] = (GLOBAL, SLIDING),
) -> PolicyCase:
    """A pool of 128 + 32 + 8 + 4 slots, which is no power of two, for sequences of up to 32 tokens."""
    return PolicyCase(
        f"{kind.__name__}-{placement}",
        lambda log: kind(groups, slots, max_model_tokens=LONGEST, placement=placement, log=log),
        {"full": Pool(slots, 1, placement)},
        ASKED[kind],
    )


def paged(
    block_size: int, *, slots: int = 99, groups: tuple[LayerGroup, ...] = (GLOBAL,), **options: Any
) -> PolicyCase:
    """A pool of 99 slots: a remainder is slack for every block size but 1."""
    named = [f"{key}={value}" for key, value in options.items()]
    host = options.get("host_tokens", 0)
    return PolicyCase(
        "-".join(["Paged", str(block_size), *(["window"] if len(groups) > 1 else []), *named]),
        lambda log: Paged(groups, slots, block_size=block_size, log=log, **options),
        {"full": Pool(slots, block_size)},
        watermark=options.get("watermark_blocks", 0),
        host=Pool(host, block_size) if host else None,
    )


def prefix(
    block_size: int, *, slots: int = 99, groups: tuple[LayerGroup, ...] = (GLOBAL,), **options: Any
) -> PolicyCase:
    """The same pool with a prefix cache."""
    named = [f"{key}={value}" for key, value in options.items()]
    return PolicyCase(
        "-".join(["PagedPrefix", str(block_size), *(["window"] if len(groups) > 1 else []), *named]),
        lambda log: PagedPrefix(groups, slots, block_size=block_size, log=log, **options),
        {"full": Pool(slots, block_size)},
        watermark=options.get("watermark_blocks", 0),
    )


@dataclass(frozen=True)
class RadixCase(PolicyCase):
    """`trims`: an admission locks no more than its window."""

    trims: bool = False


def radix(
    kind: type[RadixLazy | RadixIslands],
    page: int,
    *,
    slots: int = 99,
    ratio: float = 0.7,
    groups: tuple[LayerGroup, ...] = (GLOBAL, SLIDING),
    **options: Any,
) -> RadixCase:
    """Two pools, the smaller one for the sliding layers; chunks as long as a request."""
    named = [f"{key}={value}" for key, value in options.items()]
    pools = {"full": Pool(slots, page), "swa": Pool(int(slots * ratio), page)}
    return RadixCase(
        "-".join([kind.__name__, str(page), *([] if len(groups) > 1 else ["global"]), *named]),
        lambda log: kind(groups, slots, ratio=ratio, page_size=page, chunk_tokens=LONGEST, log=log, **options),
        {name: pools[name] for name in ("full", "swa")[: len(groups)]},
        trims=kind is RadixIslands,
    )


@dataclass(frozen=True)
class ArenaCase(PolicyCase):
    """One memory of `rows` superblocks of `pages_per_row` pages, out of a budget."""

    rows: int = 0
    pages_per_row: int = 0
    budget_bytes: int = 0


def ring(
    page: int, *, tokens: int = 90, groups: tuple[LayerGroup, ...] = (GLOBAL, SLIDING), **options: Any
) -> ArenaCase:
    """The budget of `tokens` tokens in all layers; rings do not fill their superblock but for pages of 1."""
    built = HybridRing(groups, tokens, block_size=page, **options)
    host = options.get("host_tokens", 0)
    window, arena = built.window_tokens, built.arena
    named = [f"{key}={value}" for key, value in options.items()]
    return ArenaCase(
        "-".join(["HybridRing", str(page), str(tokens), *named]),
        lambda log: HybridRing(groups, tokens, block_size=page, log=log, **options),
        {"ring": Pool(arena.rows * window, window), "page": Pool(arena.blocks * page, page)},
        watermark=options.get("watermark_blocks", 0),
        host=Pool(host, page) if host else None,
        rows=arena.rows,
        pages_per_row=-(-window * 12 // (page * 8)),
        budget_bytes=tokens * 20,
    )


def fake(*, blocks: int = 14, block_size: int = 4, rings: int = 4) -> PolicyCase:
    """Global layers in blocks, sliding layers in rings of a second pool."""
    return PolicyCase(
        "TwoGroups",
        lambda log: TwoGroups(blocks, block_size, rings, log),
        {"full": Pool(blocks * block_size, block_size), "rings": Pool(rings * WINDOW, WINDOW)},
    )


CONTIGUOUS = [
    contiguous(kind, placement)
    for kind in (ContiguousMax, ContiguousPow2, ContiguousOracle)
    for placement in ("buddy", "first-fit")
]
PAGED = [
    paged(1, reuse="lowest-id"),
    paged(4),
    paged(16),
    paged(1, host_tokens=40),
    paged(4, host_tokens=42, reuse="lowest-id"),
    paged(16, host_tokens=48, watermark_blocks=1),
    paged(4, groups=(GLOBAL, SLIDING), host_tokens=42),
    paged(16, groups=(GLOBAL, SLIDING), reuse="lowest-id"),
]
PREFIX = [
    prefix(1),
    prefix(4),
    prefix(16, watermark_blocks=1),
    prefix(4, groups=(GLOBAL, SLIDING)),
]
SMALL_CACHES = [prefix(4, slots=42), prefix(2, slots=40, groups=(GLOBAL, SLIDING))]
LAZY = [radix(RadixLazy, 1), radix(RadixLazy, 4), radix(RadixLazy, 4, groups=(GLOBAL,))]
ISLANDS = [
    radix(RadixIslands, 1, interval=3),
    radix(RadixIslands, 2, interval=4, branch_islands=True),
    radix(RadixIslands, 4, rule="B"),
    radix(RadixIslands, 4, groups=(GLOBAL,)),
]
SMALL_TREES = [
    radix(RadixLazy, 2, slots=60, ratio=0.8),
    radix(RadixIslands, 2, slots=60, ratio=0.8, interval=4),
    radix(RadixIslands, 1, slots=60, ratio=0.8, trigger="modulo", interval=2, branch_islands=True),
]
RINGS = [
    ring(1, tokens=70),
    ring(4, tokens=60),
    ring(3, tokens=60, groups=(SLIDING, GLOBAL)),
    ring(2, tokens=60, watermark_blocks=2),
    ring(2, tokens=60, host_tokens=40),
    ring(4, tokens=60, host_tokens=30),
]
SMALL_ARENAS = [ring(1, tokens=30), ring(2, tokens=30), ring(1, tokens=26, host_tokens=30)]
CASES = [*RINGS, *CONTIGUOUS, *PAGED, *PREFIX, *LAZY, *ISLANDS, fake()]
