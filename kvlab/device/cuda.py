"""A CUDA GPU, for the torch routes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from kvlab.device.bandwidth import measured
from kvlab.device.base import Bandwidth, Memory, P, R, Timer, torch_sdpa
from kvlab.errors import DeviceUnavailable


@dataclass(frozen=True)
class CUDA:
    """The current CUDA device. Steps run as they are written: no kernel of theirs is compiled."""

    index: int
    why: str = field(default="asked for", compare=False)
    name: ClassVar[str] = "cuda"

    @classmethod
    def open(cls, why: str = "asked for") -> CUDA:
        """The current device. Raises `DeviceUnavailable` where torch sees none."""
        if not torch.cuda.is_available():
            if torch.version.cuda is None:
                reason, remedy = "was built without CUDA", "Install the CUDA build that pytorch.org names."
            else:
                reason, remedy = "sees none", "Does nvidia-smi list one?"
            raise DeviceUnavailable(f"no CUDA device: torch {torch.__version__} {reason}", remedy)
        return cls(torch.cuda.current_device(), why)

    @property
    def torch_device(self) -> torch.device:
        """The GPU with its number."""
        return torch.device("cuda", self.index)

    def describe(self) -> str:
        """The GPU's name."""
        return f"cuda:{self.index}: {torch.cuda.get_device_name(self.index)}"

    def synchronize(self) -> None:
        """Wait for all streams of the GPU."""
        torch.cuda.synchronize(self.index)

    def timer(self) -> Timer[torch.cuda.Event]:
        """Events on the current stream."""
        return Timer(self._mark, _between)

    def _mark(self) -> torch.cuda.Event:
        with torch.cuda.device(self.index):
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
        return event

    def memory(self) -> Memory:
        """What torch's allocator holds; free and total are the driver's."""
        free, total = torch.cuda.mem_get_info(self.index)
        held = torch.cuda.memory_allocated(self.index), torch.cuda.max_memory_allocated(self.index)
        return Memory(*held, free, total)

    def read_bandwidth(self) -> Bandwidth:
        """See `Device`."""
        return measured(self, "read", 0)

    def copy_bandwidth(self) -> Bandwidth:
        """See `Device`."""
        return measured(self, "copy", 0)

    def compile(self, function: Callable[P, R]) -> Callable[P, R]:
        """The function itself."""
        return function

    def warming(self) -> AbstractContextManager[None]:
        """Nothing to do."""
        return contextlib.nullcontext()

    def sdpa(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        """torch's own."""
        return torch_sdpa(queries, keys, values, mask, scale)


def _between(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
