"""The online softmax: attention over K and V that arrive block by block, in one pass.

Source: Milakov and Gimelshein 2018; Dao et al. 2022 (FlashAttention), algorithm 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Seen(NamedTuple):
    """What is known after some of the keys, per query.

    `highest` `[..., queries, 1]` is the largest logit so far, `total` `[..., queries, 1]` the sum of exp(logit -
    highest), `weighted` `[..., queries, head_dim]` the values summed with those weights.
    """

    highest: Tensor
    total: Tensor
    weighted: Tensor


def nothing(logits_of: Tensor) -> Seen:
    """Before the first key, for queries `[..., queries, head_dim]`."""
    one = logits_of.new_zeros(*logits_of.shape[:-1], 1)
    return Seen(one - torch.inf, one, torch.zeros_like(logits_of))


def see(seen: Seen, logits: Tensor, values: Tensor) -> Seen:
    """Take in one block: its logits `[..., queries, keys]`, -inf where masked, and its values `[..., keys, head_dim]`.

    When the maximum rises, what was summed before is scaled down to the new one.
    """
    highest = torch.maximum(seen.highest, logits.amax(-1, keepdim=True))
    pivot = torch.where(highest == -torch.inf, 0.0, highest)
    scale_down = torch.exp(seen.highest - pivot)
    weights = torch.exp(logits - pivot)
    return Seen(
        highest,
        seen.total * scale_down + weights.sum(-1, keepdim=True),
        seen.weighted * scale_down + weights @ values,
    )


def output(seen: Seen) -> Tensor:
    """The attention output `[..., queries, head_dim]`; zero for a query that saw no key."""
    return seen.weighted / torch.where(seen.total == 0, 1.0, seen.total)
