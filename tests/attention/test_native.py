"""What is particular to `native`: it says when it may compile, and nothing stands in for it in silence."""

import numba
import pytest
import torch
from support.attention_steps import Case

from kvlab.attention import KVStore, get_route, native, native_kernel, registry, routes
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


SMALL_AND_LARGE = [
    Case(((200, 1), (77, 1), (0, 1), (33, 5))),
    Case(((5000, 1),), head_dim=64, group=2),
    Case(((90, 1), (20, 3), (5, 1)), kind="ring", window=16),
    Case(((300, 1), (8, 1)), kind="region", block_size=1, dtype=torch.float16, group=3),
    Case(((300, 1), (8, 1)), dtype=torch.bfloat16, group=8, kv_heads=3, head_dim=128),
    Case(((300, 1), (8, 1)), dtype=torch.bfloat16, fp8=True, softcap=5.0, kv_heads=1),
]


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="one processor")
@pytest.mark.parametrize("case", SMALL_AND_LARGE, ids=range(len(SMALL_AND_LARGE)))
def test_one_thread_and_two_give_the_same_bit_for_bit(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(2)
    step, store = case.build()
    outputs = []
    for work in (0, 1 << 60):
        monkeypatch.setattr(native, "SERIAL_WORK", work)
        outputs.append(get_route("native")(step, store)[0])
    torch.set_num_threads(1)
    outputs.append(get_route("native")(step, store)[0])
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_in_and_out_are_converted_as_torch_does(dtype: torch.dtype) -> None:
    step, store = Case(((200, 1), (77, 2), (3, 1)), dtype=dtype, fp8=True, head_dim=64).build()
    narrow, _ = get_route("native")(step, store)
    operands = (each.float() for each in (step.queries, step.keys, step.values))
    wide, _ = get_route("native")(step.with_operands(*operands), store)
    assert torch.equal(narrow, wide.to(dtype))


def test_bf16_over_bf16_is_rounded_to_the_nearest() -> None:
    # The sums of the two are in another order, so a few values fall on the other side of a tie.
    case = Case(((200, 1), (77, 2), (3, 1)), dtype=torch.bfloat16, head_dim=128)
    step, store = case.build()
    narrow, _ = get_route("native")(step, store)
    operands = (each.float() for each in (step.queries, step.keys, step.values))
    floats = KVStore(store.slots, store.block_size, store.kv_heads, store.head_dim, dtype=torch.float32)
    floats.keys.copy_(store.keys)
    floats.values.copy_(store.values)
    wide, _ = get_route("native")(step.with_operands(*operands), floats)
    assert float((narrow == wide.bfloat16()).float().mean()) > 0.98


def test_queries_need_not_be_contiguous_but_the_store_must() -> None:
    step, store = Case(((20, 1), (3, 1))).build()
    apart = torch.stack([step.queries, step.queries], -1)[..., 0]
    assert not apart.is_contiguous()
    route = get_route("native")
    assert torch.equal(route(step, store)[0], route(step.with_operands(apart, step.keys, step.values), store)[0])
    store.keys = store.keys.transpose(1, 2).contiguous().transpose(1, 2)
    with pytest.raises(InvalidInput, match="contiguous"):
        route(step, store)


def test_heads_that_it_does_not_take_are_gathered_and_said_so() -> None:
    told: list[str] = []
    assert registry.fastest(told.append, [64, 32]).name == "native"
    assert not told
    assert registry.fastest(told.append, [64, 40]).name == "gather"
    assert "not 40" in told[0]


@pytest.mark.parametrize("kernel", [native_kernel.take, native_kernel.attend, native_kernel.merge])
def test_another_process_finds_what_this_one_compiled(kernel) -> None:
    """The key of Numba's cache on disk has the closure in it; a compiled function there differs in each process."""
    assert [type(cell.cell_contents) for cell in kernel.py_func.__closure__] == [int]
