"""Configurations: what each family says of its layers and its KV, and what is refused, by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kvlab.engine.config import DecoderConfig
from kvlab.engine.rope import Rope
from kvlab.errors import InvalidInput

SMALL: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "vocab_size": 100}
LLAMA = {**SMALL, "model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2}
GEMMA3 = {**SMALL, "model_type": "gemma3_text"}
GEMMA4 = {**SMALL, "model_type": "gemma4_text", "hidden_size_per_layer_input": 0}


def test_the_layers_of_a_llama_all_read_everything() -> None:
    config = DecoderConfig.from_config(LLAMA)
    assert config.shape.kinds == ("global",) * 6
    assert config.window_tokens(0) is None
    assert (config.kv_heads(0), config.head_dim(0)) == (2, 16)
    assert config.scale == pytest.approx(0.25)
    assert (config.tied, config.eos_token_ids, config.bos_token_id) == (False, (2,), 1)


def test_what_a_gemma_3_configuration_leaves_out_is_what_transformers_assumes() -> None:
    config = DecoderConfig.from_config(GEMMA3)
    assert config.shape.kinds == ("sliding",) * 5 + ("global",)
    assert (config.window_tokens(0), config.window_tokens(5)) == (4096, None)
    assert (config.shape.q_heads, config.kv_heads(0), config.head_dim(0)) == (8, 4, 256)
    assert config.ropes == {"global": Rope(1e6), "sliding": Rope(1e4)}
    assert (config.tied, config.scale, config.activation) == (True, 1 / 16, "gelu_pytorch_tanh")


def test_gemma_4_has_heads_of_its_own_in_global_layers() -> None:
    fields = {**GEMMA4, "head_dim": 16, "num_key_value_heads": 4, "global_head_dim": 32}
    equal = DecoderConfig.from_config({**fields, "num_global_key_value_heads": 1, "attention_k_eq_v": True})
    assert [(equal.kv_heads(i), equal.head_dim(i)) for i in (0, 5)] == [(4, 16), (1, 32)]
    assert (equal.scale, equal.value_is_key) == (1.0, True)
    assert equal.ropes["global"] == Rope(1e6, "proportional", rotated=0.25)
    # as in transformers, the count for global layers is read only where K = V
    assert DecoderConfig.from_config({**fields, "num_global_key_value_heads": 1}).kv_heads(5) == 4


def test_a_field_of_another_family_changes_nothing() -> None:
    others = {"attention_k_eq_v": True, "global_head_dim": 32, "attn_logit_softcapping": 5.0, "layer_types": ["x"]}
    config = DecoderConfig.from_config({**LLAMA, **others})
    plain = DecoderConfig.from_config(LLAMA)
    assert (config.shape, config.softcap, config.value_is_key) == (plain.shape, None, False)


def test_the_last_layer_of_a_gemma_4_is_global_whatever_it_says() -> None:
    config = DecoderConfig.from_config({**GEMMA4, "layer_types": ["sliding_attention"] * 6})
    assert config.shape.kinds == ("sliding",) * 5 + ("global",)


def test_the_text_of_a_multimodal_configuration_is_read() -> None:
    text = {key: value for key, value in GEMMA3.items() if key != "model_type"}
    config = DecoderConfig.from_config(
        {
            "model_type": "gemma3",
            "eos_token_id": [1, 6],
            "dtype": "bfloat16",
            "vision_config": {},
            "text_config": text,
        }
    )
    assert (config.family.name, config.eos_token_ids, config.dtype) == ("gemma3_text", (1, 6), torch.bfloat16)
    assert "vision_config" not in config.source


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 4), (torch.bfloat16, 2), (torch.float16, 2)])
def test_the_bytes_of_kv_follow_the_dtype(dtype: torch.dtype, width: int) -> None:
    config = DecoderConfig.from_config({**GEMMA3, "dtype": "float32"}).with_dtype(dtype)
    found = {group.name: group.bytes_per_token for group in config.shape.groups()}
    assert found == {"global": 2 * 4 * 256 * width, "sliding": 5 * 2 * 4 * 256 * width}
    assert DecoderConfig.from_config(config.source).dtype == dtype


def test_the_ends_of_text_of_generation_config_come_first(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "eos_token_id": 2}))
    assert DecoderConfig.from_config(tmp_path).eos_token_ids == (2,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert DecoderConfig.from_config(tmp_path).eos_token_ids == (5, 6)
    assert DecoderConfig.from_config(tmp_path / "config.json").eos_token_ids == (5, 6)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another family": ({**LLAMA, "model_type": "mamba"}, "'mamba'.*llama, gemma2, gemma3_text, gemma4_text"),
    "no family": (SMALL, "'None'"),
    "experts": ({**GEMMA4, "enable_moe_block": True}, "mixture of experts.*enable_moe_block"),
    "number of experts": ({**LLAMA, "num_local_experts": 8}, "mixture of experts.*num_local_experts = 8"),
    "shared KV": ({**GEMMA4, "num_kv_shared_layers": 2}, "num_kv_shared_layers = 2"),
    "inputs per layer": ({**GEMMA4, "hidden_size_per_layer_input": 256}, "hidden_size_per_layer_input = 256"),
    "inputs per layer, unsaid": ({**SMALL, "model_type": "gemma4_text"}, "hidden_size_per_layer_input = 256"),
    "biases": ({**LLAMA, "attention_bias": True}, "attention_bias"),
    "quantized": ({**LLAMA, "quantization_config": {"bits": 4}}, "quantization_config"),
    "both directions": ({**GEMMA3, "use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
    "activation": ({**LLAMA, "hidden_act": "relu"}, "hidden_act 'relu'.*silu, gelu_pytorch_tanh"),
    "dtype": ({**LLAMA, "dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
    "rope": ({**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "'yarn'.*default, linear, llama3"),
    "rope without factor": ({**LLAMA, "rope_scaling": {"rope_type": "linear"}}, "needs factor"),
    "rope base": ({**LLAMA, "rope_theta": 0}, "rope_theta must be a number above 0, not 0"),
    "rope ramp": (
        {
            **LLAMA,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8,
                "low_freq_factor": 4,
                "high_freq_factor": 4,
                "original_max_position_embeddings": 64,
            },
        },
        "high_freq_factor must be above",
    ),
    "part of a head": (
        {**LLAMA, "partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.5}},
        "0.5",
    ),
    "no layers": ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers must be an integer of at least 1, not 0"),
    "no width": ({key: value for key, value in LLAMA.items() if key != "hidden_size"}, "hidden_size"),
    "no MLP": ({**LLAMA, "intermediate_size": None}, "intermediate_size"),
    "heads": ({**LLAMA, "num_key_value_heads": 3}, "4 query heads cannot share 3 KV heads"),
    "odd heads": ({**LLAMA, "head_dim": 7}, "head_dim 7"),
    "eps": ({**LLAMA, "rms_norm_eps": -1e-6}, "rms_norm_eps must be a number above 0"),
    "cap": ({**GEMMA3, "final_logit_softcapping": 0}, "final_logit_softcapping must be a number above 0"),
    "end of text": ({**LLAMA, "eos_token_id": -1}, "eos_token_id must be a token id"),
    "layer types": ({**GEMMA3, "layer_types": ["full_attention"]}, "layer_types lists 1 layers"),
    "layers that differ": (
        {**GEMMA4, "layer_types": ["full_attention"] * 6, "per_layer_config": {"0": {"head_dim": 32}}},
        "per_layer_config must give the global layers",
    ),
}


@pytest.mark.parametrize(("fields", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        DecoderConfig.from_config(fields, "small")


def test_an_unusable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot read .*config.json"):
        DecoderConfig.from_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"config.json is not JSON"):
        DecoderConfig.from_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InvalidInput, match="holds a list"):
        DecoderConfig.from_config(tmp_path)


def test_integers_are_no_dtype() -> None:
    with pytest.raises(InvalidInput, match=r"torch\.int8"):
        DecoderConfig.from_config(LLAMA).with_dtype(torch.int8)
