"""GGUF files: converted ones give the logits of the model they were made from, bad ones are refused by name."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType
from hypothesis import given
from hypothesis import strategies as st
from support.gguf_files import (
    SPM_TOKENS,
    WINDOW,
    Edit,
    add_byte_level,
    add_sentencepiece,
    byte_level,
    round_weights,
    tiny_gemma3,
    tiny_llama,
    write,
    write_llama,
)
from transformers import AutoModelForCausalLM

from kvlab.engine.config import DecoderConfig
from kvlab.engine.dense import DenseAttend
from kvlab.engine.gguf_convert import convert
from kvlab.engine.gguf_file import GGUFFile
from kvlab.engine.weights import load
from kvlab.errors import InvalidInput, KvlabError

TOKENS = 5 * WINDOW


def converted(path: Path, dtype: torch.dtype = torch.float32) -> Path:
    folder = path.with_suffix("")
    folder.mkdir()
    convert(path, folder, dtype)
    return folder


def same_logits(model: Any, folder: Path) -> None:
    """kvlab's decoder and transformers give, from the folder, what the model in memory gives."""
    ids = torch.randint(0, model.config.vocab_size, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    ours = load(folder, torch.float32)
    with torch.no_grad():
        expected = model(ids).logits[0]
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits[0]
        hidden = ours.hidden(ids[0], torch.arange(TOKENS), DenseAttend(ours.config, 1, TOKENS))
        torch.testing.assert_close(theirs, expected, atol=1e-4, rtol=0)
        torch.testing.assert_close(ours.logits(hidden), expected, atol=1e-4, rtol=0)


def smollm(writer: GGUFWriter) -> None:
    add_byte_level(writer, byte_level(), "gpt-2")


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_1", "BF16"])
@pytest.mark.parametrize(("make", "tokenizer"), [(tiny_llama, smollm), (tiny_gemma3, add_sentencepiece)])
def test_a_converted_file_gives_the_logits_of_its_model(make: Any, tokenizer: Edit, kind: str, tmp_path: Path) -> None:
    model = make()
    round_weights(model, kind)
    same_logits(model, converted(write(model, tmp_path / "tiny.gguf", kind, tokenizer)))


def test_a_head_of_its_own_is_kept(tmp_path: Path) -> None:
    model = tiny_llama(tie_word_embeddings=False)
    folder = converted(write(model, tmp_path / "tiny.gguf", edit=smollm))
    same_logits(model, folder)
    assert not DecoderConfig.from_config(folder).tied


def test_what_the_file_of_a_gemma_leaves_out_is_known(tmp_path: Path) -> None:
    config = DecoderConfig.from_config(converted(write(tiny_gemma3(), tmp_path / "tiny.gguf", edit=add_sentencepiece)))
    assert [config.kind(i) for i in range(7)] == [*["sliding"] * 5, "global", "sliding"]
    assert (config.ropes["sliding"].base, config.ropes["global"].base) == (1e4, 1e6)
    assert config.window_tokens(0) == WINDOW
    assert config.norm_eps == 1e-6


def llama3(factor: float) -> dict[str, Any]:
    shape = {"factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return {"rope_type": "llama3", "rope_theta": 5e5, "original_max_position_embeddings": 8192, **shape}


def test_the_scaling_of_llama_3_is_told_from_its_outcome(tmp_path: Path) -> None:
    model = tiny_llama(rope_parameters=llama3(32.0))
    plain = tiny_llama(rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    factors = (plain.model.rotary_emb.inv_freq / model.model.rotary_emb.inv_freq).numpy()
    assert factors.max() == pytest.approx(32)

    def scaled(writer: GGUFWriter) -> None:
        smollm(writer)
        writer.add_tensor("rope_freqs.weight", factors)

    same_logits(model, converted(write(model, tmp_path / "tiny.gguf", edit=scaled)))

    def other(writer: GGUFWriter) -> None:
        smollm(writer)
        writer.add_tensor("rope_freqs.weight", factors * np.float32(1.5))

    with pytest.raises(InvalidInput, match=r"rope_freqs\.weight other than Llama 3\.1's"):
        converted(write(model, tmp_path / "other.gguf", edit=other))


def test_linear_scaling_is_for_the_global_layers_of_a_gemma_only(tmp_path: Path) -> None:
    rope = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}}
    model = tiny_gemma3(rope_parameters=rope | {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})

    def scaled(writer: GGUFWriter) -> None:
        add_sentencepiece(writer)
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(8.0)

    same_logits(model, converted(write(model, tmp_path / "tiny.gguf", edit=scaled)))


@pytest.mark.parametrize(("make", "tokenizer"), [(tiny_llama, smollm), (tiny_gemma3, add_sentencepiece)])
def test_bf16_weights_are_rounded_as_torch_rounds(make: Any, tokenizer: Edit, tmp_path: Path) -> None:
    model = make()
    folder = converted(write(model, tmp_path / "tiny.gguf", edit=tokenizer), torch.bfloat16)
    found = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    for name, weight in model.state_dict().items():
        assert found[name].dtype == torch.bfloat16
        if "norm" in name:
            torch.testing.assert_close(found[name].float(), weight, atol=1e-6, rtol=2**-8)
        else:
            assert torch.equal(found[name], weight.to(torch.bfloat16)), name


def test_only_bf16_and_fp32_are_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="bfloat16 or float32"):
        convert(write_llama(tmp_path / "tiny.gguf"), tmp_path, torch.float16)


def test_a_piece_of_a_large_tensor_is_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = GGUFFile(write(tiny_llama(), tmp_path / "tiny.gguf", "Q8_0"))
    tensor = file.tensors["token_embd.weight"]
    whole = np.concatenate(list(file.chunks(tensor)))
    order = np.arange(tensor.rows)[::-1]
    assert np.array_equal(np.concatenate(list(file.chunks(tensor, order))), whole[::-1])
    monkeypatch.setattr("kvlab.engine.gguf_file.CHUNK_BYTES", 1000)
    pieces = list(file.chunks(tensor))
    assert len(pieces) > 100
    assert np.array_equal(np.concatenate(pieces), whole)


def test_a_list_is_walked_over_and_decoded_when_it_is_read(tmp_path: Path) -> None:
    words = [f"word{i}" for i in range(1000)]

    def broken(writer: GGUFWriter) -> None:
        writer.add_array("some.words", words)
        writer.add_array("some.numbers", [1.5, 2.5])
        writer.add_array("other.words", ["fine", "bad"])

    path = write(tiny_llama(), tmp_path / "tiny.gguf", edit=broken)
    path.write_bytes(path.read_bytes().replace(b"bad", b"\xff\xff\xff", 1))
    file = GGUFFile(path)
    assert file.count("some.words") == 1000
    assert file.listed("some.words", str) == words
    assert file.listed("some.numbers", float) == [1.5, 2.5]
    assert file.listed("no.words", str) == []
    for ask, message in (
        (lambda: file.listed("other.words", str), "an entry of other.words is not UTF-8"),
        (lambda: file.listed("some.words", int), "a list of str for some.words; expected one of int"),
        (lambda: file.listed("llama.block_count", int), "has 2 for llama.block_count; expected a list"),
        (lambda: file.value("some.words", str), "has a list for some.words; expected one str"),
        (lambda: file.value("llama.block_count", str), "has 2 for llama.block_count; expected one str"),
        (lambda: file.value("no.number", int), "has no no.number"),
    ):
        with pytest.raises(InvalidInput, match=message) as raised:
            ask()
        assert str(path) in str(raised.value)


def refused(path: Path, message: str) -> None:
    folder = path.with_suffix("")
    folder.mkdir()
    with pytest.raises(InvalidInput, match=message) as raised:
        convert(path, folder)
    assert str(path) in str(raised.value)


def test_a_file_cut_anywhere_is_called_truncated(tmp_path: Path) -> None:
    whole = write_llama(tmp_path / "whole.gguf").read_bytes()
    cuts = {*range(4, 400, 9), *range(400, len(whole), len(whole) // 60), len(whole) - 1}
    for i, cut in enumerate(sorted(cuts)):
        path = tmp_path / f"cut{i}.gguf"
        path.write_bytes(whole[:cut])
        refused(path, "is truncated")


@pytest.mark.parametrize("start", [b"", b"GGU", b"GGML" + bytes(40), b"PK\x03\x04" + bytes(40)])
def test_another_kind_of_file_is_told_from_its_first_bytes(start: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(start)
    refused(path, "is not a GGUF file: it starts with")


def test_a_missing_file_and_a_folder_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path):
        with pytest.raises(InvalidInput, match="cannot read the model"):
            GGUFFile(path)


@pytest.mark.parametrize(("version", "shown"), [(1, "0x1;"), (4, "0x4;"), (3 << 24, "big-endian")])
def test_other_versions_are_refused(version: int, shown: str, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "tiny.gguf")
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + struct.pack("<I", version) + whole[8:])
    refused(path, shown)


@pytest.mark.parametrize(("number", "shown"), [(999, "number 999"), (int(GGMLQuantizationType.Q8_K), "Q8_K")])
def test_an_unknown_quantisation_is_named_with_its_tensor(number: int, shown: str, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "tiny.gguf")
    whole = path.read_bytes()
    name = b"blk.0.attn_v.weight"
    at = whole.index(name) + len(name) + 4 + 16  # behind the count of dimensions and two of them
    path.write_bytes(whole[:at] + struct.pack("<I", number) + whole[at + 4 :])
    refused(path, rf"blk\.0\.attn_v\.weight in quantisation {shown}, which cannot be read")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    for name in ("blk.1.ffn_up.weight", "token_embd.weight"):
        path = write(tiny_llama(), tmp_path / f"{name}.gguf", edit=smollm, drop=name)
        refused(path, f"lacks the tensor {name}")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda w: w.add_expert_count(8), r"llama\.expert_count 8"),
        (lambda w: w.add_sliding_window(16), r"llama\.attention\.sliding_window 16"),
        (lambda w: w.add_rope_scaling_type(RopeScalingType.YARN), "stretches RoPE by 'yarn'"),
        (lambda w: w.add_block_count(2**31), "has 11 tensors, too few for 2,147,483,648 layers"),
        (lambda w: w.add_key_length(32), r"llama\.rope\.dimension_count 16 beside a head_dim of 32"),
        (lambda w: w.add_tensor("blk.0.attn_q.bias", np.zeros(64, np.float32)), r"no place for: blk\.0\.attn_q\.bias"),
        (lambda w: w.add_mask_token_id(1) or w.add_eot_token_id(400), r"has 400 for tokenizer\.ggml\.eot_token_id"),
    ],
)
def test_what_the_decoder_has_no_place_for_is_refused(edit: Edit, message: str, tmp_path: Path) -> None:
    refused(write_llama(tmp_path / "tiny.gguf", edit), message)


def test_another_architecture_is_named(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "tiny.gguf")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(struct.pack("<Q", 5) + b"llama", struct.pack("<Q", 5) + b"mamba", 1))
    refused(path, "architecture 'mamba'; kvlab reads llama and gemma3")


def test_a_shape_other_than_the_header_means_is_refused(tmp_path: Path) -> None:
    model = tiny_llama()
    model.config.intermediate_size = 64
    refused(write(model, tmp_path / "tiny.gguf", edit=smollm), r"ffn_gate\.weight of shape \(96, 64\).* \(64, 64\)")


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    model = tiny_llama()
    with torch.no_grad():
        model.model.norm.weight[3] = float("nan")
    refused(write(model, tmp_path / "tiny.gguf", edit=smollm), r"output_norm\.weight holds values that are not finite")


@given(at=st.integers(0, 2_000), bit=st.integers(0, 7), from_end=st.booleans())
def test_a_flipped_bit_in_the_header_is_read_or_refused(
    at: int, bit: int, from_end: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    header = _headers(tmp_path_factory)
    damaged = bytearray(header[0])
    place = header[1] - 1 - at if from_end else at
    damaged[place] ^= 1 << bit
    folder = tmp_path_factory.mktemp("flipped")
    path = folder / "flipped.gguf"
    path.write_bytes(damaged)
    said = None
    try:
        convert(path, folder)
    except KvlabError as error:
        said = str(error)
    assert (folder / "model.safetensors").is_file() if said is None else str(path) in said


_MADE: list[tuple[bytes, int]] = []


def _headers(factory: pytest.TempPathFactory) -> tuple[bytes, int]:
    if not _MADE:
        path = write_llama(factory.mktemp("whole") / "whole.gguf")
        _MADE.append((path.read_bytes(), min(each.start for each in GGUFFile(path).tensors.values())))
    return _MADE[0]


def test_the_vocabulary_of_a_gemma_has_the_rows_of_its_embedding(tmp_path: Path) -> None:
    model = tiny_gemma3(vocab_size=len(SPM_TOKENS) - 1)
    refused(write(model, tmp_path / "tiny.gguf", edit=add_sentencepiece), "tokenizer that doesn't match")
