"""Token choice: the limits beside transformers' own, the draw, and what it must not depend on."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from kvlab.engine.draws import Draw, derived_seed, first_above, uniforms
from kvlab.engine.sampling import BELOW_ONE, SamplingParams, greedy_on_device, probabilities, sample
from kvlab.errors import InvalidInput

GREEDY = SamplingParams(temperature=0)


def by_transformers(logits: torch.Tensor, params: SamplingParams) -> np.ndarray:
    chain: list[Any] = [TemperatureLogitsWarper(float(params.temperature))]
    if params.top_k is not None:
        chain.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        chain.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0:
        chain.append(MinPLogitsWarper(params.min_p))
    scores = logits[None]
    for warper in chain:
        scores = warper(torch.zeros(1, 1, dtype=torch.long), scores)
    return scores.double().softmax(-1)[0].numpy()


def random_logits(kind: str, rows: int, vocab: int) -> torch.Tensor:
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * 3
    if kind == "ties":
        return (logits * 1.5).round() / 1.5
    if kind == "masked":
        return logits.masked_fill(torch.arange(vocab) % 3 > 0, -inf)
    return logits


LIMITS = [
    {},
    {"temperature": 0.3},
    {"temperature": 2.5},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 10_000},
    {"top_p": 0.05},
    {"top_p": 0.6},
    {"top_p": 0.97},
    {"min_p": 0.08},
    {"min_p": 1.0},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.83, "min_p": 0.03},
    {"temperature": 1.9, "top_k": 50, "top_p": 0.91, "min_p": 0.11},
]


@pytest.mark.parametrize("kind", ["plain", "ties", "masked"])
@pytest.mark.parametrize("vocab", [5, 64, 131, 1000])
def test_limits_keep_what_transformers_keeps_in_one_mixed_batch(kind: str, vocab: int) -> None:
    params = [SamplingParams(**limits) for limits in LIMITS]
    logits = random_logits(kind, len(params), vocab)
    ours = probabilities(logits, params)
    theirs = np.stack([by_transformers(row, p) for row, p in zip(logits, params, strict=True)])
    if kind == "ties":  # which of equal tokens top-p cuts is left open there (an unstable sort), not how many
        split = np.array([p.top_p < 1 for p in params])
        ours[split], theirs[split] = np.sort(ours[split]), np.sort(theirs[split])
    np.testing.assert_array_equal(ours > 0, theirs > 0)
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-9)


def test_of_equal_probabilities_top_p_keeps_the_lower_ids() -> None:
    logits = torch.zeros(2, 8)
    logits[1, 7] = 1
    kept = probabilities(logits, [SamplingParams(top_p=0.45)] * 2) > 0
    assert kept.tolist() == [[True] * 4 + [False] * 4, [True] * 2 + [False] * 5 + [True]]


def test_the_smallest_top_p_still_keeps_one_token() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    assert probabilities(logits, [SamplingParams(top_p=5e-324)]).tolist() == [[0, 1, 0]]


def test_samples_follow_the_distribution_they_are_drawn_from() -> None:
    logits = torch.randn(100, generator=torch.Generator().manual_seed(3)) * 1.5
    params = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.005)
    expected = probabilities(logits[None], [params])[0] * 20_000
    for draws in (
        [Draw(11, 0, position) for position in range(20_000)],
        [Draw(11, number, 5) for number in range(20_000)],
        [Draw(seed, 0, 5) for seed in range(20_000)],
    ):
        ids = sample(logits.expand(20_000, 100), [params] * 20_000, draws).token_ids
        seen = np.bincount(ids, minlength=100)
        kept = expected > 0
        assert not seen[~kept].any()
        chi_square = ((seen - expected)[kept] ** 2 / expected[kept]).sum()
        freedom = int(kept.sum()) - 1
        assert chi_square < freedom + 4 * (2 * freedom) ** 0.5


def test_uniforms_fill_the_unit_interval_and_neighbours_do_not_correlate() -> None:
    drawn = uniforms(
        [Draw(seed, number, position) for seed in range(20) for number in range(20) for position in range(50)]
    )
    assert drawn.min() >= 0
    assert drawn.max() < 1
    cells = np.bincount((drawn * 100).astype(int), minlength=100)
    assert ((cells - 200) ** 2 / 200).sum() < 99 + 4 * (2 * 99) ** 0.5
    by_axis = drawn.reshape(20, 20, 50)
    for axis in range(3):
        a, b = np.take(by_axis, range(19), axis).ravel(), np.take(by_axis, range(1, 20), axis).ravel()
        assert abs(np.corrcoef(a, b)[0, 1]) < 4 / len(a) ** 0.5


def test_a_seed_gives_the_same_numbers_in_every_version() -> None:
    pinned = [0.13870941014555427, 0.08945047175044918, 0.6599220887855946]
    assert uniforms([Draw(0, 0, 0), Draw(7, 1, 2), Draw(2**64 - 1, 3, 4)]).tolist() == pinned
    assert derived_seed(0, 1) == 627405149472732430
    reference = 0xE220A8397B1DCDAF  # the first output of splitmix64 from 0, in its authors' code
    assert derived_seed(0, reference) == reference
    assert len({derived_seed(seed, number) for seed in range(100) for number in range(100)}) == 10_000


some_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 0.2, 1.0, 3.0]),
    top_k=st.sampled_from([None, 1, 4, 50]),
    top_p=st.sampled_from([0.3, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1]),
    logprobs=st.sampled_from([None, 0, 3]),
)
a_draw = st.builds(Draw, st.integers(0, 2**64 - 1), st.integers(0, 7), st.integers(0, 5000))


@given(st.data())
def test_a_row_is_chosen_alike_alone_and_in_any_company(data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.tuples(some_params, a_draw), min_size=1, max_size=9))
    vocab = data.draw(st.sampled_from([5, 64, 100, 257]))
    logits = torch.randn(len(rows), vocab, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99)))) * 4
    order = data.draw(st.permutations(range(len(rows))))
    padding = data.draw(st.integers(0, 2))
    batch = torch.cat([logits[order], torch.full((padding, vocab), nan)])
    together = sample(batch, [rows[row][0] for row in order], [rows[row][1] for row in order])
    for place, row in enumerate(order):
        alone = sample(logits[row : row + 1], [rows[row][0]], [rows[row][1]])
        assert together.token_ids[place] == alone.token_ids[0]
        assert together.logprobs[place] == alone.logprobs[0]


@given(st.data())
def test_the_crossing_is_where_a_plain_cumulative_sum_crosses(data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.sampled_from([0, 0, 1, 2, 3, 8]), min_size=1, max_size=200).filter(any))
    u = data.draw(st.one_of(st.sampled_from([0.0, 0.5, BELOW_ONE]), st.floats(0, BELOW_ONE)))
    found = int(first_above(np.array([weights], np.float32), np.array([u]))[0])
    cumulative = np.cumsum(weights, dtype=np.float64)  # small integers: exact
    assert found == int(np.flatnonzero(cumulative > u * cumulative[-1])[0])
    assert weights[found] > 0


def test_of_equal_logits_greedy_takes_the_lowest_id() -> None:
    logits = torch.zeros(3, 100)
    logits[1, [40, 70]] = 2
    logits[2, 99] = 1
    assert sample(logits, [GREEDY] * 3, [Draw(0, 0, 0)] * 3).token_ids == [0, 40, 99]
    assert logits.argmax(-1).tolist() == [0, 40, 99]


def test_on_a_device_greedy_rows_are_chosen_as_on_the_host() -> None:
    logits = torch.cat([random_logits("ties", 20, 300), torch.full((2, 300), nan)])
    assert greedy_on_device(logits, 20) == sample(logits, [GREEDY] * 20, [Draw(0, 0, 0)] * 20).token_ids
    with pytest.raises(InvalidInput, match=r"rows \[20\]"):
        greedy_on_device(logits, 21)


def test_the_coldest_temperature_and_huge_logits_are_still_exact() -> None:
    logits = torch.tensor([[3e4, -3e4, 3.1e4, -inf]])
    assert probabilities(logits, [SamplingParams(temperature=1e-5)]).tolist() == [[0, 0, 1, 0]]


def test_samples_of_one_prompt_differ_and_a_seed_repeats_them() -> None:
    logits, params = torch.zeros(16, 1000), [SamplingParams(n=16)] * 16
    first = sample(logits, params, [Draw(5, i, 0) for i in range(16)]).token_ids
    assert len(set(first)) > 12
    assert first == sample(logits, params, [Draw(5, i, 0) for i in range(16)]).token_ids
    assert first != sample(logits, params, [Draw(6, i, 0) for i in range(16)]).token_ids


@pytest.mark.parametrize("params", [replace(GREEDY, logprobs=4), SamplingParams(temperature=0.1, top_k=2, logprobs=4)])
def test_logprobs_are_those_of_the_raw_distribution_whatever_the_limits(params: SamplingParams) -> None:
    logits = random_logits("plain", 3, 50)
    raw = logits.double().log_softmax(-1)
    result = sample(logits, [params, SamplingParams(), params], [Draw(1, 0, 0)] * 3)
    assert result.logprobs[1] is None
    for row in (0, 2):
        logprobs = result.logprobs[row]
        assert logprobs is not None
        assert logprobs.chosen == pytest.approx(raw[row, result.token_ids[row]].item(), abs=1e-6)
        values, ids = raw[row].topk(4)
        assert [token_id for token_id, _ in logprobs.top] == ids.tolist()
        assert [value for _, value in logprobs.top] == pytest.approx(values.tolist(), abs=1e-6)


def test_logprobs_can_be_zero_others_or_the_whole_vocabulary_and_ties_go_to_the_lower_id() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.0, -inf]])
    none = sample(logits, [replace(GREEDY, logprobs=0)], [Draw(0, 0, 0)]).logprobs[0]
    every = sample(logits, [replace(GREEDY, logprobs=4)], [Draw(0, 0, 0)]).logprobs[0]
    two = sample(logits, [replace(GREEDY, logprobs=2)], [Draw(0, 0, 0)]).logprobs[0]
    assert none is not None
    assert every is not None
    assert two is not None
    assert none.top == ()
    assert [token_id for token_id, _ in every.top] == [1, 0, 2, 3]
    assert [token_id for token_id, _ in two.top] == [1, 0]
    assert every.top[3][1] == -inf


def test_half_precision_logits_are_read_in_float32() -> None:
    logits = random_logits("plain", 4, 300).bfloat16()
    params, draws = [SamplingParams(top_p=0.9), GREEDY] * 2, [Draw(2, 0, i) for i in range(4)]
    assert sample(logits, params, draws) == sample(logits.float(), params, draws)


@pytest.mark.parametrize("bad", [nan, inf])
def test_a_row_without_a_finite_maximum_is_named(bad: float) -> None:
    logits = torch.zeros(3, 10)
    logits[1, 4] = bad
    with pytest.raises(InvalidInput, match=r"rows \[1\]"):
        sample(logits, [GREEDY] * 3, [Draw(0, 0, 0)] * 3)
    logits[1] = -inf
    with pytest.raises(InvalidInput, match=r"rows \[1\]"):
        sample(logits, [SamplingParams()] * 3, [Draw(0, 0, 0)] * 3)


def test_too_few_rows_or_draws_are_refused() -> None:
    for logits, draws in ((torch.zeros(1, 10), 2), (torch.zeros(2, 10), 1), (torch.zeros(10), 2)):
        with pytest.raises(InvalidInput, match="do not fit 2 rows"):
            sample(logits, [GREEDY] * 2, [Draw(0, 0, 0)] * draws)
    with pytest.raises(InvalidInput, match="do not fit 1 rows"):
        probabilities(torch.zeros(2, 10), [SamplingParams()])
    with pytest.raises(InvalidInput, match="greedy"):
        probabilities(torch.zeros(1, 10), [GREEDY])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n": 0}, "n must be"),
        ({"n": 2, "temperature": 0}, "2 copies"),
        ({"max_tokens": 0}, "max_tokens must be"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": nan}, "temperature"),
        ({"temperature": inf}, "temperature"),
        ({"temperature": 1e-9}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": nan}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"min_p": 1.1}, "min_p"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 64}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"stop": ""}, "stop string"),
        ({"stop": ["ok", ""]}, "stop string"),
        ({"stop": [5]}, "stop string"),
        ({"stop_token_ids": [-1]}, "stop token"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"beams": 0}, "beams"),
        ({"beams": 3, "n": 2}, "exclude each other"),
        ({"beams": 3, "top_p": 0.5}, "top_p has no effect"),
        ({"beams": 3, "top_k": 5}, "top_k has no effect"),
        ({"beams": 3, "min_p": 0.5}, "min_p has no effect"),
        ({"beams": 3, "stop": "x"}, "stop has no effect"),
        ({"beams": 3, "logprobs": 1}, "logprobs has no effect"),
        ({"length_penalty": inf}, "length_penalty"),
        ({"early_stopping": "sometimes"}, "early_stopping"),
        ({"early_stopping": 1}, "early_stopping"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        SamplingParams(**wrong)


def test_one_stop_string_is_one_string_and_lists_become_tuples() -> None:
    assert SamplingParams(stop="end").stop == ("end",)
    params = SamplingParams(stop=["a", "b"], stop_token_ids=[1, 2])
    assert (params.stop, params.stop_token_ids) == (("a", "b"), (1, 2))
    assert hash(params) == hash(SamplingParams(stop=("a", "b"), stop_token_ids=(1, 2)))


def test_what_the_vocabulary_cannot_give_is_refused_once_it_is_known() -> None:
    for params in (SamplingParams(beams=9), SamplingParams(logprobs=9), SamplingParams(stop_token_ids=(8,))):
        params.check_vocabulary(9)
        with pytest.raises(InvalidInput, match="vocabulary has 8 tokens"):
            params.check_vocabulary(8)
    SamplingParams(top_k=100).check_vocabulary(8)
