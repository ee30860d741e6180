"""The content model: which token each slot of a memory holds. It catches aliasing, lost copies and stale shares."""

from collections.abc import Iterable

from kvlab.policies.base import Move
from kvlab.policies.layout import Layout, Region, Ring, Table


def slot_at(layout: Layout, position: int) -> int:
    """Where a layout puts a position, also one that is written next (in a quiet run)."""
    match layout:
        case Table():
            assert position // layout.block_size < len(layout.blocks), f"position {position} is beyond the table"
            return layout.blocks[position // layout.block_size] * layout.block_size + position % layout.block_size
        case Ring():
            return layout.first_slot + position % layout.window_tokens
        case Region():
            return layout.first_slot + position


class Contents:
    """(pool, slot) -> the token written there last, by its identity."""

    def __init__(self) -> None:
        self.slots: dict[tuple[str, int], int | None] = {}

    def move(self, move: Move) -> None:
        """Copy what the move says, all at once."""
        carried = [self.slots.get((move.source_pool, move.source + i)) for i in range(move.tokens)]
        for i, token in enumerate(carried):
            self.slots[move.target_pool, move.target + i] = token

    def copy(self, pool: str, source: int, target: int, tokens: int) -> None:
        """A move within one pool."""
        self.move(Move(pool, source, pool, target, tokens, 0, ""))

    def write(self, pool: str, slots: Iterable[int], tokens: Iterable[int]) -> None:
        """Put tokens into slots, one by one."""
        for slot, token in zip(slots, tokens, strict=True):
            self.slots[pool, int(slot)] = token

    def read(self, pool: str, slots: Iterable[int]) -> list[int | None]:
        """What the slots hold."""
        return [self.slots.get((pool, int(slot))) for slot in slots]
