"""What lesson 04 measures: the same bytes in every layout, the arms of the stored runs, and how they are recorded."""

from functools import partial

import pytest
import torch

from kvlab.attention import get_route
from kvlab.attention.checking import check
from kvlab.course import attention_arms as arms
from kvlab.course.attention_arms import CONTIGUOUS, DecodeBatch
from kvlab.course.stored_run import load_stored_run
from kvlab.errors import InvalidInput

SMALL = partial(DecodeBatch, 2, 64, turns=3, kv_heads=2, q_heads=4, head_dim=32)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_every_layout_is_a_view_of_one_buffer():
    batch = SMALL()
    assert batch.kv_bytes == 3 * batch.call_bytes == 3 * 2 * 64 * 2 * 2 * 32 * 2
    stores = [batch.laid_out(size)[1] for size in (CONTIGUOUS, 1, 16, 64)]
    assert len({store.keys.data_ptr() for store in stores}) == 1
    assert {store.slots * store.bytes_per_token for store in stores} == {batch.kv_bytes}


@pytest.mark.parametrize("size", [CONTIGUOUS, 1, 2, 16, 64])
def test_each_turn_is_a_valid_step_over_slots_of_its_own(size: int | None):
    steps, store = SMALL().laid_out(size)
    assert len(steps) == 3
    for turn, step in enumerate(steps):
        check(step, store)
        slots = sorted(slot for layout in step.layouts for slot in layout.slots().tolist())
        assert slots == list(range(turn * 128, (turn + 1) * 128))


def test_blocks_lie_scattered_and_the_same_way_each_time():
    one, other = (SMALL().laid_out(16)[0][0].layouts for _ in range(2))
    assert one == other
    assert [list(layout.blocks) for layout in one] != [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_blocks_in_order_are_cut_but_not_scattered():
    layouts = SMALL().laid_out(16, in_order=True)[0][1].layouts
    assert [list(layout.blocks) for layout in layouts] == [[8, 9, 10, 11], [12, 13, 14, 15]]


@pytest.mark.parametrize("size", [CONTIGUOUS, 1, 16])
def test_routes_agree_on_what_is_measured(size: int | None):
    steps, store = SMALL().laid_out(size)
    expected, _ = get_route("reference")(steps[1], store)
    allowed = 2e-2 * float(store.values.abs().max())
    for name in ("native", "gather" if size else "contiguous"):
        found, _ = get_route(name)(steps[1], store)
        torch.testing.assert_close(found.float(), expected.float(), rtol=0, atol=allowed)


def test_every_call_of_any_arm_reads_the_next_turn(monkeypatch: pytest.MonkeyPatch):
    read = []
    monkeypatch.setattr(
        arms, "get_route", lambda name: lambda step, store: read.append(int(step.layouts[0].slots()[0]) // 128)
    )
    made = SMALL().arms("native", {"slabs": CONTIGUOUS, "blocks": 16})
    assert read == [0, 1], "each arm has run once"
    made["blocks"](), made["blocks"](), made["slabs"]()
    assert read == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("size", [3, 128, 0, -16])
def test_a_block_size_that_does_not_divide_the_context_is_refused(size: int):
    with pytest.raises(InvalidInput):
        SMALL().laid_out(size)


def test_what_is_recorded_is_what_the_lesson_loads(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        arms,
        "DecodeBatch",
        lambda *sizes, turns=2: DecodeBatch(1, 256, turns=turns, kv_heads=1, q_heads=1, head_dim=32),
    )
    monkeypatch.setattr(arms, "measure", lambda made, repeats: made)
    recorded = {}
    monkeypatch.setattr(arms, "record_run", lambda made, path: recorded.__setitem__(path.stem, list(made)))
    assert [path.parent for path in arms.record(tmp_path)] == [tmp_path] * 3
    assert set(recorded) == {"attention_block_sizes", "attention_routes", "attention_readable"}
    for name, names in recorded.items():
        assert [arm.name for arm in load_stored_run(name).arms] == names
