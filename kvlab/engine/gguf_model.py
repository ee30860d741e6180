"""What the tensors of a GGUF file are called and how they differ from a Hugging Face checkpoint, by architecture.

Layout of the two architectures: the tables of the package `gguf` and llama.cpp's converter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kvlab.engine.gguf_file import GGUFFile

ARCHITECTURES = ("llama", "gemma3")
_LLAMA3_FACTORS = "rope_freqs.weight"
_GEMMA3_GLOBAL_EVERY = 6
_GEMMA3_LOCAL_BASE = 10_000.0
_GEMMA3_27B_LAYERS = 62  # the one size whose queries are scaled by hidden size / heads


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the converted checkpoint: its name and shape there, and its `source` in the GGUF file.

    `change` is what must be undone: `interleaved` rows of `heads` heads (their halves belong apart), or a norm weight
    that holds 1 + w.
    """

    name: str
    source: str
    shape: tuple[int, ...]
    change: Literal["", "interleaved", "one plus"] = ""
    heads: int = 0

    def order(self) -> NDArray[np.intp] | None:
        """The order in which the source's rows must be read, None for as they are.

        llama.cpp rotates neighbours (0, 1), (2, 3) ...; Hugging Face rotates (0, d/2), (1, d/2 + 1) ...
        """
        if self.change != "interleaved":
            return None
        rows = np.arange(self.shape[0], dtype=np.intp)
        return rows.reshape(self.heads, -1, 2).swapaxes(1, 2).reshape(-1)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers both architectures have."""

    layers: int
    hidden: int
    inner: int
    q_heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @classmethod
    def of(cls, file: GGUFFile) -> Sizes:
        """Read from the key/values; the vocabulary from the embedding, which must be there."""
        arch = architecture(file)

        def number(key: str, default: int | None = None) -> int:
            found = file.value(f"{arch}.{key}", int, default)
            if found < 1:
                file.refuse(f"has {found} for {arch}.{key}; expected at least 1")
            return found

        hidden, q_heads = number("embedding_length"), number("attention.head_count")
        head_dim = number("attention.key_length", hidden // q_heads)
        for key in ("attention.value_length", "rope.dimension_count"):
            if number(key, head_dim) != head_dim:
                file.refuse(f"has {arch}.{key} {number(key)} beside a head_dim of {head_dim}; they must be equal")
        if "token_embd.weight" not in file.tensors:
            file.refuse("lacks the tensor token_embd.weight")
        if number("block_count") > len(file.tensors):
            file.refuse(f"has {len(file.tensors)} tensors, too few for {number('block_count'):,} layers")
        return cls(
            layers=number("block_count"),
            hidden=hidden,
            inner=number("feed_forward_length"),
            q_heads=q_heads,
            kv_heads=number("attention.head_count_kv", q_heads),
            head_dim=head_dim,
            vocab=file.tensors["token_embd.weight"].shape[0],
        )


def architecture(file: GGUFFile) -> str:
    """`llama` or `gemma3`; `InvalidInput` names any other."""
    arch = file.value("general.architecture", str)
    if arch not in ARCHITECTURES:
        file.refuse(f"is of the architecture {arch!r}; kvlab reads {' and '.join(ARCHITECTURES)} from GGUF")
    return arch


def config(file: GGUFFile, dtype: str) -> dict[str, Any]:
    """The `config.json` of the checkpoint. Raises `InvalidInput` for what the decoder has no place for."""
    arch, sizes = architecture(file), Sizes.of(file)
    for key in ("expert_count", "attention.sliding_window") if arch == "llama" else ("expert_count",):
        if found := file.value(f"{arch}.{key}", int, 0):
            file.refuse(f"has {arch}.{key} {found}; kvlab does not read such a {arch} model")
    made: dict[str, Any] = {
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.inner,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.q_heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "vocab_size": sizes.vocab,
        "max_position_embeddings": file.value(f"{arch}.context_length", int),
        "rms_norm_eps": _shortest(file.value(f"{arch}.attention.layer_norm_rms_epsilon", float)),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": False,
        "dtype": dtype,
        **{f"{each}_token_id": special_id(file, each) for each in ("bos", "eos", "pad")},
    }
    return made | (_llama(file) if arch == "llama" else _gemma3(file, sizes))


def special_id(file: GGUFFile, name: str) -> int | None:
    """The id of the token `bos`, `eos`, `eot`, `eom`, `pad` or `unk`, None where the file names none."""
    key = f"tokenizer.ggml.{ {'pad': 'padding', 'unk': 'unknown'}.get(name, name) }_token_id"
    if key not in file:
        return None
    found, tokens = file.value(key, int), file.count("tokenizer.ggml.tokens")
    if not 0 <= found < tokens:
        file.refuse(f"has {found} for {key}, and {tokens} tokens")
    return found


def end_ids(file: GGUFFile) -> list[int]:
    """The ids that end an answer: end of text, of a turn, of a message."""
    found = {special_id(file, each) for each in ("eos", "eot", "eom")}
    return sorted(each for each in found if each is not None)


def parts(file: GGUFFile) -> list[Part]:
    """Every tensor of the checkpoint. Raises `InvalidInput` naming a tensor that is missing, misshapen or unknown."""
    sizes = Sizes.of(file)
    listed = list(_parts(architecture(file), sizes, tied="output.weight" not in file.tensors))
    for part in listed:
        stored = file.tensors.get(part.source)
        if stored is None:
            file.refuse(f"lacks the tensor {part.source}")
        if stored.shape != part.shape:
            file.refuse(f"has {part.source} of shape {stored.shape}; its header means {part.shape}")
    unknown = sorted(set(file.tensors) - {part.source for part in listed} - {_LLAMA3_FACTORS})
    if unknown:
        some = ", ".join(unknown[:3]) + (" ..." if len(unknown) > 3 else "")
        file.refuse(f"has tensors kvlab has no place for: {some}")
    return listed


def _llama(file: GGUFFile) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "mlp_bias": False,
        "rope_parameters": _rope(file, "llama", 10_000.0),
    }


def _gemma3(file: GGUFFile, sizes: Sizes) -> dict[str, Any]:
    every = file.value("gemma3.attention.sliding_window_pattern", int, _GEMMA3_GLOBAL_EVERY)
    if every < 1:
        file.refuse(f"has gemma3.attention.sliding_window_pattern {every}; expected at least 1")
    kinds = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(sizes.layers)]
    local = {"rope_type": "default", "rope_theta": file.value("gemma3.rope.freq_base_swa", float, _GEMMA3_LOCAL_BASE)}
    scalar = sizes.hidden // sizes.q_heads if sizes.layers == _GEMMA3_27B_LAYERS else sizes.head_dim
    caps = {
        each: file.value(f"gemma3.{each}", float, 0.0) or None
        for each in ("attn_logit_softcapping", "final_logit_softcapping")
    }
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": file.value("gemma3.attention.sliding_window", int),
        "layer_types": kinds,
        "query_pre_attn_scalar": scalar,
        "rope_parameters": {"full_attention": _rope(file, "gemma3", 1e6), "sliding_attention": local},
        **caps,
    }


def _rope(file: GGUFFile, arch: str, default: float) -> dict[str, Any]:
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": file.value(f"{arch}.rope.freq_base", float, default)}
    if _LLAMA3_FACTORS in file.tensors:
        return found | _llama3(file, found["rope_theta"])
    scaling = file.value(f"{arch}.rope.scaling.type", str, "none")
    if scaling == "linear":
        factor = file.value(f"{arch}.rope.scaling.factor", float)
        return found | {"rope_type": "linear", "factor": factor}
    if scaling != "none":
        file.refuse(f"stretches RoPE by {scaling!r}; kvlab reads none and linear from GGUF")
    return found


def _llama3(file: GGUFFile, base: float) -> dict[str, Any]:
    """Llama 3.1's scaling. The file holds only its outcome, so the parameters of all its releases must give that."""
    stored = np.concatenate([each.reshape(-1) for each in file.chunks(file.tensors[_LLAMA3_FACTORS])])
    made = {"rope_type": "llama3", "factor": float(stored.max()), "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    turns = 8192 * base ** (-np.arange(stored.size) / stored.size) / (2 * np.pi)
    smooth = np.clip((turns - 1.0) / 3.0, 0.0, 1.0)
    if not np.allclose(1 / ((1 - smooth) / stored.max() + smooth), stored, rtol=1e-3):
        file.refuse(f"has {_LLAMA3_FACTORS} other than Llama 3.1's; kvlab cannot tell how its RoPE is scaled")
    return made | {"original_max_position_embeddings": 8192}


def _shortest(value: float) -> float:
    # 1e-06 was stored as a float32; its float64 value would be 9.999999974752427e-07.
    return float(str(np.float32(value)))


def _parts(arch: str, sizes: Sizes, *, tied: bool) -> list[Part]:
    hidden, inner = sizes.hidden, sizes.inner
    q_rows, kv_rows = sizes.q_heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    turned: Literal["", "interleaved"] = "interleaved" if arch == "llama" else ""
    norm: Literal["", "one plus"] = "one plus" if arch == "gemma3" else ""
    listed = [Part("model.embed_tokens.weight", "token_embd.weight", (sizes.vocab, hidden))]
    for i in range(sizes.layers):
        to, of = f"model.layers.{i}.", f"blk.{i}."
        for name in _NORMS[arch]:
            width = sizes.head_dim if name.startswith("self_attn") else hidden
            listed.append(Part(f"{to}{name}.weight", f"{of}{_NORMS[arch][name]}.weight", (width,), norm))
        listed += [
            Part(f"{to}self_attn.q_proj.weight", f"{of}attn_q.weight", (q_rows, hidden), turned, sizes.q_heads),
            Part(f"{to}self_attn.k_proj.weight", f"{of}attn_k.weight", (kv_rows, hidden), turned, sizes.kv_heads),
            Part(f"{to}self_attn.v_proj.weight", f"{of}attn_v.weight", (kv_rows, hidden)),
            Part(f"{to}self_attn.o_proj.weight", f"{of}attn_output.weight", (hidden, q_rows)),
            Part(f"{to}mlp.gate_proj.weight", f"{of}ffn_gate.weight", (inner, hidden)),
            Part(f"{to}mlp.up_proj.weight", f"{of}ffn_up.weight", (inner, hidden)),
            Part(f"{to}mlp.down_proj.weight", f"{of}ffn_down.weight", (hidden, inner)),
        ]
    listed.append(Part("model.norm.weight", "output_norm.weight", (hidden,), norm))
    if not tied:
        listed.append(Part("lm_head.weight", "output.weight", (sizes.vocab, hidden)))
    return listed


_NORMS = {
    "llama": {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"},
    "gemma3": {
        "input_layernorm": "attn_norm",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
}
