"""Who ran when: a row a request, a column a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from kvlab.errors import InvalidInput
from kvlab.events import Event, Replay
from kvlab.viz import svg
from kvlab.viz.drawing import Drawing
from kvlab.viz.palette import colour, name
from kvlab.viz.scenes import serving_bars as bars
from kvlab.viz.scenes.cells import name_plate
from kvlab.viz.scenes.legend import legend
from kvlab.viz.scenes.serving_rows import Cell, Row, Served, served
from kvlab.viz.scenes.serving_words import caption, happened, headline, said
from kvlab.viz.words import shown

WIDTH = 760.0
_RIGHT = 22.0
_TOP = 12.0
_WIDEST = 36.0
_THINNEST = 2.0
_MOST = 64
_LONGEST_NAME = 9


def timeline(log: Iterable[Event] | Replay, *, frame: int | None = None, places: bool = False) -> Drawing:
    """Every request of a log over its steps, up to `frame` (all of them by default).

    A prefill is a tall bar with its number of tokens (the part found in the cache pale, tokens that had been computed
    before hatched), a decode a low one, several tokens at once a stack, waiting a thin line. From a preemption to the
    next admission the row is gone. `places` hatches the place that a finished request leaves in a static batch.
    Raises `InvalidInput` for a frame that the log lacks, or more than 64 requests.
    """
    return _drawn(_read(log, places), frame)


def timeline_frames(log: Iterable[Event] | Replay, *, places: bool = False) -> list[tuple[Drawing, str]]:
    """The picture growing step by step, with captions: for `Player.from_drawings`."""
    read = _read(log, places)
    return [(_drawn(read, frame), caption(read, frame)) for frame in range(read.frames)]


def _read(log: Iterable[Event] | Replay, places: bool) -> Served:
    read = served(log)
    if len(read.rows) > _MOST:
        raise InvalidInput(f"the log has {len(read.rows):,} requests; a timeline has rows for {_MOST}: log fewer")
    if places:
        read.keep_places()
    return read


@dataclass(frozen=True)
class _Place:
    """Where rows and columns lie."""

    left: float
    column: float
    pitch: float
    rows: int

    @classmethod
    def of(cls, read: Served) -> _Place:
        longest = max((len(_label(row)) for row in read.rows), default=0)
        left = max(44.0, longest * 7.2 + 14) + 12
        column = min(_WIDEST, (WIDTH - left - _RIGHT) / max(1, read.steps))
        pitch = 32.0 if len(read.rows) <= 12 else max(bars.HEIGHT + 5, 400.0 / len(read.rows))
        return cls(left, column, pitch, len(read.rows))

    def x(self, step: float) -> float:
        """The left edge of a step's column."""
        return self.left + step * self.column

    def y(self, row: int) -> float:
        """The top of a row's bars."""
        return _TOP + row * self.pitch

    @property
    def bottom(self) -> float:
        """Of all rows."""
        return _TOP + self.rows * self.pitch


def _label(row: Row) -> str:
    return shown(name(row.rid), _LONGEST_NAME)


def _drawn(read: Served, frame: int | None) -> Drawing:
    upto = read.frames - 1 if frame is None else frame
    if not 0 <= upto < read.frames:
        raise InvalidInput(f"the log has frames 0 to {read.frames - 1}, not {frame}")
    place = _Place.of(read)
    parts = [*_rulers(place, read.steps), *_plates(place, read.rows)]
    if not read.rows:
        parts.append(svg.text(0, 14, "No request has come.", class_="kv-quiet"))
    if place.column >= _THINNEST:
        for step in range(min(upto, read.steps)):
            parts += _column(place, read, step)
    else:
        parts += [part for number, row in enumerate(read.rows) for part in _runs(place, number, row, upto)]
    parts += [part for number, row in enumerate(read.rows) for part in _moments(place, number, row, upto)]
    now = place.x(min(upto, read.steps))
    if upto < read.frames - 1:
        parts.append(svg.path(svg.lines([((now, 0), (now, place.bottom))]), class_="kv-fits"))
    seen = {cell.did for row in read.rows for cell in row.cells} | {
        "cached" for row in read.rows for cell in row.cells if cell.cached
    }
    marks = {moment.what for row in read.rows for moment in row.moments}
    key, key_height = legend(0, place.bottom + 26, WIDTH, [*bars.swatches(seen), *bars.mark_swatches(marks)])
    return Drawing(
        WIDTH,
        place.bottom + 26 + key_height,
        (*parts, *key),
        headline(read, upto),
        "One row a request, one column a step.",
        (("request", "prompt", "what it did, by step"), *(_told(row, upto) for row in read.rows)),
    )


def _told(row: Row, upto: int) -> tuple[str, str, str]:
    known = any(cell.did for cell in row.cells[:upto]) or any(moment.frame <= upto for moment in row.moments)
    return shown(name(row.rid), 40), f"{row.prompt:,}" if known else "-", happened(row, upto)


def _rulers(place: _Place, steps: int) -> Iterator[str]:
    """Step numbers below, a faint line at each."""
    every = next(each for each in (1, 2, 5, 10, 20, 50, 100, 10**9) if each * place.column >= 34 or each > steps)
    numbers = [step for step in range(1, steps + 1) if step == 1 or step % every == 0]
    ticks = [((place.x(step - 0.5), place.bottom - 4), (place.x(step - 0.5), place.bottom)) for step in numbers]
    if steps:
        yield svg.path(svg.lines([((place.left, place.bottom - 4), (place.x(steps), place.bottom - 4)), *ticks]),
                       class_="kv-rule")  # fmt: skip
        yield svg.text(0, place.bottom + 12, "step", class_="kv-quiet")
    for step in numbers:
        yield svg.text(place.x(step - 0.5), place.bottom + 12, f"{step:,}", class_="kv-quiet kv-middle")


def _plates(place: _Place, rows: Sequence[Row]) -> Iterator[str]:
    for number, row in enumerate(rows):
        label, height = _label(row), min(22.0, place.pitch - 4)
        plate = name_plate(0, place.y(number) + bars.HEIGHT - height, place.left - 12, height, label, colour(row.order))
        yield svg.tag("g", plate, data_request=name(row.rid), data_tip=f"{label}: a prompt of {row.prompt:,} tokens")


def _column(place: _Place, read: Served, step: int) -> Iterator[str]:
    """The cells of one step, each with its number where there is room for it."""
    gap = 1.0 if place.column >= 4 else 0.0
    for number, row in enumerate(read.rows):
        cell = row.cells[step]
        if not cell.did:
            continue
        joined = step + 1 < len(row.cells) and row.cells[step + 1].did == cell.did and cell.did in bars.JOINED
        box = (place.x(step), place.y(number), place.column - (0 if joined else gap))
        tip = f"{_label(row)}, step {step + 1:,}: {said([cell])}"
        drawn = bars.bar(cell, *box, colour(row.order))
        yield svg.tag("g", drawn, data_request=name(row.rid), data_tip=tip)
        if cell.did in ("prefill", "again"):
            yield from _number(place, row, step, place.y(number), cell)


def _runs(place: _Place, number: int, row: Row, upto: int) -> Iterator[str]:
    """A row whose columns are too thin to tell apart: one bar for consecutive steps that are alike."""
    at = 0
    for did, run in groupby(row.cells[:upto], key=lambda cell: cell.did):
        cells = list(run)
        last, x = at + len(cells), place.x(at)
        if did:
            tip = f"{_label(row)}, steps {at + 1:,}-{last:,}: {said(cells)}"
            drawn = bars.bar(bars.merged(cells), x, place.y(number), place.x(last) - x, colour(row.order))
            yield svg.tag("g", drawn, data_request=name(row.rid), data_tip=tip)
        at = last


def _number(place: _Place, row: Row, step: int, y: float, cell: Cell) -> Iterator[str]:
    """Tokens in the bar; else, once for consecutive prefills, after the last of them, over the low bars there."""
    words = f"{cell.tokens:,}"
    share = bars.cached_share(cell)
    room = place.column * (1 - share) - 3
    if len(words) * 6.6 <= room:
        middle = place.x(step) + place.column * (1 + share) / 2
        yield bars.inside(words, middle, y, colour(row.order), hatched=cell.did == "again")
        return
    following = row.cells[step + 1].did if step + 1 < len(row.cells) else ""
    if following in ("prefill", "again"):
        return
    run = 0
    for did, _, _, _ in reversed(row.cells[: step + 1]):
        if did not in ("prefill", "again"):
            break
        run += 1
    total = sum(each.tokens for each in row.cells[step + 1 - run : step + 1])
    words = f"{total:,}"
    after = row.cells[step + 1 : step + 1 + int(len(words) * 5.6 / place.column) + 1]
    if after and all(each.did in ("decode", "idle") for each in after):
        yield svg.text(place.x(step + 1) + 1, y + 7.5, words, class_="kv-tiny")


def _moments(place: _Place, number: int, row: Row, upto: int) -> Iterator[str]:
    """Marks between the columns; how long a row was away."""
    y = place.y(number)
    for moment in row.moments:
        if moment.frame <= upto:
            yield from bars.mark(moment, place.x(moment.step), y, WIDTH)
    at = 0
    for did, cells in groupby(row.cells[: min(upto, len(row.cells))], key=lambda cell: cell.did):
        length = len(list(cells))
        yield from bars.run_label(did, place.x(at), y, length * place.column)
        at += length
