"""Contiguous reservations: what their slots are for, the holes between them, and how each kind is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvlab.errors import InvalidInput
from kvlab.events import RequestState, State
from kvlab.viz import svg
from kvlab.viz.palette import colour, name
from kvlab.viz.scenes.legend import hatched, solid

WORDS: Final = {
    "live": "holds a token",
    "later": "reserved for later",
    "never": "never used (internal)",
    "rounding": "lost to rounding up (external)",
}


@dataclass(frozen=True)
class Piece:
    """Slots [start, stop) of the pool, of one kind: live, later, never or rounding."""

    kind: str
    start: int
    stop: int

    @property
    def slots(self) -> int:
        """How many."""
        return self.stop - self.start


def pieces(request: RequestState, pool: str) -> list[Piece]:
    """A request's region [start, start + size) cut by what its slots are for; empty pieces are left out."""
    start, asked, size = request.regions[pool]
    live = min(request.tokens, asked)
    later = min(max(request.final, live), asked)
    cuts = (("live", 0, live), ("later", live, later), ("never", later, asked), ("rounding", asked, size))
    return [Piece(kind, start + a, start + b) for kind, a, b in cuts if b > a]


def holes(state: State, pool: str) -> list[tuple[int, int]]:
    """Free [start, stop) runs between the regions of a pool, in order."""
    found, at = [], 0
    taken = sorted((r.regions[pool][0], r.regions[pool][2]) for r in state.running() if pool in r.regions)
    for start, size in [*taken, (state.pools[pool].capacity, 0)]:
        if start > at:
            found.append((at, start))
        at = max(at, start + size)
    return found


def holders(state: State, pool: str) -> list[RequestState]:
    """Running requests that have a region in the pool; `InvalidInput` if there is no such pool or it is paged."""
    if pool not in state.pools:
        raise InvalidInput(f"the log has no pool {pool!r}; its header names {sorted(state.pools) or 'none'}")
    if any(pool in request.tables for request in state.requests.values()):
        raise InvalidInput(f"pool {pool!r} holds blocks, not contiguous regions: draw it with pool_grid or pages")
    return [request for request in state.running() if pool in request.regions]


def totals_of(requests: Sequence[RequestState], pool: str) -> dict[str, int]:
    """Kind -> slots of all these requests."""
    totals = dict.fromkeys(WORDS, 0)
    for request in requests:
        for piece in pieces(request, pool):
            totals[piece.kind] += piece.slots
    return totals


def drawn_piece(
    piece: Piece, request: RequestState, x: float, y: float, width: float, height: float, label_it: bool
) -> Iterator[str]:
    """One piece in the box (x, y, width, height): solid, or hatched by kind with its size on it where there is room."""
    tint = colour(request.order)
    tip = f"{name(request.rid)}: {piece.slots:,} slots, {WORDS[piece.kind]}"
    marks = {"data_request": name(request.rid), "data_tip": tip}
    if piece.kind == "live":
        yield svg.rect(x, y, width, height, fill=tint, **marks)
    elif piece.kind == "later":
        ground = svg.rect(x, y, width, height, fill=tint, class_="kv-tint")
        yield svg.tag(
            "g", ground, svg.path(svg.hatch(x, y, width, height, "/"), class_="kv-arrow", stroke=tint), **marks
        )
    else:
        kind = "\\" if piece.kind == "never" else "x"
        ground = svg.rect(x, y, width, height, class_="kv-waste")
        yield svg.tag("g", ground, svg.path(svg.hatch(x, y, width, height, kind), class_="kv-hatch"), **marks)
    words = f"{piece.slots:,}"
    if label_it and piece.kind != "live" and width > len(words) * 7 + 12:
        yield _plate(x + width / 2, y + height / 2, words)


def _plate(x: float, y: float, words: str) -> str:
    half = len(words) * 3.6 + 5
    return svg.rect(x - half, y - 9, 2 * half, 18, rx=3, class_="kv-plate") + svg.text(
        x, y + 4.5, words, class_="kv-ink kv-middle"
    )


def key_of(totals: dict[str, int], reserved: int) -> list[tuple[str, str]]:
    """The legend's items for the kinds that occur, with their share of `reserved` unless that is 0."""
    swatches = {
        "live": solid(colour(0)),
        "later": svg.rect(0, 0, 16, 12, fill=colour(0), class_="kv-tint")
        + svg.path(svg.hatch(0, 0, 16, 12, "/", 5), class_="kv-arrow", stroke=colour(0)),
        "never": hatched("\\", background="kv-waste"),
        "rounding": hatched("x", background="kv-waste"),
    }
    share = {kind: f" ({100 * count / reserved:.1f} %)" if reserved else "" for kind, count in totals.items()}
    return [(swatches[kind], f"{WORDS[kind]}: {count:,}{share[kind]}") for kind, count in totals.items() if count]
