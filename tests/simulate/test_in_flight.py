"""A host ahead of its device: order makes early frees safe, and two queues break it."""

import pytest

from kvlab.errors import InvalidInput
from kvlab.policies.islands import RadixIslands
from kvlab.policies.radix_lazy import RadixLazy
from kvlab.shapes import LayerGroup
from kvlab.simulate.in_flight import Outcome, in_flight

GROUPS = (LayerGroup("global", "full", (0,), None, 1), LayerGroup("sliding", "full", (1,), 8, 1))
PROMPTS = [90, 70, 100, 80, 64, 96, 77, 85]


def run(kind: type[RadixLazy | RadixIslands], queues: int, seed: int) -> Outcome:
    policy = kind(GROUPS, 1200, ratio=0.12, page_size=4, chunk_tokens=32)
    found = in_flight(policy, PROMPTS, chunk_tokens=32, queues=queues, ahead=6, seed=seed)
    policy.audit()
    return found


@pytest.mark.parametrize("seed", range(8))
def test_one_ordered_queue_never_reads_what_somebody_else_wrote(seed: int) -> None:
    found = run(RadixIslands, 1, seed)
    assert found.reads > sum(PROMPTS)
    assert found.overwrites > 100, "no slot changed hands, so nothing was tried"
    assert not found.clobbered


@pytest.mark.parametrize("seed", range(8))
def test_what_an_ordered_queue_overwrites_is_dead(seed: int) -> None:
    assert run(RadixIslands, 1, seed).live_overwrites == 0


def test_two_queues_read_clobbered_kv() -> None:
    found = [run(RadixIslands, 2, seed) for seed in range(8)]
    assert sum(len(each.clobbered) for each in found) > 0
    assert sum(each.live_overwrites for each in found) > 0
    expected, wrong = next(each.clobbered[0] for each in found if each.clobbered)
    assert wrong is not None
    assert wrong.rid != expected.rid


def test_a_shape_without_a_window_frees_nothing_early() -> None:
    with pytest.raises(InvalidInput, match="sliding"):
        in_flight(RadixIslands(GROUPS[:1], 100), [10], chunk_tokens=4)
