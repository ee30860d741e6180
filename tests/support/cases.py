"""The policies that must keep the contract, each with what the plainest accounting needs to know of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvlab.events import EventLog
from kvlab.policies.base import Policy
from kvlab.policies.contiguous import ContiguousMax, ContiguousOracle, ContiguousPow2
from kvlab.policies.paged import Paged
from kvlab.policies.prefix import PagedPrefix
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
CASES = [*CONTIGUOUS, *PAGED, *PREFIX, fake()]
