"""What is particular to `native`: it says when it may compile, and nothing stands in for it in silence."""

import pytest
import torch
from support.attention_steps import Case

from kvlab.attention import get_route, registry, routes
from kvlab.attention.native import Native
from kvlab.errors import InvalidInput


def test_each_kernel_is_announced_before_its_first_call_and_only_then() -> None:
    told: list[str] = []
    native = Native(told.append)
    for dtype, heads in ((torch.float32, 1), (torch.float32, 1), (torch.bfloat16, 1), (torch.float32, 2)):
        step, store = Case(((20, 1), (3, 1)), dtype=dtype, group=heads).build()
        native(step, store)
    assert len(told) == 3
    assert "fp32, 1 heads" in told[0]
    assert "bf16, 1 heads" in told[1]
    assert "fp32, 2 heads" in told[2]


def test_without_numba_gather_takes_its_place_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    told: list[str] = []
    assert registry.fastest(told.append).name == "gather"
    assert "needs Numba" in told[0]
    assert "native" not in routes()
    with pytest.raises(InvalidInput, match="needs Numba"):
        get_route("native")


def test_with_numba_the_fastest_route_is_native() -> None:
    told: list[str] = []
    assert registry.fastest(told.append).name == "native"
    assert told == []


def test_a_long_context_alone_is_split_and_joined() -> None:
    step, store = Case(((5000, 1),), head_dim=64, group=2).build()
    split, _ = get_route("native")(step, store)
    whole, _ = get_route("reference")(step, store)
    torch.testing.assert_close(split, whole, rtol=1e-5, atol=1e-5)
