"""One sentence a frame, made from its events: what a person standing beside the memory would say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvlab.events import Event, PoolGeometry, Replay, RequestState, State, from_ranges
from kvlab.viz.palette import name
from kvlab.viz.words import shown
from kvlab.workload import RequestId

_LISTED = 6
_SENTENCES = 4
_REASON = 160
_UNSAID = ("header", "register", "map", "unmap", "node", "split", "tombstone", "heal", "lock", "unlock", "leave")
_NOT_OF_A_REQUEST = frozenset(
    {"header", "register", "map", "unmap", "node", "split", "tombstone", "heal", "lock", "unlock", "leave"}
)


def captions(replay: Replay) -> list[str]:
    """One for each frame of a log."""
    said: list[str] = []
    before: State | None = None
    copied_from: set[int] = set()
    for frame, after in enumerate(replay.states()):
        copied_from |= {move[4] for move in after.moved if move[0] == "copy"}
        copied_from -= _handed_out(replay.events(frame))
        said.append(_caption(before, after, replay.events(frame), copied_from))
        before = after
    return said


def _handed_out(events: Iterable[Event]) -> set[int]:
    """Blocks that a frame took from the pool: whoever held them before is forgotten."""
    found: set[int] = set()
    for kind, *fields in events:
        if kind in ("grow", "swap_in"):
            found |= set(from_ranges(fields[2]))
        elif kind == "copy":
            found.add(fields[4])
    return found


def _caption(before: State | None, after: State, events: Sequence[Event], copied_from: set[int]) -> str:
    if before is None:
        return "; ".join(_empty(pool) for pool in after.pools.values()) or "Nothing has happened yet"
    acts: dict[RequestId, _Acts] = {}
    let_go: Counter[int] = Counter()
    evicted: list[int] = []
    relocated: list[tuple[int, int]] = []
    for kind, *fields in events:
        if kind == "step":
            for rid, count in fields[0]:
                acts.setdefault(rid, _Acts(rid)).written = count
        elif kind == "fork":
            acts.setdefault(fields[0], _Acts(fields[0])).children.append(fields[1])
        elif kind == "copy":
            rid, pool, _, source, target = fields
            holders = sum(source in request.tables.get(pool, ()) for request in before.requests.values())
            acts.setdefault(rid, _Acts(rid)).other.append((kind, source, target, holders - let_go[source]))
            let_go[source] += 1
        elif kind == "evict":
            evicted.append(fields[1])
        elif kind == "relocate":
            relocated.append((fields[1], fields[2]))
        elif kind not in _NOT_OF_A_REQUEST:
            acts.setdefault(fields[0], _Acts(fields[0])).other.append((kind, *fields[1:]))
    said = []
    for alike, words in (
        (_Acts.only_comes, "join the queue"),
        (_Acts.writes_one, "write one token each"),
        (_Acts.takes_one, "take one block each"),
    ):
        many = [each.rid for each in acts.values() if alike(each)]
        if len(many) > 2:
            said.append(f"{listed(map(name, many))} {words}")
            acts = {rid: each for rid, each in acts.items() if rid not in many}
    said = [*(each.say(before, after, copied_from) for each in acts.values()), *said]
    said = [words for words in said if words]
    if evicted:
        lose = "loses the prefix it had" if len(evicted) == 1 else "lose the prefixes they had"
        said.append(f"{blocks_named(evicted).capitalize()} {lose} cached")
    if relocated:
        sources, targets = zip(*relocated, strict=True)
        move = "moves" if len(sources) == 1 else "move"
        said.insert(0, f"To make room, {blocks_named(sources)} {move} to {blocks_named(targets)}: every table follows")
    left = len(said) - _SENTENCES
    more = f"; and {left} more thing{' happens' if left == 1 else 's happen'}" if left > 0 else ""
    return ". ".join(said[:_SENTENCES]) + more if said else "Nothing changes"


def listed(names: Iterable[str]) -> str:
    """'A', 'A and B', 'A, B and C'; a long list is cut: 'A, B, C, D, E and 7 others'."""
    found = list(names)
    if len(found) > _LISTED:
        found = [*found[: _LISTED - 1], f"{len(found) - _LISTED + 1} others"]
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"


def blocks_named(ids: Sequence[int]) -> str:
    """'block 7', 'blocks 7, 1, 3', '63 blocks'."""
    if len(ids) == 1:
        return f"block {ids[0]}"
    return f"blocks {', '.join(map(str, ids))}" if len(ids) <= _LISTED else f"{len(ids)} blocks"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("s" if abs(count) != 1 else "")


def _ordinal(count: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th") if count % 100 not in (11, 12, 13) else "th"
    return f"{count:,}{ending}"


def _told_of(request: RequestState, state: State) -> str | None:
    """The pool whose blocks a caption names: of those that hold all tokens (a ring may not) the finest."""
    whole = [
        pool for pool, table in request.tables.items() if len(table) * state.pools[pool].block_size >= request.tokens
    ]
    return min(whole, key=lambda pool: state.pools[pool].block_size, default=None)


def _in_pool(state: State, pool: str) -> str:
    """' of the ring pool' where there are several."""
    return f" of the {pool} pool" if len(state.pools) > 1 else ""


def _empty(pool: PoolGeometry) -> str:
    if pool.block_size == 1:
        return f"Empty: {pool.capacity:,} slots, all free"
    return f"Empty: {pool.blocks:,} blocks of {pool.block_size} slots, all free"


@dataclass
class _Acts:
    """What one request did in a frame."""

    rid: RequestId
    written: int = 0
    children: list[RequestId] = field(default_factory=list)
    other: list[Event] = field(default_factory=list)

    def only_comes(self) -> bool:
        """It came, and waits."""
        return [event[0] for event in self.other] == ["arrive"] and not self.written

    def writes_one(self) -> bool:
        """It did nothing but write one token, into a block that it held already."""
        return self.written == 1 and not self.other and not self.children

    def takes_one(self) -> bool:
        """It took one new block and wrote its first token."""
        grown = [event for event in self.other if event[0] == "grow"]
        alone = len(grown) == len(self.other) == 1 and len(from_ranges(grown[0][2])) == 1
        return self.written == 1 and alone and not self.children

    def say(self, before: State, after: State, copied_from: set[int]) -> str:
        """Its part of the caption. `copied_from`: blocks that earlier frames copied away from."""
        who = name(self.rid)
        request = after.requests[self.rid]
        said = [words for event in self.other if (words := self._event(event, before))]
        if self.children:
            tables = list(request.tables.values())
            what = f"{who}'s {_plural(len(tables[0]), 'block')}" if tables else f"what {who} holds"
            verb = "shares" if len(self.children) == 1 else "share"
            said.append(f"{listed(map(name, self.children))} {verb} {what}: nothing is copied")
        if self.written < 0:
            said.append(f"{'it' if said else who} rolls back {_plural(-self.written, 'token')}")
        elif self.written:
            subject = "it" if said else who
            said.append(f"{subject} {self._writing(request, before, after, copied_from)}")
        elif grown := self._grown():
            said += [f"{who} takes {blocks_named(ids)}{_in_pool(after, pool)}" for pool, ids in grown.items()]
        elif self.other and not said:
            said.append(f"{who} is admitted")
        return "; ".join(said)

    def _grown(self) -> dict[str, list[int]]:
        """Pool -> blocks that its table grew by."""
        found: dict[str, list[int]] = {}
        for event in self.other:
            if event[0] == "grow":
                found.setdefault(event[1], []).extend(from_ranges(event[2]))
        return found

    def _writing(self, request: RequestState, before: State, after: State, copied_from: set[int]) -> str:
        pool = _told_of(request, after)
        if pool is None:
            return f"writes {self._tokens(request)}"
        size, table = after.pools[pool].block_size, request.tables[pool]
        last = table[(request.tokens - 1) // size]
        empty = len(table) * size - request.tokens
        if empty == 0:
            rest = f"block {last} is full now"
        else:
            rest = f"{_plural(empty, 'slot')} of block {last} {'stays' if empty == 1 else 'stay'} empty"
        ids = self._grown().get(pool, [])
        if ids and any(event[0] == "admit" for event in self.other):
            hit = f" (and finds {request.cached:,} in the cache)" if request.cached else ""
            was = before.requests.get(self.rid)
            verb = "comes back and computes" if was and was.status == "preempted" else "prefills"
            return f"{verb} {_plural(self.written, 'token')}{hit} into {blocks_named(ids)}; {rest}"
        if ids:
            return f"takes {blocks_named(ids)} for {self._tokens(request)}; {rest}"
        where = f"into block {last}"
        if last in copied_from and len(after.holders(pool)[last]) == 1:
            copied_from.discard(last)
            where += " in place, because nobody else holds it any more"
        return f"writes {self._tokens(request)} {where}; {rest}"

    def _tokens(self, request: RequestState) -> str:
        if self.written == 1:
            return f"its {_ordinal(request.tokens)} token"
        return _plural(self.written, "token")

    def _event(self, event: Event, before: State) -> str:
        who, (kind, *fields) = name(self.rid), event
        if kind == "arrive" and self.only_comes():
            return f"{who} joins the queue with {_plural(fields[0], 'token')}"
        if kind == "refuse":
            return f"{who} is refused for good: {shown(fields[0], _REASON)}"
        if kind == "copy":
            source, target, holders = fields
            return f"{who} copies block {source}, which {holders} requests hold, to block {target}"
        if kind == "region":
            _, start, asked, size = fields
            rounding = f" ({asked:,} asked, rounded up)" if size != asked else ""
            return f"{who} reserves {size:,} slots from slot {start:,} on{rounding}"
        if kind == "trim":
            return f"{who} gives back {_plural(fields[1], 'block')}"
        if kind == "drop":
            return f"{_plural(fields[2], 'block')} behind {who}'s window {'is' if fields[2] == 1 else 'are'} freed"
        if kind == "swap_out":
            count = len(from_ranges(fields[1]))
            verb = "moves" if count == 1 else "move"
            return f"{who} is swapped out: {_plural(count, 'block')} {verb} to host memory"
        if kind == "swap_in":
            return f"{who} is swapped in: its blocks come back as {blocks_named(from_ranges(fields[1]))}"
        if kind == "release":
            return self._left(fields[0], before)
        return ""

    def _left(self, reason: str, before: State) -> str:
        verb = {"finished": "finishes", "aborted": "is aborted", "preempted": "is preempted"}.get(reason, reason)
        words = f"{name(self.rid)} {verb}"
        was = before.requests.get(self.rid)
        if was is None:
            return words
        for start, _, size in was.regions.values():
            words += f": {size:,} slots from slot {start:,} on are free again"
        for pool, table in was.tables.items():
            held = [block for block in table if block is not None]
            holders = before.holders(pool)
            left = [block for block in held if holders[block] == [self.rid]]
            freed = [block for block in left if block not in before.registered.get(pool, ())]
            if freed:
                named = blocks_named(freed) + _in_pool(before, pool)
                words += f": {named} {'is' if len(freed) == 1 else 'are'} free again"
            if cached := [block for block in left if block not in freed]:
                words += f"; {blocks_named(cached)} {'stays' if len(cached) == 1 else 'stay'} cached"
            if kept := len(held) - len(left):
                words += f"; {_plural(kept, 'block')} {'stays' if kept == 1 else 'stay'} with the others"
        return words
