"""The toy decoder computes as a decoder does, and its record is what it computed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvlab.course.toy_decoder import WORDS, ToyDecoder, decode, encode, generate, generate_with_cache
from kvlab.errors import InvalidInput

PROMPT = encode("the old cat sees a bird near the")
prompts = st.lists(st.integers(0, len(WORDS) - 1), min_size=1, max_size=20)


def test_it_says_the_same_nonsense_each_time():
    assert decode(generate(ToyDecoder(), PROMPT, 6)) == "stone river near . home slowly"


def test_another_seed_says_something_else():
    assert generate(ToyDecoder(seed=1), PROMPT, 6) != generate(ToyDecoder(), PROMPT, 6)


@given(prompts, st.integers(1, 12))
def test_the_words_with_and_without_a_cache_are_the_same(prompt: list[int], steps: int):
    assert generate_with_cache(ToyDecoder(), prompt, steps) == generate(ToyDecoder(), prompt, steps)


def test_without_a_cache_each_step_computes_the_whole_text():
    toy = ToyDecoder()
    generate(toy, PROMPT, 4)
    assert toy.tokens_per_step == [8, 9, 10, 11]


def test_with_a_cache_each_position_is_computed_once():
    toy = ToyDecoder()
    generate_with_cache(toy, PROMPT, 4)
    assert toy.computed == [range(8), range(8, 9), range(9, 10), range(10, 11)]


def test_a_row_depends_on_its_token_and_its_position_only():
    _, _, k, _ = ToyDecoder().project(PROMPT, 0)
    for position, token in enumerate(PROMPT):
        _, _, alone, _ = ToyDecoder().project([token], position)
        assert torch.allclose(alone[0], k[position])
    _, _, elsewhere, _ = ToyDecoder().project(PROMPT[:1], 5)
    assert not torch.allclose(elsewhere[0], k[0])


def test_attention_is_that_of_torch():
    toy = ToyDecoder()
    _, q, k, v = toy.project(PROMPT, 0)
    theirs = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    assert torch.allclose(toy.attend(q, k, v), theirs)


def test_no_token_sees_a_later_one():
    toy = ToyDecoder()
    _, q, k, v = toy.project(PROMPT, 0)
    before = toy.attend(q[:5], k[:5], v[:5])
    assert torch.allclose(toy.attend(q, k, v)[:5], before)


def test_the_last_queries_meet_all_keys():
    toy = ToyDecoder()
    _, q, k, v = toy.project(PROMPT, 0)
    assert torch.allclose(toy.attend(q[-3:], k, v), toy.attend(q, k, v)[-3:])


@pytest.mark.parametrize(("tokens", "start"), [([], 0), ([1], -1)])
def test_rows_of_nothing_or_of_nowhere_are_refused_and_not_noted(tokens: list[int], start: int):
    toy = ToyDecoder()
    with pytest.raises(InvalidInput, match="start of 0 or more"):
        toy.project(tokens, start)
    assert toy.computed == []


def test_attention_over_unequal_keys_and_values_or_too_few_keys_is_refused():
    toy = ToyDecoder()
    _, q, k, v = toy.project(PROMPT, 0)
    with pytest.raises(InvalidInput, match="8 q, 8 k, 7 v"):
        toy.attend(q, k, v[1:])
    with pytest.raises(InvalidInput, match="8 q, 1 k, 1 v"):
        toy.attend(q, k[-1:], v[-1:])


def test_words_are_read_and_written():
    assert decode(encode("a quiet moon .")) == "a quiet moon ."
    with pytest.raises(InvalidInput, match="unicorn"):
        encode("a quiet unicorn")
    with pytest.raises(InvalidInput, match="nothing"):
        encode("  ")
