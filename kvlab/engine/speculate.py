"""Speculative decoding by prompt lookup: what followed the last tokens before may follow them again.

The draft proposes single tokens with certainty. So a position may be checked by sampling it as if there were no draft,
with its own draw (seed, sample, position): where the token equals the draft, the next position was computed from the
right context and counts too. The output is the undrafted one token for token, greedy or sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvlab.errors import InvalidInput, positive
from kvlab.workload import TokenIds


def propose(token_ids: TokenIds, *, ngram_max: int, ngram_min: int, count: int) -> list[int]:
    """Up to `count` tokens that may follow `token_ids` `[tokens]`; empty where the end occurs nowhere earlier.

    Looks for an earlier occurrence of the last `ngram_max` tokens, else of one less, down to `ngram_min`; it may
    overlap the end itself. Among the occurrences the one with the longest continuation wins (`count` at most), and
    of equally long ones the most recent. Raises `InvalidInput` unless 1 <= ngram_min <= ngram_max and count >= 0.
    """
    if positive("ngram_min", ngram_min) > positive("ngram_max", ngram_max):
        raise InvalidInput(f"ngram_min = {ngram_min} is more than ngram_max = {ngram_max}")
    if count < 0:
        raise InvalidInput(f"a draft of {count} tokens was asked for; 0 is no draft")
    tokens = len(token_ids)
    if not count or not tokens:
        return []
    ends = np.flatnonzero(token_ids[:-1] == token_ids[-1])  # last token of each occurrence
    length = 1
    while length < ngram_max:
        longer = ends[ends >= length]
        if len(longer):
            longer = longer[token_ids[longer - length] == token_ids[-1 - length]]
        if not len(longer):
            break
        ends, length = longer, length + 1
    if not len(ends) or length < ngram_min:
        return []
    full = int(np.searchsorted(ends, tokens - count))  # occurrences that `count` tokens follow
    start = int(ends[max(full - 1, 0)]) + 1
    draft: list[int] = token_ids[start : start + count].tolist()
    return draft


def accept(draft: Sequence[int], sampled: Sequence[int]) -> list[int]:
    """The tokens that one checked draft yields: 1 to `len(draft) + 1` of `sampled`.

    `sampled[i]` is the token chosen after `draft[:i]`, so it is valid as far as the draft before it came true.
    Raises `InvalidInput` unless `sampled` has one token more than `draft`.
    """
    if len(sampled) != len(draft) + 1:
        raise InvalidInput(f"a draft of {len(draft)} tokens is checked by {len(draft) + 1} samples, not {len(sampled)}")
    right = 0
    while right < len(draft) and draft[right] == sampled[right]:
        right += 1
    return list(sampled[: right + 1])
