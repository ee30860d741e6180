"""The decoder beside transformers on tiny random models: logits within 1e-4 in float32, in and out of its files."""

import json
from pathlib import Path

import pytest
import torch
from support.hf_models import KINDS, VOCAB, WINDOW, model
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from kvlab.engine.decoder import Decoder
from kvlab.engine.dense import DenseAttend
from kvlab.engine.weights import export, load

LENGTHS = (1, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 5 * WINDOW)
BATCH = 3


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Path]:
    """A model of transformers and the folder it was saved in."""
    made, folder = model(request.param), tmp_path_factory.mktemp("saved")
    made.save_pretrained(folder)
    return made, folder


def token_ids(length: int) -> Tensor:
    return torch.randint(0, VOCAB, (BATCH, length), generator=torch.Generator().manual_seed(length))


@torch.no_grad()
def our_logits(decoder: Decoder, ids: Tensor) -> Tensor:
    batch, length = ids.shape
    positions = torch.arange(length).repeat(batch)
    hidden = decoder.hidden(ids.flatten(), positions, DenseAttend(decoder.config, batch, length))
    return decoder.logits(hidden).view(batch, length, -1)


@torch.no_grad()
def their_logits(made: PreTrainedModel, ids: Tensor) -> Tensor:
    return made(ids).logits


def test_logits_are_those_of_transformers_around_the_window(pair: tuple[PreTrainedModel, Path]) -> None:
    made, folder = pair
    decoder = load(folder)
    for length in LENGTHS:
        ids = token_ids(length)
        torch.testing.assert_close(our_logits(decoder, ids), their_logits(made, ids), rtol=0, atol=1e-4)


def test_what_is_exported_loads_in_transformers_and_here(pair: tuple[PreTrainedModel, Path], tmp_path: Path) -> None:
    made, folder = pair
    decoder, ids = load(folder), token_ids(2 * WINDOW)
    export(decoder, tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is type(made)
    torch.testing.assert_close(their_logits(again, ids), their_logits(made, ids), rtol=0, atol=1e-4)
    back = load(tmp_path)
    assert back.config.source == decoder.config.source
    assert back.config.ropes == decoder.config.ropes
    for (name, weight), (same, other) in zip(decoder.named_parameters(), back.named_parameters(), strict=True):
        assert name == same
        assert torch.equal(weight, other), name


def test_in_bfloat16_the_logits_are_as_near_as_transformers_own(pair: tuple[PreTrainedModel, Path]) -> None:
    made, folder = pair
    ids = token_ids(2 * WINDOW)
    exact = their_logits(made, ids)
    theirs = their_logits(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16), ids)
    ours = our_logits(load(folder, torch.bfloat16), ids)
    assert ours.dtype == torch.bfloat16

    def off(logits: Tensor) -> float:
        return (logits.float() - exact).square().mean().sqrt().item()

    assert off(ours) <= 1.25 * off(theirs)


def test_a_sliding_layer_reads_the_window_and_no_more(pair: tuple[PreTrainedModel, Path]) -> None:
    """The facts behind the accounting: in sliding layers only, the token `window` back changes nothing."""
    decoder = load(pair[1])
    length = 2 * WINDOW
    attend = DenseAttend(decoder.config, 1, length)
    for layer in range(decoder.config.layers):
        q_heads, kv_heads = decoder.config.shape.q_heads, decoder.config.kv_heads(layer)
        draw = torch.Generator().manual_seed(layer)
        q, k, v = (
            torch.randn(length, heads, decoder.config.head_dim(layer), generator=draw)
            for heads in (q_heads, kv_heads, kv_heads)
        )
        changed = v.clone()
        changed[0] += 1.0
        differs = (attend(layer, q, k, v) != attend(layer, q, k, changed)).flatten(1).any(1)
        window = decoder.config.window_tokens(layer)
        assert differs.tolist() == [window is None or row < window for row in range(length)]


def test_the_older_fields_of_a_configuration_mean_the_same(pair: tuple[PreTrainedModel, Path], tmp_path: Path) -> None:
    """Published checkpoints carry `torch_dtype`, `rope_theta`, `rope_scaling`, `global_head_dim`."""
    made, folder = pair
    fields = json.loads((folder / "config.json").read_text())
    fields["torch_dtype"] = fields.pop("dtype")
    ropes = fields.pop("rope_parameters")
    own = ropes.get("full_attention", ropes)
    fields["rope_theta"] = own.pop("rope_theta")
    if own["rope_type"] not in ("default", "proportional"):
        fields["rope_scaling"] = own
    if "sliding_attention" in ropes:
        fields["rope_local_base_freq"] = ropes["sliding_attention"]["rope_theta"]
    by_layer = fields.pop("per_layer_config", None)
    if by_layer is not None:
        fields["global_head_dim"] = by_layer["3"]["head_dim"]
        fields["num_global_key_value_heads"] = by_layer["3"].get("num_key_value_heads")
    (tmp_path / "config.json").write_text(json.dumps(fields))
    (tmp_path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    ids = token_ids(2 * WINDOW)
    torch.testing.assert_close(our_logits(load(tmp_path), ids), their_logits(made, ids), rtol=0, atol=1e-4)
