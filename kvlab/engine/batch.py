"""A step in arrays: whose tokens are computed, where their KV goes, and which rows are asked for logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvlab.policies.base import Policy
from kvlab.policies.layout import Layout, Region, Slots, Table
from kvlab.scheduling.plan import Grant
from kvlab.workload import RequestId

Ints = npt.NDArray[np.int64]


class GroupPlaces(NamedTuple):
    """Where one layer group keeps the step: the slot of each of its tokens, and each request's layout up to them."""

    slots: Slots
    layouts: Sequence[Layout]


@dataclass(frozen=True)
class Batch:
    """The tokens of a step, requests one after the other; request r has [starts[r], starts[r + 1]).

    `rows` are the tokens whose logits are wanted: of a request whose known tokens are all computed by this step the
    last one, and with drafts one more for each of them. Those of request r are [row_starts[r], row_starts[r + 1]).
    """

    token_ids: Ints
    positions: Ints
    starts: Sequence[int]
    lengths: Sequence[int]
    groups: Sequence[GroupPlaces]
    rows: Ints
    row_starts: Sequence[int]


def batch_of(grants: Sequence[Grant], drafts: Mapping[RequestId, Sequence[int]], policy: Policy) -> Batch:
    """The batch that computes the grants; one that goes beyond its request's known tokens goes on with its draft."""
    token_ids: list[npt.NDArray[np.int32]] = []
    positions: list[int] = []
    rows: list[int] = []
    counts: list[int] = []
    slots: list[list[Slots | list[int]]] = [[] for _ in policy.groups]
    layouts: list[list[Layout]] = [[] for _ in policy.groups]
    at = 0
    for sequence, start, tokens in grants:
        request = sequence.request
        stop = start + tokens
        known = request.known_tokens
        if tokens == 1:
            token_ids.append(request.token_ids(start, stop))
            positions.append(start)
        else:
            token_ids.append(request.token_ids(start, min(stop, known)))
            if stop > known:
                token_ids.append(np.array(drafts[request.rid][: stop - known], np.int32))
            positions.extend(range(start, stop))
        asked = max(0, stop - known + 1)
        rows.extend(range(at + tokens - asked, at + tokens))
        counts.append(asked)
        for index, layout in enumerate(policy.layout(request.rid)):
            layouts[index].append(_reaching(layout, stop))
            slots[index].append(_slots(layout, start, stop))
        at += tokens
    return Batch(
        np.concatenate(token_ids).astype(np.int64),
        np.array(positions, np.int64),
        [0, *accumulate(grant.tokens for grant in grants)],
        [grant.start + grant.tokens for grant in grants],
        [GroupPlaces(np.concatenate(each), held) for each, held in zip(slots, layouts, strict=True)],
        np.array(rows, np.int64),
        [0, *accumulate(counts)],
    )


def _reaching(layout: Layout, stop: int) -> Layout:
    """The layout with the step's own tokens; a ring gets them when they are committed."""
    if isinstance(layout, Table):
        return Table(layout.blocks, layout.block_size, layout.start, stop)
    if isinstance(layout, Region):
        return Region(layout.first_slot, layout.start, stop)
    return layout


def _slots(layout: Layout, start: int, stop: int) -> Slots | list[int]:
    if stop == start + 1:
        if isinstance(layout, Table):
            size = layout.block_size
            return [layout.blocks[start // size] * size + start % size]
        if isinstance(layout, Region):
            return [layout.first_slot + start]
    return replace(layout, start=start, end=stop).slots()
