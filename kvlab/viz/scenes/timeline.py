"""Who ran when: a row a request, a column a frame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from kvlab.events import Event, Replay
from kvlab.viz import svg
from kvlab.viz.captions import captions
from kvlab.viz.drawing import Drawing
from kvlab.viz.palette import colour, name
from kvlab.viz.scenes.cells import name_plate
from kvlab.viz.scenes.legend import legend
from kvlab.workload import RequestId

WIDTH = 720.0
_LEFT = 64.0
_PITCH = 30.0
_BAR = 18.0


def timeline(log: Iterable[Event], *, frame: int | None = None) -> Drawing:
    """Every request of a log over its frames, up to `frame` (all of them by default).

    A prefill is a full bar, decode a bar half as high, time on the host is hatched, and from a preemption to the next
    admission there is a dotted line: the row vanishes and comes back.
    """
    replay = Replay(log)
    return _drawn(_spans(replay), len(replay), len(replay) - 1 if frame is None else frame)


def timeline_frames(log: Iterable[Event]) -> list[tuple[Drawing, str]]:
    """The picture growing frame by frame, with captions: for `Player.from_drawings`."""
    replay = Replay(log)
    rows = _spans(replay)
    return [(_drawn(rows, len(replay), frame), said) for frame, said in enumerate(captions(replay))]


@dataclass
class _Row:
    """What a request did in each frame: prefill, decode, idle, host, out (preempted) or '' (not there)."""

    rid: RequestId
    order: int
    did: list[str] = field(default_factory=list)


def _spans(replay: Replay) -> list[_Row]:
    rows: dict[RequestId, _Row] = {}
    for frame, state in enumerate(replay.states()):
        events = replay.events(frame)
        written = {rid: count for kind, *rest in events if kind == "step" for rid, count in rest[0]}
        for request in state.requests.values():
            row = rows.setdefault(request.rid, _Row(request.rid, request.order))
            row.did += [""] * (frame - len(row.did))
            if request.status == "running":
                count = written.get(request.rid, 0)
                row.did.append("prefill" if count > 1 else "decode" if count == 1 else "idle")
            else:
                row.did.append({"swapped": "host", "preempted": "out"}.get(request.status, ""))
    return sorted(rows.values(), key=lambda row: row.order)


def _drawn(rows: Sequence[_Row], frames: int, upto: int) -> Drawing:
    column = (WIDTH - _LEFT) / max(1, frames - 1)
    parts: list[str] = []
    table: list[tuple[str, ...]] = [("request", "frames")]
    height = len(rows) * _PITCH + 4
    for number, row in enumerate(rows):
        y, tint, label = number * _PITCH + 4, colour(row.order), name(row.rid)
        parts.append(name_plate(0, y - 2, _LEFT - 14, 22, label, tint))
        words, at = [], 0
        for did, run in groupby(row.did[: upto + 1]):
            length = len(list(run))
            x, width = _LEFT + (at - 1) * column, length * column
            if did:
                last = f"{at}" if length == 1 else f"{at}-{at + length - 1}"
                words.append(f"{_WORDS[did]} {last}")
                tip = f"{label}: {_WORDS[did]}, frames {last}"
                parts.append(_bar(did, x, y, width, tint, {"data_request": label, "data_tip": tip}))
            at += length
        table.append((label, "; ".join(words) or "-"))
    every = max(1, -(-(frames - 1) // 12))
    marks = [(frame, _LEFT + (frame - 0.5) * column) for frame in range(1, frames, every)]
    parts += [svg.text(x, height + 12, str(frame), class_="kv-quiet kv-middle") for frame, x in marks]
    now = _LEFT + upto * column
    parts.append(svg.path(svg.lines([((now, 0), (now, height - 4))]), class_="kv-rule"))
    seen = [did for did in _WORDS if any(did in row.did for row in rows)]
    swatches = [(_bar(did, 0, -3, 16, colour(0), {}), _WORDS[did]) for did in seen]
    key, key_height = legend(0, height + 24, WIDTH, swatches)
    running = sum(len(row.did) > upto and row.did[upto] in ("prefill", "decode", "idle") for row in rows)
    return Drawing(
        WIDTH,
        height + 24 + key_height,
        (*parts, *key),
        f"{running} of {len(rows)} requests in memory after frame {upto}",
        "One row a request, one column a frame.",
        tuple(table),
    )


_WORDS = {
    "prefill": "prefill",
    "decode": "decode",
    "idle": "waits in memory",
    "host": "on the host",
    "out": "preempted",
}


def _bar(did: str, x: float, y: float, width: float, tint: str, marks: dict[str, str]) -> str:
    middle = y + _BAR / 2
    if did == "prefill":
        return svg.rect(x, y, width, _BAR, fill=tint, **marks)
    if did == "decode":
        return svg.rect(x, middle - 4.5, width, 9, fill=tint, **marks)
    if did == "idle":
        return svg.rect(x, middle - 4.5, width, 9, fill=tint, class_="kv-tint", **marks)
    if did == "host":
        ground = svg.rect(x, y + 2, width, _BAR - 4, class_="kv-waste")
        lines = svg.path(svg.hatch(x, y + 2, width, _BAR - 4, "/", 6), class_="kv-arrow", stroke=tint)
        return svg.tag("g", ground, lines, **marks)
    return svg.path(svg.lines([((x, middle), (x + width, middle))]), class_="kv-dots", stroke=tint, **marks)
