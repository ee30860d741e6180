"""Policies by the names of the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from kvlab.errors import InvalidInput
from kvlab.events import EventLog
from kvlab.policies.base import Policy
from kvlab.policies.contiguous import Contiguous, ContiguousMax, ContiguousOracle, ContiguousPow2
from kvlab.policies.hybrid_ring import HybridRing
from kvlab.policies.islands import RadixIslands
from kvlab.policies.paged import Paged
from kvlab.policies.prefix import PagedPrefix
from kvlab.policies.radix_lazy import RadixLazy
from kvlab.shapes import LayerGroup

CHUNK_TOKENS: Final = 2048
"""The longest prompt chunk that the radix policies keep room for: the default token budget of an engine."""

Make = Callable[[Sequence[LayerGroup], int, int, int, EventLog | None], Policy]


def _paged(
    kind: type[Paged], groups: Sequence[LayerGroup], tokens: int, block_size: int, longest: int, log: EventLog | None
) -> Policy:
    return kind(groups, tokens, block_size=block_size, log=log)


def _contiguous(
    kind: type[Contiguous],
    groups: Sequence[LayerGroup],
    tokens: int,
    block_size: int,
    longest: int,
    log: EventLog | None,
) -> Policy:
    return kind(groups, tokens, max_model_tokens=longest, log=log)


def _radix(
    kind: type[RadixLazy | RadixIslands],
    groups: Sequence[LayerGroup],
    tokens: int,
    block_size: int,
    longest: int,
    log: EventLog | None,
) -> Policy:
    chunk = max(block_size, min(CHUNK_TOKENS, longest))
    return kind(groups, tokens, page_size=block_size, chunk_tokens=chunk, log=log)


def _ring(groups: Sequence[LayerGroup], tokens: int, block_size: int, longest: int, log: EventLog | None) -> Policy:
    return HybridRing(groups, tokens, block_size=block_size, log=log)


POLICIES: Final[dict[str, Make]] = {
    "paged": partial(_paged, Paged),
    "prefix": partial(_paged, PagedPrefix),
    "ring": _ring,
    "radix": partial(_radix, RadixLazy),
    "islands": partial(_radix, RadixIslands),
    "max": partial(_contiguous, ContiguousMax),
    "pow2": partial(_contiguous, ContiguousPow2),
    "oracle": partial(_contiguous, ContiguousOracle),
}


def policy_by_name(
    name: str,
    groups: Sequence[LayerGroup],
    capacity_tokens: int,
    *,
    block_size: int = 16,
    max_model_tokens: int,
    log: EventLog | None = None,
) -> Policy:
    """The policy called `name`, one of `POLICIES`: blocks or pages of `block_size` where it has some, at most
    `max_model_tokens` a request for the contiguous ones. Raises `InvalidInput` for another name.
    """
    if name not in POLICIES:
        raise InvalidInput(f"no policy is called {name!r}; there are {', '.join(POLICIES)}")
    return POLICIES[name](groups, capacity_tokens, block_size, max_model_tokens, log)
