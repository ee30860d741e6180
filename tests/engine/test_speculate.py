"""Prompt lookup beside a brute-force search, and drafted decoding beside plain decoding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from kvlab.engine.draws import Draw
from kvlab.engine.sampling import SamplingParams, sample
from kvlab.engine.speculate import accept, propose
from kvlab.errors import InvalidInput


def looked_up(ids: list[int], ngram_max: int, ngram_min: int, count: int) -> list[int]:
    for length in range(ngram_max, ngram_min - 1, -1):
        if length >= len(ids):
            continue
        continuations = [
            ids[start + length : start + length + count]
            for start in range(len(ids) - length)
            if ids[start : start + length] == ids[-length:]
        ]
        if continuations:
            longest = max(map(len, continuations))
            return [each for each in continuations if len(each) == longest][-1]
    return []


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 4), st.integers(0, 3), st.integers(0, 6))
@example([1, 1, 1, 1], 3, 0, 2)
@example([1], 1, 0, 1)
def test_the_draft_is_the_one_a_brute_force_search_finds(ids: list[int], low: int, more: int, count: int) -> None:
    draft = propose(np.array(ids, np.int32), ngram_max=low + more, ngram_min=low, count=count)
    assert draft == looked_up(ids, low + more, low, count)


def test_of_several_occurrences_the_most_recent_that_gives_a_full_draft_is_taken() -> None:
    ids = np.array([1, 2, 9, 8, 1, 2, 7, 6, 1, 2], np.int32)
    assert propose(ids, ngram_max=2, ngram_min=1, count=4) == [7, 6, 1, 2]
    assert propose(ids, ngram_max=2, ngram_min=1, count=5) == [9, 8, 1, 2, 7]


@pytest.mark.parametrize(
    ("ngram_max", "ngram_min", "count", "message"),
    [(2, 3, 1, "ngram_min = 3"), (2, 0, 1, "ngram_min"), (0, 1, 1, "ngram_max"), (2, 1, -1, "draft of -1")],
)
def test_impossible_drafts_are_refused(ngram_max: int, ngram_min: int, count: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        propose(np.zeros(4, np.int32), ngram_max=ngram_max, ngram_min=ngram_min, count=count)


def test_a_draft_counts_as_far_as_it_came_true_and_one_token_more() -> None:
    assert accept([], [4]) == [4]
    assert accept([4, 5, 6], [4, 5, 6, 7]) == [4, 5, 6, 7]
    assert accept([4, 5, 6], [4, 9, 6, 7]) == [4, 9]
    assert accept([4, 5, 6], [1, 5, 6, 7]) == [1]
    with pytest.raises(InvalidInput, match="3 samples, not 2"):
        accept([4, 5], [4, 5])


def toy_logits(context: list[int]) -> torch.Tensor:
    """A model with two tokens of memory that likes to repeat itself."""
    generator = torch.Generator().manual_seed(context[-1] * 31 + context[-2])
    return torch.randn(12, generator=generator) * 3


@given(
    st.lists(st.integers(0, 11), min_size=2, max_size=12),
    st.sampled_from([0, 0.5, 1.0]),
    st.integers(0, 1000),
    st.lists(st.integers(0, 4), min_size=1, max_size=5),
)
def test_drafted_output_is_the_plain_output_token_for_token(
    prompt: list[int], temperature: float, seed: int, counts: list[int]
) -> None:
    params = SamplingParams(temperature=temperature, top_p=0.95)
    plain = list(prompt)
    for position in range(25):
        plain += sample(toy_logits(plain)[None], [params], [Draw(seed, 0, position)]).token_ids
    drafted, steps = list(prompt), 0
    while len(drafted) < len(plain):
        room = len(plain) - len(drafted) - 1
        count = min(counts[steps % len(counts)], room)
        draft = propose(np.array(drafted, np.int32), ngram_max=3, ngram_min=1, count=count)
        logits = torch.stack([toy_logits(drafted + draft[:row]) for row in range(len(draft) + 1)])
        position = len(drafted) - len(prompt)
        draws = [Draw(seed, 0, position + row) for row in range(len(draft) + 1)]
        drafted += accept(draft, sample(logits, [params] * len(draws), draws).token_ids)
        steps += 1
    assert drafted == plain


def test_the_toy_model_does_accept_drafts() -> None:
    ids = [3, 5]
    for position in range(60):
        ids += sample(toy_logits(ids)[None], [SamplingParams(temperature=0)], [Draw(0, 0, position)]).token_ids
    draft = propose(np.array(ids[:40], np.int32), ngram_max=3, ngram_min=1, count=4)
    assert len(accept(draft, ids[40 : 40 + len(draft) + 1])) == 5
