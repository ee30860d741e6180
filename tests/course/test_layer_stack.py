"""The stack whose decode steps lesson 00 measures."""

import pytest
import torch

from kvlab.course.layer_stack import LayerStack
from kvlab.errors import InvalidInput


def test_a_step_has_a_row_a_request():
    assert LayerStack(layers=2, width=32).step(5).shape == (5, 32)


def test_requests_do_not_disturb_each_other():
    stack = LayerStack(layers=3, width=32)
    together = stack.step(4)
    assert torch.allclose(together, stack.step(1).expand(4, -1), rtol=1e-4, atol=1e-6)


def test_packed_and_plain_weights_give_the_same_rows(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    packed = LayerStack(layers=3, width=32).step(2)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    torch.manual_seed(0)
    plain = LayerStack(layers=3, width=32).step(2)
    assert torch.allclose(packed, plain, rtol=1e-4, atol=1e-6)


def test_rows_neither_vanish_nor_explode_on_the_way():
    size = LayerStack(layers=6, width=256).step(1).abs().mean()
    assert 1e-3 < size < 1e3


def test_it_knows_its_size():
    stack = LayerStack(layers=2, width=32)
    assert (stack.weights, stack.weight_bytes) == (2048, 8192)


@pytest.mark.parametrize("sizes", [{"layers": 0}, {"width": 0}, {"layers": -1}])
def test_sizes_below_one_are_refused(sizes: dict[str, int]):
    with pytest.raises(InvalidInput):
        LayerStack(**sizes)


def test_a_step_of_nobody_is_refused():
    with pytest.raises(InvalidInput, match="batch"):
        LayerStack(layers=1, width=4).step(0)
