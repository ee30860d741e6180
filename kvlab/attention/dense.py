"""Attention over K and V that lie together: torch's fused operator, or two matrix products around a softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvlab.attention.reading import readable
from kvlab.attention.step import Step
from kvlab.device.base import torch_sdpa

Fused: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]
"""queries `[B, heads, S, D]`, keys and values `[B, heads, T, D]`, a mask added to the logits, the scale: a device's
`sdpa`."""


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None = None,
    fused: Fused | None = torch_sdpa,
) -> Tensor:
    """Attention of `[B, heads, S, D]` queries over `[B, heads, T, D]` keys and values; `mask`, a `bias` in the queries'
    dtype, broadcasts to `[B, heads, S, T]` and leaves every query a key at least.

    No fused operator caps logits: with `softcap`, or without `fused`, logits and weights are float32 here. What is not
    allowed must be finite all the same, since 0 times NaN is NaN.
    """
    if fused is not None and softcap is None:
        expanded = None if mask is None else mask.expand(-1, -1, queries.shape[2], -1)
        return fused(queries, keys, values, expanded, scale)
    logits = capped((queries.float() @ keys.float().mT) * scale, softcap)
    if mask is not None:
        logits = logits + mask.float()
    return (logits.softmax(-1) @ values.float()).to(queries.dtype)


def bias(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """What a mask adds to the logits: 0 where allowed, else -inf."""
    zero = torch.zeros((), dtype=dtype, device=allowed.device)
    return torch.where(allowed, zero, -torch.inf)


def capped(logits: Tensor, softcap: float | None) -> Tensor:
    """softcap * tanh(logits / softcap), or the logits as they are."""
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)


def attend_request(step: Step, request: int, keys: Tensor, values: Tensor, fused: Fused | None = torch_sdpa) -> Tensor:
    """One request's output, `[queries, q_heads, head_dim]`, from the K and V of [first_readable, length),
    `[kv_heads, keys, head_dim]` each, in the queries' dtype; strided views are fine.

    The queries that share a KV head read it together: they are the rows of one batch entry in a decode step, and
    in a prompt chunk K and V are expanded over them, without a copy.
    """
    queries = step.grouped(request)
    if queries.shape[0] == 1:
        output = attend(queries, keys[None], values[None], None, step.scale, step.softcap, fused)
        return output.flatten(1, 2)
    shape = (keys.shape[0], step.group, *keys.shape[1:])
    keys, values = keys[:, None].expand(shape), values[:, None].expand(shape)
    by_head = queries.permute(1, 2, 0, 3)
    whole_prompt = queries.shape[0] == keys.shape[2] <= (step.window_tokens or keys.shape[2])
    if fused is torch_sdpa and step.softcap is None and whole_prompt:
        output = scaled_dot_product_attention(by_head, keys, values, is_causal=True, scale=step.scale)
    else:
        mask = step.derived.once(
            ("mask", request, queries.dtype, queries.device),
            lambda: bias(readable(step, request).to(queries.device), queries.dtype)[None, None],
        )
        output = attend(by_head, keys, values, mask, step.scale, step.softcap, fused)
    return output.permute(2, 0, 1, 3).flatten(1, 2)


def widening(kv_bytes: int, element_size: int) -> int:
    """Bytes of writing KV again as float32 and reading that; 0 where it is float32 already."""
    return 0 if element_size == 4 else 2 * kv_bytes * 4 // element_size
