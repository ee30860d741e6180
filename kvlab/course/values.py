"""Values in checks: compared the way a learner expects, and shown the same on every machine."""

import copy
import math
import operator
import re
import reprlib
from collections.abc import Mapping, Sequence, Set
from numbers import Real
from typing import Any, SupportsIndex

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_FOLDERS = re.compile(r"(?:[A-Za-z]:)?[/\\](?:[\w.+ -]+[/\\])+(?=[\w.-]+\.py\b)")


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxdict, self.maxstring, self.maxother = 4, 12, 120, 160
        self.maxlist = self.maxtuple = self.maxset = 20


def show(value: object) -> str:
    """A short text for `value`: long ones are cut, addresses and folders of this machine left out.

    Arrays and tensors show their elements as a list would, whatever the library's print options.
    """
    plain = _plain(value)
    text = _Short().repr(plain)
    return tidy(text if plain is value else f"{type(value).__name__}({text})")


def tidy(text: str) -> str:
    """`text` without memory addresses and without the folders of this machine."""
    return _FOLDERS.sub("", _ADDRESS.sub("", text))


def same(found: object, expected: object, tolerance: float = 0.0) -> bool:
    """Whether `found` is the expected value.

    Lists, tuples and arrays of equal elements are the same; an integer may come from any library, but a float
    or a bool is not an int. `tolerance` is relative and absolute, for floats only; NaN equals nothing.
    """
    found, expected = _plain(found), _plain(expected)
    if isinstance(expected, bool) or isinstance(found, bool) or expected is None or found is None:
        return type(found) is type(expected) and found == expected
    if isinstance(expected, int):
        return isinstance(found, int) and found == expected
    if isinstance(expected, Real):
        if not isinstance(found, Real):
            return False
        return math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(expected, str | bytes):
        return type(found) is type(expected) and found == expected
    if isinstance(expected, Mapping):
        return (
            isinstance(found, Mapping)
            and found.keys() == expected.keys()
            and all(same(found[key], expected[key], tolerance) for key in expected)
        )
    if isinstance(expected, Sequence):
        return (
            isinstance(found, Sequence)
            and not isinstance(found, str | bytes)
            and len(found) == len(expected)
            and all(same(one, other, tolerance) for one, other in zip(found, expected, strict=True))
        )
    return bool(found == expected)


def is_data(value: object) -> bool:
    """Whether `value` can be copied and compared: numbers, text, arrays, and nests of them."""
    plain = _plain(value)
    if plain is None or isinstance(plain, Real | str | bytes):
        return True
    if isinstance(plain, Mapping):
        return all(is_data(item) for item in plain.values())
    return isinstance(plain, Sequence | Set) and all(is_data(item) for item in plain)


def duplicate(value: Any) -> Any:
    """A deep copy of plain data; anything else is itself."""
    return copy.deepcopy(value) if is_data(value) else value


def _plain(value: object) -> Any:
    """Arrays, tensors and their scalars as Python numbers and lists; anything else is itself."""
    if isinstance(value, bool | int | float | str | bytes):
        return value
    to_list = getattr(value, "tolist", None)
    if callable(to_list) and not isinstance(value, type):
        return to_list()
    return operator.index(value) if isinstance(value, SupportsIndex) else value
