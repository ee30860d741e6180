"""Layouts: the slots of live positions, against the rule each states."""

import numpy as np
import pytest

from kvlab.policies.layout import Layout, Region, Ring, Table


def plain_slot(layout: Layout, position: int) -> int:
    match layout:
        case Table(blocks, size):
            return list(blocks)[position // size] * size + position % size
        case Ring(first, window):
            return first + position % window
        case Region(first):
            return first + position


@pytest.mark.parametrize(
    "layout",
    [
        Table([7, 1, 3], 4, 0, 10),
        Table([7, 1, 3], 4, 5, 12),
        Table([9], 1, 0, 1),
        Table([], 4, 0, 0),
        Region(40, 0, 9),
        Region(40, 3, 9),
        *(Ring(24, 6, max(0, end - 5), end) for end in (0, 1, 5, 6, 7, 11, 12, 13, 60)),
    ],
    ids=str,
)
def test_slots_are_those_of_the_rule_one_by_one(layout: Layout) -> None:
    slots = layout.slots()
    assert slots.dtype == np.int64
    assert slots.tolist() == [plain_slot(layout, position) for position in range(layout.start, layout.end)]


@pytest.mark.parametrize("end", [5, 6, 7, 12, 31])
def test_a_full_ring_gives_each_live_token_its_own_slot(end: int) -> None:
    """transformers #37574: rings went wrong at W - 1, W, W + 1 and 2W tokens."""
    slots = Ring(12, 6, max(0, end - 6), end).slots()
    assert len(set(slots.tolist())) == min(end, 6)
    assert set(slots.tolist()) <= set(range(12, 18))
