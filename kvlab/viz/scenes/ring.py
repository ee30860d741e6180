"""A ring buffer of K and V: a clock whose hand writes, the same slots as they lie in memory, what was overwritten."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvlab.errors import InvalidInput
from kvlab.viz import svg
from kvlab.viz.drawing import Drawing, Table
from kvlab.viz.palette import colour, text_on
from kvlab.viz.scenes.legend import legend, solid
from kvlab.viz.scenes.ring_clock import MOST_CELLS, clock
from kvlab.viz.scenes.ring_slots import RingSlots, counted, said

WIDTH = 760.0
_CLOCK = 310.0
_RIGHT = 344.0
_MOST_CLOCKS = 4
_MOST_ROWS = 34


def ring_clock(slots: RingSlots) -> Drawing:
    """One ring: the clock on the left; on the right its K and V in memory order, and what the newest query reads."""
    parts = [*clock(slots, 0, 0, _CLOCK), *_memory(slots), *_reads(slots)]
    key, key_height = legend(0, _CLOCK + 6, WIDTH, _swatches([slots]))
    return Drawing(
        WIDTH,
        _CLOCK + 6 + key_height,
        (*parts, *key),
        _title(slots),
        "A ring buffer as a clock: keys on the outer circle, values on the inner one, the write pointer outside.",
        _slot_table(slots),
    )


def ring_frames(history: Sequence[RingSlots]) -> list[tuple[Drawing, str]]:
    """A frame for each recorded moment, with captions: for `Player.from_drawings`."""
    return [(ring_clock(each), said(each)) for each in history]


def ring_clocks(each: Sequence[tuple[str, RingSlots]]) -> Drawing:
    """Up to four rings side by side under their titles, as around W - 1, W and W + 1 tokens.

    Raises `InvalidInput` for none or more than four.
    """
    if not 1 <= len(each) <= _MOST_CLOCKS:
        raise InvalidInput(f"one to {_MOST_CLOCKS} rings can stand side by side, not {len(each)}")
    room = WIDTH / len(each)
    size = min(_CLOCK, room - 6)
    parts: list[str] = []
    for i, (words, slots) in enumerate(each):
        x, middle = i * room + (room - size) / 2, (i + 0.5) * room
        parts.append(svg.text(middle, 14, words, class_="kv-strong kv-middle"))
        parts += clock(slots, x, 18, size)
        look = "kv-warn kv-middle" if slots.missing or slots.torn else "kv-quiet kv-middle"
        parts.append(svg.text(middle, size + 32, _short(slots), class_=look))
    key, key_height = legend(0, size + 44, WIDTH, _swatches([slots for _, slots in each]))
    table: list[tuple[str, ...]] = [("ring", "tokens", "next slot", "in the ring", "missing")]
    for words, slots in each:
        table.append((words, f"{slots.tokens:,}", f"{slots.pointer:,}", _held(slots), _lost(slots)))
    wrong = sum(bool(slots.missing or slots.torn) for _, slots in each)
    good = f"{len(each)} rings of {each[0][1].window:,} slots"
    return Drawing(
        WIDTH,
        size + 44 + key_height,
        (*parts, *key),
        f"{good}: {wrong} of them wrong" if wrong else f"{good}: each holds exactly its window",
        "Ring buffers side by side, each a clock with its write pointer outside.",
        tuple(table),
    )


def _memory(slots: RingSlots) -> Iterator[str]:
    """K and V as two rows of one contiguous slice."""
    x, y, room = _RIGHT, 26.0, WIDTH - _RIGHT - 4
    yield svg.text(x, y - 8, "the same slots in memory: one piece, never turned back", class_="kv-head")
    cell = (room - 22) / slots.window
    for row, (letter, positions) in enumerate((("K", slots.keys), ("V", slots.values))):
        top = y + 20 + row * 36
        yield svg.text(x, top + 19, letter, class_="kv-head")
        yield from _row(slots, positions, x + 22, top, cell)
    if slots.window <= MOST_CELLS:
        for slot in range(0, slots.window, 1 if cell > 14 else 2):
            yield svg.text(x + 22 + (slot + 0.5) * cell, y + 14, str(slot), class_="kv-tiny kv-middle")
    at = x + 22 + (slots.pointer + 0.5) * cell
    yield svg.path(svg.arrow_head((at, y + 92), (0, -1), 14), class_="kv-copy-head")
    words = f"next write: {slots.tokens:,} % {slots.window:,} = {slots.tokens % slots.window:,}"
    if slots.pointer != slots.tokens % slots.window:
        words = f"next write: slot {slots.pointer:,}, not {slots.tokens:,} % {slots.window:,}"
    side = "kv-end" if at > WIDTH - 110 else "kv-middle" if at > x + 110 else ""
    where = {"kv-end": WIDTH - 4, "kv-middle": at, "": x + 22}[side]
    look = "kv-ink" if slots.pointer == slots.tokens % slots.window else "kv-warn"
    yield svg.text(where, y + 122, words, class_=f"{look} {side}".strip())


def _row(slots: RingSlots, positions: Sequence[int | None], x: float, y: float, cell: float) -> Iterator[str]:
    """Cells coloured by lap; of many slots only the runs of one lap."""
    start = 0
    for stop in range(1, len(positions) + 1):
        here, window = positions[start], slots.window
        small = window <= MOST_CELLS
        same = stop < len(positions) and not small and _lap(positions[stop], window) == _lap(here, window)
        if same:
            continue
        left, wide = x + start * cell, (stop - start) * cell
        gap = 1.5 if small else 0.0
        if here is None:
            yield svg.rect(left, y, wide - gap, 28, class_="kv-free")
        else:
            fill = colour(here // window)
            last = positions[stop - 1]
            label = str(here) if small else f"{here:,} to {last:,}"
            fits = wide > len(label) * 7 + 2
            look = "kv-chip kv-middle" if fits else "kv-chip-small kv-middle"
            word = svg.text(left + wide / 2, y + 18, label, class_=look, fill=text_on(fill))
            yield svg.rect(left, y, wide - gap, 28, fill=fill) + (word if wide > len(label) * 5 else "")
        start = stop


def _lap(position: int | None, window: int) -> int | None:
    return None if position is None else position // window


def _reads(slots: RingSlots) -> Iterator[str]:
    """What the newest query reads, what the last write replaced, what is wrong."""
    x, y = _RIGHT, 188.0
    newest = max(0, slots.tokens - 1)
    lines = [("the query of position", f"{newest:,}" if slots.tokens else "-", "kv-large")]
    window = slots.wanted
    lines.append(("reads positions", f"{window[0]:,} to {window[-1]:,}" if window else "none", "kv-large"))
    over = "nothing" if slots.overwritten is None else f"{slots.overwritten:,}"
    lines.append(("its write replaced", over, "kv-large"))
    lines.append(("empty slots, masked", f"{sum(key is None for key in slots.keys):,}", "kv-large"))
    for i, (words, value, look) in enumerate(lines):
        yield svg.text(x, y + i * 25, words, class_="kv-ink")
        yield svg.text(x + 165, y + i * 25, value, class_=look)
        if words == "its write replaced" and slots.overwritten is not None:
            wide = len(over) * 9 + 4
            yield svg.path(svg.lines([((x + 162, y + i * 25 - 5), (x + 162 + wide, y + i * 25 - 5))]), class_="kv-torn")
    if slots.torn or slots.missing:
        yield svg.text(x, y + 104, _short(slots), class_="kv-warn")


def _short(slots: RingSlots) -> str:
    if slots.torn:
        return f"K and V disagree in {len(slots.torn):,} slot{'s' * (len(slots.torn) != 1)}"
    if slots.missing:
        return f"{counted(slots.missing)} {'is' if len(slots.missing) == 1 else 'are'} missing"
    empty = slots.window - len(slots.wanted)
    if empty:
        return f"{empty:,} slot{'s' * (empty != 1)} empty, masked"
    return "full" if slots.overwritten is None else f"full; position {slots.overwritten:,} overwritten"


def _title(slots: RingSlots) -> str:
    if slots.torn or slots.missing:
        return f"{slots.tokens:,} tokens in a ring of {slots.window:,}: {_short(slots)}"
    return f"{slots.tokens:,} token{'s' * (slots.tokens != 1)} in a ring of {slots.window:,} slots: {_held(slots)}"


def _held(slots: RingSlots) -> str:
    found = sorted({key for key in slots.keys if key is not None})
    return counted(found) if found else "nothing"


def _lost(slots: RingSlots) -> str:
    return counted(slots.missing) if slots.missing else "-"


def _swatches(all_slots: Sequence[RingSlots]) -> Iterator[tuple[str, str]]:
    laps = sorted({position // slots.window for slots in all_slots for position in slots.keys if position is not None})
    for lap in laps[-3:]:
        window = all_slots[0].window
        yield solid(colour(lap)), f"lap {lap + 1}: from position {lap * window:,}"
    yield svg.rect(0.5, 0.5, 15, 11, class_="kv-free"), "empty"
    yield svg.path(svg.arrow_head((14, 6), (1, 0), 13), class_="kv-copy-head"), "next write"
    yield svg.rect(1, 1, 14, 10, class_="kv-touched"), "last write"
    if any(slots.torn or slots.stale for slots in all_slots):
        yield svg.rect(1, 1, 14, 10, class_="kv-torn"), "wrong: outside the window, or K is not V"


def _slot_table(slots: RingSlots) -> Table:
    rows: list[tuple[str, ...]] = [("slot", "position of K", "position of V", "mark")]
    numbers = range(slots.window)
    if slots.window > _MOST_ROWS:
        edges = {0, slots.window - 1, slots.pointer, (slots.pointer - 1) % slots.window, *slots.torn[:4]}
        numbers_kept = sorted(edges)
    else:
        numbers_kept = list(numbers)
    for slot in numbers_kept:
        marks = []
        if slot == slots.newest:
            over = "" if slots.overwritten is None else f" over {slots.overwritten:,}"
            marks.append(f"written last{over}")
        if slot == slots.pointer:
            marks.append("next write")
        if slot in slots.torn:
            marks.append("K is not V")
        elif slot in slots.stale:
            marks.append("outside the window")
        key, value = slots.keys[slot], slots.values[slot]
        rows.append(
            (
                f"{slot:,}",
                "empty" if key is None else f"{key:,}",
                "empty" if value is None else f"{value:,}",
                ", ".join(marks) or "-",
            )
        )
    return tuple(rows)
