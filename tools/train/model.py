"""The model's configuration, as `transformers` reads it."""

from __future__ import annotations

from train.bpe import BOS, EOS, PAD

VOCAB_SIZE = 2048
WINDOW_TOKENS = 64
MAX_POSITIONS = 1024
LAYER_TYPES = ("sliding_attention", "sliding_attention", "full_attention") * 2


def config() -> dict[str, object]:
    """A `gemma3_text` configuration of 2.87 million parameters: two in three layers read 64 tokens."""
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 192,
        "intermediate_size": 544,
        "num_hidden_layers": len(LAYER_TYPES),
        "layer_types": list(LAYER_TYPES),
        "sliding_window": WINDOW_TOKENS,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": MAX_POSITIONS,
        "rope_theta": 100000.0,
        "rope_local_base_freq": 10000.0,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "bos_token_id": BOS,
        "use_cache": True,
        "dtype": "float32",
    }
