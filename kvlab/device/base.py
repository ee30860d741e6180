"""What a device offers, the same for a CPU, a CUDA GPU and a Gaudi."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvlab.errors import InvalidInput

P = ParamSpec("P")
R = TypeVar("R")
Mark = TypeVar("Mark")


def torch_sdpa(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """torch's fused attention in the form of `Device.sdpa`; KV heads may be fewer than query heads."""
    grouped = queries.shape[1] != keys.shape[1]
    return scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale, enable_gqa=grouped)


class Memory(NamedTuple):
    """Bytes. On a CPU `allocated` and `peak` are the process's resident set, elsewhere what torch holds."""

    allocated: int
    peak: int
    free: int
    total: int


class Bandwidth(NamedTuple):
    """A measured bandwidth, and in words how it was measured: print both."""

    bytes_per_s: float
    how: str


class Timer(Generic[Mark]):
    """`with device.timer() as timer: ...`, then `timer.seconds`. `mark` notes a moment, `between` says how far apart
    two are, in seconds, waiting for the device where that is needed."""

    def __init__(self, mark: Callable[[], Mark], between: Callable[[Mark, Mark], float]) -> None:
        self._mark, self._between = mark, between
        self._marks: list[Mark] = []

    def __enter__(self) -> Timer[Mark]:
        self._marks = [self._mark()]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._marks.append(self._mark())

    @property
    def seconds(self) -> float:
        """Time that the block took on the device. Raises `InvalidInput` inside the block."""
        if len(self._marks) != 2:
            raise InvalidInput("the timed block has not ended; read `seconds` after it")
        return self._between(*self._marks)


class Device(Protocol):
    """Where tensors live. Two devices are equal where they are the same place."""

    @property
    def name(self) -> str:
        """`cpu`, `cuda` or `hpu`."""

    @property
    def why(self) -> str:
        """Why `get_device` chose this one, and what spoke against those it prefers."""

    @property
    def torch_device(self) -> torch.device:
        """What tensors are made on."""

    def describe(self) -> str:
        """One line for a report: the hardware and how torch drives it."""

    def synchronize(self) -> None:
        """Wait until all queued work is done."""

    def timer(self) -> Timer[Any]:
        """A context manager that times a block with the device's own clock: events on an accelerator."""

    def memory(self) -> Memory:
        """Memory figures now, in bytes."""

    def read_bandwidth(self) -> Bandwidth:
        """Bytes read in a second, measured once per process and number of threads."""

    def copy_bandwidth(self) -> Bandwidth:
        """Bytes read plus bytes written in a second, measured once per process and number of threads."""

    def compile(self, function: Callable[P, R]) -> Callable[P, R]:
        """The form of a step that this device runs: as it is, or as one graph for each set of shapes."""

    def warming(self) -> AbstractContextManager[None]:
        """Inside it a compiled function may meet any number of shapes. Run every reachable bucket once in here."""

    def sdpa(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        """Fused softmax attention: queries `[B, q_heads, S, D]`, keys and values `[B, kv_heads, T, D]`, `mask` added to
        the logits, `[B, 1 or q_heads, S, T]` in the queries' dtype; gives `[B, q_heads, S, D]`."""
