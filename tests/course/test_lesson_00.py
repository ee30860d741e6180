"""Lesson 00: its checks name what is wrong with plausible answers, and its page keeps its promises."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kvlab.course import load_stored_run
from kvlab.course.checks import Check
from kvlab.course.lesson import lesson_stems
from kvlab.course.lesson_00 import check_bytes_per_token, check_generate
from kvlab.course.next_token import BATCHES, STORED, NextToken
from kvlab.course.toy_decoder import ToyDecoder, generate, generate_with_cache
from kvlab.engine.engine import Engine
from kvlab.shapes import ModelShape

ROOT = Path(__file__).parent.parent.parent
Cache = tuple[Tensor, Tensor]
Step = Callable[[ToyDecoder, list[int], Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]


def told(check: Check) -> dict[str, str]:
    assert not check.passed
    return dict(check.rows)


def written(step: Step) -> Callable[[ToyDecoder, list[int], int], list[int]]:
    """A learner's `generate_cached` with `step` in place of the line to replace."""

    def generate_cached(model: ToyDecoder, prompt: list[int], steps: int) -> list[int]:
        tokens = list(prompt)
        keys, values = model.empty_cache()
        for _ in range(steps):
            x, q, keys, values = step(model, tokens, keys, values)
            tokens.append(model.next_token(x, model.attend(q, keys, values)))
        return tokens[len(prompt) :]

    return generate_cached


def joined(model: ToyDecoder, tokens: list[int], start: int, keys: Tensor, values: Tensor):
    x, q, k, v = model.project(tokens, start)
    return x, q, torch.cat([keys, k]), torch.cat([values, v])


def last_token_only(model: ToyDecoder, tokens: list[int], keys: Tensor, values: Tensor):
    if len(keys):
        return joined(model, tokens[-1:], len(tokens) - 1, keys, values)
    return joined(model, tokens, 0, keys, values)


def new_rows_in_front(model: ToyDecoder, tokens: list[int], keys: Tensor, values: Tensor):
    x, q, k, v = model.project(tokens[len(keys) :], len(keys))
    return x, q, torch.cat([k, keys]), torch.cat([v, values])


@pytest.mark.parametrize(
    "right", [generate_with_cache, written(last_token_only), written(new_rows_in_front)], ids=lambda f: f.__name__
)
def test_a_cache_passes_however_it_is_written(right):
    assert check_generate(right).passed


def test_generating_without_a_cache_is_told_what_was_computed_again():
    rows = told(check_generate(generate))
    assert rows["expected"] == "K and V of each token are computed once"
    assert "position 0: 12 times" in rows["found"]


def test_a_new_token_at_position_0_is_named():
    wrong = written(lambda model, tokens, k, v: joined(model, tokens[len(k) :], 0, k, v))
    rows = told(check_generate(wrong))
    assert "stand at position 0: 'the'" in rows["expected"]
    assert "called with start=0" in rows["found"]


def test_a_position_off_by_one_is_named():
    def step(model: ToyDecoder, tokens: list[int], k: Tensor, v: Tensor):
        return joined(model, tokens[len(k) :], len(k) + (len(k) > 0), k, v)

    assert "called with start=9" in told(check_generate(written(step)))["found"]


def test_keys_that_were_not_kept_are_missed():
    def only_the_new(model: ToyDecoder, tokens: list[int], k: Tensor, v: Tensor):
        return model.project(tokens[-1:], len(tokens) - 1) if len(k) else model.project(tokens, 0)

    rows = told(check_generate(written(only_the_new)))
    assert rows["expected"].startswith("keys that each step's queries meet: [8, 9, 10")
    assert rows["found"].startswith("keys that each step's queries meet: [8, 1, 1")


def test_everything_computed_again_behind_the_cache_is_refused():
    wrong = written(lambda model, tokens, k, v: joined(model, tokens, 0, k, v))
    assert "keys that each step's queries meet: [8, 17" in told(check_generate(wrong))["found"]


def test_values_in_place_of_keys_give_other_words():
    def step(model: ToyDecoder, tokens: list[int], k: Tensor, v: Tensor):
        x, q, _, values = joined(model, tokens[len(k) :], len(k), k, v)
        return x, q, values, values

    assert told(check_generate(written(step)))["expected"].startswith("words: 'stone river")


def test_a_cache_that_outlives_its_request_is_found_out():
    kept: list[Cache] = []

    def generate_cached(model: ToyDecoder, prompt: list[int], steps: int) -> list[int]:
        tokens = list(prompt)
        for _ in range(steps):
            keys, values = kept[-1] if kept else model.empty_cache()
            x, q, keys, values = joined(model, tokens[len(keys) :], len(keys), keys, values)
            kept.append((keys, values))
            tokens.append(model.next_token(x, model.attend(q, keys, values)))
        return tokens[len(prompt) :]

    assert told(check_generate(generate_cached))["tried"].startswith("5 words after 'moon'")


def test_the_whole_text_in_place_of_the_new_words_is_counted():
    def with_prompt(model: ToyDecoder, prompt: list[int], steps: int) -> list[int]:
        return [*prompt, *generate_with_cache(model, prompt, steps)]

    assert told(check_generate(with_prompt))["found"] == "words: 20"


def bytes_with(one_layer: Callable[[ModelShape, str], int]) -> Callable[[ModelShape], int]:
    return lambda shape: sum(one_layer(shape, kind) for kind in shape.kinds)


def layer(shape: ModelShape, kind: str) -> int:
    return 2 * shape.heads[kind].kv_heads * shape.heads[kind].head_dim * shape.dtype_bytes


def by_kinds(shape: ModelShape) -> int:
    return sum(group.bytes_per_token for group in shape.groups())


def all_like_the_first(shape: ModelShape) -> int:
    return shape.layers * layer(shape, next(iter(shape.heads)))


@pytest.mark.parametrize("right", [bytes_with(layer), by_kinds, lambda shape: shape.bytes_per_token])
def test_bytes_pass_however_they_are_added(right: Callable[[ModelShape], int]):
    assert check_bytes_per_token(right).passed


@pytest.mark.parametrize(
    ("wrong", "tried", "said"),
    [
        (bytes_with(lambda s, k: layer(s, k) // 2), "llama-3.1-8b", "keys and values are both counted"),
        (
            bytes_with(lambda s, k: 2 * s.q_heads * s.heads[k].head_dim * s.dtype_bytes),
            "llama-3.1-8b",
            "KV heads are counted, not query heads",
        ),
        (lambda s: layer(s, s.kinds[0]), "llama-3.1-8b", "all layers are counted"),
        (bytes_with(lambda s, k: layer(s, k) // s.dtype_bytes), "llama-3.1-8b", "counted with its bytes"),
        (bytes_with(lambda s, k: layer(s, k) * 8), "llama-3.1-8b", "bytes are counted, not bits"),
        (lambda s: 131_072, "opt-13b", "bytes: 819200"),
        (all_like_the_first, "gemma-4-31b", "each layer has"),
        (bytes_with(lambda s, k: layer(s, k) // s.dtype_bytes * 2), "gemma-4-26b-a4b", "not always 2"),
    ],
)
def test_a_wrong_count_of_bytes_is_named(wrong: Callable[[ModelShape], int], tried: str, said: str):
    rows = told(check_bytes_per_token(wrong))
    assert rows["tried"] == f"bytes_per_token of {tried}"
    assert said in rows["expected"]


def test_the_stored_run_supports_what_the_lesson_says():
    arms = {arm.name: arm for arm in load_stored_run("decode_batches").arms}
    assert list(arms) == ["batch 1", "batch 8", "batch 32", "batch 128"]
    gains = [int(name.split()[1]) / arm.ratio.median for name, arm in arms.items()]
    assert gains == sorted(gains)
    assert gains[1] > 4, "8 requests ride along"
    assert gains[3] < 128 / 3, "the gain has an end"


def test_the_stored_run_of_the_real_model_supports_what_the_lesson_says():
    arms = {arm.name: arm.time_s.median for arm in load_stored_run(STORED).arms}
    assert list(arms) == [f"{way} {batch}" for way in ("all", "new") for batch in BATCHES]
    assert arms["new 1"] < arms["all 1"], "the cache is the first gain"
    assert arms["all 32"] / arms["all 1"] > 16, "without a cache the second hardly exists"
    assert arms["new 32"] / arms["new 1"] < 4, "with one, the others ride along"


def test_both_ways_say_the_same_next_tokens():
    texts = NextToken(Engine.from_pretrained("embedded"), length=20)
    assert texts.agree(batch=3, steps=4)
    served = texts.with_cache(3)
    assert served.spent.tokens == 3 * 20
    served.step()
    assert served.spent.tokens == 3 * 20 + 3


def test_a_cache_of_other_texts_is_found_out(monkeypatch):
    texts = NextToken(Engine.from_pretrained("embedded"), length=20)
    served = texts.with_cache(2, steps=2)
    monkeypatch.setattr(texts, "with_cache", lambda batch, steps: served)
    monkeypatch.setattr(texts, "texts", lambda batch: [[7] * 20, [9] * 20])
    assert not texts.agree(batch=2, steps=2)


def test_the_map_links_every_lesson_there_is_and_no_other():
    page = (ROOT / "lessons" / "00_start_here.md").read_text()
    linked = set(re.findall(r"\]\((\d\d_\w+)\.ipynb\)", page))
    assert linked == set(lesson_stems(ROOT)) - {"00_start_here"}
