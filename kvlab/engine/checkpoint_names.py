"""Which tensors of a Hugging Face checkpoint make up each of the decoder's matrices."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvlab.engine.config import DecoderConfig
from kvlab.engine.decoder import has_shared_value, is_projection, weight_shapes


@dataclass(frozen=True, slots=True)
class Part:
    """One stored tensor: its name and shape in the checkpoint. `rows`: how many of the fused weight it fills there,
    before the decoder turns matrices round to `[in, out]`."""

    name: str
    shape: tuple[int, ...]
    rows: int


def parts(config: DecoderConfig) -> dict[str, list[Part]]:
    """The decoder's weights by name, each with the stored tensors that lie in it, in order."""
    found = {}
    for ours, shape in weight_shapes(config).items():
        stored_shape = shape[::-1] if is_projection(ours) else shape
        if ours.startswith("layers."):
            _, layer, name = ours.split(".")
            found[ours] = _layer_parts(config, int(layer), name, stored_shape)
        else:
            embedding = "model.embed_tokens.weight"
            head = embedding if config.tied else "lm_head.weight"
            name = {"embedding": embedding, "norm": "model.norm.weight", "head": head}[ours]
            found[ours] = [Part(name, stored_shape, stored_shape[0])]
    return found


def _layer_parts(config: DecoderConfig, layer: int, name: str, shape: tuple[int, ...]) -> list[Part]:
    prefix = f"model.layers.{layer}."
    match name:
        case "qkv":
            heads = {"q": config.shape.q_heads, "k": config.kv_heads(layer), "v": config.kv_heads(layer)}
            if has_shared_value(config, layer):
                del heads["v"]
            rows = {each: count * config.head_dim(layer) for each, count in heads.items()}
            return [Part(f"{prefix}self_attn.{each}_proj.weight", (n, shape[1]), n) for each, n in rows.items()]
        case "gate_up":
            half = shape[0] // 2
            return [Part(f"{prefix}mlp.{each}_proj.weight", (half, shape[1]), half) for each in ("gate", "up")]
        case "head_norm":
            return [Part(f"{prefix}self_attn.{each}_norm.weight", shape[1:], 1) for each in ("q", "k")]
    before_mlp = "pre_feedforward_layernorm" if config.family.four_norms else "post_attention_layernorm"
    stored = {
        "out": "self_attn.o_proj.weight",
        "down": "mlp.down_proj.weight",
        "scalar": "layer_scalar",
        "attention_norm": "input_layernorm.weight",
        "post_attention_norm": "post_attention_layernorm.weight",
        "mlp_norm": f"{before_mlp}.weight",
        "post_mlp_norm": "post_feedforward_layernorm.weight",
    }
    return [Part(f"{prefix}{stored[name]}", shape, shape[0])]


_OTHER_MODALITY = re.compile(r"(model\.)?(vision_tower|audio_tower|multi_modal_projector|embed_vision|embed_audio)\.")


def canonical(name: str) -> str | None:
    """A stored name as the text model alone has it; None for a tensor that no text needs (pictures, sound, caches)."""
    if _OTHER_MODALITY.match(name) or name.endswith("rotary_emb.inv_freq"):
        return None
    name = name.removeprefix("language_model.")
    return name.replace("model.language_model.", "model.", 1)
