"""A server small enough to read, for lesson 05: a learner's two decisions over real blocks, and a model that reads
what lies in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from zlib import crc32

from kvlab.errors import InvalidInput
from kvlab.events import EventLog, to_ranges
from kvlab.memory.block_pool import BlockPool

BLOCK_SIZE: Final = 16
_BYTES_PER_TOKEN: Final = 1
_LETTERS: Final = 26
_MOST_STEPS: Final = 400


@dataclass(eq=False)
class Job:
    """A request: its tokens so far, how many of them are computed, and the blocks where their KV lies."""

    name: str
    tokens: list[int]
    most_tokens: int
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.tokens)

    @property
    def pending(self) -> int:
        """Tokens that are known and not computed: the prompt at first, then one a step."""
        return len(self.tokens) - self.computed

    @property
    def needs(self) -> int:
        """Blocks for the tokens it has now."""
        return -(-len(self.tokens) // BLOCK_SIZE)

    @property
    def most(self) -> int:
        """Blocks at its longest."""
        return -(-self.most_tokens // BLOCK_SIZE)

    @property
    def text(self) -> str:
        """What it has said."""
        return "".join(chr(ord("a") + token) for token in self.tokens[self.prompt_tokens :])

    def __repr__(self) -> str:
        return f"{self.name} ({len(self.tokens)} tokens, {self.computed} computed, blocks {self.blocks})"


NextStep: TypeAlias = Callable[[int, list[Job], list[Job], BlockPool], tuple[Mapping[str, int], Sequence[str]]]
Preempt: TypeAlias = Callable[[list[Job], list[Job], BlockPool], object]


def job(name: str, prompt_tokens: int, output_tokens: int) -> Job:
    """A request whose prompt is made from its name."""
    prompt = [crc32(f"{name}{position}".encode()) % _LETTERS for position in range(prompt_tokens)]
    return Job(name, prompt, prompt_tokens + output_tokens)


@dataclass
class SmallServer:
    """`blocks` blocks of 16 slots and a budget of tokens a step, run by a learner's `next_step` and `preempt`.

    The model's next token is a checksum of everything that it reads: the slots of all tokens before. So a text shows
    whether each of them was where the block list says. `log` is for the timeline, `memory[slot]` the token there.
    """

    next_step: NextStep
    preempt: Preempt
    blocks: int
    budget: int = 64
    log: EventLog = field(default_factory=EventLog)
    running: list[Job] = field(default_factory=list)
    waiting: list[Job] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.blocks)
        self.memory = [-1] * (self.blocks * BLOCK_SIZE)
        free = to_ranges(self.pool.next_free())
        self.log.write("header", "Paged", (("full", len(self.memory), BLOCK_SIZE, _BYTES_PER_TOKEN, free),))

    def serve(self, jobs: Sequence[Job], arrivals: Sequence[int]) -> dict[str, str]:
        """Serve jobs that come after `arrivals` steps; what each said.

        Ends when all are done, or at a step that could do nothing: then some texts are shorter than they should be.
        Raises `InvalidInput` where the decisions cannot be carried out.
        """
        coming = sorted(zip(arrivals, jobs, strict=True), key=lambda each: each[0])
        for step in range(_MOST_STEPS):
            while coming and coming[0][0] <= step:
                self._arrive(coming.pop(0)[1])
            if not (coming or self.running or self.waiting):
                break
            if not self.step() and not coming:
                break
        return {each.name: each.text for each in jobs}

    def step(self) -> bool:
        """One step; whether anything happened."""
        plan, refused = self.next_step(self.budget, list(self.running), list(self.waiting), self.pool)
        self._refuse(refused)
        before = list(self.running)
        for each in before:
            if each in self.running and not self._room(each, plan.get(each.name, 0)):
                return False
        preempted = before != self.running
        if not preempted:
            for each in [each for each in self.waiting if plan.get(each.name)]:
                self._admit(each)
        done = [(each, self._compute(each, plan[each.name])) for each in self.running if plan.get(each.name)]
        self.log.step((each.name, count) for each, count in done)
        for each, _ in done:
            if len(each.tokens) == each.most_tokens:
                self._leave(each)
        return bool(done or preempted or refused)

    def _arrive(self, each: Job) -> None:
        self.waiting.append(each)
        self.log.write("arrive", each.name, len(each.tokens))

    def _refuse(self, names: Sequence[str]) -> None:
        for each in [each for each in self.waiting if each.name in names]:
            self.waiting.remove(each)
            self.log.write("refuse", each.name, f"needs {each.most} of {self.blocks} blocks")

    def _admit(self, each: Job) -> None:
        if not self.pool.can_allocate(each.needs):
            return
        self.waiting.remove(each)
        self.running.append(each)
        each.blocks = self.pool.allocate(each.needs)
        self.log.write("admit", each.name, len(each.tokens), each.most_tokens, each.computed)
        self.log.write("grow", each.name, "full", to_ranges(each.blocks))

    def _room(self, each: Job, count: int) -> bool:
        """A block for the next token, if it needs one; False where preempting brought none."""
        while each.computed + count > len(each.blocks) * BLOCK_SIZE:
            if self.pool.free_blocks:
                new = self.pool.allocate(1)
                each.blocks = [*each.blocks, *new]
                self.log.write("grow", each.name, "full", to_ranges(new))
                continue
            before = list(self.running)
            self.preempt(self.running, self.waiting, self.pool)
            gone = [other for other in before if other not in self.running]
            for other in gone:
                self.log.write("release", other.name, "preempted")
            if each in gone:
                return True
            if not self.pool.free_blocks:
                return False
        return True

    def _compute(self, each: Job, count: int) -> int:
        """Write the KV of `count` tokens; where all are computed then, read everything and say the next one."""
        start, stop = each.computed, each.computed + count
        if stop > min(len(each.tokens), len(each.blocks) * BLOCK_SIZE):
            raise InvalidInput(f"cannot compute {count} more tokens of {each!r}; see the checks above")
        slots = [each.blocks[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(stop)]
        for position in range(start, stop):
            self.memory[slots[position]] = each.tokens[position]
        each.computed = stop
        if stop == len(each.tokens):
            read = ",".join(str(self.memory[slot]) for slot in slots)
            each.tokens = [*each.tokens, crc32(read.encode()) % _LETTERS]
        return count

    def _leave(self, each: Job) -> None:
        self.running.remove(each)
        self.pool.free(each.blocks[::-1])
        self.log.write("release", each.name, "finished")
