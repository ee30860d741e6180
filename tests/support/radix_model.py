"""The plainest model of a radix tree with tombstones: one cell for each page of each path, and no nodes.

A cell is named by all the tokens up to its end. Nodes are only the runs between cells that begin one (`first`), which
matters because locks and evictions take whole nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

Name = tuple[object, ...]


@dataclass
class Cell:
    """One page of tokens on one path."""

    page: int
    live: bool
    first: bool
    full_lock: int = 0
    swa_lock: int = 0
    full_used: int = 0
    swa_used: int = 0


class RadixModel:
    """The rules of facts: match, locks, splits, inserts that heal, two evictions."""

    def __init__(self, size: int, window: int | None) -> None:
        self.size, self.window = size, window
        self.cells: dict[Name, Cell] = {}
        self.clock = 0

    # Names

    def names(self, salt: object, tokens: Sequence[int]) -> list[Name]:
        whole = len(tokens) // self.size * self.size
        return [(type(salt), salt, *tokens[:end]) for end in range(self.size, whole + 1, self.size)]

    def path(self, salt: object, tokens: Sequence[int]) -> list[Name]:
        """The cells that are there."""
        found = []
        for name in self.names(salt, tokens):
            if name not in self.cells:
                break
            found.append(name)
        return found

    def above(self, name: Name) -> list[Name]:
        """The cell and all before it, from the last one up."""
        return [name[:end] for end in range(len(name), 2, -self.size)]

    def below(self, name: Name) -> list[Name]:
        return [other for other in self.cells if len(other) == len(name) + self.size and other[: len(name)] == name]

    def node(self, name: Name) -> list[Name]:
        """The cells of the node that the cell lies in, from the first."""
        start = next(each for each in self.above(name) if self.cells[each].first)
        cells = [start]
        while len(after := self.below(cells[-1])) == 1 and not self.cells[after[0]].first:
            cells.append(after[0])
        return cells

    def nodes(self) -> list[list[Name]]:
        return [self.node(name) for name, cell in self.cells.items() if cell.first]

    def depth(self, name: Name) -> int:
        return len(name) - 2

    # Looking

    def match(self, salt: object, tokens: Sequence[int]) -> tuple[int, int, list[int]]:
        """Tried from the longest down: all of the window before it is live, or all of it is."""
        path = self.path(salt, tokens)
        full, window = len(path) * self.size, self.window or 0
        for usable in range(full, -1, -self.size):
            needed = [name for name in path[: usable // self.size] if self.depth(name) > usable - window]
            if all(self.cells[name].live for name in needed):
                return usable, full, [self.cells[name].page for name in path[: usable // self.size]]
        raise AssertionError("nothing matches 0 tokens")

    # Locks

    def cut(self, path: list[Name], position: int) -> None:
        """Where the path goes on at `position`, a node begins there."""
        if 0 < position < len(path) * self.size:
            self.cells[path[position // self.size]].first = True

    def begin_after(self, name: Name) -> None:
        """Whatever follows the cell begins a node."""
        for each in self.below(name):
            self.cells[each].first = True

    def lock(self, salt: object, tokens: Sequence[int], trim: bool) -> tuple[Name | None, list[Name], list[Name]]:
        """(end, cells locked, cells whose SWA KV is locked)."""
        names = self.names(salt, tokens)
        if not names:
            return None, [], []
        window = self.window or 0
        self.begin_after(names[-1])
        if trim:
            self.cut(names, max(0, len(tokens) - window) // self.size * self.size)
        swa: list[Name] = []
        for name in reversed(names):
            if len(swa) * self.size < window or (swa and not self.cells[swa[-1]].first):
                swa.append(name)
        for name in names:
            self.cells[name].full_lock += 1
        for name in swa:
            self.cells[name].swa_lock += 1
        return names[-1], names, swa

    def unlock(self, cells: list[Name], swa: list[Name]) -> None:
        self.clock += 1
        for name in cells:
            self.cells[name].full_lock -= 1
            if not self.cells[name].full_lock:
                self.cells[name].full_used = self.clock
        for name in swa:
            self.cells[name].swa_lock -= 1
            if not self.cells[name].swa_lock:
                self.cells[name].swa_used = self.clock

    # Growing

    def insert(self, salt, tokens, pages, owned_from, dead_to, kept):
        """(found, canonical pages, duplicates, {taker: giver})."""
        path = self.path(salt, tokens)
        found = len(path) * self.size
        if dead_to >= len(tokens):
            return found, None, [], {}
        names = self.names(salt, tokens)
        if path:
            self.begin_after(path[-1])
        duplicates = [page for at, page in enumerate(pages) if owned_from <= at * self.size < found]

        def live(at: int) -> bool:
            position = at * self.size
            return position >= dead_to or kept[0] <= position < kept[1]

        adopted: dict[int, int] = {}
        for start, stop in (kept, (dead_to, len(tokens))):
            span = range(max(start, owned_from) // self.size, min(stop, found) // self.size)
            dead = [at for at in span if not self.cells[names[at]].live]
            if span and span[0] in dead:
                self.cells[names[span[0]]].first = True
            if span and span[-1] in dead and span.stop < len(path):
                self.cells[names[span.stop]].first = True
            for at in dead:
                self.cells[names[at]].live = True
                adopted[self.cells[names[at]].page] = pages[at]
        for at in range(len(path), len(names)):
            before = at == len(path) or live(at) != live(at - 1) or at * self.size in (dead_to, *kept)
            self.cells[names[at]] = Cell(pages[at], live(at), before)
        self.clock += 1
        for name in names:
            cell = self.cells[name]
            if not cell.full_lock:
                cell.full_used = self.clock
            if cell.live and not cell.swa_lock:
                cell.swa_used = self.clock
        return found, [self.cells[name].page for name in names[owned_from // self.size :]], duplicates, adopted

    # Shrinking

    def drop(self, leaf: list[Name]) -> list[Cell]:
        """The leaf and the childless tombstones above it."""
        gone = []
        while True:
            above = leaf[0][: -self.size]
            gone += [self.cells.pop(name) for name in leaf]
            if above not in self.cells or self.below(above) or self.cells[above].live or self.cells[above].full_lock:
                return gone
            leaf = self.node(above)

    def evict_full(self, tokens: int) -> list[Cell]:
        gone: list[Cell] = []
        while len(gone) * self.size < tokens:
            leaves = [n for n in self.nodes() if not self.below(n[-1]) and not self.cells[n[0]].full_lock]
            if not leaves:
                break
            gone += self.drop(min(leaves, key=lambda n: (self.cells[n[0]].full_used, -self.depth(n[0]))))
        return gone

    def evict_swa(self, tokens: int) -> tuple[list[Cell], list[Cell]]:
        """(cells gone, cells whose SWA KV went)."""
        full: list[Cell] = []
        swa: list[Cell] = []
        window = max(self.window or 0, 1)
        while (sum(cell.live for cell in full) + len(swa)) * self.size < tokens:
            missing = tokens - (sum(cell.live for cell in full) + len(swa)) * self.size
            live = [n for n in self.nodes() if self.cells[n[0]].live and not self.cells[n[0]].swa_lock]
            if not live:
                break
            node = min(live, key=lambda n: (self.cells[n[0]].swa_used, self.depth(n[0])))
            count = -(-missing // self.size)
            if not self.below(node[-1]) and (len(node) - count) * self.size < window:
                full += self.drop(node)
                continue
            self.cut_node(node, count)
            swa += self.bury(node[:count])
        return full, swa

    def cut_node(self, node: list[Name], count: int) -> None:
        if count < len(node):
            self.cells[node[count]].first = True

    def bury(self, names: list[Name]) -> list[Cell]:
        for name in names:
            self.cells[name].live = False
        return [self.cells[name] for name in names]

    def bury_before(self, cells: list[Name], position: int) -> list[Cell]:
        found: list[Cell] = []
        for name in cells:
            cell = self.cells[name]
            if cell.live and not cell.swa_lock and self.depth(name) <= position:
                found += self.bury([name])
        for at, name in enumerate(cells):
            if at * self.size == position and at and not self.cells[cells[at - 1]].live and self.cells[name].live:
                self.cells[name].first = True
        return found
