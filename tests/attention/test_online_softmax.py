"""The online softmax: any cut into blocks gives the dense softmax; nothing is lost where the maximum jumps."""

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from kvlab.attention.online_softmax import nothing, output, see


def attended(logits: torch.Tensor, values: torch.Tensor, cuts: list[int]) -> torch.Tensor:
    seen = nothing(torch.zeros(*logits.shape[:-1], values.shape[-1], dtype=logits.dtype))
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < logits.shape[-1]}), logits.shape[-1]]
    for first, end in pairwise(edges):
        seen = see(seen, logits[..., first:end], values[..., first:end, :])
    return output(seen)


@given(
    keys=st.integers(1, 40),
    cuts=st.lists(st.integers(1, 39)),
    spread=st.sampled_from([0.0, 1.0, 2000.0]),
    masked=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_blocks_give_the_dense_softmax(keys: int, cuts: list[int], spread: float, masked: float, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    logits = (torch.rand(3, 2, keys, generator=random, dtype=torch.float64) * 2 - 1) * spread
    logits = logits.masked_fill(torch.rand(3, 2, keys, generator=random) < masked, -torch.inf)
    values = torch.randn(3, keys, 4, generator=random, dtype=torch.float64)
    dense = logits.softmax(-1).nan_to_num(0.0) @ values
    torch.testing.assert_close(attended(logits, values, cuts), dense, rtol=1e-12, atol=1e-12)


def test_a_query_that_reads_nothing_gives_zero() -> None:
    logits, values = torch.full((1, 1, 4), -torch.inf), torch.randn(1, 4, 3)
    assert torch.equal(attended(logits, values, [2]), torch.zeros(1, 1, 3))
    assert torch.equal(output(nothing(torch.zeros(1, 1, 3))), torch.zeros(1, 1, 3))


def test_the_maximum_may_jump_in_either_direction() -> None:
    values = torch.tensor([[1.0], [2.0], [4.0]])
    for logits in ([-2000.0, 2000.0, 0.0], [2000.0, -2000.0, 0.0], [0.0, -2000.0, 2000.0]):
        found = attended(torch.tensor([logits]), values, [1, 2])
        assert found.item() == values[logits.index(2000.0)].item()
