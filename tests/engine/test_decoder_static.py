"""The decoder is one graph for each number of tokens, on a Gaudi too, and gradients reach every weight."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from device.conftest import installed
from device.dry_run import HPU, device_only, fake_hpu
from device.gaudi_standin import Gaudi
from torch import Tensor

from kvlab.engine.config import DecoderConfig
from kvlab.engine.decoder import Decoder, random_weights, weight_shapes
from kvlab.engine.dense import DenseAttend
from kvlab.errors import InvalidInput

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
    "attention_k_eq_v": True,
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 30.0,
}
FAMILIES = ["llama", "gemma2", "gemma3_text", "gemma4_text"]


def decoder(family: str, dtype: torch.dtype = torch.float32) -> Decoder:
    config = DecoderConfig.from_config({**SIZES, "model_type": family}).with_dtype(dtype)
    return Decoder(config, random_weights(config, torch.Generator().manual_seed(0)))


def values_only(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Stands for attention over one key each; reads all three."""
    seen = (queries * keys).sum(-1, keepdim=True)
    return values.expand_as(queries) * torch.sigmoid(seen)


@pytest.fixture
def gaudi(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gaudi]:
    yield from installed(Gaudi(), monkeypatch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_of_the_decoder_stays_on_the_card(gaudi: Gaudi, family: str, dtype: torch.dtype) -> None:
    made = decoder(family, dtype)
    with fake_hpu() as mode, torch.no_grad():
        there = torch.func.functional_call
        moved = {name: mode.from_tensor(each.detach()).to(HPU) for name, each in made.named_parameters()}
        moved |= {name: mode.from_tensor(each).to(HPU) for name, each in made.named_buffers()}
        ids, positions = (torch.zeros(5, dtype=torch.long, device=HPU) for _ in range(2))
        with device_only():
            logits = there(Step(made), {f"decoder.{name}": each for name, each in moved.items()}, (ids, positions))
        assert (logits.device, logits.dtype, logits.shape) == (HPU, dtype, (5, 40))


class Step(torch.nn.Module):
    """Token ids to logits."""

    def __init__(self, made: Decoder) -> None:
        super().__init__()
        self.decoder = made

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        return self.decoder.logits(self.decoder.hidden(ids, positions, values_only))


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_one_graph_without_a_break(family: str) -> None:
    step = Step(decoder(family))
    ids, positions = torch.arange(5), torch.arange(5) + 3
    graphs = []

    def count(graph: torch.fx.GraphModule, example: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    try:
        compiled = torch.compile(step, backend=count, fullgraph=True, dynamic=False)
        with torch.no_grad():
            torch.testing.assert_close(compiled(ids, positions), step(ids, positions))
            compiled(ids + 1, positions + 7)
    finally:
        torch._dynamo.reset()
    assert len(graphs) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_reach_every_weight(family: str) -> None:
    made = decoder(family)
    ids = torch.arange(12)
    made.logits(made.hidden(ids, ids % 6, DenseAttend(made.config, 2, 6))).logsumexp(-1).sum().backward()
    still = {name for name, each in made.named_parameters() if each.grad is None or not each.grad.any()}
    assert still == {name for name in weight_shapes(made.config) if name.endswith("scalar")}


def test_rows_do_not_depend_on_the_rows_beside_them() -> None:
    """Batched is alone: what a token gives depends on its id, its position and its attention only."""
    made = decoder("gemma3_text")
    ids, positions = torch.tensor([3, 9, 27]), torch.tensor([0, 100, 5])
    with torch.no_grad():
        together = made.hidden(ids, positions, values_only)
        alone = [made.hidden(ids[i : i + 1], positions[i : i + 1], values_only) for i in range(3)]
    torch.testing.assert_close(together, torch.cat(alone))


def test_only_distance_turns_a_query_from_a_key() -> None:
    """Positions are relative: shifting a whole sequence changes no logit."""
    made, ids = decoder("gemma4_text"), torch.arange(10)
    attend = DenseAttend(made.config, 1, 10)
    with torch.no_grad():
        here, there = (made.hidden(ids, ids + shift, attend) for shift in (0, 1000))
    torch.testing.assert_close(here, there, rtol=1e-3, atol=1e-4)


def test_dense_attention_refuses_another_number_of_tokens() -> None:
    made = decoder("llama")
    with pytest.raises(InvalidInput, match="5 tokens came to an attention made for 2 x 3"):
        made.hidden(torch.arange(5), torch.arange(5), DenseAttend(made.config, 2, 3))
    with pytest.raises(InvalidInput, match="length must be an integer of at least 1, not 0"):
        DenseAttend(made.config, 2, 0)
