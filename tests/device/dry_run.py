"""Running tensor programs on fake `hpu` tensors: shapes, dtypes and devices are real, values and the card are not.

`fake_hpu()` makes `hpu:0` a place where tensors can be. Inside it, `device_only()` marks what must run on the card
alone, and holds it to the rules a graph there needs; breaking one raises `NotForGaudi`. `Watched` is for host and card
together: only copies go between them, and it notes the operators and shapes that the card meets.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

HPU = torch.device("hpu", 0)
META_ENTRY, HPU_ENTRY = 14, 15  # c10::DeviceType


class NotForGaudi(AssertionError):
    """A step did something that a graph on the card must not do."""


@contextmanager
def guard_for_hpu() -> Iterator[None]:
    """Lend torch its own no-op device guard (that of `meta`) for `hpu`.

    Without one, indexing, `copy_` and `contiguous` refuse before a fake tensor is even asked. torch does the same for
    fake CUDA tensors on a machine without CUDA.
    """
    library = ctypes.CDLL(str(next(Path(torch.__file__).parent.glob("lib/libc10.*"))))
    guards = (ctypes.c_void_p * (HPU_ENTRY + 1)).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    before = guards[HPU_ENTRY]
    guards[HPU_ENTRY] = before or guards[META_ENTRY]
    try:
        yield
    finally:
        guards[HPU_ENTRY] = before


class _NoCard(FakeTensorMode):
    """The stand-in says that a card is there; torch would put tensors of one known value on it."""

    avoid_device_init = True


@contextmanager
def fake_hpu() -> Iterator[FakeTensorMode]:
    """Fake tensors, on `hpu:0` too. A stand-in `torch.hpu` must be installed. Real CPU tensors may come in."""
    with guard_for_hpu(), _NoCard(allow_non_fake_inputs=True) as mode:
        yield mode


@contextmanager
def device_only() -> Iterator[None]:
    """The rules of a step on the card: no tensor of the CPU, nothing that waits for a value or has a shape that
    depends on values, no write through a view, no operator that has no kernel there."""
    try:
        with _Dispatched(), _Called():
            yield
    except DataDependentOutputException as error:
        raise NotForGaudi(f"{error.func} waits for a value of the card") from error
    except DynamicOutputShapeException as error:
        raise NotForGaudi(f"{error.func} has a shape that depends on values") from error


class _Dispatched(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor) and value.device.type == "cpu":
                raise NotForGaudi(f"{func} reads a tensor {tuple(value.shape)} of the CPU")
        for written in _written(func, args, kwargs):
            if written._base is not None and not _covers(written, written._base):
                raise NotForGaudi(f"{func} writes through a view of a part of a tensor")
        result = func(*args, **kwargs)
        for value in tree_leaves(result):
            if isinstance(value, Tensor) and value.device.type == "cpu":
                raise NotForGaudi(f"{func} makes a tensor {tuple(value.shape)} on the CPU")
        return result


class Watched(TorchDispatchMode):
    """Host and card together. A tensor of the one meets a tensor of the other in a copy only; nothing on the card is
    written through a view of a part. `met` are the operators of the card with their shapes and numbers: what a device
    that compiles each of these once has compiled."""

    COPIES = (torch.ops.aten._to_copy, torch.ops.aten.copy_, torch.ops.aten.to)

    def __init__(self) -> None:
        super().__init__()
        self.met: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        self._refuse_mixed(func, leaves)
        result = func(*args, **kwargs)
        outputs = tree_leaves(result)
        self._refuse_mixed(func, [*leaves, *outputs])
        if any(isinstance(value, Tensor) and value.device.type == HPU.type for value in [*leaves, *outputs]):
            for written in _written(func, args, kwargs):
                if written._base is not None and not _covers(written, written._base):
                    raise NotForGaudi(f"{func} writes through a view of a part of a tensor")
            self.met.add(f"{func}{[_described(leaf) for leaf in leaves]}")
        return result

    def _refuse_mixed(self, func: Any, values: list[Any]) -> None:
        places = {value.device.type for value in values if isinstance(value, Tensor)}
        if places > {HPU.type} and func.overloadpacket not in self.COPIES:
            raise NotForGaudi(f"{func} mixes tensors of the card and of the CPU")


def _described(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        return f"{leaf.device.type} {leaf.dtype} {tuple(leaf.shape)} {leaf.stride()} {leaf.storage_offset()}"
    return repr(leaf)


class _Called(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "scaled_dot_product_attention":
            raise NotForGaudi("scaled_dot_product_attention has no kernel for hpu; call the device's sdpa")
        return func(*args, **(kwargs or {}))


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    for position, parameter in enumerate(func._schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(parameter.name)
        if parameter.alias_info is not None and parameter.alias_info.is_write and isinstance(value, Tensor):
            yield value


def _covers(view: Tensor, base: Tensor) -> bool:
    """Whether a view is its whole base in another shape; a graph then needs no scatter into a part."""
    return view.numel() * view.element_size() == base.numel() * base.element_size() and view.is_contiguous()
