"""How far each route has come, and what it moved on the way, when all move one block a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Route: TypeAlias = Literal["gather", "slice", "ring"]
ROUTES: Final[tuple[Route, ...]] = ("gather", "slice", "ring")


@dataclass(frozen=True)
class Progress:
    """`route` after `step` steps, for a request whose physical blocks are `table`.

    Gather copies every block first and reads the copies then; a slice reads blocks 0, 1, 2 ... up to the highest one
    of the table; a ring is read block by block.
    """

    route: Route
    table: Sequence[int]
    step: int

    @property
    def steps(self) -> int:
        """Steps until the engine has all blocks."""
        return {"gather": 2 * len(self.table), "slice": max(self.table) + 1, "ring": len(self.table)}[self.route]

    @property
    def moving(self) -> bool:
        """Whether this step moves a block."""
        return 1 <= self.step <= self.steps

    @property
    def copied(self) -> int:
        """Blocks in the workspace."""
        return min(self.step, len(self.table)) if self.route == "gather" else 0

    @property
    def entered(self) -> int:
        """Blocks that the engine has read, whosever they are."""
        return max(0, min(self.step, self.steps) - (len(self.table) if self.route == "gather" else 0))

    @property
    def useful(self) -> int:
        """Blocks of the request that the engine has read."""
        return sum(block < self.entered for block in self.table) if self.route == "slice" else self.entered

    @property
    def moved(self) -> int:
        """Blocks read or written: a copy counts twice."""
        return self.entered + 2 * self.copied


def steps(table: Sequence[int]) -> int:
    """Steps until the slowest route is through."""
    return max(Progress(route, table, 0).steps for route in ROUTES)


def caption(table: Sequence[int], step: int) -> str:
    """What moves in a step, in words."""
    if step == 0:
        blocks = ", ".join(map(str, table))
        return f"A request's tokens lie in block{'s' * (len(table) > 1)} {blocks}; in a ring, they lie in one piece"
    said, count = [], len(table)
    if step <= count:
        said.append(f"Gather reads block {table[step - 1]} and writes it into the workspace; the engine waits")
    elif step <= 2 * count:
        said.append(f"The engine reads the copy of block {table[step - 1 - count]}: its third trip")
    if step <= max(table) + 1:
        mine = step - 1 in table
        said.append(
            f"The slice reads block {step - 1}, {'which is' if mine else 'for nothing: it is not'} the request's"
        )
    if step < count:
        said.append(f"From the ring the engine reads part {step} of {count}")
    elif step == count:
        said.append("From the ring the engine has read everything")
    return ". ".join(said)
