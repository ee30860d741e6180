"""PagedPrefix against the plainest model of a prefix cache: a list of free blocks, and what prefix each block holds.

The model keys a block by the salt and *all* tokens up to its end, so it knows no hash; and it hands out blocks itself,
so tables, references and the order of the free blocks must agree exactly.
"""

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kvlab.errors import OutOfMemory
from kvlab.policies.prefix import PagedPrefix
from kvlab.workload import Request, Salt
from support.cases import GLOBAL
from support.machines import Counted

PICK = st.integers(0, 99)
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)
SALTS: list[Salt] = [None, None, None, "a", 1, "1"]


class Line:
    """A request of the model: its salt, its tokens (all computed) and its blocks."""

    def __init__(self, request: Request, tokens: list[int], blocks: list[int]) -> None:
        self.request = request
        self.tokens = tokens
        self.blocks = blocks


class PrefixMachine(Counted):
    """Requests are prefilled at once; then they grow, draft, fork and go."""

    @initialize(blocks=st.integers(4, 14), size=st.sampled_from([1, 2, 4]))
    def fresh(self, blocks: int, size: int) -> None:
        self.size, self.blocks = size, blocks
        self.policy = PagedPrefix((GLOBAL,), blocks * size, block_size=size)
        self.free = list(range(blocks))
        self.references = [0] * blocks
        self.holds: dict[int, tuple[Salt, ...]] = {}
        self.lines: dict[int, Line] = {}
        self.seen: list[list[int]] = [[]]
        self.born = self.evicted = self.found = self.asked = 0

    # The model

    def prefix(self, request: Request, tokens: list[int], index: int) -> tuple[Salt, ...]:
        return type(request.salt).__name__, request.salt, *tokens[: (index + 1) * self.size]

    def lookup(self, request: Request, tokens: list[int]) -> list[int]:
        hits: list[int] = []
        while len(tokens) - len(hits) * self.size > self.size:
            wanted = self.prefix(request, tokens, len(hits))
            block = next((block for block, held in self.holds.items() if held == wanted), None)
            if block is None:
                break
            hits.append(block)
        return hits

    def pop(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        for block in taken:
            self.references[block] = 1
            self.evicted += self.holds.pop(block, None) is not None
        return taken

    def give_back(self, blocks: list[int]) -> None:
        """From the end of a table: a block without a prefix to the front, one with a prefix to the back."""
        for block in reversed(blocks):
            self.references[block] -= 1
            if self.references[block] == 0:
                self.free.insert(len(self.free) if block in self.holds else 0, block)

    def written(self, line: Line, tokens: list[int]) -> None:
        first = len(line.tokens) // self.size
        line.tokens = line.tokens + tokens
        for index in range(first, len(line.tokens) // self.size):
            self.holds[line.blocks[index]] = self.prefix(line.request, line.tokens, index)

    def grow(self, line: Line, count: int) -> bool:
        """Blocks for `count` more tokens, the copy of a shared last block included."""
        used = len(line.tokens) % self.size
        copy = bool(used and self.references[line.blocks[-1]] > 1)
        needed = -(-(len(line.tokens) + count) // self.size) - len(line.blocks)
        if needed + copy > len(self.free):
            return False
        if copy:
            (target,) = self.pop(1)
            self.references[line.blocks[-1]] -= 1
            line.blocks[-1] = target
        line.blocks += self.pop(needed)
        return True

    # What happens

    def picked(self, pick: int) -> tuple[int, Line]:
        return list(self.lines.items())[pick % len(self.lines)]

    @rule(pick=PICK, cut=st.integers(0, 20), more=TOKENS, salt=st.sampled_from(SALTS))
    def come(self, pick: int, cut: int, more: list[int], salt: Salt) -> None:
        base = self.seen[pick % len(self.seen)]
        tokens = [*base[:cut], *more]
        if len(tokens) + 1 > self.blocks * self.size:
            return
        self.seen.append(tokens)
        rid, self.born = self.born, self.born + 1
        request = Request(rid, tokens, 1, salt=salt)
        hits = self.lookup(request, tokens)
        needed = -(-len(tokens) // self.size) - sum(self.references[block] > 0 for block in hits)
        assert self.policy.peek(request) == len(hits) * self.size
        admission = self.policy.admit(request)
        assert (admission is not None) == (needed <= len(self.free))
        if admission is None:
            return
        cached = len(hits) * self.size
        assert admission.cached_tokens == request.computed == cached < len(tokens)
        self.asked, self.found = self.asked + len(tokens), self.found + cached
        self.free = [block for block in self.free if block not in hits]
        for block in hits:
            self.references[block] += 1
        line = self.lines[rid] = Line(request, tokens[:cached], list(hits))
        assert self.grow(line, len(tokens) - cached)
        self.policy.extend(rid, len(tokens) - cached)
        self.policy.commit(rid, tokens[cached:])
        self.written(line, tokens[cached:])

    @precondition(lambda self: self.lines)
    @rule(pick=PICK, drafts=TOKENS, accepted=st.integers(0, 9))
    def append(self, pick: int, drafts: list[int], accepted: int) -> None:
        rid, line = self.picked(pick)
        if not self.grow(line, len(drafts)):
            try:
                self.policy.extend(rid, len(drafts))
            except OutOfMemory:
                return
            raise AssertionError("extended without room")
        self.policy.extend(rid, len(drafts))
        accepted = min(accepted, len(drafts))
        self.policy.commit(rid, drafts[:accepted])
        self.written(line, drafts[:accepted])
        kept = -(-len(line.tokens) // self.size)
        self.give_back(line.blocks[kept:])
        del line.blocks[kept:]
        line.request.generated(drafts[:accepted])

    @precondition(lambda self: self.lines)
    @rule(pick=PICK)
    def fork(self, pick: int) -> None:
        rid, line = self.picked(pick)
        child, self.born = self.born, self.born + 1
        self.lines[child] = Line(line.request.fork(child), list(line.tokens), list(line.blocks))
        self.policy.fork(rid, self.lines[child].request)
        for block in line.blocks:
            self.references[block] += 1

    @precondition(lambda self: self.lines)
    @rule(pick=PICK)
    def go(self, pick: int) -> None:
        rid, line = self.picked(pick)
        del self.lines[rid]
        self.policy.release(rid, "finished")
        self.give_back(line.blocks)
        self.seen = [*self.seen[-12:], line.tokens]

    @invariant()
    def agrees(self) -> None:
        self.policy.audit()
        pool = self.policy.pool
        assert pool.next_free() == self.free
        assert list(pool.references) == self.references
        assert set(pool.prefixes.entries) == set(self.holds)
        assert pool.cached() == [block for block in self.free if block in self.holds]
        assert self.policy.stats == (self.asked, self.found, self.evicted)
        for rid, line in self.lines.items():
            (table,) = self.policy.layout(rid)
            assert (list(table.blocks), table.end) == (line.blocks, len(line.tokens))
