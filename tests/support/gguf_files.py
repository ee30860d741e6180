"""Tiny GGUF files, written by the package `gguf` from tiny random transformers models: what llama.cpp would hold."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

CORPUS = [
    "The quick brown fox jumps over the lazy dog, 1234567 times; it's the dog's 42nd jump.",
    "In the beginning was the word, and the word wasn't a token: naïve café, 東京, 🙂.",
    "    def step(self, rid: int) -> None:\n        return self.table[rid // 16]\n\n",
] * 8
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WINDOW = 8
BYTES = [f"<0x{i:02X}>" for i in range(256)]
WORDS = [
    "the",
    "and",
    "th",
    "he",
    "▁the",
    "▁and",
    "in",
    "an",
    "nd",
    "▁t",
    "▁a",
    "▁w",
    "▁wo",
    "rd",
    "or",
    "▁word",
    "ord",
]
LETTERS = ["▁", *"abcdefghijklmnopqrstuvwxyzT.,é"]
SPM_TOKENS = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "▁▁", "\n\n", *BYTES, *LETTERS, *WORDS]
SPM_KINDS = [3, 3, 3, 2, 3, 4, 4, *[6] * 256, *[1] * (len(LETTERS) + len(WORDS))]
SPM_SCORES = [-1000.0] * 263 + [-1e6] * len(LETTERS) + [-float(i) for i in range(len(WORDS))]

Edit = Callable[[GGUFWriter], None]


def byte_level(*first: pre_tokenizers.PreTokenizer, use_regex: bool = True) -> Tokenizer:
    """A byte-level BPE trained on the corpus, as its own library makes one: the truth for the converted one."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence([*first, pre_tokenizers.ByteLevel(False, use_regex=use_regex)])
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def add_byte_level(writer: GGUFWriter, trained: Tokenizer, pre: str) -> None:
    """Put a trained byte-level BPE in the file."""
    model = json.loads(trained.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if each in SPECIAL else 1 for each in tokens])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)


def add_sentencepiece(writer: GGUFWriter, *, prefix: bool = False) -> None:
    """Put a SentencePiece BPE in the file."""
    writer.add_tokenizer_model("llama")
    writer.add_token_list(SPM_TOKENS)
    writer.add_token_scores(SPM_SCORES)
    writer.add_token_types(SPM_KINDS)
    writer.add_pad_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_unk_token_id(3)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(prefix)


def randomized(model: Any) -> Any:
    """The model with larger weights than a fresh one has, norms included, so that every part shows in the logits."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            drawn = torch.randn(weight.shape, generator=generator)
            if "norm" in name:
                weight.copy_(weight + 0.3 * drawn)
            else:
                weight.copy_(drawn * (1.0 if "embed" in name else weight.shape[-1] ** -0.5))
    return model.eval()


def tiny_llama(**fields: Any) -> Any:
    """A random Llama: 4 query heads, 2 KV heads."""
    settings = {"vocab_size": 400, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16}
    settings |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    settings |= {"tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_theta": 1e5}
    return randomized(LlamaForCausalLM(LlamaConfig(**settings | fields)))


def tiny_gemma3(**fields: Any) -> Any:
    """A random Gemma 3 with seven layers, the sixth of them global, head_dim apart from hidden size / heads."""
    settings = {"vocab_size": len(SPM_TOKENS), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7}
    settings |= {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "query_pre_attn_scalar": 32}
    settings |= {"sliding_window": WINDOW, "max_position_embeddings": 256, "rms_norm_eps": 1e-6}
    return randomized(Gemma3ForCausalLM(Gemma3TextConfig(**settings | fields)))


def round_weights(model: Any, kind: str) -> None:
    """Give the model the weights that survive the quantisation, so that its logits are the ones to expect."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" not in name:
                stored = gguf.quants.quantize(weight.numpy(), GGMLQuantizationType[kind])
                weight.copy_(torch.from_numpy(gguf.quants.dequantize(stored, GGMLQuantizationType[kind]).copy()))


def write(model: Any, path: Path, kind: str = "F32", edit: Edit | None = None, drop: str = "") -> Path:
    """Write the model as llama.cpp would: q and k rows interleaved for `llama`, norms as 1 + w for `gemma3`.

    `edit` adds key/values, a tokenizer for one; the tensor named `drop` is left out.
    """
    settings = model.config
    arch = "llama" if settings.model_type == "llama" else "gemma3"
    writer = GGUFWriter(path, arch)
    writer.add_block_count(settings.num_hidden_layers)
    writer.add_context_length(settings.max_position_embeddings)
    writer.add_embedding_length(settings.hidden_size)
    writer.add_feed_forward_length(settings.intermediate_size)
    writer.add_head_count(settings.num_attention_heads)
    writer.add_head_count_kv(settings.num_key_value_heads)
    writer.add_layer_norm_rms_eps(settings.rms_norm_eps)
    if arch == "llama":
        writer.add_rope_freq_base(settings.rope_parameters["rope_theta"])
        writer.add_rope_dimension_count(settings.head_dim)
    else:
        writer.add_rope_freq_base(1e6)
        writer.add_sliding_window(settings.sliding_window)
        writer.add_key_length(settings.head_dim)
        writer.add_value_length(settings.head_dim)
    if edit is not None:
        edit(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], settings.num_hidden_layers)
    for name, weight in model.named_parameters():
        stem = names.get_name(name, try_suffixes=(".weight",))
        values = weight.detach().numpy()
        if "norm" in name:
            writer.add_tensor(stem, values + np.float32(arch == "gemma3"))
        elif stem != drop:
            heads = {"q_proj": settings.num_attention_heads, "k_proj": settings.num_key_value_heads}
            count = heads.get(name.split(".")[-2], 0) if arch == "llama" else 0
            if count:
                values = values.reshape(count, 2, -1, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
            data = gguf.quants.quantize(np.ascontiguousarray(values), GGMLQuantizationType[kind])
            writer.add_tensor(stem, data, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_llama(path: Path, edit: Edit | None = None, **fields: Any) -> Path:
    """A small complete llama file with a byte-level tokenizer."""

    def full(writer: GGUFWriter) -> None:
        add_byte_level(writer, byte_level(pre_tokenizers.Digits(individual_digits=True)), "smollm")
        if edit is not None:
            edit(writer)

    return write(tiny_llama(num_hidden_layers=1, **fields), path, edit=full)
