"""What follows from where a step's KV lies: worked out for the first layer that asks, kept for the others."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Derived:
    """Results by key, made at the first call that asks for them.

    A `Step` owns one and hands it to the steps that `Step.with_operands` makes; it goes when they go. A key names
    everything that the result depends on besides the step's starts, lengths, layouts, window, scale and soft-cap: the
    store's block size, for example. What raises is not kept.
    """

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result for `key`, made now if there is none yet."""
        made = self._made
        if key not in made:
            made[key] = make()
        found: T = made[key]
        return found
