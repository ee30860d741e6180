"""KVStore: what a policy's slots and moves say is what the store holds, and the counters say what it cost."""

from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvlab.attention import FP8, KVStore
from kvlab.device.buckets import Buckets
from kvlab.errors import InvalidInput, OutOfMemory
from kvlab.policies.base import Move
from kvlab.policies.paged import Paged
from kvlab.shapes import LayerGroup
from kvlab.workload import Request

GROUPS = (LayerGroup("global", "full", (0,), None, 64),)
HEADS, DIM = 2, 4


def kv(identities: list[int]) -> tuple[Tensor, Tensor]:
    """K and V `[tokens, HEADS, DIM]` that tell each token, head and tensor apart."""
    base = torch.tensor(identities, dtype=torch.float32)[:, None, None] * 16
    keys = base + torch.arange(HEADS)[:, None] * 4 + torch.arange(DIM)
    return keys, -keys


def held(store: KVStore, slots: np.ndarray) -> list[int]:
    """Which tokens the slots hold, checked over every head and value of K and V."""
    keys, values = store.read(slots)
    identities = (keys[:, 0, 0] / 16).int().tolist()
    expected = kv(identities)
    assert torch.equal(keys, expected[0])
    assert torch.equal(values, expected[1])
    return identities


class Serving:
    """A Paged policy and a store in step with each other; `tokens` is what each request should find."""

    def __init__(self, blocks: int = 8, block_size: int = 4) -> None:
        self.policy = Paged(GROUPS, blocks * block_size, block_size=block_size)
        self.store = KVStore(
            blocks * block_size, block_size, HEADS, DIM, dtype=torch.float32, references=self.policy.pool.references
        )
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.next_token = self.written = self.copied = 0

    def admit(self, rid: int) -> None:
        if self.policy.admit(Request(rid, 1, 16)) is not None:
            self.tokens[rid] = []

    def write(self, rid: int, count: int) -> None:
        try:
            extension = self.policy.extend(rid, count)
        except OutOfMemory:
            return
        moves = self.policy.drain_moves()
        self.store.copy(moves)
        new = list(range(self.next_token, self.next_token + count))
        self.store.write(*kv(new), extension.slots()[0])
        self.policy.commit(rid, new)
        self.next_token += count
        self.tokens[rid] += new
        self.written += count
        self.copied += sum(move.tokens for move in moves)

    def fork(self, parent: int, child: int) -> None:
        self.policy.fork(parent, Request(child, 1, 16))
        self.tokens[child] = list(self.tokens[parent])

    def release(self, rid: int) -> None:
        self.policy.release(rid, "finished")
        del self.tokens[rid]

    def check(self) -> None:
        for rid, tokens in self.tokens.items():
            assert held(self.store, self.policy.layout(rid)[0].slots()) == tokens
        assert self.store.bytes_written == self.written * self.store.bytes_per_token
        assert self.store.bytes_copied == self.copied * self.store.bytes_per_token


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 6)), max_size=40))
@settings(max_examples=60)
def test_every_request_finds_its_tokens_whatever_is_forked_and_released(operations: list[tuple[int, int, int]]) -> None:
    serving = Serving()
    for operation, rid, count in operations:
        if rid not in serving.tokens:
            serving.admit(rid)
        elif operation in (0, 1):
            serving.write(rid, count)
        elif operation == 2 and rid + 10 * count not in serving.tokens:
            serving.fork(rid, rid + 10 * count)
        elif operation == 3:
            serving.release(rid)
        serving.check()


def test_a_fork_that_writes_copies_the_shared_block_and_leaves_the_parent() -> None:
    serving = Serving()
    serving.admit(1)
    serving.write(1, 6)
    serving.fork(1, 2)
    serving.write(2, 1)
    serving.write(1, 1)
    assert serving.tokens == {1: [0, 1, 2, 3, 4, 5, 7], 2: [0, 1, 2, 3, 4, 5, 6]}
    assert serving.store.bytes_copied == 2 * serving.store.bytes_per_token == 2 * 2 * HEADS * DIM * 4
    serving.check()


def move(source: int, target: int, tokens: int = 2, pools: tuple[str, str] = ("full", "full")) -> Move:
    return Move(pools[0], source, pools[1], target, tokens, 0, "a test")


@given(
    st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10), st.integers(1, 6)), max_size=12),
    st.sampled_from([None, Buckets(2), Buckets(5, first=3), Buckets(16)]),
)
def test_moves_of_one_call_are_done_in_order(moves: list[tuple[int, int, int]], copies: Buckets | None) -> None:
    store = KVStore(16, 4, HEADS, DIM, dtype=torch.float32, copies=copies)
    store.write(*kv(list(range(16))), np.arange(16))
    expected = list(range(16))
    for source, target, tokens in moves:
        expected[target : target + tokens] = expected[source : source + tokens]
    store.copy(move(*each) for each in moves)
    assert held(store, np.arange(16)) == expected
    assert store.bytes_copied == sum(tokens for _, _, tokens in moves) * store.bytes_per_token


def test_chained_moves_carry_the_first_block_all_the_way() -> None:
    store = KVStore(16, 4, HEADS, DIM, dtype=torch.float32)
    store.write(*kv(list(range(16))), np.arange(16))
    store.copy([move(0, 4), move(4, 8), move(12, 4), move(8, 12)])
    assert held(store, np.array([0, 1, 4, 5, 8, 9, 12, 13])) == [0, 1, 12, 13, 0, 1, 0, 1]


def test_independent_moves_are_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    store = KVStore(32, 4, HEADS, DIM, dtype=torch.float32)
    batches: list[int] = []
    done = store._copy_batch
    monkeypatch.setattr(store, "_copy_batch", lambda batch: (batches.append(len(batch)), done(batch)))
    store.copy([move(0, 16), move(0, 20), move(4, 24)])
    assert batches == [3]
    store.copy([move(0, 16), move(16, 20)])
    assert batches == [3, 1, 1]
    store.copy([move(0, 16), move(4, 17)])
    assert batches == [3, 1, 1, 1, 1]


def test_rounded_copies_have_few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    store = KVStore(32, 4, HEADS, DIM, dtype=torch.float32, copies=Buckets(6, first=4))
    shapes: list[tuple[int, int]] = []
    done = store.copy_slots
    monkeypatch.setattr(store, "copy_slots", lambda *both: (shapes.append(tuple(map(len, both))), done(*both)))
    store.copy([move(0, 16), move(0, 20), move(4, 24)])
    assert shapes == [(6, 6)]
    store.copy([move(0, 16, 13)])
    assert shapes == [(6, 6), (4, 4), (6, 6), (6, 6)]
    store.copy([move(0, 16, 5), move(5, 24, 2)])
    assert shapes[4:] == [(6, 6), (4, 4)]
    assert not store.keys[store.pad_block].any()
    assert store.bytes_copied == (6 + 13 + 7) * store.bytes_per_token


def test_moves_of_other_pools_are_left_to_them() -> None:
    store = KVStore(8, 4, HEADS, DIM, dtype=torch.float32)
    store.copy(
        [move(0, 4, pools=("full", "host")), move(0, 4, pools=("host", "full")), move(0, 4, pools=("swa", "swa"))]
    )
    assert store.bytes_copied == 0
    store.copy([move(0, 4, pools=("swa", "swa"))], pool="swa")
    assert store.bytes_copied == 2 * store.bytes_per_token


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, FP8])
@pytest.mark.parametrize("block_size", [1, 3, 8])
def test_what_is_written_is_read_back_in_every_dtype_and_block_size(dtype: torch.dtype, block_size: int) -> None:
    store = KVStore(24, block_size, HEADS, DIM, dtype=dtype)
    slots = np.random.default_rng(0).permutation(24)[:10]
    operands = torch.float32 if dtype == FP8 else dtype
    keys, values = (torch.randn(10, HEADS, DIM).to(operands) for _ in range(2))
    store.write(keys, values, slots)
    found = store.read(slots)
    assert torch.equal(found[0].float(), keys.to(dtype).float())
    assert torch.equal(found[1].float(), values.to(dtype).float())
    assert store.bytes_written == 10 * 2 * HEADS * DIM * store.keys.element_size()
    blocks, offsets = slots // block_size, slots % block_size
    assert torch.equal(store.keys[blocks, :, offsets].float(), keys.to(dtype).float())


def test_a_padded_row_goes_to_the_pad_block_and_to_no_slot() -> None:
    store = KVStore(8, 4, HEADS, DIM, dtype=torch.float32)
    store.write(*kv(list(range(8))), np.arange(8))
    before = store.keys[:-1].clone(), store.values[:-1].clone()
    store.write(*kv([99, 98]), np.array([store.pad_slot, store.pad_slot]))
    assert torch.equal(before[0], store.keys[:-1])
    assert torch.equal(before[1], store.values[:-1])
    assert store.keys[store.pad_block].abs().max() > 0


def test_slots_are_whole_blocks_and_the_pad_block_is_not_among_them() -> None:
    store = KVStore(15, 4, HEADS, DIM, dtype=torch.bfloat16)
    assert (store.blocks, store.slots, store.pad_block, store.pad_slot) == (3, 12, 3, 12)
    assert store.bytes_per_token == 2 * HEADS * DIM * 2


STORE = {"slots": 8, "block_size": 4, "kv_heads": HEADS, "head_dim": DIM, "dtype": torch.float32}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": torch.float64}, "KV is stored as"),
        ({"dtype": torch.int8}, "KV is stored as"),
        ({"slots": 3}, "do not hold one block"),
        ({"slots": 0}, "slots must be"),
        ({"block_size": 0}, "block_size must be"),
        ({"kv_heads": -1}, "kv_heads must be"),
        ({"head_dim": 0}, "head_dim must be"),
    ],
)
def test_a_store_that_cannot_be_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        KVStore(**(STORE | change))


@pytest.mark.parametrize(
    ("keys", "values", "slots", "message"),
    [
        (torch.zeros(2, HEADS, DIM), torch.zeros(2, HEADS, DIM), [0, 9], "slots 0 to 7"),
        (torch.zeros(2, HEADS, DIM), torch.zeros(2, HEADS, DIM), [-1, 0], "slots 0 to 7"),
        (torch.zeros(2, HEADS, DIM), torch.zeros(2, HEADS, DIM), [0], "1 slots need"),
        (torch.zeros(2, HEADS, DIM), torch.zeros(2, HEADS + 1, DIM), [0, 1], "2 slots need"),
        (torch.zeros(2, HEADS, DIM), torch.zeros(2, HEADS, DIM).half(), [0, 1], "must agree"),
        (torch.zeros(2, HEADS, DIM).half(), torch.zeros(2, HEADS, DIM).half(), [0, 1], "convert them"),
        (torch.zeros(2, HEADS, DIM), torch.zeros(2, HEADS, DIM, device="meta"), [0, 1], "must agree"),
    ],
)
def test_a_write_that_cannot_be_changes_nothing(keys: Tensor, values: Tensor, slots: list[int], message: str) -> None:
    store = KVStore(**STORE)
    store.write(*kv(list(range(8))), np.arange(8))
    with pytest.raises(InvalidInput, match=message):
        store.write(keys, values, np.array(slots))
    assert held(store, np.arange(8)) == list(range(8))
    assert store.bytes_written == 8 * store.bytes_per_token


@pytest.mark.parametrize("bad", [move(7, 0), move(0, 7), move(-1, 4)])
def test_a_move_out_of_the_store_is_refused_with_all_the_others(bad: Move) -> None:
    store = KVStore(**STORE)
    store.write(*kv(list(range(8))), np.arange(8))
    with pytest.raises(InvalidInput, match="reaches beyond"):
        store.copy([move(0, 4), bad])
    assert held(store, np.arange(8)) == list(range(8))
    assert store.bytes_copied == 0
