"""The CPU: the device that every machine has."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from kvlab.device.bandwidth import measured
from kvlab.device.base import Bandwidth, Memory, P, R, Timer, torch_sdpa
from kvlab.device.host import free_bytes, resident_bytes, total_bytes


@dataclass(frozen=True)
class CPU:
    """Calls return when their work is done, so there is nothing to wait for and nothing to compile."""

    why: str = field(default="asked for", compare=False)
    name: ClassVar[str] = "cpu"

    @property
    def torch_device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def describe(self) -> str:
        """Architecture and threads."""
        return f"cpu: {platform.machine()}, {torch.get_num_threads()} threads"

    def synchronize(self) -> None:
        """Nothing is queued."""

    def timer(self) -> Timer[float]:
        """The host's clock."""
        return Timer(time.perf_counter, lambda start, end: end - start)

    def memory(self) -> Memory:
        """The process's resident set, and the machine's or the container's memory."""
        return Memory(*resident_bytes(), free_bytes(), total_bytes())

    def read_bandwidth(self) -> Bandwidth:
        """See `Device`; all of torch's threads read."""
        return measured(self, "read", torch.get_num_threads())

    def copy_bandwidth(self) -> Bandwidth:
        """See `Device`; all of torch's threads copy."""
        return measured(self, "copy", torch.get_num_threads())

    def compile(self, function: Callable[P, R]) -> Callable[P, R]:
        """The function itself."""
        return function

    def warming(self) -> AbstractContextManager[None]:
        """Nothing to do."""
        return contextlib.nullcontext()

    def sdpa(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        """torch's own."""
        return torch_sdpa(queries, keys, values, mask, scale)
