"""Chains of block digests as data: what a link says, where two chains part, which columns a picture keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

from kvlab.errors import InvalidInput
from kvlab.events import Event, State
from kvlab.viz.scenes.pool_grid import paged
from kvlab.workload import RequestId

LinkStatus: TypeAlias = Literal["hit", "held", "cached", "computed", "evicted"]


class Link(NamedTuple):
    """A full block in a chain: its digest, made from its parent's digest and its own tokens.

    `label` are its tokens in words. `status`: found in the cache ("hit"), registered and in use ("held"), registered
    with no holder ("cached"), computed now ("computed"), or thrown out ("evicted"). `block` is its physical block.
    """

    digest: str
    label: str
    status: LinkStatus
    block: int | None = None


Chains: TypeAlias = Mapping[RequestId, Sequence[Link | tuple[str, str, LinkStatus]]]


class Column(NamedTuple):
    """Links [start, stop) of every chain: one of them, or several folded."""

    start: int
    stop: int


def checked(chains: Chains) -> dict[RequestId, tuple[Link, ...]]:
    """The chains as links. Raises `InvalidInput` for a status that there is not."""
    found = {rid: tuple(Link(*each) for each in links) for rid, links in chains.items()}
    for rid, links in found.items():
        for index, link in enumerate(links):
            if link.status not in get_args(LinkStatus):
                known = ", ".join(get_args(LinkStatus))
                raise InvalidInput(f"block {index} of chain {rid!r} is {link.status!r}; a link is one of {known}")
    return found


def prefix_chains(
    state: State, events: Sequence[Event] = (), *, pool: str = "full", labels: Mapping[str, str] | None = None
) -> dict[RequestId, list[Link]]:
    """The chains that a log's `register` events tell: cached ones that nobody holds, then each running request's.

    A link is "computed" in the frame (`events`) that registered its block. `labels` gives the tokens of a digest as
    the log writes it (8 hex digits) in words.
    """
    size, held, words = paged(state, pool).block_size, state.holders(pool), labels or {}
    registered = state.registered.get(pool, {})
    fresh = {event[2] for event in events if event[:2] == ("register", pool)}
    running: dict[RequestId, list[Link]] = {}
    for request in sorted(state.running(), key=lambda request: request.order):
        links = running.setdefault(request.rid, [])
        for index, block in enumerate(request.tables.get(pool, ())):
            if block is None or block not in registered:
                break
            status: LinkStatus = "computed" if block in fresh else "hit" if index * size < request.cached else "held"
            links.append(Link(registered[block][0], words.get(registered[block][0], ""), status, block))
    by_digest = {digest: block for block, (digest, _) in reversed(registered.items())}
    parents = {parent for _, parent in registered.values()}
    known = {link.digest for links in running.values() for link in links}
    cached: dict[RequestId, list[Link]] = {}
    for block in sorted(state.cached(pool)):
        digest, parent = registered[block]
        if digest in parents or digest in known:
            continue
        known.add(digest)
        path = [Link(digest, words.get(digest, ""), "cached", block)]
        while (above := by_digest.get(parent)) is not None:
            digest, parent = registered[above]
            path.append(Link(digest, words.get(digest, ""), "held" if above in held else "cached", above))
        cached[f"cache {len(cached) + 1}"] = path[::-1]
    return {**cached, **running}


def common(one: Sequence[Link], other: Sequence[Link]) -> int:
    """How many links two chains share, from the first on."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a.digest != b.digest), min(len(one), len(other)))


def parted(chains: Sequence[Sequence[Link]], row: int) -> int | None:
    """The first link of chain `row` that no chain above it has, if those above share any or have one there too."""
    if not row or not chains[row]:
        return None
    index = max(common(above, chains[row]) for above in chains[:row])
    return index if index < len(chains[row]) else None


def shared(chains: Sequence[Sequence[Link]], row: int) -> int:
    """How many of its first links chain `row` shares with any other."""
    return max((common(chains[row], other) for i, other in enumerate(chains) if i != row), default=0)


def columns(chains: Sequence[Sequence[Link]], most: int) -> list[Column]:
    """All columns if they are at most `most`; else the first, those where chains part or end, and folds between."""
    length = max(map(len, chains), default=0)
    if length <= most:
        return [Column(i, i + 1) for i in range(length)]
    ends = {each for row in range(len(chains)) if (at := parted(chains, row)) is not None for each in (at - 1, at)}
    wanted = [0, *sorted(ends), *(len(links) - 1 for links in chains), length - 2, 1]
    kept: set[int] = set()
    for each in wanted:
        if 0 <= each < length and len(kept) < most - 2:
            kept.add(each)
    found, at = [], 0
    for each in [*sorted(kept), length]:
        if each > at:
            found.append(Column(at, each))
        if each < length:
            found.append(Column(each, each + 1))
        at = each + 1
    return found
