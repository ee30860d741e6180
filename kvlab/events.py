"""The event log: what a policy did, as tuples; and its replay to any step, forward and back.

Every memory system writes the same few events, so one replay serves them all. A frame ends with each `step` event,
which the scheduler (engine, simulator or a lesson) writes; frame 0 is the empty machine.

    ("header", geometry)                            first event: pools, groups, policy name (see `Geometry`)
    ("arrive", rid, prompt_tokens)                  the request joins the queue
    ("refuse", rid, reason)                         one in the queue leaves it for good: it can never fit
    ("admit", rid, known, final, cached)            tokens to prefill, final length, tokens found in the cache
    ("grow", rid, pool, ranges)                     blocks appended to the request's table in that pool
    ("trim", rid, pool, count)                      the last `count` blocks left the table
    ("drop", rid, pool, index, count)               blocks behind the window left the table at [index, index + count)
    ("copy", rid, pool, index, source, target)      copy-on-write: table entry `index` now names `target`
    ("region", rid, pool, start, asked, size)       a contiguous reservation of `asked` slots, rounded up to `size`
    ("fork", parent, child)                         the child shares the parent's tables
    ("swap_out", rid, pool, ranges) / ("swap_in", rid, pool, ranges)   the table moved to host blocks / back
    ("release", rid, reason)                        finished | aborted | preempted
    ("register", pool, block, digest, parent)       a full block can be found by its prefix (both cut to 8 hex digits)
    ("evict", pool, block)                          a cached block is handed out again and loses its prefix
    ("relocate", pool, source, target)              what lies in a block moved; every table that names it follows
    ("step", ((rid, tokens), ...))                  tokens whose KV was committed; negative = rolled back

A radix tree over two pools writes these as well (its positions are tokens, its nodes numbers, -1 the root):

    ("map", full, swa) / ("unmap", full)            these pages of the full pool have that SWA page / have none any more
    ("skip", rid, pool, count)                      `count` entries without a block appended to the table
    ("point", rid, pool, index, ranges)             table entries from `index` on name these blocks of the tree now
    ("node", number, parent, start, ranges, live)   a node of the tree begins at token `start`
    ("split", number, front, position, pages)       its first `pages` pages, up to `position`, became its parent `front`
    ("tombstone", number) / ("heal", number)        its SWA KV is dead / live again
    ("lock", number, swa_from) / ("unlock", number, swa_from)   its path is kept, in the SWA pool from a position on
    ("leave", number)                               evicted

`ranges` is a tuple of half-open (start, stop) block-id pairs; a run of one id is (id, id + 1).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from kvlab.errors import InvalidInput, positive
from kvlab.workload import RequestId

Event: TypeAlias = tuple[Any, ...]
Ranges: TypeAlias = tuple[tuple[int, int], ...]
FORMAT = "kvlab-events-1"


def to_ranges(ids: Iterable[int]) -> Ranges:
    """Consecutive ids folded into half-open runs, order kept: [7, 8, 9, 3] -> ((7, 10), (3, 4))."""
    runs: list[tuple[int, int]] = []
    for each in ids:
        if runs and runs[-1][1] == each:
            runs[-1] = (runs[-1][0], each + 1)
        else:
            runs.append((each, each + 1))
    return tuple(runs)


def from_ranges(ranges: Iterable[Iterable[int]]) -> list[int]:
    """The ids of `to_ranges`, in order."""
    return [each for start, stop in ranges for each in range(start, stop)]


class EventLog:
    """An append-only list of events; a policy that has none writes nothing and pays nothing."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.events: list[Event] = list(events)

    def write(self, *event: Any) -> None:
        """Append one event: its kind, then its fields."""
        self.events.append(event)

    def step(self, tokens: Iterable[tuple[RequestId, int]] = ()) -> None:
        """End a frame: these requests committed that many tokens."""
        self.events.append(("step", tuple(tokens)))

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def save(self, path: str | Path) -> None:
        """Write JSON lines, one event a line, through a temporary file: an interrupted save leaves the old file."""
        path = Path(path)
        part = path.with_suffix(path.suffix + ".part")
        with part.open("w", encoding="utf-8") as handle:
            handle.write(json.dumps([FORMAT]) + "\n")
            handle.writelines(json.dumps(event) + "\n" for event in self.events)
        part.replace(path)

    @classmethod
    def load(cls, path: str | Path) -> EventLog:
        """Read what `save` wrote; `InvalidInput` names the line that cannot be read."""
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise InvalidInput(f"cannot read the event log {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
        events = []
        for number, line in enumerate(lines, start=1):
            try:
                event = json.loads(line)
                if not isinstance(event, list) or not event or not isinstance(event[0], str):
                    raise ValueError("an event is a list that begins with its kind")
            except ValueError as error:
                raise InvalidInput(f"{path}, line {number}: {error}") from error
            events.append(_frozen(event))
        if not events or events[0] != (FORMAT,):
            raise InvalidInput(f"{path} is not an event log: its first line should be {json.dumps([FORMAT])}")
        return cls(events[1:])


def _frozen(value: Any) -> Any:
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value


@dataclass(slots=True)
class PoolGeometry:
    """One pool: `capacity` slots in blocks of `block_size` tokens (1 where the pool is not paged)."""

    name: str
    capacity: int
    block_size: int
    bytes_per_token: int
    free_order: list[int] = field(default_factory=list)

    @property
    def blocks(self) -> int:
        """Whole blocks in the pool."""
        return self.capacity // self.block_size


@dataclass(slots=True)
class RequestState:
    """A request as the log tells it. `tables` and `regions` are by pool name; `host` holds swapped-out blocks."""

    rid: RequestId
    status: str
    tokens: int
    known: int
    final: int
    cached: int = 0
    tables: dict[str, list[int | None]] = field(default_factory=dict)
    regions: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    host: dict[str, list[int]] = field(default_factory=dict)
    order: int = 0


@dataclass(slots=True)
class TreeSpan:
    """A node of a radix tree as the log tells it: a tombstone unless `live`."""

    parent: int
    start: int
    pages: list[int]
    live: bool
    full_lock: int = 0
    swa_lock: int = 0


@dataclass(slots=True)
class State:
    """Everything the log says up to one frame."""

    policy: str = ""
    pools: dict[str, PoolGeometry] = field(default_factory=dict)
    requests: dict[RequestId, RequestState] = field(default_factory=dict)
    copies: int = 0
    origin: dict[str, dict[int, int]] = field(default_factory=dict)
    """Pool -> block -> the block it was copied from, until either is handed out again."""
    moved: list[Event] = field(default_factory=list)
    registered: dict[str, dict[int, tuple[str, str]]] = field(default_factory=dict)
    """Pool -> block -> (digest, its parent's) of the blocks that can be found by their prefix."""

    tree: dict[int, TreeSpan] = field(default_factory=dict)
    swa_of: dict[int, int] = field(default_factory=dict)
    """Page of the full pool -> the page of the SWA pool that goes with it."""

    def holders(self, pool: str) -> dict[int, list[RequestId]]:
        """Block id -> the requests whose tables name it, in order of admission."""
        found: dict[int, list[RequestId]] = {}
        for request in self.requests.values():
            for block in request.tables.get(pool, ()):
                if block is not None:
                    found.setdefault(block, []).append(request.rid)
        return found

    def filled(self, pool: str) -> dict[int, int]:
        """Block id -> how many of its slots hold tokens."""
        size = self.pools[pool].block_size
        found: dict[int, int] = {}
        for request in self.requests.values():
            for index, block in enumerate(request.tables.get(pool, ())):
                if block is not None:
                    used = min(size, max(0, request.tokens - index * size))
                    found[block] = max(found.get(block, 0), used)
        return found

    def cached(self, pool: str) -> list[int]:
        """Registered blocks that nobody holds, in the order they would be evicted."""
        held = self.holders(pool)
        return [block for block in self.registered.get(pool, ()) if block not in held]

    def running(self) -> list[RequestState]:
        """Requests that hold memory, in order of admission."""
        return [request for request in self.requests.values() if request.status == "running"]


def apply(state: State, event: Event) -> None:
    """Bring `state` forward by one event; `InvalidInput` on an event this version doesn't know."""
    kind, *fields = event
    try:
        handler = _HANDLERS[kind]
    except KeyError:
        raise InvalidInput(f"unknown event kind {kind!r}; known are {', '.join(sorted(_HANDLERS))}") from None
    try:
        handler(state, *fields)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InvalidInput(f"event {event!r} does not fit what came before it: {error!r}") from error


def _header(state: State, policy: str, pools: Iterable[tuple[Any, ...]]) -> None:
    state.policy = policy
    state.pools = {p[0]: PoolGeometry(p[0], p[1], p[2], p[3], from_ranges(p[4])) for p in pools}


def _arrive(state: State, rid: RequestId, prompt_tokens: int) -> None:
    if rid in state.requests and state.requests[rid].status in ("waiting", "running", "swapped"):
        raise ValueError(f"the request is {state.requests[rid].status} already")
    order = state.requests.pop(rid).order if rid in state.requests else len(state.requests)
    state.requests[rid] = RequestState(rid, "waiting", 0, prompt_tokens, prompt_tokens, order=order)


def _refuse(state: State, rid: RequestId, reason: str) -> None:
    request = state.requests[rid]
    if request.status not in ("waiting", "preempted"):
        raise ValueError(f"the request is {request.status}, not in the queue")
    request.status = "refused"


def _admit(state: State, rid: RequestId, known: int, final: int, cached: int) -> None:
    order = state.requests.pop(rid).order if rid in state.requests else len(state.requests)
    state.requests[rid] = RequestState(rid, "running", cached, known, final, cached, order=order)


def _grow(state: State, rid: RequestId, pool: str, ranges: Ranges) -> None:
    ids = from_ranges(ranges)
    state.requests[rid].tables.setdefault(pool, []).extend(ids)
    _handed_out(state, pool, ids)


def _handed_out(state: State, pool: str, ids: list[int]) -> None:
    """These blocks begin anew: neither copies nor what others were copied from."""
    if origin := state.origin.get(pool):
        state.origin[pool] = {block: source for block, source in origin.items() if not {block, source} & set(ids)}


def _trim(state: State, rid: RequestId, pool: str, count: int) -> None:
    table = state.requests[rid].tables[pool]
    if count > len(table):
        raise ValueError(f"the table has {len(table)} blocks")
    del table[len(table) - count :]


def _drop(state: State, rid: RequestId, pool: str, index: int, count: int) -> None:
    table = state.requests[rid].tables[pool]
    if not 0 <= index <= index + count <= len(table):
        raise ValueError(f"the table has {len(table)} blocks")
    table[index : index + count] = [None] * count


def _copy(state: State, rid: RequestId, pool: str, index: int, source: int, target: int) -> None:
    table = state.requests[rid].tables[pool]
    if table[index] != source:
        raise ValueError(f"table entry {index} is {table[index]}, not {source}")
    table[index] = target
    _handed_out(state, pool, [target])
    state.origin.setdefault(pool, {})[target] = source
    state.copies += 1
    state.moved.append(("copy", rid, pool, index, source, target))


def _region(state: State, rid: RequestId, pool: str, start: int, asked: int, size: int) -> None:
    state.requests[rid].regions[pool] = (start, asked, size)


def _fork(state: State, parent: RequestId, child: RequestId) -> None:
    forked = copy.deepcopy(state.requests[parent])
    order = state.requests.pop(child).order if child in state.requests else len(state.requests)
    forked.rid, forked.order, forked.regions = child, order, {}
    state.requests[child] = forked


def _relocate(state: State, pool: str, source: int, target: int) -> None:
    for request in state.requests.values():
        if pool in request.tables:
            request.tables[pool] = [target if block == source else block for block in request.tables[pool]]
    _handed_out(state, pool, [target])
    state.moved.append(("relocate", pool, source, target))


def _swap_out(state: State, rid: RequestId, pool: str, ranges: Ranges) -> None:
    request = state.requests[rid]
    request.tables.pop(pool, None)
    request.host[pool] = from_ranges(ranges)
    request.status = "swapped"
    state.moved.append(("swap_out", rid, pool, ranges))


def _swap_in(state: State, rid: RequestId, pool: str, ranges: Ranges) -> None:
    request = state.requests[rid]
    request.host.pop(pool, None)
    request.tables[pool] = list(from_ranges(ranges))
    _handed_out(state, pool, from_ranges(ranges))
    request.status = "running"
    state.moved.append(("swap_in", rid, pool, ranges))


def _release(state: State, rid: RequestId, reason: str) -> None:
    request = state.requests[rid]
    tables, request.tables = request.tables, {}
    request.status, request.regions, request.host = reason, {}, {}
    for pool, registered in state.registered.items():
        held = state.holders(pool)
        for block in reversed(tables.get(pool, ())):
            if block is not None and block in registered and block not in held:
                registered[block] = registered.pop(block)


def _register(state: State, pool: str, block: int, digest: str, parent: str) -> None:
    registered = state.registered.setdefault(pool, {})
    if block in registered:
        raise ValueError(f"block {block} is registered already")
    registered[block] = (digest, parent)


def _evict(state: State, pool: str, block: int) -> None:
    del state.registered[pool][block]


def _step(state: State, tokens: Iterable[tuple[RequestId, int]]) -> None:
    for rid, count in tokens:
        request = state.requests[rid]
        request.tokens += count
        request.known = max(request.known, request.tokens)


def _map(state: State, full: Ranges, swa: Ranges) -> None:
    state.swa_of.update(zip(from_ranges(full), from_ranges(swa), strict=True))


def _unmap(state: State, full: Ranges) -> None:
    for page in from_ranges(full):
        del state.swa_of[page]


def _skip(state: State, rid: RequestId, pool: str, count: int) -> None:
    state.requests[rid].tables.setdefault(pool, []).extend([None] * count)


def _point(state: State, rid: RequestId, pool: str, index: int, ranges: Ranges) -> None:
    table, ids = state.requests[rid].tables[pool], from_ranges(ranges)
    if index + len(ids) > len(table):
        raise ValueError(f"the table has {len(table)} blocks")
    table[index : index + len(ids)] = ids


def _node(state: State, number: int, parent: int, start: int, ranges: Ranges, live: bool) -> None:
    state.tree[number] = TreeSpan(parent, start, from_ranges(ranges), live)


def _split(state: State, number: int, front: int, position: int, pages: int) -> None:
    node = state.tree[number]
    state.tree[front] = TreeSpan(node.parent, node.start, node.pages[:pages], node.live, node.full_lock, node.swa_lock)
    node.parent, node.start, node.pages = front, position, node.pages[pages:]


def _tombstone(state: State, number: int) -> None:
    state.tree[number].live = False


def _heal(state: State, number: int) -> None:
    state.tree[number].live = True


def _lock(state: State, number: int, swa_from: int, count: int = 1) -> None:
    while number >= 0:
        node = state.tree[number]
        node.full_lock += count
        node.swa_lock += count if node.start >= swa_from else 0
        number = node.parent


def _unlock(state: State, number: int, swa_from: int) -> None:
    _lock(state, number, swa_from, -1)


def _leave(state: State, number: int) -> None:
    del state.tree[number]


_HANDLERS: dict[str, Callable[..., None]] = {
    "map": _map, "unmap": _unmap, "skip": _skip, "point": _point, "node": _node, "split": _split,
    "tombstone": _tombstone, "heal": _heal, "lock": _lock, "unlock": _unlock, "leave": _leave,
    "header": _header, "arrive": _arrive, "refuse": _refuse, "admit": _admit, "grow": _grow, "trim": _trim,
    "drop": _drop, "copy": _copy, "relocate": _relocate, "register": _register, "evict": _evict,
    "region": _region, "fork": _fork, "swap_out": _swap_out, "swap_in": _swap_in, "release": _release, "step": _step,
}  # fmt: skip


class Replay:
    """The log cut into frames: `events(i)` is what happened in frame i, `state(i)` the machine after it.

    A keyframe every `keyframe_every` frames makes going back cost no more than going forward. `moved` of a state
    lists the copies and swaps of its own frame only.
    """

    def __init__(self, log: Iterable[Event], keyframe_every: int = 64) -> None:
        self._frames: list[list[Event]] = [[]]
        opened = False
        for event in log:
            if event[0] == "header":
                self._frames[0].append(event)
                continue
            if not opened:
                self._frames.append([])
            self._frames[-1].append(event)
            opened = event[0] != "step"
        self._every = positive("keyframe_every", keyframe_every)
        self._keyframes: list[State] = []

    def __len__(self) -> int:
        return len(self._frames)

    def events(self, frame: int) -> tuple[Event, ...]:
        """The events of one frame, in order."""
        return tuple(self._frames[self._checked(frame)])

    def state(self, frame: int) -> State:
        """The state after `frame` (0 = empty machine, -1 = the end); a copy of your own to keep."""
        frame = self._checked(frame)
        while len(self._keyframes) <= frame // self._every:
            first = len(self._keyframes) * self._every
            state = copy.deepcopy(self._keyframes[-1]) if self._keyframes else State()
            for each in range(max(0, first - self._every + 1) if self._keyframes else 0, first + 1):
                self._advance(state, each)
            self._keyframes.append(state)
        nearest = frame // self._every
        state = copy.deepcopy(self._keyframes[nearest])
        for each in range(nearest * self._every + 1, frame + 1):
            self._advance(state, each)
        return state

    def states(self) -> Iterator[State]:
        """Every state from frame 0 on, each a copy."""
        state = State()
        for frame in range(len(self)):
            self._advance(state, frame)
            yield copy.deepcopy(state)

    def _advance(self, state: State, frame: int) -> None:
        state.moved.clear()
        for event in self._frames[frame]:
            apply(state, event)

    def _checked(self, frame: int) -> int:
        if not -len(self) <= frame < len(self):
            raise InvalidInput(f"the log has frames 0 to {len(self) - 1}, not {frame}")
        return frame % len(self)
