"""What lesson 04 measures: the same bytes in every layout, the arms of the stored runs, and how they are recorded."""

from functools import partial

import pytest
import torch

from kvlab.attention import get_route
from kvlab.attention.step import check
from kvlab.course import attention_arms as arms
from kvlab.course.attention_arms import CONTIGUOUS, DecodeBatch
from kvlab.course.stored_run import load_stored_run
from kvlab.errors import InvalidInput

SMALL = partial(DecodeBatch, 2, 64, kv_heads=2, q_heads=4, head_dim=32)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_every_layout_is_a_view_of_one_buffer():
    batch = SMALL()
    stores = [batch.laid_out(size)[1] for size in (CONTIGUOUS, 1, 16, 64)]
    assert len({store.keys.data_ptr() for store in stores}) == 1
    assert {store.keys[:-1].numel() + store.values[:-1].numel() for store in stores} == {batch.kv_bytes // 2}


@pytest.mark.parametrize("size", [CONTIGUOUS, 1, 2, 16, 64])
def test_a_step_is_valid_and_uses_every_block_once(size: int | None):
    batch = SMALL()
    step, store = batch.laid_out(size)
    check(step, store)
    slots = sorted(slot for layout in step.layouts for slot in layout.slots().tolist())
    assert slots == list(range(2 * 64))


def test_blocks_lie_scattered_and_the_same_way_each_time():
    one, other = (SMALL().laid_out(16)[0].layouts for _ in range(2))
    assert one == other
    assert [list(layout.blocks) for layout in one] != [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("size", [CONTIGUOUS, 1, 16])
def test_routes_agree_on_what_is_measured(size: int | None):
    step, store = SMALL().laid_out(size)
    expected, _ = get_route("reference")(step, store)
    for name in ("native", "gather" if size else "contiguous"):
        found, _ = get_route(name)(step, store)
        torch.testing.assert_close(found.float(), expected.float(), rtol=0, atol=2e-2 * float(store.values.abs().max()))


@pytest.mark.parametrize("size", [3, 128, 0, -16])
def test_a_block_size_that_does_not_divide_the_context_is_refused(size: int):
    with pytest.raises(InvalidInput):
        SMALL().laid_out(size)


def test_arms_have_run_once_before_they_are_measured(monkeypatch: pytest.MonkeyPatch):
    calls = []
    monkeypatch.setattr(arms, "get_route", lambda name: lambda step, store: calls.append((name, store.block_size)))
    made = SMALL().arms("gather", {"a": 16, "b": 1})
    assert calls == [("gather", 16), ("gather", 1)]
    made["b"]()
    assert calls[-1] == ("gather", 1)


def test_what_is_recorded_is_what_the_lesson_loads(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(arms, "DecodeBatch", lambda *sizes: DecodeBatch(1, 256, kv_heads=1, q_heads=1, head_dim=32))
    monkeypatch.setattr(arms, "measure", lambda made, repeats: made)
    recorded = {}
    monkeypatch.setattr(arms, "record_run", lambda made, path: recorded.__setitem__(path.stem, list(made)))
    assert [path.parent for path in arms.record(tmp_path)] == [tmp_path] * 3
    assert set(recorded) == {"attention_block_sizes", "attention_routes", "attention_readable"}
    for name, names in recorded.items():
        assert [arm.name for arm in load_stored_run(name).arms] == names
