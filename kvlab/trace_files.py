"""Reading request traces from CSV and JSON-lines files, with errors that name the line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvlab.errors import InvalidInput
from kvlab.workload import Workload

_REQUIRED = ("prompt_tokens", "output_tokens")


def read_trace(path: str | Path) -> Workload:
    """A workload from `.csv` (with a header) or `.jsonl` (one object a line).

    Columns `prompt_tokens` and `output_tokens` are needed; `conversation_id` and `arrival_s` are optional, others are
    ignored. Raises `InvalidInput` naming the file and the line for a missing column, a value that isn't a whole
    number of at least 1, or arrivals that go back in time.
    """
    path = Path(path)
    readers = {".csv": _csv_rows, ".jsonl": _json_rows}
    if path.suffix not in readers:
        raise InvalidInput(f"{path}: a trace is a .csv or a .jsonl file, not {path.suffix or 'a file without suffix'}")
    try:
        rows = list(readers[path.suffix](path))
    except OSError as error:
        raise InvalidInput(f"cannot read the trace {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except csv.Error as error:
        raise InvalidInput(f"{path} is not CSV: {error}; is a quote left open?") from error
    if not rows:
        raise InvalidInput(f"{path} has no requests")
    prompts: list[int] = []
    outputs: list[int] = []
    conversations: list[int] = []
    arrivals: list[float] = []
    names: dict[str, int] = {}
    for line, row in rows:
        prompt, output = (_count(path, line, row, name) for name in _REQUIRED)
        prompts.append(prompt)
        outputs.append(output)
        conversation = row.get("conversation_id")
        name = f"line {line}" if conversation in (None, "") else f"id {conversation}"
        conversations.append(names.setdefault(name, len(names)))
        arrivals.append(_arrival(path, line, row, arrivals[-1] if arrivals else 0.0))
    return Workload(
        path.stem,
        np.array(prompts, np.int64),
        np.array(outputs, np.int64),
        np.array(conversations, np.int64),
        np.array(arrivals) if any(arrivals) else None,
        provenance=path.name,
        lines=np.array([line for line, _ in rows], np.int64),
    )


def _csv_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open(newline="", encoding="utf-8-sig") as handle:
        reader = csv.DictReader(handle)
        missing = [name for name in _REQUIRED if name not in (reader.fieldnames or ())]
        if missing:
            raise InvalidInput(f"{path}, line 1: no column {' or '.join(missing)} in {reader.fieldnames or []}")
        for row in reader:
            if None in row or None in row.values():
                raise InvalidInput(f"{path}, line {reader.line_num}: expected {len(reader.fieldnames or ())} fields")
            yield reader.line_num, row


def _json_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open(encoding="utf-8-sig") as handle:
        for line, text in enumerate(handle, start=1):
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except ValueError as error:
                raise InvalidInput(f"{path}, line {line}: not JSON ({error})") from error
            if not isinstance(row, dict):
                raise InvalidInput(f"{path}, line {line}: expected an object, found {type(row).__name__}")
            yield line, row


def _count(path: Path, line: int, row: Mapping[str, Any], name: str) -> int:
    value = row.get(name)
    try:
        if isinstance(value, bool | float) or "_" in str(value):
            raise ValueError
        number = int(str(value))
    except ValueError:
        raise InvalidInput(f"{path}, line {line}, {name}: {value!r} is not a whole number of tokens") from None
    if not 1 <= number < 1 << 62:
        raise InvalidInput(f"{path}, line {line}, {name}: {number} must be at least 1 and below 2**62")
    return number


def _arrival(path: Path, line: int, row: Mapping[str, Any], previous: float) -> float:
    value = row.get("arrival_s", 0.0)
    try:
        arrival = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(f"{path}, line {line}, arrival_s: {value!r} is not a time in seconds") from None
    if not previous <= arrival < float("inf"):
        raise InvalidInput(f"{path}, line {line}, arrival_s: {arrival} comes after {previous}; sort the trace")
    return arrival
