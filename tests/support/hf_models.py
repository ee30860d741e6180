"""Tiny random models of transformers, one of each kind of layer the decoder knows; every weight has an effect."""

from typing import Any

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

WINDOW = 8
VOCAB = 97
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
WINDOWED: dict[str, Any] = {
    **SIZES,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "full_attention"],
}
GEMMA4: dict[str, Any] = {**WINDOWED, "global_head_dim": 16, "hidden_size_per_layer_input": 0}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
KINDS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "llama, tied, llama3 rope": lambda: LlamaForCausalLM(
        LlamaConfig(**SIZES, tie_word_embeddings=True, rope_parameters=LLAMA3)
    ),
    # both soft-caps; only transformers' eager attention applies the one on attention logits
    "gemma 2": lambda: Gemma2ForCausalLM(
        Gemma2Config(
            **WINDOWED,
            query_pre_attn_scalar=8,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
            attn_implementation="eager",
        )
    ),
    "gemma 3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**WINDOWED, query_pre_attn_scalar=16)),
    "gemma 3, linear rope, soft-cap": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**WINDOWED, rope_scaling={"rope_type": "linear", "factor": 8.0}, final_logit_softcapping=3.0)
    ),
    "gemma 4": lambda: Gemma4ForCausalLM(Gemma4TextConfig(**GEMMA4, final_logit_softcapping=3.0)),
    "gemma 4, K = V": lambda: Gemma4ForCausalLM(
        Gemma4TextConfig(**GEMMA4, attention_k_eq_v=True, num_global_key_value_heads=1)
    ),
}


def model(kind: str, seed: int = 0) -> PreTrainedModel:
    """A model of this kind in float32, norms and layer scalars not at the 1 or 0 they begin with."""
    torch.manual_seed(seed)
    made = KINDS[kind]().eval()
    with torch.no_grad():
        for name, weight in [*made.named_parameters(), *made.named_buffers()]:
            if "norm" in name:
                weight.add_(0.3 * torch.randn_like(weight))
            elif name.endswith("layer_scalar"):
                weight.fill_(0.7)
            elif weight.dim() == 2:
                weight.mul_(6.0)
    return made
