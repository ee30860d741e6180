"""The bars and marks of the timeline. All bars stand on one line, 18 pixels below `y`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from kvlab.viz import svg
from kvlab.viz.palette import colour, text_on
from kvlab.viz.scenes.serving_rows import Cell, Did, Mark, Moment
from kvlab.viz.words import shown

HEIGHT: Final = 18.0
LOW: Final = 8.0
JOINED: Final = ("queued", "host", "preempted", "place")
"""What is drawn without a gap between steps."""
_STACK = 5


def bar(cell: Cell, x: float, y: float, width: float, tint: str) -> str:
    """What a request did in one step, in the box (x, y, width, 18)."""
    low = y + HEIGHT - LOW
    match cell.did:
        case "prefill" | "again":
            return _prefill(cell, x, y, width, tint)
        case "decode":
            return svg.rect(x, low, width, LOW, fill=tint)
        case "several":
            return _stack(cell.tokens, x, y, width, tint)
        case "idle":
            box = (x + 0.5, low + 0.5, width - 1, LOW - 1) if width > 2 else (x, low, width, LOW)
            return svg.rect(*box, fill=tint, stroke=tint, class_="kv-tint")
        case "rolled back":
            ground = svg.rect(x, low, width, LOW, fill=tint, class_="kv-tint")
            return ground + svg.path(svg.hatch(x, low, width, LOW, "\\", 4), class_="kv-arrow", stroke=tint)
        case "host":
            ground = svg.rect(x, y + 4, width, HEIGHT - 4, class_="kv-waste")
            return ground + svg.path(svg.hatch(x, y + 4, width, HEIGHT - 4, "/", 6), class_="kv-arrow", stroke=tint)
        case "place":
            ground = svg.rect(x, y, width, HEIGHT, class_="kv-waste")
            return ground + svg.path(svg.hatch(x, y, width, HEIGHT, "x", 6), class_="kv-hatch")
        case "preempted":
            middle = low + LOW / 2
            return svg.path(svg.lines([((x, middle), (x + width, middle))]), class_="kv-dots", stroke=tint)
        case _:
            return svg.rect(x, low + LOW / 2 - 1, width, 2, class_="kv-queue")


def merged(cells: Sequence[Cell]) -> Cell:
    """Steps that are alike as one."""
    most = max(cell.tokens for cell in cells) if cells[0].did == "several" else sum(cell.tokens for cell in cells)
    return Cell(cells[0].did, most, sum(cell.cached for cell in cells), sum(cell.again for cell in cells))


def cached_share(cell: Cell) -> float:
    """How much of a prefill's width is the pale lead-in of tokens found in the cache."""
    if not cell.cached:
        return 0.0
    return min(0.6, max(0.35, cell.cached / (cell.cached + cell.tokens)))


def _prefill(cell: Cell, x: float, y: float, width: float, tint: str) -> str:
    lead = width * cached_share(cell)
    drawn = svg.rect(x + lead, y, width - lead, HEIGHT, fill=tint)
    if lead:
        drawn += svg.rect(x + 0.5, y + 0.5, lead - 0.5, HEIGHT - 1, fill=tint, stroke=tint, class_="kv-tint")
    if cell.did == "again":
        drawn += svg.path(svg.hatch(x + lead, y, width - lead, HEIGHT, "/", 5), class_="kv-slots")
    return drawn


def _stack(tokens: int, x: float, y: float, width: float, tint: str) -> str:
    """A stripe a token, five at most."""
    count = min(_STACK, tokens)
    each = min(LOW, (HEIGHT - (count - 1)) / count)
    stripes = [(x, y + HEIGHT - each - i * (each + 1), width, each) for i in range(count)]
    return svg.path(svg.boxes(stripes), fill=tint)


def inside(words: str, middle: float, y: float, tint: str, *, hatched: bool) -> str:
    """A number in a tall bar; over a hatch it has a plate."""
    word = svg.text(middle, y + 13, words, class_="kv-number kv-middle", fill=text_on(tint))
    if not hatched:
        return word
    width = len(words) * 6 + 3
    return svg.rect(middle - width / 2, y + 3.5, width, 12, rx=2, fill=tint) + word


def run_label(did: str, x: float, y: float, width: float) -> Iterator[str]:
    """Words over a stretch of time that is long enough for them."""
    if did == "preempted" and width >= 80:
        yield svg.text(x + width / 2 + 1, y + 7, "preempted", class_="kv-gone kv-middle")
    elif did == "host" and width >= 80:
        plate = svg.rect(x + width / 2 - 34, y + 5, 68, 12, rx=3, class_="kv-plate")
        yield plate + svg.text(x + width / 2, y + 14, "on the host", class_="kv-said-small kv-middle")


def mark(moment: Moment, x: float, y: float, right: float, reach: float = 4) -> Iterator[str]:
    """What happened at the edge `x` of a column; words end before `right`, lines overshoot by `reach`."""
    base, middle = y + HEIGHT, y + HEIGHT / 2
    match moment.what:
        case "preempted":
            sides = (0, -3, 3, -3, 3, 0)
            yield _torn([(x + side, y - reach + i * (HEIGHT + 2 * reach) / 5) for i, side in enumerate(sides)])
        case "to the host" | "from the host":
            down = moment.what == "to the host"
            tip, start = (base + 2, y - reach) if down else (y - reach, base + 2)
            line = svg.lines([((x, start), (x, tip + (-5 if down else 5)))])
            yield svg.path(line, class_="kv-halo") + svg.path(line, class_="kv-fits")
            yield svg.path(svg.arrow_head((x, tip), (0, 1 if down else -1), 7), class_="kv-badge")
        case "finished":
            yield _tick(x + 4, middle + 1)
        case "aborted":
            yield _cross(x + 9, middle + 4, 4)
        case "refused":
            yield from _refused(moment.words, x, y, right)


def _torn(points: list[svg.Point]) -> str:
    d = "M" + "L".join(f"{svg.number(a)} {svg.number(b)}" for a, b in points)
    return svg.path(d, class_="kv-halo") + svg.path(d, class_="kv-torn")


def _tick(x: float, y: float) -> str:
    d = f"M{svg.number(x)} {svg.number(y + 3)}l3.5 4l7 -8.5"
    return svg.path(d, class_="kv-halo") + svg.path(d, class_="kv-copy")


def _cross(x: float, y: float, reach: float) -> str:
    d = svg.lines([((x - reach, y - reach), (x + reach, y + reach)), ((x - reach, y + reach), (x + reach, y - reach))])
    return svg.path(d, class_="kv-halo") + svg.path(d, class_="kv-torn")


def _refused(reason: str, x: float, y: float, right: float) -> Iterator[str]:
    """A no-entry sign, and why, on the side that has more room."""
    centre = y + HEIGHT - 7
    sign = svg.tag("circle", cx=x + 8, cy=centre, r=6, class_="kv-torn")
    yield sign + svg.path(svg.lines([((x + 4, centre + 4), (x + 12, centre - 4))]), class_="kv-torn")
    letters = int((right - x - 24) / 6.2)
    words = shown(f"refused: {reason}" if reason else "refused", max(letters, 8))
    if letters >= 8:
        yield svg.text(x + 20, centre + 4, words, class_="kv-gone")


def swatches(seen: Collection[str]) -> Iterator[tuple[str, str]]:
    """Swatch and words for each kind of cell in `seen`."""
    tint = colour(0)
    words: tuple[tuple[str, Did, Cell, str], ...] = (
        ("prefill", "prefill", Cell("prefill"), "prefill (its tokens)"),
        ("cached", "prefill", Cell("prefill", 1, 1), "pale: was in the cache"),
        ("again", "again", Cell("again"), "computed again"),
        ("decode", "decode", Cell("decode"), "decode"),
        ("several", "several", Cell("several", 3), "several tokens at once"),
        ("queued", "queued", Cell("queued"), "waits"),
        ("idle", "idle", Cell("idle"), "waits in memory"),
        ("rolled back", "rolled back", Cell("rolled back"), "rolled back"),
        ("host", "host", Cell("host"), "on the host"),
        ("place", "place", Cell("place"), "place left empty"),
    )
    for kind, _, cell, meaning in words:
        if kind in seen:
            yield bar(cell, 0, -4, 16, tint), meaning


def mark_swatches(seen: Collection[Mark]) -> Iterator[tuple[str, str]]:
    """The same for the marks."""
    meanings: tuple[tuple[Mark, str], ...] = (
        ("preempted", "preempted"),
        ("to the host", "moved to the host"),
        ("from the host", "moved back"),
        ("finished", "finished"),
        ("aborted", "aborted"),
        ("refused", "refused"),
    )
    for what, meaning in meanings:
        if what in seen:
            x = {"finished": -1, "aborted": -1, "refused": 0}.get(what, 8)
            yield "".join(mark(Moment(0, 0, what), x, -4, 0, -1)), meaning
