"""The policy contract: what a memory system promises to the scheduler, the engine and the simulator.

The life of a request under a policy:

    admit --> extend --> (step writes KV) --> commit --> extend --> ... --> release
                 \\__ `quiet` more steps without a call __/

`extend(rid, count)` grants slots for `count` tokens beyond the committed ones and says how many further tokens are
`quiet`: they change nothing but a length. In a quiet run the caller advances `request.computed` itself; the next
`commit` brings the ids of all tokens since the last one, in the step that uses the run up: it may fill a block that
others can find from then on. `commit` with fewer tokens than extended rolls the rest back.
A rollback ends the quiet run, a fork that of both sides. A refused call changes nothing and adds no move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, get_args, runtime_checkable

from kvlab.errors import InvalidInput, UnknownRequest
from kvlab.events import EventLog
from kvlab.policies.layout import Layout, Slots
from kvlab.shapes import LayerGroup
from kvlab.workload import Request, RequestId, TokenIds

TokenList: TypeAlias = Sequence[int] | TokenIds
ReleaseReason: TypeAlias = Literal["finished", "aborted", "preempted"]


class Admission(NamedTuple):
    """What an admitted request finds: the tokens whose KV is in the cache already."""

    cached_tokens: int


class Move(NamedTuple):
    """Copy `tokens` slots, `bytes` over all layers, from one place to another; moves are done in order, before the
    writes of the step. `source` and `target` are first slots in their pools."""

    source_pool: str
    source: int
    target_pool: str
    target: int
    tokens: int
    bytes: int
    why: str


class Usage(NamedTuple):
    """Bytes of one pool, each counted once, under the first term that applies (DESIGN: the accounting identity)."""

    live: int
    dead: int
    reserved: int
    internal: int
    cached: int
    external: int
    free: int

    @property
    def capacity(self) -> int:
        """Sum of the terms: the pool."""
        return sum(self)

    @property
    def owned(self) -> int:
        """Bytes that belong to admitted requests."""
        return self.live + self.dead + self.reserved + self.internal

    def shares(self) -> dict[str, float]:
        """Each term as a fraction of the capacity."""
        return {name: value / self.capacity for name, value in self._asdict().items()}


class Overlay(NamedTuple):
    """Bytes that several pools lie over: `rows` equal rows, and row r of one pool is the memory of row r of another."""

    name: str
    rows: int


class Pool(NamedTuple):
    """One pool of a policy, for whoever keeps its bytes: `slots` tokens in blocks of `block_size` (1 where it is not
    paged), and the live reference counts of its blocks where it has some.

    With an `overlay`, each of its rows holds `slots / rows / block_size` of the pool's blocks, one after the other. A
    pool that no group names lies in host memory: "host" for all layers, "host.X" for those of pool X.
    """

    slots: int
    block_size: int
    references: Sequence[int] | None = None
    overlay: Overlay | None = None


class Extension:
    """Room for the tokens at positions [start, start + count), and how many more are quiet after them."""

    __slots__ = ("_slots_of", "count", "quiet", "start")

    def __init__(self, start: int, count: int, quiet: int, slots_of: Callable[[int, int], tuple[Slots, ...]]) -> None:
        self.start = start
        self.count = count
        self.quiet = quiet
        self._slots_of = slots_of

    def slots(self) -> tuple[Slots, ...]:
        """Slots to write, one int64 `[count]` per layer group; ask before the next call that names the request."""
        return self._slots_of(self.start, self.start + self.count)


@runtime_checkable
class Policy(Protocol):
    """Decides where the KV of each request lives. Sizes in tokens unless a name says bytes."""

    groups: tuple[LayerGroup, ...]
    can_swap: bool
    log: EventLog | None
    reads_tokens: bool
    """Whether `commit` looks at the ids or only counts them (a simulator may then pass a `range`)."""

    def pools(self) -> dict[str, Pool]:
        """The pools by name; `Move`s and slots name places in them."""

    def slots_needed(self, request: Request) -> int:
        """Slots that admitting the request and prefilling it would take, before any cache hit."""

    def admit(self, request: Request) -> Admission | None:
        """Take the request in, or None if there is no room now. Raises `NeverFits` if there never will be."""

    def extend(self, rid: RequestId, count: int) -> Extension:
        """Room for `count` more tokens. Raises `OutOfMemory`."""

    def layout(self, rid: RequestId) -> tuple[Layout, ...]:
        """Where the computed tokens lie, one layout per group."""

    def commit(self, rid: RequestId, token_ids: TokenList) -> None:
        """These tokens' KV is computed; extended ones beyond them are rolled back."""

    def fork(self, parent: RequestId, child: Request) -> None:
        """`child` continues from the parent's committed tokens. Raises `OutOfMemory` where forking must copy."""

    def release(self, rid: RequestId, reason: ReleaseReason) -> None:
        """Give back everything the request holds."""

    def swap_out(self, rid: RequestId) -> None:
        """Move the request to host memory. Raises `OutOfMemory` when the host is full."""

    def swap_in(self, rid: RequestId) -> None:
        """Bring it back. Raises `OutOfMemory`."""

    def drain_moves(self) -> list[Move]:
        """The copies decided since the last drain, in the order they must be done."""

    def usage(self, pending_tokens: int | None = None) -> dict[str, Usage]:
        """The accounting of each pool; holes smaller than `pending_tokens` count as external."""

    def audit(self) -> None:
        """Recompute everything slot by slot; `InvariantViolation` names the broken invariant."""


class Holding:
    """What a policy remembers of an admitted request.

    committed <= granted <= limit: tokens known to be computed, tokens extended for, tokens that may be written before
    the next call.
    """

    __slots__ = ("committed", "granted", "limit", "request")

    def __init__(self, request: Request, committed: int = 0) -> None:
        self.request = request
        self.committed = committed
        self.granted = committed
        self.limit = committed

    def settled(self, doing: str) -> None:
        """Refuse to go on while tokens are extended or computed but not committed."""
        if self.granted != self.committed or self.request.computed != self.committed:
            raise InvalidInput(
                f"cannot {doing} request {self.request.rid!r}: {self.committed} tokens are committed, "
                f"{self.request.computed} computed and {self.granted} extended; commit first"
            )


H = TypeVar("H", bound=Holding)


class PolicyBase(Generic[H]):
    """What every policy keeps: who is admitted, the moves of the step, and the log if there is one."""

    can_swap = False
    reads_tokens = False

    def __init__(self, groups: Sequence[LayerGroup], log: EventLog | None) -> None:
        if not groups:
            raise InvalidInput("a policy needs at least one layer group")
        self.groups = tuple(groups)
        self.log = log
        self._held: dict[RequestId, H] = {}
        self._moves: list[Move] = []

    @property
    def bytes_per_token(self) -> int:
        """KV bytes of one token over all groups."""
        return sum(group.bytes_per_token for group in self.groups)

    def admitted(self) -> list[Request]:
        """The requests that hold memory, in order of admission."""
        return [holding.request for holding in self._held.values()]

    def drain_moves(self) -> list[Move]:
        """See `Policy.drain_moves`."""
        moves, self._moves = self._moves, []
        return moves

    def swap_out(self, rid: RequestId) -> None:
        """See `Policy.swap_out`; refused unless `can_swap`."""
        raise InvalidInput(
            f"{type(self).__name__} cannot swap; preempt by recomputing, or give a paged policy host_tokens"
        )

    def swap_in(self, rid: RequestId) -> None:
        """See `Policy.swap_in`; refused unless `can_swap`."""
        self.swap_out(rid)

    def _holding(self, rid: RequestId) -> H:
        try:
            return self._held[rid]
        except KeyError:
            raise UnknownRequest(f"request {rid!r} is not admitted; {len(self._held)} requests are") from None

    def _refuse_admitted(self, rid: RequestId) -> None:
        if rid in self._held:
            raise InvalidInput(f"request {rid!r} is admitted already; release it first or use another id")

    def _move(self, source_pool: str, source: int, target_pool: str, target: int, tokens: int, why: str) -> None:
        self._moves.append(Move(source_pool, source, target_pool, target, tokens, tokens * self.bytes_per_token, why))


def checked_reason(reason: ReleaseReason) -> ReleaseReason:
    """The reason, if it is one of the known ones."""
    if reason not in get_args(ReleaseReason):
        raise InvalidInput(f"a request is released as {' or '.join(get_args(ReleaseReason))}, not {reason!r}")
    return reason


def checked_commit(holding: Holding, token_ids: TokenList) -> int:
    """The length after this commit; `InvalidInput` when it goes beyond what may be written."""
    stop = holding.committed + len(token_ids)
    if stop > holding.limit:
        raise InvalidInput(
            f"request {holding.request.rid!r} commits {len(token_ids)} tokens after {holding.committed}, "
            f"but may hold {holding.limit}; extend first"
        )
    return stop
