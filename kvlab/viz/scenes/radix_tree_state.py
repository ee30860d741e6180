"""What the log says of a radix tree over two pools: whose each page is, and which sliding-window KV can be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvlab.errors import InvalidInput, positive
from kvlab.events import RequestState, State
from kvlab.workload import RequestId

FULL: Final = "full"
SWA: Final = "swa"
Flight = Mapping[RequestId, int]


class Span(NamedTuple):
    """Tokens at [start, stop), all in one condition.

    live: locked, and a window reaches it; own: the same, but the request's and not the tree's; dead: in memory and out
    of every window that holds it; kept: nobody's, can be evicted; tombstone: its SWA KV is gone; flight: a chunk that
    is being computed; empty: a slot of a page without a token.
    """

    kind: str
    start: int
    stop: int

    @property
    def tokens(self) -> int:
        """How many."""
        return self.stop - self.start


@dataclass(frozen=True)
class Edge:
    """A node of the tree at [start, stop), or what a request holds behind its path (`owner`; not in the tree).

    `users` are the requests that lock it. `full` and `swa` cut it by the condition of its KV in the two pools.
    """

    number: int
    parent: int
    start: int
    stop: int
    users: tuple[RequestState, ...]
    locks: int
    swa_locks: int
    full: tuple[Span, ...]
    swa: tuple[Span, ...]
    owner: RequestState | None = None


def first_read(length: int, window_tokens: int | None) -> int:
    """The first position that the query at position `length` reads."""
    return 0 if window_tokens is None else max(0, length - window_tokens + 1)


def page_size_of(state: State) -> int:
    """Tokens a page; a log without pools (a tree alone) has pages of one."""
    return state.pools[FULL].block_size if FULL in state.pools else 1


def has_swa(state: State) -> bool:
    """Whether there is sliding-window KV: a pool of it, or where a tree is alone, a tombstone or a lock of it."""
    return SWA in state.pools or any(not span.live or span.swa_lock for span in state.tree.values())


def edges_of(state: State, window_tokens: int | None, flight: Flight | None = None) -> list[Edge]:
    """The tree's nodes, parents first, and after them what each running request holds that is not in the tree.

    `flight` says how many tokens of a request are being computed now. Raises `InvalidInput` for a window of 0.
    """
    if window_tokens is not None:
        positive("window_tokens", window_tokens)
    size, requests, two = page_size_of(state), state.running(), has_swa(state)
    found: list[Edge] = []
    ends = dict.fromkeys((each.rid for each in requests), (-1, 0))
    for number in _parents_first(state):
        span = state.tree[number]
        start, stop = span.start, span.start + len(span.pages) * size
        last = stop // size - 1
        users = tuple(each for each in requests if _entry(each, FULL, last) == span.pages[-1])
        for each in users:
            ends[each.rid] = max(ends[each.rid], (number, stop), key=lambda end: end[1])
        reads = [first_read(each.tokens, window_tokens) for each in users if _entry(each, SWA, last) is not None]
        if not two:
            swa: tuple[Span, ...] = ()
        elif not span.live:
            swa = (Span("tombstone", start, stop),)
        elif not span.swa_lock:
            swa = (Span("kept", start, stop),)
        else:
            swa = _cut(start, stop, min(reads, default=start), "live")
        full = (Span("live" if span.full_lock else "kept", start, stop),)
        found.append(Edge(number, span.parent, start, stop, users, span.full_lock, span.swa_lock, full, swa))
    for each in requests:
        found += _own(each, ends[each.rid], window_tokens, size, (flight or {}).get(each.rid, 0))
    return found


def _own(request: RequestState, end: tuple[int, int], window_tokens: int | None, size: int, flight: int) -> list[Edge]:
    parent, start = end
    stop = len(request.tables.get(FULL, ())) * size
    if stop <= start:
        return []
    behind = (
        Span("flight", request.tokens, min(stop, request.tokens + flight)),
        Span("empty", min(stop, request.tokens + flight), stop),
    )
    full = tuple(span for span in (Span("own", start, request.tokens), *behind) if span.tokens > 0)
    table = request.tables.get(SWA, [])
    held = next((index * size for index, page in enumerate(table) if index * size >= start and page is not None), stop)
    swa = [Span("tombstone", start, held)] if held > start else []
    swa += _cut(held, max(held, request.tokens), first_read(request.tokens, window_tokens), "own")
    swa += [span for span in behind if span.tokens > 0 and table]
    return [Edge(-1, parent, start, stop, (request,), 1, 1, full, tuple(swa) if table else (), request)]


def _cut(start: int, stop: int, first: int, kind: str) -> tuple[Span, ...]:
    edge = min(max(start, first), stop)
    return tuple(span for span in (Span("dead", start, edge), Span(kind, edge, stop)) if span.tokens > 0)


def _entry(request: RequestState, pool: str, index: int) -> int | None:
    table = request.tables.get(pool, ())
    return table[index] if index < len(table) else None


def _parents_first(state: State) -> list[int]:
    children: dict[int, list[int]] = {}
    for number, span in sorted(state.tree.items()):
        children.setdefault(span.parent, []).append(number)
    found, ahead = [], list(reversed(children.get(-1, [])))
    while ahead:
        number = ahead.pop()
        found.append(number)
        ahead += reversed(children.get(number, []))
    return found


def strip_of(state: State, rid: RequestId, window_tokens: int, flight: int = 0) -> list[Span]:
    """The SWA KV of one request's positions from 0 on: tombstone, kept (an island that it does not hold), dead, live,
    flight. A request that is not running has none. Raises `InvalidInput` where the log has no SWA pool."""
    if SWA not in state.pools:
        raise InvalidInput(f"the log has no pool {SWA!r} (it has {sorted(state.pools)}): there is no window to draw")
    request, size = state.requests.get(rid), page_size_of(state)
    if request is None or request.status != "running":
        return []
    first = first_read(request.tokens, positive("window_tokens", window_tokens))
    pages: list[Span] = []
    for index, page in enumerate(request.tables.get(FULL, ())):
        start, stop = index * size, min((index + 1) * size, request.tokens)
        if start >= stop:
            break
        if _entry(request, SWA, index) is not None:
            pages += _cut(start, stop, first, "live")
        else:
            pages.append(Span("kept" if page in state.swa_of else "tombstone", start, stop))
    if flight:
        pages.append(Span("flight", request.tokens, request.tokens + flight))
    return merged(pages)


def merged(spans: Sequence[Span]) -> list[Span]:
    """Neighbours of one kind as one span."""
    found: list[Span] = []
    for span in spans:
        if found and found[-1].kind == span.kind and found[-1].stop == span.start:
            span = Span(span.kind, found.pop().start, span.stop)
        found.append(span)
    return found
