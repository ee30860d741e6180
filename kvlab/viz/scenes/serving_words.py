"""A timeline in words: its headline, a cell, a row."""

from __future__ import annotations

from itertools import groupby

from kvlab.viz.captions import listed
from kvlab.viz.palette import name
from kvlab.viz.scenes.serving_rows import Cell, Moment, Row, Served
from kvlab.viz.words import shown

_RUNS = {
    "queued": "waits",
    "decode": "decodes",
    "idle": "waits in memory",
    "host": "on the host",
    "preempted": "preempted",
    "place": "its place stays empty",
}

_LONGEST = 84
"""Letters that a title has room for."""


def headline(read: Served, upto: int) -> str:
    """'4 requests, 30 steps: 1 preemption, 44 tokens computed again'."""
    steps = min(upto, read.steps)
    rows = f"{len(read.rows)} request{'s' * (len(read.rows) != 1)}"
    happened = [moment.what for row in read.rows for moment in row.moments if moment.frame <= upto]
    cells = [cell for row in read.rows for cell in row.cells[:steps]]
    counts = (
        (happened.count("preempted"), "preemption", "preemptions"),
        (happened.count("to the host"), "swap to the host", "swaps to the host"),
        (sum(cell.again for cell in cells), "token computed again", "tokens computed again"),
        (sum(cell.cached for cell in cells), "token found in the cache", "tokens found in the cache"),
        (sum(cell.did == "place" for cell in cells), "place left empty", "places left empty"),
        (happened.count("refused"), "refused", "refused"),
    )
    told = f"{rows}, {steps:,} step{'s' * (steps != 1)}"
    separator = ": "
    for count, one, many in counts:
        words = f"{separator}{count:,} {one if count == 1 else many}"
        if count and len(told) + len(words) <= _LONGEST:
            told, separator = told + words, ", "
    return told


def said(cells: list[Cell]) -> str:
    """What a request did in consecutive steps that are alike: 'prefills 12 tokens (16 in the cache)'."""
    if cells[0].did == "decode":
        return "decodes a token" if len(cells) == 1 else f"decodes {len(cells):,} tokens"
    return _RUNS.get(cells[0].did) or _computed(cells, "tokens")


def _computed(cells: list[Cell], unit: str) -> str:
    tokens, did = sum(cell.tokens for cell in cells), cells[0].did
    cached, again = sum(cell.cached for cell in cells), sum(cell.again for cell in cells)
    verb = {"several": "decodes", "rolled back": "rolls back"}.get(did, "prefills")
    notes = [f"{again:,} of them again"] if again else []
    notes += [f"{cached:,} in the cache"] if cached else []
    unit = f" {unit}"[: -1 if abs(tokens) == 1 else None] if unit else ""
    return f"{verb} {abs(tokens):,}{unit}" + (f" ({', '.join(notes)})" if notes else "")


def happened(row: Row, upto: int) -> str:
    """A row up to a frame: 'waits 1-2; prefills 37 at 3; decodes 4-9; preempted 10-12; ...; finished after 20'."""
    told: list[tuple[float, str]] = []
    at = 0
    for did, run in groupby(row.cells[:upto], key=lambda cell: "prefill" if cell.did == "again" else cell.did):
        cells = list(run)
        steps = f"{at + 1}" if len(cells) == 1 else f"{at + 1}-{at + len(cells)}"
        if did in _RUNS:
            told.append((at, f"{_RUNS[did]} {steps}"))
        elif did:
            told.append((at, f"{_computed(cells, '')} at {steps}"))
        at += len(cells)
    for moment in row.moments:
        if moment.frame <= upto and moment.what in ("finished", "aborted", "refused"):
            reason = f": {shown(moment.words, 120)}" if moment.words else ""
            told.append((moment.step - 0.5, f"{moment.what} after {moment.step}{reason}"))
    return "; ".join(words for _, words in sorted(told, key=lambda each: each[0])) or "-"


def caption(read: Served, frame: int) -> str:
    """What happened in one frame: who came, went or was stopped, then what the others did in the step."""
    moments = [(row, moment) for row in read.rows for moment in row.moments if moment.frame == frame]
    told = [_moment(shown(name(row.rid), _NAME), moment) for row, moment in moments]
    cells = [(row, row.cells[frame - 1]) for row in read.rows] if 0 < frame <= read.steps else []
    told += [
        f"{shown(name(row.rid), _NAME)} {_back(row, frame)}{_computed([cell], 'tokens')}"
        for row, cell in cells
        if cell.did in ("prefill", "again", "several", "rolled back")
    ]
    for did, one, many in _TOGETHER:
        left = {row.rid for row, moment in moments if moment.what == did}
        who = [shown(name(row.rid), _NAME) for row, cell in cells if cell.did == did and row.rid not in left]
        if who:
            told.append(f"{listed(who)} {one if len(who) == 1 else many}")
    if told:
        return ". ".join(told)
    return "Nothing has happened yet" if not frame else "Nothing happens"


_NAME = 16
_TOGETHER = (
    ("decode", "decodes a token", "decode a token each"),
    ("idle", "waits in memory", "wait in memory"),
    ("preempted", "has no memory now and waits", "have no memory now and wait"),
    ("host", "is on the host", "are on the host"),
    ("queued", "waits in the queue", "wait in the queue"),
    ("place", "left a place that nobody may take", "left places that nobody may take"),
)


def _back(row: Row, frame: int) -> str:
    away = frame >= 2 and row.cells[frame - 2].did in ("preempted", "host")
    return "comes back and " if away else ""


def _moment(who: str, moment: Moment) -> str:
    if moment.what == "preempted":
        return f"{who} is preempted: all its memory is taken away"
    if moment.what == "refused":
        return f"{who} is refused for good" + (f": {shown(moment.words, 160)}" if moment.words else "")
    return f"{who} {_MOMENTS[moment.what]}"


_MOMENTS = {
    "to the host": "is moved to the host",
    "from the host": "is moved back from the host",
    "finished": "has finished",
    "aborted": "is aborted",
}
