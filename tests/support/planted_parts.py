"""Bugs in the memory parts that the parts' own machines and those of the policies must catch."""

from typing import Any

import pytest

from kvlab.errors import OutOfMemory
from kvlab.memory.block_table import BlockTable
from kvlab.memory.host_swap import HostSwap


def fork_forgets_the_references(patch: pytest.MonkeyPatch) -> None:
    fork = BlockTable.fork

    def buggy(self: BlockTable) -> BlockTable:
        child = fork(self)
        for block in self.blocks:
            self.pool._references[block] -= 1
        return child

    patch.setattr(BlockTable, "fork", buggy)


def swap_shares_partial_blocks(patch: pytest.MonkeyPatch) -> None:
    swap_out = HostSwap.swap_out

    def buggy(self: HostSwap, table: BlockTable) -> Any:
        tokens, table.tokens = table.tokens, len(table.blocks) * self.block_size
        try:
            swapped, transfers = swap_out(self, table)
        except OutOfMemory:
            table.tokens = tokens
            raise
        return swapped._replace(tokens=tokens), transfers

    patch.setattr(HostSwap, "swap_out", buggy)
