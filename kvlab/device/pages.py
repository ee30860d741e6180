"""Memory for KV: in huge pages where the system has them."""

from __future__ import annotations

import mmap
from contextlib import suppress
from math import prod

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
ASK = getattr(mmap, "MADV_HUGEPAGE", None)
"""Linux only."""


def zeros(shape: tuple[int, ...], *, dtype: torch.dtype, device: str | torch.device = "cpu") -> Tensor:
    """`torch.zeros`, but in the CPU's memory of 2 MiB and more the system is asked for huge pages.

    A block table walks memory in no order: with pages of 4 KiB almost every block costs look-ups of addresses, with
    huge ones few do. It is a hint: a system without them gives ordinary pages.
    """
    nbytes = prod(shape) * dtype.itemsize
    if ASK is None or nbytes < HUGE_PAGE or torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel built without huge pages refuses the hint; the memory is good all the same
        memory.madvise(ASK)
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype).view(shape)
