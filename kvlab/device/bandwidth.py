"""Measured memory bandwidth: the denominator of every MBU that kvlab prints."""

from __future__ import annotations

from functools import cache
from statistics import median
from typing import Literal

import torch

from kvlab.device.base import Bandwidth, Device
from kvlab.device.pages import zeros
from kvlab.errors import OutOfMemory

BYTES = 1_000_000_000  # several times the largest last-level cache; a quarter of the free memory where that is less
LEAST_BYTES = 64_000_000
REPEATS = 9


@cache
def measured(device: Device, what: Literal["read", "copy"], threads: int) -> Bandwidth:
    """Measure once per process: a sum over one large buffer, or a copy from one half of it to the other.

    The buffer lies in memory like the KV's. A copy counts the bytes it reads plus those it writes. `threads` is
    torch's, 0 on an accelerator. Raises `OutOfMemory` where even 64 MB are too much.
    """
    size = min(BYTES, device.memory().free // 4)
    if size < LEAST_BYTES:
        raise OutOfMemory(
            f"measuring bandwidth takes {LEAST_BYTES / 1e6:.0f} MB; only {device.memory().free / 1e6:.0f} MB are free, "
            "and a quarter of that at most is used. Free some memory"
        )
    buffer = zeros((2, size // 8), dtype=torch.float32, device=device.torch_device).fill_(1)
    source, target = buffer
    times_s = []
    for repeat in range(-2, REPEATS):
        with device.timer() as timer:
            if what == "read":
                buffer.sum()
            else:
                target.copy_(source)
        if repeat >= 0:
            times_s.append(timer.seconds)
    moved = buffer.numel() * buffer.element_size()
    where = f"{threads} threads" if threads else f"{device.name} events"
    done = "sums over" if what == "read" else "copies, read plus written bytes, inside"
    return Bandwidth(
        moved / median(times_s),
        f"median of {REPEATS} {done} {moved / 1e6:.0f} MB of float32, {where}, "
        f"between {moved / max(times_s) / 1e9:.1f} and {moved / min(times_s) / 1e9:.1f} GB/s",
    )
