"""The decoder of the Llama and Gemma text families: one file, from token ids to logits.

Flat tokens: a step's tokens of all requests lie behind one another, `[tokens]`, and only `attend` knows whose they are.
Projections that read the same input are one matrix: `qkv` and `gate_up`. Matrices are `[in, out]`, the transpose of
what checkpoints hold: for the few rows of a decode step a CPU multiplies them faster so, in float32 up to twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvlab.engine.config import DecoderConfig
from kvlab.engine.rope import angles, signed, turn
from kvlab.errors import InvalidInput


class Attend(Protocol):
    """Attention of one layer over whatever the caller keeps as KV."""

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """queries `[tokens, q_heads, head_dim]`, keys and values `[tokens, kv_heads, head_dim]`, normed and turned;
        returns `[tokens, q_heads, head_dim]`. They may be strided views."""
        ...


def layer_shapes(config: DecoderConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one layer's weights. A norm weight is the factor itself: 1 + w where a family stores w."""
    hidden, wide, head_dim = config.hidden_size, config.intermediate_size, config.head_dim(layer)
    q_width, kv_width = config.shape.q_heads * head_dim, config.kv_heads(layer) * head_dim
    kv_tensors = 1 if has_shared_value(config, layer) else 2
    shapes: dict[str, tuple[int, ...]] = {
        "attention_norm": (hidden,),
        "qkv": (hidden, q_width + kv_tensors * kv_width),  # columns of Q, then K, then V
        "out": (q_width, hidden),
        "mlp_norm": (hidden,),
        "gate_up": (hidden, 2 * wide),
        "down": (wide, hidden),
    }
    if config.family.four_norms:
        shapes |= {"post_attention_norm": (hidden,), "post_mlp_norm": (hidden,)}
    if config.family.qk_norm:
        shapes["head_norm"] = (2, head_dim)  # row 0 for queries, row 1 for keys
    if config.family.layer_scalar:
        shapes["scalar"] = (1,)
    return shapes


def weight_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all weights of a decoder, as its `named_parameters` has them."""
    shapes: dict[str, tuple[int, ...]] = {}
    if not config.tied:
        shapes["embedding"] = (config.vocab_size, config.hidden_size)
    for layer in range(config.layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in layer_shapes(config, layer).items()}
    return shapes | {"norm": (config.hidden_size,), "head": (config.hidden_size, config.vocab_size)}


def is_norm(name: str) -> bool:
    """Whether a weight is a norm's: those stay float32 in every dtype, since 1 + w needs the digits."""
    return name.endswith("norm")


def is_projection(name: str) -> bool:
    """Whether a weight is an `[in, out]` matrix that activations are multiplied with."""
    return name.rpartition(".")[2] in ("qkv", "out", "gate_up", "down", "head")


def has_shared_value(config: DecoderConfig, layer: int) -> bool:
    """Whether V is K's projection in this layer."""
    return config.value_is_key and config.kind(layer) == "global"


def random_weights(config: DecoderConfig, generator: torch.Generator | None = None) -> dict[str, Tensor]:
    """Fresh weights on the CPU: norms 1, everything else normal with the configuration's `initializer_range` (0.02)."""
    deviation = float(config.source.get("initializer_range", 0.02))
    fresh = {}
    for name, shape in weight_shapes(config).items():
        if is_norm(name) or name.endswith("scalar"):
            fresh[name] = torch.ones(shape, dtype=torch.float32 if is_norm(name) else config.dtype)
        else:
            fresh[name] = torch.empty(shape, dtype=config.dtype).normal_(0.0, deviation, generator=generator)
    return fresh


class Layer(nn.Module):
    """One decoder layer: attention and a gated MLP, each normed before (and after, in four-norm families)."""

    attention_norm: nn.Parameter
    qkv: nn.Parameter
    out: nn.Parameter
    mlp_norm: nn.Parameter
    gate_up: nn.Parameter
    down: nn.Parameter
    post_attention_norm: nn.Parameter
    post_mlp_norm: nn.Parameter
    head_norm: nn.Parameter
    scalar: nn.Parameter
    head_rows: Tensor

    def __init__(self, config: DecoderConfig, index: int, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name in layer_shapes(config, index):
            self.register_parameter(name, nn.Parameter(weights[f"layers.{index}.{name}"], name != "scalar"))
        self.index = index
        self.kind = config.kind(index)
        self.family = config.family
        self.eps = config.norm_eps
        self.gelu = config.activation == "gelu_pytorch_tanh"
        self.q_heads, self.kv_heads = config.shape.q_heads, config.kv_heads(index)
        self.head_dim = config.head_dim(index)
        self.turned_heads = self.q_heads + self.kv_heads
        self.heads = self.turned_heads + (0 if has_shared_value(config, index) else self.kv_heads)
        rows = torch.tensor([0] * self.q_heads + [1] * self.kv_heads, device=self.qkv.device)
        self.register_buffer("head_rows", rows, persistent=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, attend: Attend) -> Tensor:
        """`[tokens, hidden]` -> `[tokens, hidden]`."""
        queries, keys, values = self._project(self._norm(x, self.attention_norm), cosine, sine)
        mixed = attend(self.index, queries, keys, values)
        change = mixed.reshape(x.shape[0], self.q_heads * self.head_dim) @ self.out
        if self.family.four_norms:
            change = self._norm(change, self.post_attention_norm)
        x = x + change
        change = self._mlp(self._norm(x, self.mlp_norm))
        if self.family.four_norms:
            change = self._norm(change, self.post_mlp_norm)
        x = x + change
        return x * self.scalar if self.family.layer_scalar else x

    def _project(self, x: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = (x @ self.qkv).view(x.shape[0], self.heads, self.head_dim)
        turned, values = heads[:, : self.turned_heads], heads[:, -self.kv_heads :]
        if self.family.qk_norm:
            normed = F.rms_norm((heads if self.family.value_norm else turned).float(), (self.head_dim,), None, self.eps)
            if self.family.value_norm:
                values = normed[:, -self.kv_heads :].to(x.dtype)
            turned = (normed[:, : self.turned_heads] * F.embedding(self.head_rows, self.head_norm)).to(x.dtype)
        turned = turn(turned, cosine, sine)
        return turned[:, : self.q_heads], turned[:, self.q_heads :], values

    def _mlp(self, x: Tensor) -> Tensor:
        gate, up = (x @ self.gate_up).chunk(2, -1)
        opened = F.gelu(gate, approximate="tanh") if self.gelu else F.silu(gate)
        return (opened * up) @ self.down

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.eps)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, in float32, returned in x's dtype."""
    if x.dtype == torch.float32:  # two calls less, and there are five norms a layer
        return F.rms_norm(x, x.shape[-1:], weight, eps)
    return F.rms_norm(x.float(), x.shape[-1:], weight, eps).to(x.dtype)


class Decoder(nn.Module):
    """A causal language model over flat tokens.

    `weights` are named and shaped as `weight_shapes` says (`random_weights` for training, `weights.load` for a
    checkpoint); the decoder computes where they lie. Its dtype is the configuration's: don't change it by `.to(dtype)`,
    which would round the norms and the rotary frequencies; load again instead.
    """

    embedding: nn.Parameter
    norm: nn.Parameter
    head: nn.Parameter
    frequencies: Tensor

    def __init__(self, config: DecoderConfig, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        _check(config, weights)
        self.config = config
        if not config.tied:
            self.embedding = nn.Parameter(weights["embedding"])
        self.layers = nn.ModuleList(Layer(config, index, weights) for index in range(config.layers))
        self.norm = nn.Parameter(weights["norm"])
        self.head = nn.Parameter(weights["head"])
        self.embedding_scale = 1.0
        if config.family.scaled_embedding:  # rounded to the dtype, as the families' own code does
            self.embedding_scale = float(torch.tensor(config.hidden_size**0.5).to(config.dtype))
        head_dims = {kind: config.shape.heads[kind].head_dim for kind in config.ropes}
        frequencies = torch.cat([signed(rope.frequencies(head_dims[kind])) for kind, rope in config.ropes.items()])
        self.head_dims = head_dims
        self.register_buffer("frequencies", frequencies.to(self.device), persistent=False)

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.head.device

    def hidden(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Token ids and their positions, `[tokens]` each -> `[tokens, hidden]`, the final norm applied.

        `attend` is called once a layer, in order. No shape depends on a value: one graph for each number of tokens.
        """
        if self.config.tied:  # a token's embedding is its column of the head
            x = self.head.index_select(1, token_ids).t().contiguous()
        else:
            x = F.embedding(token_ids, self.embedding)
        if self.embedding_scale != 1.0:
            x = x * self.embedding_scale
        cosine, sine = angles(positions, self.frequencies, x.dtype)
        widths = list(self.head_dims.values())
        pairs = zip(torch.split(cosine, widths, -1), torch.split(sine, widths, -1), strict=True)
        turns = dict(zip(self.head_dims, pairs, strict=True))
        for layer in self.layers:
            x = layer(x, *turns[layer.kind], attend)  # type: ignore[index]
        return rms_norm(x, self.norm, self.config.norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """`[rows, hidden]` -> `[rows, vocab]`, the final soft-cap applied."""
        logits = hidden @ self.head
        cap = self.config.final_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap


def _check(config: DecoderConfig, weights: Mapping[str, Tensor]) -> None:
    expected = weight_shapes(config)
    if missing := sorted(set(expected) - set(weights)):
        raise InvalidInput(f"{config.shape.name}: no weights for {', '.join(missing)}")
    if unexpected := sorted(set(weights) - set(expected)):
        raise InvalidInput(f"{config.shape.name}: weights that the decoder has no place for: {', '.join(unexpected)}")
    for name, shape in expected.items():
        if tuple(weights[name].shape) != shape:
            raise InvalidInput(f"{config.shape.name}: {name} is {tuple(weights[name].shape)}, expected {shape}")
        dtype = torch.float32 if is_norm(name) else config.dtype
        if weights[name].dtype != dtype:
            raise InvalidInput(f"{config.shape.name}: {name} is {weights[name].dtype}, expected {dtype}")
