"""Frames of radix logs: each step, and before a prompt chunk's commit the moment in which it is in flight."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from kvlab.errors import InvalidInput
from kvlab.events import Event, Replay, State, apply
from kvlab.viz.drawing import Drawing
from kvlab.viz.palette import name
from kvlab.viz.scenes.radix_tree import radix_tree
from kvlab.viz.scenes.radix_tree_rows import rows_of
from kvlab.viz.scenes.radix_tree_state import Flight, edges_of, page_size_of
from kvlab.viz.scenes.token_strip import token_strip
from kvlab.workload import RequestId


@dataclass(frozen=True)
class Moment:
    """A state, the events since the last moment, and the tokens that are being computed then."""

    state: State
    events: tuple[Event, ...]
    flight: Flight
    said: str


def moments(log: Iterable[Event], *, least: int = 2) -> Iterator[Moment]:
    """One moment a frame, and one more while `least` tokens or more of a request are in flight."""
    replay = Replay(log)
    state = State()
    for frame in range(len(replay)):
        events = replay.events(frame)
        counts = {rid: count for kind, *fields in events if kind == "step" for rid, count in fields[0]}
        grown = [index for index, event in enumerate(events) if event[0] == "grow" and counts.get(event[1], 0) >= least]
        cut = grown[-1] + 1 if grown else 0
        for event in events[:cut]:
            apply(state, event)
        if grown:
            flying = {rid: count for rid, count in counts.items() if count >= least}
            words = " and ".join(f"{count:,} tokens of {name(rid)}" for rid, count in flying.items())
            yield Moment(copy.deepcopy(state), events[:cut], flying, f"{words} are in flight")
        before = copy.deepcopy(state)
        state.moved.clear()
        for event in events[cut:]:
            apply(state, event)
        yield Moment(copy.deepcopy(state), events[cut:], {}, _said(before, state, events, counts))


def tree_frames(
    log: Iterable[Event], *, window_tokens: int | None = None, scale_tokens: int | None = None
) -> list[tuple[Drawing, str]]:
    """`radix_tree` at every moment, with captions: for `Player.from_drawings`."""
    found = list(moments(log))
    if scale_tokens is None:
        scale_tokens = max(_longest(moment.state) for moment in found)
    branches = max(max([0, *rows_of(edges_of(moment.state, None))]) + 1 for moment in found)
    draw = partial(radix_tree, window_tokens=window_tokens, scale_tokens=scale_tokens, branches=branches)
    return [(draw(each.state, each.events, flight=each.flight), each.said) for each in found]


def strip_frames(
    logs: Mapping[str, Iterable[Event]], rid: RequestId, *, window_tokens: int
) -> list[tuple[Drawing, str]]:
    """`token_strip` at every moment of the same steps under several policies, with captions.

    Raises `InvalidInput` where the logs do not tell the same steps.
    """
    told = {label: list(moments(log)) for label, log in logs.items()}
    if len({tuple(tuple(moment.flight.items()) for moment in each) for each in told.values()}) != 1:
        raise InvalidInput(f"the logs {list(told)} do not tell the same steps; serve both with the same ones")
    prompt = next(
        (
            event[2]
            for each in told.values()
            for moment in each
            for event in moment.events
            if event[:2] == ("admit", rid)
        ),
        None,
    )
    scale = max(
        moment.state.requests[rid].tokens + moment.flight.get(rid, 0)
        for each in told.values() for moment in each if rid in moment.state.requests
    ) if prompt is not None else 1  # fmt: skip
    frames = []
    for together in zip(*told.values(), strict=True):
        states = {label: moment.state for label, moment in zip(told, together, strict=True)}
        drawing = token_strip(
            states, rid, window_tokens=window_tokens, scale_tokens=scale, prompt_tokens=prompt,
            flight=together[0].flight,
        )  # fmt: skip
        alike = dict.fromkeys(moment.said for moment in together)
        said = [f"{label}: {moment.said}" for label, moment in zip(told, together, strict=True)]
        frames.append((drawing, ". ".join(said if len(alike) > 1 else alike)))
    return frames


def _longest(state: State) -> int:
    size = page_size_of(state)
    nodes = (span.start + len(span.pages) * size for span in state.tree.values())
    tables = (len(request.tables.get("full", ())) * size for request in state.running())
    return max((size, *nodes, *tables))


def _said(before: State, after: State, events: Iterable[Event], counts: Flight) -> str:
    size = page_size_of(after)
    entered = {True: 0, False: 0}
    changed = dict.fromkeys(("heal", "tombstone", "leave"), 0)
    said = []
    for kind, *fields in events:
        if kind == "node":
            entered[fields[4]] += sum(stop - start for start, stop in fields[3]) * size
        elif kind in changed:
            number = fields[0]
            span = before.tree.get(number) or after.tree.get(number)
            changed[kind] += len(span.pages) * size if span else 0
        elif kind == "admit":
            said.append(f"{name(fields[0])} comes with {fields[1]:,} tokens and finds {fields[3]:,} of them")
        elif kind == "release":
            said.append(
                f"{name(fields[0])} is {fields[1]}" if fields[1] != "finished" else f"{name(fields[0])} finishes"
            )
    said += [f"{name(rid)} commits {count:,} token{'s' * (count != 1)}" for rid, count in counts.items() if count > 0]
    if entered[True] or entered[False]:
        words = f"{entered[True] + entered[False]:,} tokens enter the tree"
        said.append(words + (f", {entered[False]:,} of them as a tombstone" if entered[False] else ""))
    for kind, words in (("heal", "healed"), ("tombstone", "made a tombstone"), ("leave", "evicted")):
        if changed[kind]:
            said.append(f"{changed[kind]:,} tokens are {words}")
    return "; ".join(said) or "Nothing changes"
