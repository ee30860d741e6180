"""Folders with weights: shards, other names, and every way a checkpoint can be wrong, refused by name."""

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kvlab.engine.config import DecoderConfig
from kvlab.engine.decoder import Decoder, random_weights, weight_shapes
from kvlab.engine.weights import export, load
from kvlab.errors import InvalidInput

FIELDS: dict[str, Any] = {
    "model_type": "gemma3_text",
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
}
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def decoder() -> Decoder:
    config = DecoderConfig.from_config(FIELDS)
    return Decoder(config, random_weights(config, torch.Generator().manual_seed(0)))


@pytest.fixture
def folder(decoder: Decoder, tmp_path: Path) -> Path:
    export(decoder, tmp_path)
    return tmp_path


def same(one: Decoder, other: Decoder) -> bool:
    mine, theirs = dict(one.named_parameters()), dict(other.named_parameters())
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def rewrite(folder: Path, change: dict[str, Tensor | None]) -> None:
    """Put these tensors into the checkpoint; None takes one out."""
    tensors = load_file(folder / WEIGHTS) | change
    save_file({name: each for name, each in tensors.items() if each is not None}, folder / WEIGHTS)


def shard(folder: Path) -> list[str]:
    """The checkpoint in two files with an index, as large models are published; their names."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(tensors)
    files = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, held in files.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, held in files.items() for name in held}}
    (folder / INDEX).write_text(json.dumps(index))
    return list(files)


def test_shards_hold_what_one_file_holds(folder: Path, decoder: Decoder) -> None:
    shard(folder)
    assert same(load(folder), decoder)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_part_of_a_multimodal_checkpoint_is_taken(folder: Path, decoder: Decoder, prefix: str) -> None:
    tensors = {name.replace("model.", prefix, 1): each for name, each in load_file(folder / WEIGHTS).items()}
    others = ("vision_tower.patch.weight", "model.vision_tower.patch.weight", "multi_modal_projector.weight")
    save_file(tensors | {name: torch.zeros(1) for name in others}, folder / WEIGHTS)
    assert same(load(folder), decoder)


def test_a_tied_head_that_is_stored_all_the_same_is_no_surprise(folder: Path, decoder: Decoder) -> None:
    rewrite(folder, {"lm_head.weight": torch.zeros(50, 16)})
    assert same(load(folder), decoder)


def test_a_dtype_is_converted_and_norms_keep_their_digits(folder: Path) -> None:
    loaded = load(folder, torch.bfloat16)
    assert loaded.config.dtype == torch.bfloat16
    assert loaded.config.shape.dtype_bytes == 2
    dtypes = {name: weight.dtype for name, weight in loaded.named_parameters()}
    assert {each for name, each in dtypes.items() if name.endswith("norm")} == {torch.float32}
    assert {each for name, each in dtypes.items() if not name.endswith("norm")} == {torch.bfloat16}


def test_export_converts_too(decoder: Decoder, tmp_path: Path) -> None:
    export(decoder, tmp_path / "made", torch.bfloat16)
    assert {each.dtype for each in load_file(tmp_path / "made" / WEIGHTS).values()} == {torch.bfloat16}
    loaded = load(tmp_path / "made")
    assert loaded.config.dtype == torch.bfloat16
    assert torch.equal(loaded.layers[0].qkv, decoder.layers[0].qkv.bfloat16())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({Q_PROJ: None}, f"lacks {Q_PROJ}"),
        ({"model.extra": torch.zeros(1)}, "holds model.extra, which"),
        ({Q_PROJ: torch.zeros(16, 15)}, rf"{Q_PROJ} is \(16, 15\), the configuration says \(16, 16\)"),
        ({Q_PROJ: torch.zeros(16, 16, dtype=torch.int8)}, f"{Q_PROJ} is torch.int8; quantized"),
    ],
    ids=["missing", "unexpected", "shape", "quantized"],
)
def test_a_wrong_tensor_is_named(folder: Path, change: dict[str, Tensor | None], message: str) -> None:
    rewrite(folder, change)
    with pytest.raises(InvalidInput, match=message):
        load(folder)


def test_many_missing_tensors_are_counted(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({**FIELDS, "num_hidden_layers": 3, "layer_types": None}))
    with pytest.raises(InvalidInput, match=r"lacks model\.layers\.2\..* and 8 more; is a shard missing"):
        load(folder)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_file_is_named(folder: Path, kept: int) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:kept])
    with pytest.raises(InvalidInput, match=rf"{WEIGHTS} is truncated or not a safetensors file"):
        load(folder)


def test_a_truncated_shard_is_named(folder: Path) -> None:
    second = shard(folder)[1]
    (folder / second).write_bytes((folder / second).read_bytes()[:-1])
    with pytest.raises(InvalidInput, match=rf"{second} is truncated"):
        load(folder)


def test_a_missing_file_is_named(folder: Path) -> None:
    second = shard(folder)[1]
    (folder / second).unlink()
    with pytest.raises(InvalidInput, match=f"names {second}, which is not there"):
        load(folder)
    (folder / INDEX).unlink()
    with pytest.raises(InvalidInput, match=rf"neither {WEIGHTS} nor {INDEX}"):
        load(folder)


def test_an_index_that_promises_too_much_is_refused(folder: Path) -> None:
    first = shard(folder)[0]
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.extra"] = first
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(InvalidInput, match=r"promises model\.extra"):
        load(folder)


def test_without_safetensors_the_pip_line_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.startswith("safetensors"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(InvalidInput, match=r"pip install 'kvlab\[engine\]'"):
        load(folder)


def test_a_folder_that_cannot_be_written_is_named(decoder: Decoder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot write a model to"):
        export(decoder, tmp_path / "file")


def test_a_decoder_takes_only_the_weights_it_has_places_for() -> None:
    config = DecoderConfig.from_config(FIELDS)
    weights = random_weights(config)
    assert {name: tuple(each.shape) for name, each in weights.items()} == weight_shapes(config)
    with pytest.raises(InvalidInput, match="no weights for norm"):
        Decoder(config, {name: each for name, each in weights.items() if name != "norm"})
    with pytest.raises(InvalidInput, match=r"no place for: layers\.7\.qkv"):
        Decoder(config, weights | {"layers.7.qkv": torch.zeros(1)})
    with pytest.raises(InvalidInput, match=r"norm is \(3,\), expected \(16,\)"):
        Decoder(config, weights | {"norm": torch.ones(3)})
    with pytest.raises(InvalidInput, match=r"norm is torch.bfloat16, expected torch.float32"):
        Decoder(config, weights | {"norm": torch.ones(16, dtype=torch.bfloat16)})
