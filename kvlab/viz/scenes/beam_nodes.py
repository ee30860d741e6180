"""Beam search as data: the candidates of each step, who of them lives on, and where a picture puts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from kvlab.errors import InvalidInput
from kvlab.workload import RequestId


class BeamNode(NamedTuple):
    """A candidate of one step: one token after the beam `parent` of the step before (None: after the prompt).

    A candidate that is `alive` is from now on beam `beam`; one that is `finished` ended here; any other was pruned,
    and its `beam` is None or of no meaning. `score` is the sum of log-probabilities.
    """

    beam: RequestId | None
    parent: RequestId | None
    label: str
    score: float
    alive: bool = True
    finished: bool = False


BeamSteps: TypeAlias = Sequence[Sequence[BeamNode | tuple[RequestId | None, RequestId | None, str, float, bool]]]


def checked(steps: BeamSteps) -> list[list[BeamNode]]:
    """The steps as nodes. Raises `InvalidInput` where a parent is no live beam of the step before, or two live beams
    have one name."""
    found: list[list[BeamNode]] = []
    before: set[RequestId] | None = None
    for number, step in enumerate(steps, start=1):
        nodes = [BeamNode(*each) for each in step]
        for node in nodes:
            if before is None and node.parent is not None:
                raise InvalidInput(f"step 1 continues the prompt: the parent of {node.label!r} is {node.parent!r}")
            if before is not None and node.parent not in before:
                names = ", ".join(map(repr, sorted(before, key=str))) or "none"
                raise InvalidInput(
                    f"step {number}: {node.parent!r} is no live beam of the step before; those are {names}"
                )
        live = [node.beam for node in nodes if node.alive]
        before = {beam for beam in live if beam is not None}
        if len(before) < len(live):
            raise InvalidInput(f"step {number} needs a name of its own for each live beam, not {live!r}")
        found.append(nodes)
    return found


def surviving(steps: Sequence[Sequence[BeamNode]]) -> list[set[int]]:
    """For each step, which nodes lead to a beam that is live after the last one, or finished on the way."""
    kept: list[set[int]] = []
    wanted: set[RequestId | None] = set()
    for number in range(len(steps) - 1, -1, -1):
        last = number == len(steps) - 1
        here = {
            index
            for index, node in enumerate(steps[number])
            if node.finished or (node.alive and (last or node.beam in wanted))
        }
        wanted = {steps[number][index].parent for index in here}
        kept.append(here)
    return kept[::-1]


def in_rows(steps: Sequence[Sequence[BeamNode]]) -> list[list[int]]:
    """For each step its nodes from top to bottom: the children of one parent together, parents in their order."""
    found: list[list[int]] = []
    above: dict[RequestId | None, int] = {None: 0}
    for nodes in steps:
        order = sorted(range(len(nodes)), key=lambda i: (above.get(nodes[i].parent, 0), i))
        above = {nodes[index].beam: row for row, index in enumerate(order) if nodes[index].alive}
        found.append(order)
    return found
