"""The model families the decoder knows, and what a configuration of each leaves unsaid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvlab.errors import InvalidInput, positive


@dataclass(frozen=True, slots=True)
class Family:
    """What the layers of a family have in common.

    `architecture`: the class of transformers that loads it. `unit_offset`: a stored norm weight w means 1 + w.
    `four_norms`: attention and MLP are normed after, too. `qk_norm`: each query and key head is normed before it is
    turned; `value_norm`: each value head too, without a weight. `layer_scalar`: a stored number multiplies what leaves
    the layer. `global_every`: every n-th layer is global. `one_rope`: all layers turn alike. `rope_fields`: kind of
    layer -> the older field with its rotary base, and the base where none is given. `defaults`: what a configuration
    may leave out, with the values of transformers 5.24.
    """

    name: str
    architecture: str
    unit_offset: bool = False
    scaled_embedding: bool = False
    four_norms: bool = False
    qk_norm: bool = False
    value_norm: bool = False
    layer_scalar: bool = False
    scale_from: str = "head_dim"
    activation_field: str = "hidden_activation"
    global_every: int = 1
    one_rope: bool = False
    rope_fields: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    rope_defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)


_GEMMA: dict[str, Any] = {
    "vocab_size": 262144,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "final_logit_softcapping": None,
}

FAMILIES = {
    "llama": Family(
        "llama",
        "LlamaForCausalLM",
        activation_field="hidden_act",
        one_rope=True,
        rope_fields={"global": ("rope_theta", 1e4)},
        defaults={
            "hidden_act": "silu",
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "gemma2": Family(
        "gemma2",
        "Gemma2ForCausalLM",
        unit_offset=True,
        scaled_embedding=True,
        four_norms=True,
        scale_from="query_pre_attn_scalar",
        global_every=2,
        one_rope=True,
        rope_fields={"global": ("rope_theta", 1e4), "sliding": ("rope_theta", 1e4)},
        defaults={
            **_GEMMA,
            "vocab_size": 256000,
            "max_position_embeddings": 8192,
            "sliding_window": 4096,
            "query_pre_attn_scalar": 256,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
    ),
    "gemma3_text": Family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        unit_offset=True,
        scaled_embedding=True,
        four_norms=True,
        qk_norm=True,
        scale_from="query_pre_attn_scalar",
        global_every=6,
        rope_fields={"global": ("rope_theta", 1e6), "sliding": ("rope_local_base_freq", 1e4)},
        defaults={
            **_GEMMA,
            "vocab_size": 262208,
            "sliding_window": 4096,
            "query_pre_attn_scalar": 256,
            "attn_logit_softcapping": None,
        },
    ),
    "gemma4_text": Family(
        "gemma4_text",
        "Gemma4ForCausalLM",
        scaled_embedding=True,
        four_norms=True,
        qk_norm=True,
        value_norm=True,
        layer_scalar=True,
        scale_from="one",
        global_every=6,
        rope_fields={"global": ("rope_theta", 1e6), "sliding": ("rope_local_base_freq", 1e4)},
        rope_defaults={"global": {"rope_type": "proportional", "partial_rotary_factor": 0.25}},
        defaults={
            **_GEMMA,
            "sliding_window": 512,
            "global_head_dim": 512,
            "num_global_key_value_heads": None,
            "attention_k_eq_v": False,
            "hidden_size_per_layer_input": 256,
        },
    ),
}

_MULTIMODAL = {"gemma3": "gemma3_text", "gemma4": "gemma4_text"}
_BESIDE_TEXT = (  # what a multimodal configuration says of its text model outside of `text_config`
    "model_type",
    "dtype",
    "torch_dtype",
    "bos_token_id",
    "eos_token_id",
    "tie_word_embeddings",
    "quantization_config",
)
_OF_SOME_FAMILIES = (  # transformers reads these only in a family that has a default for them
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "global_head_dim",
    "num_global_key_value_heads",
    "attention_k_eq_v",
)
_UNSUPPORTED = {
    "enable_moe_block": "a mixture of experts",
    "num_experts": "a mixture of experts",
    "num_local_experts": "a mixture of experts",
    "num_kv_shared_layers": "layers that share KV",
    "hidden_size_per_layer_input": "per-layer input embeddings",
    "attention_bias": "projections with a bias",
    "mlp_bias": "projections with a bias",
    "quantization_config": "quantized weights",
}


def completed(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The text fields of a configuration with its family's defaults filled in, `layer_types` and `dtype` included.

    Raises `InvalidInput` naming an unsupported family or field.
    """
    text = config.get("text_config") or {}
    fields = {key: config[key] for key in _BESIDE_TEXT if key in config} | dict(text) if text else dict(config)
    model_type = str(fields.get("model_type"))
    model_type = _MULTIMODAL.get(model_type, model_type)
    if model_type not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise InvalidInput(f"{name} is a {model_type!r} model; kvlab's decoder knows the families {known}")
    family = FAMILIES[model_type]
    missing = {key: value for key, value in family.defaults.items() if key not in fields}
    ignored = set(_OF_SOME_FAMILIES) - set(family.defaults)
    fields = {key: value for key, value in fields.items() if key not in ignored}
    fields |= {**missing, "model_type": model_type}
    for key, what in _UNSUPPORTED.items():
        if fields.get(key):
            raise InvalidInput(f"{name} has {what} ({key} = {fields[key]!r}), which kvlab's decoder does not support")
    if fields.get("use_bidirectional_attention") not in (None, False, "vision"):
        given = fields["use_bidirectional_attention"]
        raise InvalidInput(
            f"{name} reads later tokens (use_bidirectional_attention = {given!r}); kvlab only serves causal models"
        )
    fields["layer_types"] = _layer_types(fields, family, name)
    fields["dtype"] = str(fields.get("dtype") or fields.get("torch_dtype") or "float32").removeprefix("torch.")
    fields.pop("torch_dtype", None)
    if model_type == "gemma4_text":
        _take_global_heads(fields, name)
    return fields


def count(fields: Mapping[str, Any], field_name: str, name: str) -> int:
    """A field that must be an integer of at least 1; where it is not, `InvalidInput` names it."""
    value: Any = fields.get(field_name)
    return positive(f"{name}: {field_name}", value)


def _layer_types(fields: Mapping[str, Any], family: Family, name: str) -> list[str]:
    layers = count(fields, "num_hidden_layers", name)
    every = family.global_every
    if every == 1:
        return ["full_attention"] * layers
    listed = fields.get("layer_types")
    if listed is not None:
        types = [str(each) for each in listed]
    else:
        for field_name in ("sliding_window_pattern", "_sliding_window_pattern"):
            if fields.get(field_name) is not None:
                every = count(fields, field_name, name)
        types = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers)]
    if family.name == "gemma4_text" and types and types[-1] != "full_attention":
        types[-1] = "full_attention"  # as transformers does, whatever the configuration says
    return types


def _take_global_heads(fields: dict[str, Any], name: str) -> None:
    """Gemma 4's global heads under the two fields `ModelShape` reads, from wherever the configuration keeps them."""
    by_layer = fields.pop("per_layer_config", None)
    if by_layer is not None:
        chosen = [i for i, kind in enumerate(fields["layer_types"]) if kind == "full_attention"]
        settings = [by_layer.get(str(i), by_layer.get(i, {})) for i in chosen]
        others = set(map(str, by_layer)) - set(map(str, chosen))
        known = {"head_dim", "num_key_value_heads"}
        if others or any(each != settings[0] or set(each) - known for each in settings):
            raise InvalidInput(
                f"{name}: per_layer_config must give the global layers {chosen}, and no others, one head_dim and one "
                f"num_key_value_heads; it says {by_layer}"
            )
        fields["global_head_dim"] = settings[0].get("head_dim", fields["head_dim"])
        fields["num_global_key_value_heads"] = settings[0].get("num_key_value_heads")
    elif not fields.get("attention_k_eq_v"):
        fields["num_global_key_value_heads"] = None  # transformers reads it only where K = V
