"""Runs recorded once and shipped with their provenance: kvlab/data/stored_runs/NAME.json."""

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from kvlab.bench.paired import Paired, Spread
from kvlab.bench.provenance import provenance
from kvlab.errors import InvalidInput

_FIELDS = ("median", "low", "high")


@dataclass(frozen=True)
class StoredArm:
    """One arm of a stored run: its time in seconds, and how many times as long as the baseline it took."""

    name: str
    time_s: Spread
    ratio: Spread


@dataclass(frozen=True)
class StoredRun:
    """A recorded paired measurement; the first arm is the baseline."""

    name: str
    provenance: dict[str, str | int]
    arms: tuple[StoredArm, ...]


def load_stored_run(name: str) -> StoredRun:
    """The stored run `name`. Raises `InvalidInput` if there is none, naming those there are."""
    folder = files("kvlab") / "data" / "stored_runs"
    path = folder / f"{name}.json"
    if not path.is_file():
        names = sorted(item.name.removesuffix(".json") for item in folder.iterdir()) if folder.is_dir() else []
        raise InvalidInput(f"there is no stored run {name!r}; stored are: {', '.join(names) or 'none'}")
    return parse_stored_run(name, path.read_text(encoding="utf-8"))


def parse_stored_run(name: str, text: str) -> StoredRun:
    """Read the JSON of a stored run. Raises `InvalidInput` saying what is missing."""
    try:
        value = json.loads(text)
        arms = tuple(
            StoredArm(
                arm["name"],
                Spread(*(float(arm["time_s"][key]) for key in _FIELDS)),
                Spread(*(float(arm["ratio"][key]) for key in _FIELDS)),
            )
            for arm in value["arms"]
        )
        return StoredRun(name, dict(value["provenance"]), arms)
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"stored run {name!r} cannot be read: {type(error).__name__}: {error}") from error


def record_run(live: Paired, path: Path) -> None:
    """Write a live measurement as a stored run, with the provenance of this machine."""
    repeats = len(live.samples_s[live.baseline])
    arms = [
        {"name": name, "time_s": _fields(live.time_s(name)), "ratio": _fields(live.ratio(name))}
        for name in live.samples_s
    ]
    value = {"provenance": {**provenance(), "repeats": repeats}, "arms": arms}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _fields(spread: Spread) -> dict[str, float]:
    return {key: float(f"{getattr(spread, key):.4g}") for key in _FIELDS}
