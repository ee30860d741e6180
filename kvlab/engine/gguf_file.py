"""A GGUF file: its key/values, decoded only when asked for, and where the bytes of each tensor lie.

The layout is the GGUF specification's (versions 2 and 3, little-endian). The reader of the package `gguf` makes an
array of every vocabulary entry, 14 s for Gemma's 262,144; here a list is walked over once and decoded when read.
The package still turns quantised rows into numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvlab.errors import InvalidInput

T = TypeVar("T")
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _LIST = 8, 9
_MAX_DIMENSIONS = 4
CHUNK_BYTES = 8 << 20  # of numbers in memory at a time


def gguf_package() -> ModuleType:
    """The package `gguf`; `InvalidInput` with the line that installs it where it is missing."""
    try:
        import gguf
    except ModuleNotFoundError as error:
        if error.name != "gguf":
            raise
        raise InvalidInput("reading a GGUF file needs the package gguf (pip install 'kvlab[gguf]')") from error
    return gguf


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of the file: `shape` outermost dimension first, quantisation `kind`, its bytes at `start`."""

    name: str
    shape: tuple[int, ...]
    kind: str
    start: int
    row_bytes: int

    @property
    def rows(self) -> int:
        """How many rows the tensor has; each is quantised on its own."""
        return prod(self.shape[:-1])


@dataclass(frozen=True, slots=True)
class _List:
    """A list of key/values that nobody has decoded yet."""

    kind: int
    count: int
    start: int


class GGUFFile:
    """The header of a GGUF file, checked as a whole against the file's size.

    `tensors` maps a name to where it lies. Raises `InvalidInput` naming the file for a wrong magic, an unknown
    version, a truncated file, an unknown quantisation, or a name that is listed twice.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            size = self.path.stat().st_size
            self._bytes: NDArray[np.uint8] = np.memmap(self.path, mode="r") if size else np.zeros(0, np.uint8)
        except OSError as error:
            raise InvalidInput(f"cannot read the model {self.path}: {error.strerror}") from error
        self._view = self._bytes.data
        self._at = 0
        self._values: dict[str, Any] = {}
        self.tensors: dict[str, StoredTensor] = {}
        try:
            self._read_header()
        except (struct.error, OverflowError) as error:  # a length in it points far behind the file's end
            self.refuse(f"is truncated: the file ends after {size:,} bytes, inside its header", error)
        except UnicodeDecodeError as error:
            self.refuse("is damaged: a name in its header is not UTF-8", error)

    def refuse(self, what: str, cause: BaseException | None = None) -> NoReturn:
        """Raise `InvalidInput`: the file's path, then `what`."""
        raise InvalidInput(f"{self.path} {what}") from cause

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def value(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The value of `key`, which must be an int, a float, a bool or a str as `kind` says."""
        found = self._values.get(key, default)
        if found is None:
            self.refuse(f"has no {key}; was it converted from a complete model?")
        if type(found) is not kind:
            there = "a list" if isinstance(found, _List) else repr(found)
            self.refuse(f"has {there} for {key}; expected one {kind.__name__}")
        return found

    def count(self, key: str) -> int:
        """How long the list of `key` is, 0 where the file has none."""
        return self._list_at(key).count

    def listed(self, key: str, kind: type[T]) -> list[T]:
        """The list of `key` (of int, float, bool or str), empty where the file has none."""
        found = self._list_at(key)
        if found.kind == _STRING:
            self._at = found.start
            try:
                made: list[Any] = [self._text() for _ in range(found.count)]
            except UnicodeDecodeError as error:
                self.refuse(f"is damaged: an entry of {key} is not UTF-8", error)
        else:
            made = list(struct.unpack_from(f"<{found.count}{_SCALARS[found.kind]}", self._view, found.start))
        if made and type(made[0]) is not kind:
            self.refuse(f"has a list of {type(made[0]).__name__} for {key}; expected one of {kind.__name__}")
        return made

    def _list_at(self, key: str) -> _List:
        found = self._values.get(key, _List(_STRING, 0, 0))
        if not isinstance(found, _List):
            self.refuse(f"has {found!r} for {key}; expected a list")
        return found

    def chunks(self, tensor: StoredTensor, order: NDArray[np.intp] | None = None) -> Iterator[NDArray[np.float32]]:
        """The tensor's numbers as float32 [rows, columns], a few MiB at a time, the rows in `order`.

        A damaged file may hold values that are not finite.
        """
        package = gguf_package()
        kind = package.GGMLQuantizationType[tensor.kind]
        stored = self._bytes[tensor.start : tensor.start + tensor.rows * tensor.row_bytes]
        stored = stored.reshape(tensor.rows, tensor.row_bytes)
        at_once = max(1, CHUNK_BYTES // (4 * tensor.shape[-1]))
        for first in range(0, tensor.rows, at_once):
            rows = slice(first, first + at_once) if order is None else order[first : first + at_once]
            with np.errstate(invalid="ignore", over="ignore"):
                numbers = package.quants.dequantize(np.ascontiguousarray(stored[rows]), kind)
            yield np.asarray(numbers, dtype=np.float32).reshape(-1, tensor.shape[-1])

    def _take(self, kind: str) -> Any:
        (found,) = struct.unpack_from(f"<{kind}", self._view, self._at)
        self._at += struct.calcsize(f"<{kind}")
        return found

    def _text(self) -> str:
        length = self._take("Q")
        self._skip(length)
        return str(self._view[self._at - length : self._at], "utf-8")

    def _skip(self, length: int) -> None:
        self._at += length
        if self._at > len(self._view):
            raise struct.error

    def _read_header(self) -> None:
        magic = bytes(self._view[:4])
        if magic != b"GGUF":
            self.refuse(f"is not a GGUF file: it starts with {magic!r}, not with b'GGUF'")
        self._at = 4
        version = self._take("I")
        if version not in (2, 3):
            swapped = " (big-endian)" if version & 0xFFFF == 0 and version else ""
            self.refuse(f"has GGUF version {version:#x}{swapped}; versions 2 and 3 in little-endian are read")
        tensors, values = self._take("Q"), self._take("Q")
        for _ in range(values):
            key = self._text()
            if key in self._values:
                self.refuse(f"is damaged: it lists {key} twice")
            self._values[key] = self._read_value(key, self._take("I"))
        found = [self._read_tensor() for _ in range(tensors)]
        alignment = self.value("general.alignment", int, 32)
        if alignment < 1:
            self.refuse(f"is damaged: general.alignment is {alignment}")
        self._place(found, -(-self._at // alignment) * alignment)

    def _read_value(self, key: str, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind in _SCALARS:
            return self._take(_SCALARS[kind])
        if kind != _LIST:
            self.refuse(f"is damaged: {key} is of the unknown type {kind}")
        of, count = self._take("I"), self._take("Q")
        start = self._at
        if of in _SCALARS:
            self._skip(count * struct.calcsize(_SCALARS[of]))
        elif of == _STRING:
            self._skip_texts(count)
        else:
            self.refuse(f"is damaged: {key} is a list of the unknown type {of}")
        return _List(of, count, start)

    def _skip_texts(self, count: int) -> None:
        at, view, unpack = self._at, self._view, struct.Struct("<Q").unpack_from
        for _ in range(count):
            at += 8 + unpack(view, at)[0]
        self._at = at
        self._skip(0)

    def _read_tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self._text(), self._take("I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            self.refuse(f"is damaged: its tensor {name} has {dimensions} dimensions")
        shape = tuple(self._take("Q") for _ in range(dimensions))
        return name, shape[::-1], self._take("I"), self._take("Q")

    def _place(self, found: list[tuple[str, tuple[int, ...], int, int]], start: int) -> None:
        package = gguf_package()
        for name, shape, number, offset in found:
            if name in self.tensors:
                self.refuse(f"is damaged: it lists the tensor {name} twice")
            try:
                kind = package.GGMLQuantizationType(number)
                block, block_bytes = package.GGML_QUANT_SIZES[kind]
                package.quants.dequantize(np.zeros((1, block_bytes), np.uint8), kind)
            except (ValueError, KeyError, NotImplementedError) as error:
                self.refuse(f"stores {name} in quantisation {_kind_name(number)}, which cannot be read", error)
            if prod(shape) == 0 or shape[-1] % block:
                self.refuse(f"is damaged: its tensor {name} has shape {shape}, not whole blocks of {block}")
            tensor = StoredTensor(name, shape, kind.name, start + offset, shape[-1] // block * block_bytes)
            end = tensor.start + tensor.rows * tensor.row_bytes
            if end > len(self._view):
                self.refuse(f"is truncated: {name} ends at byte {end:,}, the file after {len(self._view):,}")
            self.tensors[name] = tensor


def _kind_name(number: int) -> str:
    known = {int(each): each.name for each in gguf_package().GGMLQuantizationType}
    return f"{known[number]}" if number in known else f"number {number}"
