"""What a radix tree answers: plain tuples of positions and pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from kvlab.errors import InvalidInput
from kvlab.memory.radix_node import Node, Pages
from kvlab.workload import TokenIds

Held: TypeAlias = tuple[Node | None, int]
"""What a lock keeps: the path down to a node, whose nodes from a position on are locked in the SWA pool, too."""


class Match(NamedTuple):
    """`tokens` of a prefix can be used, and lie in `pages`; of `full_tokens` the full KV is cached. The usable part
    ends in `node`, which is the tree's own."""

    tokens: int
    full_tokens: int
    pages: Pages
    node: Node | None

    def why(self) -> str:
        """What kept the match from being longer."""
        if self.tokens == self.full_tokens:
            return f"{self.tokens} tokens are cached and usable; what follows them is not cached"
        return (
            f"the full-attention KV of {self.full_tokens} tokens is cached, but the window before position "
            f"{self.full_tokens} is dead; the last position with a live window before it is {self.tokens}"
        )


class Lock(NamedTuple):
    """A handle: the path of `tokens` tokens is kept, its SWA KV from the boundary `swa_from` on."""

    number: int
    tokens: int
    swa_from: int


class Inserted(NamedTuple):
    """What became of an insert of `tokens` tokens (0: all was dead), `found` of which were there before.

    `pages` are the tree's, from the caller's `owned_from` on. `duplicates` are the caller's pages that it has to free;
    the SWA KV of `givers` belongs to the tree's `takers` now, page by page.
    """

    tokens: int
    found: int
    pages: Pages
    duplicates: Pages
    takers: Pages
    givers: Pages


class Evicted(NamedTuple):
    """What went: `full_pages` with all their KV, `swa_pages` with their SWA KV only; and the tokens of each kind."""

    full_pages: Pages
    swa_pages: Pages
    full_tokens: int
    swa_tokens: int


def token_array(ids: Sequence[int] | TokenIds, name: str = "token ids") -> TokenIds:
    """Ids as int32. Raises `InvalidInput` for what is not a flat list of 32-bit integers."""
    if isinstance(ids, np.ndarray) and ids.dtype == np.int32 and ids.ndim == 1:
        return ids
    values: Any = ids
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InvalidInput(f"{name} must be a flat list of integers: {error}") from error
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise InvalidInput(f"{name} must be a flat list of integers, not {values!r}")
    if array.size and not -(1 << 31) <= array.min() <= array.max() < 1 << 31:
        raise InvalidInput(f"{name} must be 32-bit integers, not {array.min()} to {array.max()}")
    return array.astype(np.int32)


def id_bytes(ids: Sequence[int] | TokenIds, name: str = "token ids") -> bytes:
    """`token_array` as bytes: a copy."""
    return token_array(ids, name).tobytes()
