"""A decoder's configuration, read from a Hugging Face `config.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from kvlab.engine.families import FAMILIES, Family, completed, count
from kvlab.engine.rope import Rope, above_zero
from kvlab.errors import InvalidInput
from kvlab.shapes import ModelShape

ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class DecoderConfig:
    """What `Decoder` needs to know of a model.

    `scale` multiplies q k; `softcap` and `final_softcap` cap attention logits and output logits (None: no cap).
    `value_is_key`: the global layers have no V projection and take K's (Gemma 4). `source` holds the Hugging Face
    fields, completed with the family's defaults; `export` writes them back.
    """

    shape: ModelShape
    family: Family
    intermediate_size: int
    activation: str
    norm_eps: float
    tied: bool
    scale: float
    softcap: float | None
    final_softcap: float | None
    value_is_key: bool
    ropes: Mapping[str, Rope]
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    dtype: torch.dtype
    source: Mapping[str, Any] = field(repr=False)

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | str | Path, name: str | None = None) -> DecoderConfig:
        """From a configuration: a mapping, the `config.json`, or the folder that holds it.

        Of a multimodal configuration the `text_config` is read; the end-of-text ids of a `generation_config.json`
        beside the file come first, as in transformers. Raises `InvalidInput`, naming the field: a family or a
        feature that is not supported, a value that makes no sense.
        """
        if isinstance(config, Mapping):
            return _parse(config, name or str(config.get("_name_or_path") or config.get("model_type", "config")))
        path = Path(config)
        path = path / "config.json" if path.is_dir() else path
        fields = dict(read_json(path))
        generation = path.parent / "generation_config.json"
        if generation.exists() and (eos := read_json(generation).get("eos_token_id")) is not None:
            fields["eos_token_id"] = eos
        return _parse(fields, name or path.parent.name)

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return self.shape.layers

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return self.shape.hidden_size

    @property
    def vocab_size(self) -> int:
        """Number of token ids the model knows."""
        return self.shape.vocab_size

    @property
    def max_positions(self) -> int:
        """Longest sequence the model was made for, in tokens."""
        return self.shape.max_positions

    def kind(self, layer: int) -> str:
        """ "global" or "sliding"."""
        return self.shape.kinds[layer]

    def window_tokens(self, layer: int) -> int | None:
        """How many tokens a query of this layer reads, its own included; None: all before it."""
        return self.shape.window_tokens if self.kind(layer) == "sliding" else None

    def head_dim(self, layer: int) -> int:
        """Width of one head in this layer."""
        return self.shape.heads[self.kind(layer)].head_dim

    def kv_heads(self, layer: int) -> int:
        """KV heads of this layer."""
        return self.shape.heads[self.kind(layer)].kv_heads

    def with_dtype(self, dtype: torch.dtype) -> DecoderConfig:
        """The same model in another dtype; the bytes of its KV follow."""
        name = next((each for each, known in DTYPES.items() if known == dtype), None)
        if name is None:
            raise InvalidInput(f"a decoder computes in {', '.join(DTYPES)}, not {dtype}")
        return replace(
            self,
            dtype=dtype,
            shape=replace(self.shape, dtype_bytes=dtype.itemsize),
            source={**self.source, "dtype": name},
        )


def read_json(path: Path) -> Mapping[str, Any]:
    """The object in a JSON file; `InvalidInput` names the file that is missing, broken or something else."""
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidInput(f"{path} is not JSON: {error}") from error
    if not isinstance(loaded, Mapping):
        raise InvalidInput(f"{path} holds a {type(loaded).__name__}, not an object")
    return loaded


def _parse(config: Mapping[str, Any], name: str) -> DecoderConfig:
    fields = completed(config, name)
    family = FAMILIES[fields["model_type"]]
    if fields["dtype"] not in DTYPES:
        raise InvalidInput(f"{name}: dtype {fields['dtype']!r} is not supported; kvlab computes in {', '.join(DTYPES)}")
    shape = ModelShape.from_config(fields, name)
    for kind, heads in shape.heads.items():
        if shape.q_heads % heads.kv_heads:
            raise InvalidInput(f"{name}: {shape.q_heads} query heads cannot share {heads.kv_heads} KV heads ({kind})")
        if heads.head_dim % 2:
            raise InvalidInput(f"{name}: head_dim {heads.head_dim} ({kind}) is odd; rotary positions turn pairs")
    activation = fields[family.activation_field]
    if activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise InvalidInput(f"{name}: {family.activation_field} {activation!r} is not supported; kvlab knows {known}")
    return DecoderConfig(
        shape=shape,
        family=family,
        intermediate_size=count(fields, "intermediate_size", name),
        activation=activation,
        norm_eps=above_zero(f"{name}: rms_norm_eps", fields["rms_norm_eps"]),
        tied=bool(fields["tie_word_embeddings"]),
        scale=_scale(fields, family, shape, name),
        softcap=_cap(fields, "attn_logit_softcapping", name),
        final_softcap=_cap(fields, "final_logit_softcapping", name),
        value_is_key=bool(fields.get("attention_k_eq_v")),
        ropes=_ropes(fields, family, name, sorted(set(shape.kinds))),
        bos_token_id=next(iter(_token_ids(fields, "bos_token_id", name)), None),
        eos_token_ids=_token_ids(fields, "eos_token_id", name),
        dtype=DTYPES[fields["dtype"]],
        source=fields,
    )


def _scale(fields: Mapping[str, Any], family: Family, shape: ModelShape, name: str) -> float:
    if family.scale_from == "one":
        return 1.0
    if family.scale_from == "head_dim":
        return 1.0 / math.sqrt(shape.heads[shape.kinds[0]].head_dim)
    return 1.0 / math.sqrt(above_zero(f"{name}: {family.scale_from}", fields[family.scale_from]))


def _cap(fields: Mapping[str, Any], field: str, name: str) -> float | None:
    return None if fields.get(field) is None else above_zero(f"{name}: {field}", fields[field])


def _ropes(fields: Mapping[str, Any], family: Family, name: str, kinds: list[str]) -> dict[str, Rope]:
    """`rope_parameters` (flat, or by layer type), or the older `rope_theta`, `rope_local_base_freq`, `rope_scaling`."""
    given: Mapping[str, Any] = fields.get("rope_parameters") or {}
    layer_types = {"global": "full_attention", "sliding": "sliding_attention"}
    found = {}
    for kind in kinds:
        older, base = family.rope_fields[kind]
        if not given.keys().isdisjoint(layer_types.values()):
            own = given.get(layer_types[kind]) or {}
        else:  # what is not said by layer type is said of all layers, or of the global ones
            scaling = given or fields.get("rope_scaling") or {}
            own = {"rope_theta": fields.get(older), **(scaling if kind == "global" or family.one_rope else {})}
            if not given:
                own = {**family.rope_defaults.get(kind, {}), **own}
        found[kind] = Rope.parse(own, base, f"{name}: rope of the {kind} layers")
    return found


def _token_ids(fields: Mapping[str, Any], field: str, name: str) -> tuple[int, ...]:
    value = fields.get(field)
    ids = () if value is None else tuple(value) if isinstance(value, list | tuple) else (value,)
    for each in ids:
        if isinstance(each, bool) or not isinstance(each, int) or each < 0:
            raise InvalidInput(f"{name}: {field} must be a token id (or a list of them), not {value!r}")
    return ids
