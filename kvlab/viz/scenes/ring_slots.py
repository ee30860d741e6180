"""What lies in the slots of a ring buffer, and what a window of its size should find there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvlab.errors import InvalidInput, positive


@dataclass(frozen=True)
class RingSlots:
    """`keys[s]` and `values[s]` are the positions whose K and V lie in slot s (None: never written).

    `tokens` are committed, so the window should hold the last `window` of their positions. `overwritten` is the
    position that the last write replaced; `pointer` is the slot of the next write.
    """

    keys: tuple[int | None, ...]
    values: tuple[int | None, ...]
    tokens: int
    pointer: int
    overwritten: int | None = None

    def __post_init__(self) -> None:
        if not self.keys or len(self.keys) != len(self.values):
            raise InvalidInput(f"a ring has as many keys as values, not {len(self.keys)} and {len(self.values)}")
        if not 0 <= self.pointer < len(self.keys) or self.tokens < 0:
            raise InvalidInput(
                f"a ring of {len(self.keys)} slots with {self.tokens} tokens has no write slot {self.pointer}"
            )

    @property
    def window(self) -> int:
        """Slots."""
        return len(self.keys)

    @property
    def wanted(self) -> range:
        """Positions that the newest query reads."""
        return range(max(0, self.tokens - self.window), self.tokens)

    @property
    def missing(self) -> list[int]:
        """Wanted positions that no slot holds with both its key and its value."""
        whole = {key for key, value in zip(self.keys, self.values, strict=True) if key == value}
        return [position for position in self.wanted if position not in whole]

    @property
    def torn(self) -> list[int]:
        """Slots whose key and value belong to different positions."""
        return [slot for slot in range(self.window) if self.keys[slot] != self.values[slot]]

    @property
    def stale(self) -> list[int]:
        """Slots that hold a position outside the window."""
        held = ((slot, {self.keys[slot], self.values[slot]} - {None}) for slot in range(self.window))
        return [slot for slot, positions in held if any(each not in self.wanted for each in positions)]

    @property
    def newest(self) -> int | None:
        """The slot of the last committed position, None if no slot holds it."""
        return self.keys.index(self.tokens - 1) if self.tokens and self.tokens - 1 in self.keys else None


def ring_after(window: int, tokens: int) -> RingSlots:
    """A ring of `window` slots after `tokens` tokens, each written to its position % window."""
    positive("window", window)
    slots: list[int | None] = [None] * window
    for position in range(max(0, tokens - window), tokens):
        slots[position % window] = position
    overwritten = tokens - 1 - window if tokens > window else None
    return RingSlots(tuple(slots), tuple(slots), tokens, tokens % window, overwritten)


def counted(positions: Sequence[int]) -> str:
    """'position 3', 'positions 3 to 5', 'positions 3, 4, 9', '12 positions'."""
    if len(positions) == 1:
        return f"position {positions[0]:,}"
    if list(positions) == list(range(positions[0], positions[-1] + 1)):
        return f"positions {positions[0]:,} to {positions[-1]:,}"
    if len(positions) <= 5:
        return f"positions {', '.join(f'{each:,}' for each in positions)}"
    return f"{len(positions):,} positions"


def said(ring: RingSlots) -> str:
    """What happened last and what is wrong, in one or two sentences."""
    if not ring.tokens:
        return f"The ring is empty: {ring.window:,} slots, all masked"
    newest = ring.newest
    last = f"Position {ring.tokens - 1:,} lies nowhere"
    if newest is not None:
        last = f"Position {ring.tokens - 1:,} is written to slot {newest:,} (K and V)"
        if ring.overwritten is not None:
            last += f", over position {ring.overwritten:,}"
            if ring.overwritten not in ring.wanted:
                last += ", which just left the window"
    wrong = []
    if ring.torn:
        wrong.append(f"K and V disagree in {len(ring.torn):,} slot{'s' * (len(ring.torn) != 1)}")
    if ring.missing:
        them = "it" if len(ring.missing) == 1 else "them"
        wrong.append(f"the query still needs {counted(ring.missing)}, and the ring has lost {them}")
    if wrong:
        return f"{last}. Wrong: {'; '.join(wrong)}"
    left = ring.window - len(ring.wanted)
    if left:
        return f"{last}; {left:,} slot{'s are' if left != 1 else ' is'} empty and masked"
    return last
