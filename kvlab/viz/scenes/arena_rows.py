"""An arena of superblocks as a picture needs it: which are rings, which are broken into pages, what has just moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvlab.errors import InvalidInput
from kvlab.events import State
from kvlab.workload import RequestId


@dataclass(frozen=True)
class Superblock:
    """A row of the arena: the ring of one request, or pages (each with its holders; none: a free page), or free."""

    ring: RequestId | None = None
    pages: tuple[tuple[RequestId, ...], ...] = ()

    @property
    def kind(self) -> str:
        """'ring', 'pages' or 'free'; a superblock whose pages are all free is whole again."""
        if self.ring is not None:
            return "ring"
        return "pages" if any(self.pages) else "free"

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        return sum(bool(holders) for holders in self.pages)


@dataclass(frozen=True)
class ArenaRows:
    """`pages_per_row` pages of `page_bytes` in each superblock; `moves` are the (source, target) pages of this frame,
    numbered through the arena. `orders` says which colour a request has."""

    rows: tuple[Superblock, ...]
    pages_per_row: int
    page_bytes: int
    moves: tuple[tuple[int, int], ...] = ()
    orders: Mapping[RequestId, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.rows or self.pages_per_row < 1:
            raise InvalidInput("an arena has at least one superblock, and at least one page in each")
        for row, each in enumerate(self.rows):
            if each.pages and (each.ring is not None or len(each.pages) != self.pages_per_row):
                raise InvalidInput(
                    f"superblock {row} is a ring or has {self.pages_per_row} pages, not both and not {len(each.pages)}"
                )
        pages = len(self.rows) * self.pages_per_row
        if any(not 0 <= page < pages for move in self.moves for page in move):
            raise InvalidInput(f"the pages of this arena are 0 to {pages - 1}; not so in {list(self.moves)}")

    @property
    def row_bytes(self) -> int:
        """Bytes of a superblock."""
        return self.pages_per_row * self.page_bytes

    def count(self, kind: str) -> int:
        """Superblocks of a kind."""
        return sum(each.kind == kind for each in self.rows)

    @property
    def used_pages(self) -> int:
        """Pages that somebody holds."""
        return sum(each.used for each in self.rows)

    @property
    def spare_pages(self) -> int:
        """Free pages of broken superblocks."""
        return self.count("pages") * self.pages_per_row - self.used_pages

    @property
    def emptiest(self) -> int | None:
        """The broken superblock with the fewest pages in use (the first of several)."""
        broken = [row for row, each in enumerate(self.rows) if each.kind == "pages"]
        return min(broken, key=lambda row: self.rows[row].used, default=None)


def arena_in(state: State, *, ring: str = "ring", page: str = "page") -> ArenaRows:
    """The arena of a replayed state whose pools `ring` (a block is a superblock) and `page` lie over the same bytes.

    Raises `InvalidInput` where the log has no such pools or the superblocks are no whole number of pages.
    """
    if missing := {ring, page} - set(state.pools):
        raise InvalidInput(f"the log has no pool {sorted(missing)}; its header names {sorted(state.pools) or 'none'}")
    rows, small = state.pools[ring].blocks, state.pools[page]
    if rows < 1 or small.blocks % rows:
        raise InvalidInput(f"{small.blocks} pages do not lie in {rows} equal superblocks")
    per_row = small.blocks // rows
    owners: dict[int, RequestId] = {}
    for request in state.requests.values():
        owners.update({block: request.rid for block in request.tables.get(ring, ()) if block is not None})
        if ring in request.regions:
            owners[request.regions[ring][0] // state.pools[ring].block_size] = request.rid
    held = state.holders(page)
    found = []
    for row in range(rows):
        pages = tuple(tuple(held.get(each, ())) for each in range(row * per_row, (row + 1) * per_row))
        found.append(Superblock(owners.get(row), pages if any(pages) else ()))
    moves = tuple((move[2], move[3]) for move in state.moved if move[:2] == ("relocate", page))
    orders = {request.rid: request.order for request in state.requests.values()}
    return ArenaRows(tuple(found), per_row, small.block_size * small.bytes_per_token, moves, orders)
