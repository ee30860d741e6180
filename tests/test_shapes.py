"""Model shapes: the presets' bytes, Hugging Face configurations of several families, and what is refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvlab.errors import InvalidInput
from kvlab.shapes import KVHeads, LayerGroup, ModelShape, presets

# KV bytes a token over all global and all sliding layers, by the models' own configurations.
TOTALS = {
    "llama-3.1-8b": (131_072, 0),
    "opt-13b": (819_200, 0),
    "gemma-3-270m": (3_072, 15_360),
    "gemma-4-31b": (81_920, 819_200),
    "gemma-4-26b-a4b": (10_240, 102_400),
    "gemma-4-26b-a4b-dflash-draft": (2_048, 8_192),
    "gpt-oss-20b": (24_576, 24_576),
}
LAYERS = {
    "llama-3.1-8b": (32, 0),
    "opt-13b": (40, 0),
    "gemma-3-270m": (3, 15),
    "gemma-4-31b": (10, 50),
    "gemma-4-26b-a4b": (5, 25),
    "gemma-4-26b-a4b-dflash-draft": (1, 4),
    "gpt-oss-20b": (12, 12),
}
SMALL: dict[str, Any] = {
    "num_hidden_layers": 6,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
LLAMA_8B = SMALL | {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128_256, "max_position_embeddings": 131_072, "head_dim": None,
    "sliding_window": None,
}  # fmt: skip
OPT_13B = {
    "model_type": "opt", "num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40,
    "vocab_size": 50_272, "max_position_embeddings": 2048, "torch_dtype": "float16",
}  # fmt: skip
GEMMA_3_270M = {
    "model_type": "gemma3_text", "num_hidden_layers": 18, "hidden_size": 640, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262_144, "max_position_embeddings": 32_768,
    "sliding_window": 512, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA_4_31B = {
    "model_type": "gemma4",
    "dtype": "bfloat16",
    "vision_config": {"num_hidden_layers": 27, "hidden_size": 1152},
    "text_config": {
        "model_type": "gemma4_text", "num_hidden_layers": 60, "hidden_size": 5376, "num_attention_heads": 32,
        "num_key_value_heads": 16, "num_global_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512,
        "vocab_size": 262_144, "max_position_embeddings": 262_144, "sliding_window": 1024, "num_kv_shared_layers": 0,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
    },
}  # fmt: skip
GPT_OSS_20B = {
    "model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201_088, "max_position_embeddings": 131_072,
    "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12,
}  # fmt: skip


def test_the_presets_are_the_ones_with_known_totals() -> None:
    assert presets() == sorted(TOTALS)


@pytest.mark.parametrize("name", TOTALS)
def test_a_presets_bytes_per_token_are_those_of_its_configuration(name: str) -> None:
    shape = ModelShape.preset(name)
    assert (shape.kind_bytes_per_token("global"), shape.kind_bytes_per_token("sliding")) == TOTALS[name]
    assert shape.bytes_per_token == sum(TOTALS[name])
    assert (shape.kinds.count("global"), shape.kinds.count("sliding")) == LAYERS[name]
    assert shape.layers == sum(LAYERS[name])
    assert shape.sources
    groups = shape.groups("pool")
    assert [group.bytes_per_token for group in groups] == [total for total in TOTALS[name] if total]
    assert sorted(layer for group in groups for layer in group.layers) == list(range(shape.layers))
    for group in groups:
        assert group.pool == "pool"
        assert (group.window_tokens is None) == (group.name == "global")
        assert {shape.kinds[layer] for layer in group.layers} == {group.name}


def test_the_papers_twelve_gibibytes_hold_15_728_tokens_of_opt_13b() -> None:
    assert 12 * 2**30 // ModelShape.preset("opt-13b").bytes_per_token == 15_728


@pytest.mark.parametrize(
    ("preset", "config"),
    [
        ("llama-3.1-8b", LLAMA_8B),
        ("opt-13b", OPT_13B),
        ("gemma-3-270m", GEMMA_3_270M | {"sliding_window_pattern": 6}),
        ("gemma-3-270m", GEMMA_3_270M),
        ("gemma-4-31b", GEMMA_4_31B),
        ("gpt-oss-20b", GPT_OSS_20B),
    ],
)
def test_a_configuration_gives_the_same_shape_as_the_preset(preset: str, config: dict[str, Any]) -> None:
    expected, found = ModelShape.preset(preset), ModelShape.from_config(config)
    for field in (
        "kinds",
        "window_tokens",
        "q_heads",
        "heads",
        "kv_tensors",
        "dtype_bytes",
        "hidden_size",
        "vocab_size",
    ):
        assert getattr(found, field) == getattr(expected, field), field
    assert found.max_positions == expected.max_positions
    assert found.bytes_per_token == expected.bytes_per_token


@pytest.mark.parametrize(
    ("extra", "kinds"),
    [
        ({}, "gggggg"),
        ({"model_type": "mistral", "sliding_window": 32}, "ssssss"),
        ({"model_type": "mistral", "sliding_window": None}, "gggggg"),
        ({"model_type": "qwen2", "sliding_window": 32, "use_sliding_window": False, "max_window_layers": 2}, "gggggg"),
        ({"model_type": "qwen2", "sliding_window": 32, "use_sliding_window": True, "max_window_layers": 2}, "ggssss"),
        ({"model_type": "qwen2", "sliding_window": 32, "use_sliding_window": True, "max_window_layers": 6}, "gggggg"),
        ({"model_type": "gemma2", "sliding_window": 32, "head_dim": 16}, "sgsgsg"),
        ({"model_type": "gemma3_text", "sliding_window": 32, "head_dim": 16}, "sssssg"),
        ({"model_type": "cohere2", "sliding_window": 32, "sliding_window_pattern": 4}, "sssgss"),
        ({"sliding_window": 32, "layer_types": ["full_attention", "sliding_attention"] * 3}, "gsgsgs"),
    ],
)
def test_layer_kinds_follow_the_familys_rule(extra: dict[str, Any], kinds: str) -> None:
    shape = ModelShape.from_config(SMALL | extra)
    assert "".join(kind[0] for kind in shape.kinds) == kinds
    assert shape.window_tokens == (32 if "s" in kinds else None)


@pytest.mark.parametrize(
    ("dtype", "width"), [("float32", 4), ("float16", 2), ("bfloat16", 2), ("float8_e4m3fn", 1), ("float8_e5m2", 1)]
)
def test_the_dtype_sets_the_width_and_bfloat16_is_assumed_without_one(dtype: str, width: int) -> None:
    assert ModelShape.from_config(SMALL | {"torch_dtype": dtype}).bytes_per_token == 6 * 2 * 2 * 8 * width
    assert ModelShape.from_config(SMALL | {"torch_dtype": None}).dtype_bytes == 2


def test_a_shape_is_called_what_the_caller_or_the_configuration_says() -> None:
    assert ModelShape.from_config(SMALL | {"model_type": "llama"}).name == "llama"
    assert ModelShape.from_config(SMALL | {"model_type": "llama", "_name_or_path": "me/mine"}).name == "me/mine"
    assert ModelShape.from_config(SMALL | {"_name_or_path": "me/mine"}, name="yours").name == "yours"


def test_gpt2_field_names_are_understood() -> None:
    shape = ModelShape.from_config(
        {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50_257}
    )
    assert (shape.layers, shape.heads["global"], shape.max_positions) == (12, KVHeads(12, 64), 1024)


@pytest.mark.parametrize("dtype", ["float32", "torch.float32"])
def test_a_nested_configuration_takes_the_outer_dtype_unless_it_has_its_own(dtype: str) -> None:
    inner = {key: value for key, value in SMALL.items() if key != "torch_dtype"}
    assert ModelShape.from_config({"torch_dtype": dtype, "text_config": inner}).dtype_bytes == 4
    assert ModelShape.from_config({"dtype": dtype, "text_config": inner}).dtype_bytes == 4
    assert ModelShape.from_config({"torch_dtype": dtype, "text_config": SMALL}).dtype_bytes == 2
    assert ModelShape.from_config(SMALL | {"text_config": None}).dtype_bytes == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": None}, "no num_hidden_layers or n_layer"),
        ({"hidden_size": None}, "no hidden_size or n_embd"),
        ({"num_attention_heads": None}, "no num_attention_heads or n_head"),
        ({"vocab_size": None}, "no vocab_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers of .* must be an integer of at least 1, not 0"),
        ({"num_key_value_heads": -1}, "num_key_value_heads of .* not -1"),
        ({"head_dim": "x"}, "head_dim of .* not 'x'"),
        ({"torch_dtype": "int3"}, "stores int3; kvlab knows float32"),
        ({"layer_types": ["full_attention"] * 5}, "lists 5 layers .*; expected 6"),
        ({"layer_types": ["full_attention"] * 5 + ["linear_attention"]}, "linear_attention"),
        ({"layer_types": ["sliding_attention"] * 6}, "no sliding_window"),
        ({"sliding_window": 8, "sliding_window_pattern": 0}, "sliding_window_pattern must be"),
        ({"sliding_window": -8}, "sliding_window of .* not -8"),
        ({"kv_lora_rank": 512}, "kv_lora_rank = 512"),
        ({"num_kv_shared_layers": 2}, "num_kv_shared_layers = 2"),
        ({"model_type": "gemma3_text", "sliding_window": 8}, "no head_dim"),
    ],
)
def test_a_configuration_that_cannot_be_sized_is_refused_by_the_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ModelShape.from_config(SMALL | change, name="mine")


def test_a_configuration_is_read_from_its_folder_or_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    shapes = [ModelShape.from_config(tmp_path), ModelShape.from_config(str(tmp_path / "config.json"))]
    assert [shape.bytes_per_token for shape in shapes] == [6 * 2 * 2 * 8 * 2] * 2
    assert ModelShape.from_config(tmp_path, name="mine").name == "mine"


@pytest.mark.parametrize(("text", "message"), [("{", "is not JSON"), ("[1]", "holds a list"), (b"\xff", "is not JSON")])
def test_a_broken_configuration_file_is_refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    (tmp_path / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidInput, match=message):
        ModelShape.from_config(tmp_path)


def test_a_missing_configuration_and_an_unknown_preset_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot read a model configuration"):
        ModelShape.from_config(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match=r"no preset named 'gpt-9'; there are gemma-3-270m, .*opt-13b"):
        ModelShape.preset("gpt-9")


def test_a_shape_needs_heads_for_its_kinds_and_a_window_for_its_sliding_layers() -> None:
    rest: dict[str, Any] = {
        "name": "m", "q_heads": 1, "kv_tensors": 2, "dtype_bytes": 2, "hidden_size": 8, "vocab_size": 9,
        "max_positions": 9, "params": None, "sources": (),
    }  # fmt: skip
    heads = KVHeads(1, 8)
    with pytest.raises(InvalidInput, match=r"\['sliding'\] layers but no KV heads"):
        ModelShape(kinds=("global", "sliding"), window_tokens=4, heads={"global": heads}, **rest)
    with pytest.raises(InvalidInput, match="no window"):
        ModelShape(kinds=("sliding",), window_tokens=None, heads={"sliding": heads}, **rest)
    with pytest.raises(InvalidInput, match="layers of m"):
        ModelShape(kinds=(), window_tokens=None, heads={}, **rest)


def test_a_window_of_w_reads_the_query_itself_and_w_minus_1_tokens_before_it() -> None:
    group = LayerGroup("sliding", "full", (0,), 4, 2)
    assert [group.first_readable(length) for length in range(8)] == [0, 0, 0, 0, 1, 2, 3, 4]
    assert LayerGroup("global", "full", (0,), None, 2).first_readable(99) == 0


def test_the_core_is_imported_without_torch() -> None:
    code = (
        "import sys, kvlab, kvlab.policies.paged, kvlab.policies.contiguous, kvlab.simulate.saturation, "
        "kvlab.trace_files, kvlab.shapes; kvlab.shapes.presets(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
