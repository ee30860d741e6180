"""Attention without a cache: whole sequences of one length, for training and for the arm that keeps no KV."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kvlab.engine.config import DecoderConfig
from kvlab.errors import InvalidInput, positive


class DenseAttend:
    """Causal, windowed attention over `batch` sequences of `length` tokens each, one behind the other.

    Token t of sequence b is row b * length + t of the flat tensors; its position is t. An `Attend`.
    """

    def __init__(self, config: DecoderConfig, batch: int, length: int, device: torch.device | str = "cpu") -> None:
        self._config = config
        self._batch, self._length = positive("batch", batch), positive("length", length)
        back = torch.arange(length, device=device)[:, None] - torch.arange(length, device=device)
        self._causal = back >= 0
        window = config.shape.window_tokens
        self._windowed = None if window is None or window >= length else self._causal & (back < window)

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """See `Attend`; raises `InvalidInput` where the tokens are not batch x length."""
        tokens = self._batch * self._length
        if queries.shape[0] != tokens:
            raise InvalidInput(
                f"{queries.shape[0]} tokens came to an attention made for {self._batch} x {self._length}"
            )
        # [tokens, heads, head_dim] -> [batch, heads, length, head_dim]
        q, k, v = (
            each.view(self._batch, self._length, *each.shape[1:]).transpose(1, 2) for each in (queries, keys, values)
        )
        windowed = None if self._config.window_tokens(layer) is None else self._windowed
        if self._config.softcap is not None:
            mixed = self._capped(q, k, v, self._causal if windowed is None else windowed, self._config.softcap)
        else:
            mixed = F.scaled_dot_product_attention(
                q, k, v, windowed, is_causal=windowed is None, scale=self._config.scale, enable_gqa=True
            )
        return mixed.transpose(1, 2).flatten(0, 1)

    def _capped(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, softcap: float) -> Tensor:
        """No fused operator caps logits; logits and weights are float32 here."""
        shared = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(shared, 1).float(), v.repeat_interleave(shared, 1).float()
        logits = softcap * torch.tanh(q.float() @ k.mT * self._config.scale / softcap)
        return (logits.masked_fill(~allowed, -torch.inf).softmax(-1) @ v).to(q.dtype)
