"""An Intel Gaudi. What is proved about it without one, and what is not, is in GAUDI.md."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ClassVar

import torch
from torch import Tensor

from kvlab.device.bandwidth import measured
from kvlab.device.base import Bandwidth, Memory, P, R, Timer
from kvlab.device.bridge import Bridge, load_bridge

SHAPES = 4096
"""Shapes that a step may meet while it warms up; torch's own limit of 8 is for functions that vary by accident."""


@dataclass(frozen=True)
class HPU:
    """The process's Gaudi: one process drives one."""

    bridge: Bridge = field(compare=False)
    why: str = field(default="asked for", compare=False)
    name: ClassVar[str] = "hpu"

    @classmethod
    def open(cls, why: str = "asked for") -> HPU:
        """Load the bridge. Raises `DeviceUnavailable` or `DeviceBroken`."""
        return cls(load_bridge(), why)

    @property
    def torch_device(self) -> torch.device:
        """The Gaudi with its number."""
        return torch.device("hpu", self.bridge.hpu.current_device())

    def describe(self) -> str:
        """The card's name and the mode of the bridge."""
        name = self.bridge.hpu.get_device_name()
        return f"hpu: {name}, {'lazy' if self.bridge.lazy else 'eager and torch.compile'}"

    def synchronize(self) -> None:
        """Hand over what lazy mode has collected, then wait for the card."""
        self._flush()
        self.bridge.hpu.synchronize()

    def _flush(self) -> None:
        if self.bridge.lazy:
            self.bridge.core.mark_step()

    def timer(self) -> Timer[Any]:
        """Events on the current stream. Lazy mode collects work: it is handed over before each event."""
        return Timer(self._mark, _between)

    def _mark(self) -> Any:
        self._flush()
        event = self.bridge.hpu.Event(enable_timing=True)
        event.record()
        return event

    def memory(self) -> Memory:
        """What the bridge's allocator holds, and what it may take."""
        hpu = self.bridge.hpu
        free, total = hpu.mem_get_info()
        return Memory(hpu.memory_allocated(), hpu.max_memory_allocated(), free, total)

    def read_bandwidth(self) -> Bandwidth:
        """See `Device`."""
        return measured(self, "read", 0)

    def copy_bandwidth(self) -> Bandwidth:
        """See `Device`."""
        return measured(self, "copy", 0)

    def compile(self, function: Callable[P, R]) -> Callable[P, R]:
        """One graph for each set of shapes. In lazy mode the graph is what a call collects; HPU graphs, which would
        also save the host's time, hand out the same output tensors again and again and are left alone."""
        if not self.bridge.lazy:
            return torch.compile(function, backend="hpu_backend", dynamic=False, fullgraph=True)

        @wraps(function)
        def step(*args: P.args, **kwargs: P.kwargs) -> R:
            result = function(*args, **kwargs)
            self.bridge.core.mark_step()
            return result

        return step

    def warming(self) -> AbstractContextManager[None]:
        """Lift torch's limit on compiled shapes. Outside, a shape too many is an error: `fullgraph` forbids falling
        back to eager."""
        if self.bridge.lazy:
            return nullcontext()
        from torch._dynamo import config

        limits: AbstractContextManager[None] = config.patch(recompile_limit=SHAPES, accumulated_recompile_limit=SHAPES)
        return limits

    def sdpa(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        """The vendor's fused operator; it takes its arguments by position: mask, dropout, causal, scale."""
        result: Tensor = self.bridge.fused_sdpa.apply(queries, keys, values, mask, 0.0, False, scale)
        return result

    def counters(self) -> dict[str, list[tuple[str, Any]]]:
        """What the bridge has counted so far in this process: graphs compiled, operators that fell back to the host."""
        return {name: list(self.bridge.metric(name).stats()) for name in ("graph_compilation", "cpu_fallback")}


def _between(start: Any, end: Any) -> float:
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
