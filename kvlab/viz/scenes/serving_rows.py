"""What each request did in each step of a log: the rows that the timeline draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from kvlab.events import Event, Replay, State, apply
from kvlab.workload import RequestId

Did: TypeAlias = Literal[
    "", "queued", "prefill", "again", "decode", "several", "rolled back", "idle", "host", "preempted", "place"
]
"""In one step: nothing yet or any more (''), waited to be admitted, prefilled, computed tokens that it had computed
before, decoded one token, or several, rolled back, held memory without computing, was on the host, was preempted, or
(static batching) left a place that nobody may take."""
Mark: TypeAlias = Literal["preempted", "to the host", "from the host", "finished", "aborted", "refused"]
_AFTER: dict[str, Did] = {"waiting": "queued", "running": "idle", "swapped": "host", "preempted": "preempted"}


class Cell(NamedTuple):
    """One request in one step. `tokens` were computed, `cached` more found in the cache at the admission before, and
    `again` of the tokens had been computed once already."""

    did: Did
    tokens: int = 0
    cached: int = 0
    again: int = 0


class Moment(NamedTuple):
    """Something that happened to a request before step `step` + 1; it belongs to frame `frame`."""

    step: int
    frame: int
    what: Mark
    words: str = ""


@dataclass
class Row:
    """A request, a cell for each step."""

    rid: RequestId
    order: int
    prompt: int
    cells: list[Cell] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    target: int = 0
    highest: int = 0
    cached: int = 0
    lost: bool = False


@dataclass
class Served:
    """All rows, in order of first appearance; `steps` columns and `frames` frames (the first is the empty machine)."""

    rows: list[Row]
    steps: int
    frames: int

    def keep_places(self) -> None:
        """Mark the place that each finished request leaves in its batch until the next one is admitted."""
        starts = sorted({step for row in self.rows for step in row.admitted})
        ends = [moment.step for row in self.rows for moment in row.moments if moment.what == "finished"]
        for row in self.rows:
            for gone in (moment.step for moment in row.moments if moment.what == "finished"):
                stop = next((step for step in starts if step >= gone), max(ends))
                row.cells[gone:stop] = [Cell("place")] * (stop - gone)


def served(log: Iterable[Event] | Replay) -> Served:
    """Read a log. Raises `InvalidInput` where an event does not fit what came before it."""
    rows: dict[RequestId, Row] = {}
    state, steps, open_frame = State(), 0, False
    events = log if not isinstance(log, Replay) else (each for i in range(len(log)) for each in log.events(i))
    for event in events:
        apply(state, event)
        kind, *fields = event
        if kind == "step":
            _step(rows, state, fields[0], steps)
            steps, open_frame = steps + 1, False
            continue
        open_frame = open_frame or kind != "header"
        if kind == "fork":
            _fork(rows, state, fields[0], fields[1], steps)
        elif kind in ("arrive", "admit"):
            _enter(rows, state, kind, fields[0], steps)
        elif kind in ("swap_out", "swap_in", "release", "refuse"):
            _leave(rows[fields[0]], kind, fields, steps)
    return Served(list(rows.values()), steps, steps + open_frame + 1)


def _row(rows: dict[RequestId, Row], state: State, rid: RequestId, steps: int) -> Row:
    request = state.requests[rid]
    if rid not in rows:
        rows[rid] = Row(rid, request.order, request.known, [Cell("")] * steps)
    return rows[rid]


def _enter(rows: dict[RequestId, Row], state: State, kind: str, rid: RequestId, steps: int) -> None:
    row, request = _row(rows, state, rid, steps), state.requests[rid]
    if kind == "admit":
        row.admitted.append(steps)
        row.highest = row.highest if row.lost else 0
        row.target, row.cached, row.lost = request.known, request.cached, False


def _fork(rows: dict[RequestId, Row], state: State, parent: RequestId, child: RequestId, steps: int) -> None:
    row, source = _row(rows, state, child, steps), rows[parent]
    row.admitted.append(steps)
    row.target, row.highest = source.target, source.highest


def _leave(row: Row, kind: str, fields: list[str], steps: int) -> None:
    what: Mark
    if kind == "release":
        row.lost = fields[1] == "preempted"
        what = "preempted" if row.lost else "aborted" if fields[1] == "aborted" else "finished"
        row.moments.append(Moment(steps, steps + 1, what))
    elif kind == "refuse":
        row.moments.append(Moment(steps, steps + 1, "refused", fields[1]))
    else:
        what = "to the host" if kind == "swap_out" else "from the host"
        if not row.moments or row.moments[-1][:3] != (steps, steps + 1, what):  # one event a pool
            row.moments.append(Moment(steps, steps + 1, what))


def _step(rows: dict[RequestId, Row], state: State, tokens: Iterable[tuple[RequestId, int]], steps: int) -> None:
    computed: Counter[RequestId] = Counter()
    for rid, count in tokens:
        computed[rid] += count
    for row in rows.values():
        request, count = state.requests[row.rid], computed[row.rid]
        if count:
            row.cells.append(_computed(row, request.tokens - count, count))
            if request.status in ("finished", "aborted"):  # its last step had run when it was released
                row.moments[-1] = row.moments[-1]._replace(step=steps + 1)
        else:
            did = _AFTER.get(request.status, "")
            row.cells.append(Cell("preempted" if did == "queued" and row.lost else did))


def _computed(row: Row, start: int, count: int) -> Cell:
    stop = start + count
    again = max(0, min(stop, row.highest) - start)
    cached, row.cached = row.cached, 0
    row.highest = max(row.highest, stop)
    if count < 0:
        return Cell("rolled back", count)
    if start < row.target:
        return Cell("again" if again else "prefill", count, cached, again)
    return Cell("decode" if count == 1 else "several", count, cached, 0)
