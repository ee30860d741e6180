"""The KV of one layer in memory: what every attention route reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from kvlab.device.buckets import Buckets
from kvlab.device.pages import zeros
from kvlab.errors import InvalidInput, positive
from kvlab.policies.base import Move
from kvlab.policies.layout import Slots

FP8 = torch.float8_e4m3fn
STORED = (torch.float32, torch.bfloat16, torch.float16, FP8)


class KVStore:
    """K and V of one layer, `[blocks + 1, kv_heads, block_size, head_dim]` each.

    A slot is `block * block_size + offset`, as the policies number them. Within a block a head's rows are adjacent, so
    a route that walks one head reads runs of `block_size * head_dim` values. `block_size` is the policy's; 1 for
    contiguous regions that may start anywhere, the window for rings. `bytes_written` and `bytes_copied` count traffic.

    The last block, `pad_block`, is no policy's: it starts as zeros, padded rows of static shapes read it and write into
    it. `references`, a policy's `pool.references`, lets a step be refused whose table names a block that nobody holds.
    A store may be a view into memory that it shares with others (`over`): its blocks then lie further apart than they
    are long. `copies` rounds the tokens that are copied at once up to static shapes, from the pad slot to the pad slot,
    and cuts more than its limit in pieces; without it a copy has the shape of its moves.
    """

    def __init__(
        self,
        slots: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype,
        device: str | torch.device = "cpu",
        references: Sequence[int] | None = None,
        copies: Buckets | None = None,
    ) -> None:
        if dtype not in STORED:
            raise InvalidInput(f"KV is stored as {', '.join(str(each) for each in STORED)}, not {dtype}")
        if positive("slots", slots) < positive("block_size", block_size):
            raise InvalidInput(f"{slots} slots do not hold one block of {block_size}")
        shape = (slots // block_size + 1, positive("kv_heads", kv_heads), block_size, positive("head_dim", head_dim))
        self.keys = zeros(shape, dtype=dtype, device=device)
        self.values = zeros(shape, dtype=dtype, device=device)
        self.references = references
        self.copies = copies
        self.bytes_written = self.bytes_copied = 0

    @classmethod
    def over(
        cls,
        keys: Tensor,
        values: Tensor,
        *,
        references: Sequence[int] | None = None,
        copies: Buckets | None = None,
    ) -> KVStore:
        """A store whose K and V, `[blocks + 1, kv_heads, block_size, head_dim]`, are views into other memory. Within a
        block they are dense. Raises `InvalidInput` unless, from block to block, it is a whole number of rows."""
        _, heads, size, dim = keys.shape
        dense = (size * dim, dim, 1)
        if keys.shape != values.shape or keys.stride() != values.stride() or keys.stride()[1:] != dense:
            raise InvalidInput(f"K and V have strides {keys.stride()} and {values.stride()}; a block's must be {dense}")
        if keys.stride(0) % dim or keys.stride(0) < heads * size * dim:
            raise InvalidInput(f"blocks of {heads * size * dim} values lie {keys.stride(0)} apart, no whole rows")
        store = cls.__new__(cls)
        store.keys, store.values = keys, values
        store.references, store.copies = references, copies
        store.bytes_written = store.bytes_copied = 0
        return store

    @property
    def block_rows(self) -> int:
        """Rows of `head_dim` values from a block to the next."""
        return self.keys.stride(0) // self.head_dim

    @property
    def block_heads(self) -> int:
        """Heads of a block, `[block_size, head_dim]`, from a block to the next: more than `kv_heads` in a view.

        Raises `InvalidInput` where that is no whole number: blocks cannot be gathered by heads then."""
        apart, left = divmod(self.block_rows, self.block_size)
        if left:
            raise InvalidInput(
                f"blocks lie {self.block_rows} rows apart, no multiple of their {self.block_size} tokens"
            )
        return apart

    @property
    def blocks(self) -> int:
        """Blocks that hold slots; the pad block comes after them."""
        return self.keys.shape[0] - 1

    @property
    def pad_block(self) -> int:
        """The block of padding."""
        return self.blocks

    @property
    def pad_slot(self) -> int:
        """Where the padded rows of a step are written."""
        return self.slots

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.keys.shape[2]

    @property
    def slots(self) -> int:
        """Tokens that the store can hold."""
        return self.blocks * self.block_size

    @property
    def kv_heads(self) -> int:
        """Heads of K and V."""
        return self.keys.shape[1]

    @property
    def head_dim(self) -> int:
        """Values of a head."""
        return self.keys.shape[3]

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's K and V in this layer."""
        return 2 * self.kv_heads * self.head_dim * self.keys.element_size()

    def write(self, keys: Tensor, values: Tensor, slots: Slots | Tensor) -> None:
        """Scatter a step's K and V, `[tokens, kv_heads, head_dim]` each, into `slots` `[tokens]`, in one call.

        Padded rows go to `pad_slot`. Slots on an accelerator are not looked at, which would wait for it.
        Raises `InvalidInput`, nothing written, on a wrong shape, dtype or device, or a slot outside the store. Only
        fp8 is stored in another dtype than the operands'.
        """
        self.write_rows(keys, values, self.places(slots))

    def places(self, slots: Slots | Tensor) -> Tensor:
        """Where a step's slots are in a store of this geometry, for `write_rows`: layers of a group share it.

        Raises `InvalidInput` on a slot outside the store, unless they are on an accelerator.
        """
        seen = isinstance(slots, np.ndarray) or slots.device.type == "cpu"
        if seen and len(slots) and not 0 <= int(slots.min()) <= int(slots.max()) <= self.slots:
            raise InvalidInput(
                f"the store has slots 0 to {self.slots - 1}, not {int(slots.min())} to {int(slots.max())}"
            )
        where = torch.as_tensor(slots, device=self.keys.device)
        return self.rows(where)

    def write_rows(self, keys: Tensor, values: Tensor, rows: Tensor) -> None:
        """`write`, its slots turned into `places` before."""
        expected = (len(rows) // self.kv_heads, self.kv_heads, self.head_dim)
        if tuple(keys.shape) != expected or tuple(values.shape) != expected:
            raise InvalidInput(
                f"{expected[0]} slots need K and V of shape {expected}, not {tuple(keys.shape)} and "
                f"{tuple(values.shape)}"
            )
        if (keys.dtype, keys.device) != (values.dtype, values.device) or keys.device != self.keys.device:
            raise InvalidInput(
                f"K is {keys.dtype} on {keys.device}, V {values.dtype} on {values.device}, the store on "
                f"{self.keys.device}; they must agree"
            )
        if keys.dtype != self.keys.dtype != FP8:
            raise InvalidInput(f"K and V of {keys.dtype} do not go into a store of {self.keys.dtype}; convert them")
        for stored, new in ((self.keys, keys), (self.values, values)):
            scatter(stored, rows, new)
        self.bytes_written += expected[0] * self.bytes_per_token

    def read(self, slots: Slots) -> tuple[Tensor, Tensor]:
        """Copies of K and V of these slots, `[tokens, kv_heads, head_dim]` each, as stored."""
        rows = self.rows(torch.as_tensor(slots, device=self.keys.device))
        shape = (len(slots), self.kv_heads, self.head_dim)
        keys, values = (
            flat(bits(stored)).index_select(0, rows).view(shape).view(stored.dtype)
            for stored in (self.keys, self.values)
        )
        return keys, values

    def rows(self, slots: Tensor) -> Tensor:
        """Rows of the slots in `flat` memory, `[tokens * kv_heads]`, on the slots' device."""
        block, offset = slots // self.block_size, slots % self.block_size
        heads = torch.arange(self.kv_heads, device=slots.device)
        first = block.unsqueeze(1) * self.block_rows + heads * self.block_size
        return (first + offset.unsqueeze(1)).reshape(-1)

    def copy(self, moves: Iterable[Move], pool: str = "full") -> None:
        """Do the moves inside `pool`, as one gather and one scatter where they do not depend on each other.

        Where a move reads or overwrites what an earlier one wrote, the batch is cut, so that the order counts. Raises
        `InvalidInput`, nothing copied, on a slot outside the store.
        """
        mine = [move for move in moves if move.source_pool == move.target_pool == pool]
        for move in mine:
            low, high = min(move.source, move.target), max(move.source, move.target) + move.tokens
            if low < 0 or high > self.slots:
                raise InvalidInput(f"the store has slots 0 to {self.slots - 1}; {move} reaches beyond")
        most = self.copies.limit if self.copies is not None else self.slots
        batch: list[Move] = []
        written: set[int] = set()
        for move in (piece for each in mine for piece in pieces(each, most)):
            source = range(move.source, move.source + move.tokens)
            target = range(move.target, move.target + move.tokens)
            full = len(written) + move.tokens > most
            if full or not (written.isdisjoint(source) and written.isdisjoint(target)):
                self._copy_batch(batch)
                batch, written = [], set()
            batch.append(move)
            written.update(target)
        self._copy_batch(batch)

    def _copy_batch(self, batch: list[Move]) -> None:
        if not batch:
            return
        sources = np.concatenate([np.arange(move.source, move.source + move.tokens) for move in batch])
        targets = np.concatenate([np.arange(move.target, move.target + move.tokens) for move in batch])
        self.copy_slots(self.padded(sources), self.padded(targets))
        self.bytes_copied += len(sources) * self.bytes_per_token

    def padded(self, slots: Slots) -> Slots:
        """The slots, at most `copies.limit`, and pad slots after them up to a bucket; as they are without `copies`."""
        if self.copies is None:
            return slots
        return np.concatenate([slots, np.full(self.copies.bucket(len(slots)) - len(slots), self.pad_slot)])

    def copy_slots(self, sources: Slots, targets: Slots) -> None:
        """Copy each source slot to its target, all read before any is written; uncounted."""
        read, write = (self.rows(torch.as_tensor(each, device=self.keys.device)) for each in (sources, targets))
        for stored in (self.keys, self.values):
            memory = flat(bits(stored))
            memory.index_copy_(0, write, memory.index_select(0, read))


def pieces(move: Move, most: int) -> list[Move]:
    """The move in pieces of at most `most` tokens, in an order in which none overwrites what a later one reads."""
    cut = [
        move._replace(source=move.source + at, target=move.target + at, tokens=min(most, move.tokens - at))
        for at in range(0, move.tokens, most)
    ]
    return cut[::-1] if move.target > move.source else cut


def scatter(stored: Tensor, rows: Tensor, new: Tensor) -> None:
    """Write K or V of some tokens, `[tokens, kv_heads, head_dim]`, into these `KVStore.rows` of a store's tensor."""
    flat(bits(stored)).index_copy_(0, rows, bits(new.to(stored.dtype)).reshape(-1, stored.shape[-1]))


def flat(stored: Tensor, run: int = 1) -> Tensor:
    """The memory from a store's first K (or V) to its last, `[rows, head_dim]`, or `[rows / run, run, head_dim]` with
    runs longer than 1. In a view there are rows of others between the blocks."""
    blocks, heads, size, dim = stored.shape
    shape = (dim,) if run == 1 else (run, dim)
    if stored.is_contiguous():
        return stored.view(-1, *shape)
    values = (blocks - 1) * stored.stride(0) + heads * size * dim
    strides = (dim, 1) if run == 1 else (run * dim, dim, 1)
    return stored.as_strided((values // (run * dim), *shape), strides)


def bits(tensor: Tensor) -> Tensor:
    """fp8 as bytes, which torch gathers and scatters on every device; other dtypes as they are."""
    return tensor.view(torch.uint8) if tensor.dtype == FP8 else tensor


def heads_of(stored: Tensor) -> Tensor:
    """`flat` memory by the heads of a block, `[-1, block_size, head_dim]`."""
    _, _, size, dim = stored.shape
    return flat(stored, size).view(-1, size, dim) if size == 1 else flat(stored, size)
