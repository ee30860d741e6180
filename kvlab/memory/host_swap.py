"""Block tables that move to host memory and back, without copying a full block that is already on the other side."""

from __future__ import annotations

from typing import NamedTuple

from kvlab.errors import OutOfMemory, StaleHandle, require
from kvlab.memory.block_pool import BlockPool, Handle
from kvlab.memory.block_table import BlockTable


class Transfer(NamedTuple):
    """Copy `tokens` slots of block `source` on one side to block `target` on the other."""

    source: int
    target: int
    tokens: int


class HostTable(NamedTuple):
    """A swapped-out block table: its host blocks, in order, and its tokens."""

    blocks: list[int]
    tokens: int


class HostSwap:
    """Host blocks for the tables of one device pool.

    Full blocks never change, so a host copy of one is shared by every table that held it, and on the way back a
    device block that is still alive is shared instead of copied. Partial blocks are always copied.
    """

    def __init__(self, device: BlockPool, host_blocks: int, block_size: int) -> None:
        self.device = device
        self.host = BlockPool(host_blocks)
        self.block_size = block_size
        self.filled_slots = 0
        self._on_device: dict[int, Handle] = {}
        self._on_host: dict[Handle, int] = {}

    def swap_out(self, table: BlockTable) -> tuple[HostTable, list[Transfer]]:
        """Empty `table` into host blocks; the copies to do. Raises `OutOfMemory`, nothing changed."""
        handles = [self.device.handle(block) for block in table.blocks]
        full = table.tokens // self.block_size
        shared = {i: self._on_host[h] for i, h in enumerate(handles[:full]) if h in self._on_host}
        needed = len(handles) - len(shared)
        if not self.host.can_allocate(needed):
            raise OutOfMemory(
                f"swapping out needs {needed} host blocks, {self.host.free_blocks} of {self.host.blocks} are free"
            )
        fresh = iter(self.host.allocate(needed) if needed else ())
        self.host.touch(list(shared.values()))
        blocks, transfers = [], []
        for index, handle in enumerate(handles):
            target = shared.get(index)
            if target is None:
                target = next(fresh)
                transfers.append(Transfer(handle.block, target, self._tokens_in(index, table.tokens)))
                if index < full:
                    self._pair(handle, target)
            blocks.append(target)
        swapped = HostTable(blocks, table.tokens)
        self.filled_slots += sum(each.tokens for each in transfers)
        table.release()
        return swapped, transfers

    def blocks_back(self, swapped: HostTable) -> int:
        """Free device blocks that `swap_in` would take."""
        return sum(self._alive(block) is None for block in swapped.blocks)

    def swap_in(self, swapped: HostTable, table: BlockTable) -> list[Transfer]:
        """Fill the empty `table` from host blocks; the copies to do. Raises `OutOfMemory`, nothing changed."""
        needed = self.blocks_back(swapped)
        if not self.device.can_allocate(needed):
            raise OutOfMemory(f"swapping in needs {needed} blocks, {self.device.free_blocks} are free; free some first")
        alive = [self._alive(block) for block in swapped.blocks]
        self.device.touch([block for block in alive if block is not None])
        fresh = iter(self.device.allocate(needed) if needed else ())
        blocks, transfers = [], []
        for index, (source, block) in enumerate(zip(swapped.blocks, alive, strict=True)):
            if block is None:
                block = next(fresh)
                transfers.append(Transfer(source, block, self._tokens_in(index, swapped.tokens)))
                if index < swapped.tokens // self.block_size:
                    self._pair(self.device.handle(block), source)
            blocks.append(block)
        self.forget(swapped)
        table.replace(blocks, swapped.tokens)
        return transfers

    def forget(self, swapped: HostTable) -> None:
        """Give the host blocks of a table back without copying them in."""
        freed = set(self.host.free(swapped.blocks))
        for index, block in enumerate(swapped.blocks):
            if block in freed:
                self.filled_slots -= self._tokens_in(index, swapped.tokens)
                handle = self._on_device.pop(block, None)
                if handle is not None:
                    del self._on_host[handle]

    def _tokens_in(self, index: int, tokens: int) -> int:
        return min(self.block_size, tokens - index * self.block_size)

    def _pair(self, handle: Handle, host_block: int) -> None:
        old = self._on_device.pop(host_block, None)
        if old is not None:
            del self._on_host[old]
        self._on_device[host_block] = handle
        self._on_host[handle] = host_block

    def _alive(self, host_block: int) -> int | None:
        handle = self._on_device.get(host_block)
        if handle is None:
            return None
        try:
            return self.device.resolve(handle)
        except StaleHandle:
            return None

    def audit(self) -> None:
        """Check the pairs; `InvariantViolation` names what is broken."""
        self.host.audit()
        pairs = {handle: block for block, handle in self._on_device.items()}
        require(pairs == self._on_host, "a host copy and its device block disagree about each other")
        require(
            all(self.host.references[b] for b in self._on_device),
            "a freed host block is remembered as a copy",
        )
