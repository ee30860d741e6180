"""Model shapes: how many bytes of KV one token costs, per kind of layer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from kvlab.errors import InvalidInput, positive


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers whose KV is kept and dropped together.

    `window_tokens` is None where a query may read the whole context. `bytes_per_token` is the KV of one token
    over all `layers` of the group.
    """

    name: str
    pool: str
    layers: tuple[int, ...]
    window_tokens: int | None
    bytes_per_token: int

    def first_readable(self, length: int) -> int:
        """First position that the query at position `length` can read; earlier ones are dead in this group."""
        return 0 if self.window_tokens is None else max(0, length - self.window_tokens + 1)


@dataclass(frozen=True, slots=True)
class KVHeads:
    """KV heads of one layer kind."""

    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a serving engine needs to know of a model to lay out its KV.

    `kinds` has one entry a layer, "global" or "sliding". `kv_tensors` is how many tensors a token stores per layer
    (2: K and V). `dtype_bytes` is the width of one stored KV value. `sources` says where the numbers come from.
    """

    name: str
    kinds: tuple[str, ...]
    window_tokens: int | None
    q_heads: int
    heads: Mapping[str, KVHeads]
    kv_tensors: int
    dtype_bytes: int
    hidden_size: int
    vocab_size: int
    max_positions: int
    params: int | None
    sources: tuple[str, ...]

    def __post_init__(self) -> None:
        positive(f"layers of {self.name}", len(self.kinds))
        missing = set(self.kinds) - set(self.heads)
        if missing:
            raise InvalidInput(f"{self.name} has {sorted(missing)} layers but no KV heads for them")
        if "sliding" in self.kinds and self.window_tokens is None:
            raise InvalidInput(f"{self.name} has sliding layers but no window; give sliding_window")

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return len(self.kinds)

    def layer_bytes_per_token(self, kind: str) -> int:
        """KV bytes of one token in one layer of this kind."""
        heads = self.heads[kind]
        return self.kv_tensors * heads.kv_heads * heads.head_dim * self.dtype_bytes

    def kind_bytes_per_token(self, kind: str) -> int:
        """KV bytes of one token over all layers of this kind (0 where there are none)."""
        return self.kinds.count(kind) * self.layer_bytes_per_token(kind) if kind in self.kinds else 0

    @property
    def bytes_per_token(self) -> int:
        """KV bytes of one token over all layers."""
        return sum(self.kind_bytes_per_token(kind) for kind in ("global", "sliding"))

    def groups(self, pool: str = "full") -> tuple[LayerGroup, ...]:
        """The layer groups of this shape, global first, all in one pool."""
        found = []
        for kind in ("global", "sliding"):
            layers = tuple(i for i, k in enumerate(self.kinds) if k == kind)
            if layers:
                window = self.window_tokens if kind == "sliding" else None
                found.append(LayerGroup(kind, pool, layers, window, self.kind_bytes_per_token(kind)))
        return tuple(found)

    @classmethod
    def preset(cls, name: str) -> ModelShape:
        """A shape that ships with kvlab (`presets()` lists them); `InvalidInput` names the known ones."""
        try:
            return _presets()[name]
        except KeyError:
            raise InvalidInput(f"no preset named {name!r}; there are {', '.join(sorted(_presets()))}") from None

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | str | Path, name: str | None = None) -> ModelShape:
        """The shape of a Hugging Face `config.json` (a mapping, the file, or the folder that holds it).

        Multimodal configurations are read through their `text_config`. Raises `InvalidInput` on a missing file,
        broken JSON, or a missing field (which is named).
        """
        if isinstance(config, Mapping):
            fields = config
        else:
            fields, name = _read_config(Path(config)), name or str(config)
        text = fields.get("text_config") or fields
        fields = {**{each: fields.get(each) for each in ("dtype", "torch_dtype")}, **text}
        return _parse_config(fields, name or str(fields.get("_name_or_path") or fields.get("model_type", "config")))


def presets() -> list[str]:
    """Names of the shapes that ship with kvlab."""
    return sorted(_presets())


@cache
def _presets() -> dict[str, ModelShape]:
    raw = yaml.safe_load(files("kvlab").joinpath("data/model_shapes.yaml").read_text())
    return {name: _from_preset(name, entry) for name, entry in raw.items()}


def _from_preset(name: str, entry: Mapping[str, Any]) -> ModelShape:
    layers = int(entry["layers"])
    pattern = list(entry["pattern"])
    return ModelShape(
        name=name,
        kinds=tuple((pattern * layers)[:layers]),
        window_tokens=entry["window"],
        q_heads=entry["q_heads"],
        heads={kind: KVHeads(**entry[kind]) for kind in ("global", "sliding") if kind in entry},
        kv_tensors=entry["kv_tensors"],
        dtype_bytes=entry["dtype_bytes"],
        hidden_size=entry["hidden_size"],
        vocab_size=entry["vocab_size"],
        max_positions=entry["max_positions"],
        params=entry["params"],
        sources=tuple(entry["sources"]),
    )


def _read_config(path: Path) -> Mapping[str, Any]:
    path = path / "config.json" if path.is_dir() else path
    try:
        loaded = json.loads(path.read_text())
    except OSError as error:
        raise InvalidInput(f"cannot read a model configuration from {path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidInput(f"{path} is not JSON: {error}") from error
    if not isinstance(loaded, Mapping):
        raise InvalidInput(f"{path} holds a {type(loaded).__name__}, not a model configuration")
    return loaded


# Every n-th layer is global, where a family's configurations leave it to the class default.
_GLOBAL_EVERY = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6}
_UNSIZED = {"kv_lora_rank": "keeps one latent vector instead of K and V", "num_kv_shared_layers": "shares KV of layers"}
_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1}


def _parse_config(config: Mapping[str, Any], name: str) -> ModelShape:
    def field(*names: str, default: int | None = None) -> int:
        for each in names:
            if config.get(each) is not None:
                return positive(f"{each} of {name}", config[each])
        if default is None:
            raise InvalidInput(f"{name} has no {' or '.join(names)}; is it the text model's config.json?")
        return default

    for each, what in _UNSIZED.items():
        if config.get(each):
            raise InvalidInput(f"{name} {what} ({each} = {config[each]}); kvlab cannot size that yet")
    family = str(config.get("model_type"))
    layers = field("num_hidden_layers", "n_layer")
    hidden = field("hidden_size", "n_embd")
    q_heads = field("num_attention_heads", "n_head")
    kv_heads = field("num_key_value_heads", default=q_heads)
    head_dim = field("head_dim", default=None if family.startswith("gemma") else hidden // q_heads)
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    if dtype not in _DTYPE_BYTES:
        raise InvalidInput(f"{name} stores {dtype}; kvlab knows {', '.join(_DTYPE_BYTES)}")
    kinds = _layer_kinds(config, layers)
    heads = {kind: KVHeads(kv_heads, head_dim) for kind in set(kinds)}
    if "global" in heads:
        heads["global"] = KVHeads(
            field("num_global_key_value_heads", default=kv_heads), field("global_head_dim", default=head_dim)
        )
    return ModelShape(
        name=name,
        kinds=kinds,
        window_tokens=field("sliding_window") if "sliding" in kinds else None,
        q_heads=q_heads,
        heads=heads,
        kv_tensors=2,
        dtype_bytes=_DTYPE_BYTES[dtype],
        hidden_size=hidden,
        vocab_size=field("vocab_size"),
        max_positions=field("max_position_embeddings", "n_positions", default=2048),
        params=None,
        sources=(name,),
    )


def _layer_kinds(config: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    listed = config.get("layer_types")
    if listed is not None:
        names = {"full_attention": "global", "sliding_attention": "sliding"}
        unknown = set(listed) - set(names)
        if unknown or len(listed) != layers:
            raise InvalidInput(
                f"layer_types lists {len(listed)} layers of {sorted(set(listed))}; expected {layers} of {sorted(names)}"
            )
        return tuple(names[each] for each in listed)
    every = config.get("sliding_window_pattern", _GLOBAL_EVERY.get(str(config.get("model_type"))))
    if every is not None and config.get("sliding_window") is not None:
        positive("sliding_window_pattern", every)
        return tuple("global" if (i + 1) % every == 0 else "sliding" for i in range(layers))
    slides = config.get("sliding_window") is not None and config.get("use_sliding_window", True)
    first = config.get("max_window_layers") or 0
    return tuple("sliding" if slides and i >= first else "global" for i in range(layers))
