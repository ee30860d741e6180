"""Beam search as a tree of tokens, over the blocks that its live beams share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvlab.errors import InvalidInput
from kvlab.events import Event, State
from kvlab.viz import svg
from kvlab.viz.arrange import arrange
from kvlab.viz.drawing import Drawing, Table
from kvlab.viz.palette import colour, name, text_on
from kvlab.viz.scenes.beam_nodes import BeamNode, BeamSteps, checked, in_rows, surviving
from kvlab.viz.scenes.legend import legend
from kvlab.viz.scenes.sharing import sharing
from kvlab.viz.scenes.taken import words
from kvlab.viz.words import shown
from kvlab.workload import RequestId

WIDTH = 760.0
_MOST_STEPS = 6
_MOST_NODES = 24
_LEFT = 86.0
_BETWEEN = 30.0
_NODE = 30.0
_ROW = 40.0
_TOP = 22.0
_WIDEST = 150.0
_LEAST = 3


def beam_tree(
    steps: BeamSteps, state: State | None = None, events: Sequence[Event] = (), *, pool: str = "full"
) -> Drawing:
    """A column a step, a box a candidate (see `BeamNode`), best parents first; with a `state`, its blocks below.

    What leads to a beam that lives has a thick line in the colour of the beam, as its blocks have; what was pruned is
    pale and crossed. Only the last six steps are drawn. Raises `InvalidInput` where the steps do not fit together,
    or one has more than 24 candidates.
    """
    nodes = checked(steps)
    most = max(map(len, nodes), default=0)
    if most > _MOST_NODES:
        raise InvalidInput(
            f"a step has {most} candidates; the tree has rows for {_MOST_NODES}: pass the best ones only"
        )
    tree = _tree(nodes, _Tints.of(nodes, state))
    if state is None:
        return tree
    blocks = sharing(state, events, pool=pool)
    return arrange([tree, blocks], [(each.width, each.height) for each in (tree, blocks)])


@dataclass(frozen=True)
class _Tints:
    """Colours of beams: those of the state's requests, or in order of appearance."""

    orders: dict[RequestId, int]

    @classmethod
    def of(cls, steps: Sequence[Sequence[BeamNode]], state: State | None) -> _Tints:
        orders: dict[RequestId, int] = {}
        for nodes in steps:
            for node in nodes:
                if node.alive and node.beam is not None:
                    known = state.requests.get(node.beam) if state else None
                    orders.setdefault(node.beam, known.order if known else len(orders))
        return cls(orders)

    def __getitem__(self, beam: RequestId | None) -> str:
        return colour(self.orders.get(beam, 0)) if beam is not None else colour(0)


def _tree(steps: list[list[BeamNode]], tints: _Tints) -> Drawing:
    hidden = max(0, len(steps) - _MOST_STEPS)
    drawn, kept, rows = steps[hidden:], surviving(steps)[hidden:], in_rows(steps)[hidden:]
    room = (WIDTH - _LEFT) / max(1, len(drawn)) - _BETWEEN
    width = min(_WIDEST, room)
    parts = list(_root(drawn, hidden))
    ends: dict[RequestId | None, svg.Point] = {}
    for number, nodes in enumerate(drawn):
        x = _LEFT + number * (width + _BETWEEN) + _BETWEEN
        parts.append(svg.text(x + width / 2, 12, f"step {hidden + number + 1}", class_="kv-quiet kv-middle"))
        next_ends: dict[RequestId | None, svg.Point] = {}
        lines, boxes = [], []
        for row, index in enumerate(rows[number]):
            node, y = nodes[index], _TOP + row * _ROW + _NODE / 2
            start = ends.get(node.parent, (_LEFT, _TOP + _NODE / 2))
            strong = index in kept[number]
            lines.append((strong, _line(start, (x, y), node, strong, tints)))
            boxes.append(_box(node, x, y, width, strong, tints[node.beam]))
            if node.alive:
                next_ends[node.beam] = (x + width, y)
        parts += [line for _, line in sorted(lines, key=lambda each: each[0])] + boxes
        ends = next_ends
    height = _TOP + _ROW * max(1, max(map(len, drawn), default=0))
    key, key_height = legend(0, height + 4, WIDTH, _swatches(steps, kept, drawn))
    return Drawing(
        WIDTH,
        height + 4 + key_height,
        (*parts, *key),
        _title(steps),
        "A tree of tokens: a column a step, a line from each beam to its continuations.",
        _table(steps, hidden),
    )


def _root(drawn: Sequence[Sequence[BeamNode]], hidden: int) -> Iterator[str]:
    y = _TOP + _NODE / 2
    yield svg.rect(0, y - 14, _LEFT, 28, rx=5, class_="kv-cell")
    yield svg.text(_LEFT / 2, y + 4.5, f"{hidden} steps …" if hidden else "prompt", class_="kv-head kv-middle")
    if not drawn:
        yield svg.text(_LEFT + _BETWEEN, y + 4.5, "No step has been taken.", class_="kv-quiet")


def _line(start: svg.Point, end: svg.Point, node: BeamNode, strong: bool, tints: _Tints) -> str:
    d = svg.curve(start, end)
    if strong:
        return svg.path(d, class_="kv-thread", stroke=tints[node.beam if node.alive else node.parent])
    return svg.path(d, class_="kv-rule")


def _box(node: BeamNode, x: float, y: float, width: float, strong: bool, tint: str) -> str:
    """A candidate: the beam that it became, its token, its score."""
    top, pruned = y - _NODE / 2, not node.alive and not node.finished
    parts = [svg.rect(x, top, width, _NODE, rx=5, class_="kv-free" if pruned else "kv-cell")]
    left = x + 8
    label = shown(name(node.beam), 5) if node.alive and node.beam is not None else ""
    if label:
        chip = len(label) * 7.2 + 10
        if strong:
            parts.append(svg.rect(x, top, width, _NODE, rx=5, fill=tint, class_="kv-tint"))
        parts.append(svg.rect(x + 4, top + 6, chip, 18, rx=4, fill=tint))
        parts.append(svg.text(x + 4 + chip / 2, y + 4, label, class_="kv-chip kv-middle", fill=text_on(tint)))
        left = x + chip + 10
    elif pruned:
        parts.append(_cross(x + 12, y))
        left = x + 24
    if node.finished:
        parts.append(svg.path(f"M{svg.number(x + 7)} {svg.number(y)}l3.5 4l7 -8.5", class_="kv-fits"))
        left = x + 24
    score = _score(node)
    room = int((x + width - 8 - len(score) * 6 - left) / 7)
    if room < _LEAST:  # the token matters more; the score is in the tip and in the table
        score, room = "", int((x + width - 6 - left) / 7)
    quiet = pruned or not strong
    parts.append(svg.text(left, y + 4.5, shown(node.label, max(1, room)), class_="kv-quiet" if quiet else "kv-head"))
    parts.append(svg.text(x + width - 6, y + 4, score, class_="kv-quiet kv-end"))
    if strong and node.alive:
        parts.append(svg.rect(x, top, width, _NODE, rx=5, class_="kv-curve", stroke=tint))
    if node.finished:
        parts.append(svg.rect(x, top, width, _NODE, rx=5, class_="kv-fits"))
    marks = {"data_request": name(node.beam)} if label and node.beam is not None else {}
    return svg.tag("g", *parts, data_tip=_said(node), **marks)


def _cross(x: float, y: float) -> str:
    return svg.path(svg.lines([((x - 4, y - 4), (x + 4, y + 4)), ((x - 4, y + 4), (x + 4, y - 4))]), class_="kv-struck")


def _score(node: BeamNode) -> str:
    return f"{node.score:.2f}" if math.isfinite(node.score) else words(node.score)


def _said(node: BeamNode) -> str:
    became = f"beam {shown(name(node.beam), 16)}" if node.alive and node.beam is not None else ""
    what = "finished" if node.finished else became or "pruned"
    after = "the prompt" if node.parent is None else f"beam {shown(name(node.parent), 16)}"
    return f"{shown(node.label, 40)!r} after {after}, score {_score(node)}: {what}"


def _swatches(
    steps: Sequence[Sequence[BeamNode]], kept: Sequence[set[int]], drawn: Sequence[Sequence[BeamNode]]
) -> Iterator[tuple[str, str]]:
    box, tint = (0.5, 0.5, 15, 11), colour(0)
    nodes = [node for step in steps for node in step]
    if any(node.alive for node in nodes):
        ground = svg.rect(*box, rx=2, fill=tint, class_="kv-tint")
        yield ground + svg.rect(*box, rx=2, class_="kv-curve", stroke=tint), "leads to a live beam"
    if any(node.alive and i not in here for here, step in zip(kept, drawn, strict=True) for i, node in enumerate(step)):
        yield svg.rect(*box, rx=2, class_="kv-cell"), "was live, has no child left"
    if any(not node.alive and not node.finished for node in nodes):
        yield svg.rect(*box, rx=2, class_="kv-free") + _cross(8, 6), "pruned"
    if any(node.finished for node in nodes):
        tick = svg.path("M3.5 6l3 3l5.5 -6", class_="kv-fits")
        yield svg.rect(*box, rx=2, class_="kv-fits") + tick, "finished"


def _title(steps: Sequence[Sequence[BeamNode]]) -> str:
    nodes = [node for step in steps for node in step]
    live = sum(node.alive for node in steps[-1]) if steps else 0
    pruned = sum(not node.alive and not node.finished for node in nodes)
    finished = sum(node.finished for node in nodes)
    told = f"{live} live beam{'s' * (live != 1)} after {len(steps)} step{'s' * (len(steps) != 1)}"
    told += f", {pruned} candidate{'s' * (pruned != 1)} pruned"
    return told + (f", {finished} finished" if finished else "")


def _table(steps: Sequence[Sequence[BeamNode]], hidden: int) -> Table:
    rows: list[tuple[str, ...]] = [("step", "after", "token", "score", "became")]
    if hidden:
        rows.append((f"1-{hidden}", "…", "…", "…", "…"))
    for number, step in enumerate(steps[hidden:], start=hidden + 1):
        for node in step:
            after = "prompt" if node.parent is None else shown(name(node.parent), 16)
            became = shown(name(node.beam), 16) if node.alive and node.beam is not None else "pruned"
            became = "finished" if node.finished else became
            rows.append((str(number), after, shown(node.label, 24), _score(node), became))
    return tuple(rows)
