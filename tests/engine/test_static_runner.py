"""A step in static shapes says what a step in its own shapes says, under every policy, and pads without a trace."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.tiny_model import (
    BLOCK,
    OVERLAID,
    PLAIN,
    ROOMY,
    VOCAB,
    dense_logits,
    greedy,
    prompts,
    tiny_config,
    tiny_decoder,
)

from kvlab.attention.registry import get_route
from kvlab.device.cpu import CPU
from kvlab.engine.batch import batch_of
from kvlab.engine.engine import Engine
from kvlab.engine.loop import PromptLookup
from kvlab.engine.runner import Runner
from kvlab.engine.sampling import SamplingParams
from kvlab.engine.static_runner import StaticRunner
from kvlab.engine.static_shapes import Rounding
from kvlab.errors import InvalidInput

LENGTHS = (1, BLOCK, 7, 8, 9, 16, 17, 30)
TOKENS = 12
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS)
SMALL = Rounding(requests=1, chunk=4, context=16, moved=4)
POLICIES = {name: policy for name, policy in ROOMY.items() if name not in OVERLAID}
POLICIES |= {f"tight {name}": policy for name, policy in PLAIN.items()}
every_policy = pytest.mark.parametrize("name", POLICIES)


@pytest.fixture(scope="module")
def asked():
    return prompts(LENGTHS)


@pytest.fixture(scope="module")
def expected(decoder, asked):
    return [greedy(decoder, prompt, TOKENS) for prompt in asked]


@pytest.fixture
def both(engine):
    """Two engines that differ in their runner only: plain, static."""

    def make(name, **options):
        options = {"preemption": "swap" if name.endswith("swap") else "recompute"} | options
        plain, static = (engine(POLICIES[name], rounding=each, **options) for each in (None, SMALL))
        assert (type(plain.runner), type(static.runner)) == (Runner, StaticRunner)
        return plain, static

    return make


def said(results):
    return [[completion.token_ids for completion in result.completions] for result in results]


@every_policy
@pytest.mark.parametrize("budget", [2048, 9], ids="budget {}".format)
def test_greedy_is_the_dense_answer_under_every_policy_and_chunk(engine, name, budget, asked, expected):
    served = engine(
        POLICIES[name], rounding=SMALL, token_budget=budget, max_running=8,
        preemption="swap" if name.endswith("swap") else "recompute",
    )  # fmt: skip
    results = served.generate(asked, GREEDY)
    assert said(results) == [[each] for each in expected]
    assert (served.cache.bytes_swapped > 0) == name.endswith("swap")
    assert 0 < served.runner.read.useful < served.runner.read.padded < served.runner.read.physical


@pytest.mark.parametrize("name", [f"tight {name}" for name in PLAIN])
def test_drafts_samples_and_beams_are_those_of_the_plain_runner(both, name, asked):
    wanted = [
        SamplingParams(temperature=0, max_tokens=TOKENS),
        SamplingParams(n=3, temperature=0.9, seed=3, max_tokens=TOKENS, logprobs=2),
        SamplingParams(beams=3, max_tokens=TOKENS),
        SamplingParams(temperature=0.8, top_k=5, seed=1, max_tokens=TOKENS),
    ]
    repeating = [prompt * 2 for prompt in asked[:4]]
    plain, static = both(name, drafts=PromptLookup(tokens=3), max_running=6)
    first, second = plain.generate(repeating, wanted), static.generate(repeating, wanted)
    assert said(first) == said(second)
    assert static.spent.drafted > 0
    assert static.cache.bytes_copied == plain.cache.bytes_copied
    for one, other in zip(first[1].completions, second[1].completions, strict=True):
        assert [each.chosen for each in one.logprobs] == pytest.approx(
            [each.chosen for each in other.logprobs], abs=1e-4
        )


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3_text"])
def test_logits_are_the_models(family, tokenizer):
    """Beside padded rows and padded queries, in every family that serves: a soft-cap and two norms among them."""
    decoder = tiny_decoder(family)
    served = Engine(decoder, tokenizer, ROOMY["paged"], rounding=SMALL, token_budget=16, max_running=4)
    plain = Engine(decoder, tokenizer, ROOMY["paged"], route=get_route("gather"), token_budget=16, max_running=4)
    for each in (served, plain):
        each.generate(prompts((9, 3)), SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
        for prompt in prompts((20, 2, 5)):
            each.submit(prompt, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    for _ in range(6):
        logits = []
        for each in (served, plain):
            plan = each.scheduler.allocate(each.scheduler.decide())
            batch = batch_of(plan.granted, {}, each.policy)
            logits.append(each.runner.run(batch)[: len(batch.rows)].clone())
            each.scheduler.abandon(plan)
            each.step()
        torch.testing.assert_close(*logits, rtol=0, atol=1e-4)
        assert logits[0].shape[1] == VOCAB


def test_padding_leaves_every_slot_but_those_written_as_it_was(engine, asked):
    """Poisoned slots stay poisoned, the slots of the others keep their bytes, and the answers are numbers."""
    served = engine(ROOMY["paged"], rounding=SMALL, token_budget=16, max_running=5, drafts=PromptLookup(tokens=2))
    for store in served.cache.stores:
        store.keys[:-1], store.values[:-1] = torch.nan, torch.nan
    for prompt in asked:
        served.submit(prompt * 2, GREEDY)
    run, seen = served.runner.run, []

    def watched(batch):
        before = [bytes_of(store) for store in served.cache.stores]
        logits = run(batch)
        assert bool(torch.isfinite(logits[: len(batch.rows)]).all())
        for layer, store in enumerate(served.cache.stores):
            kept = np.setdiff1d(np.arange(store.slots), batch.groups[served.cache.group_of[layer]].slots)
            for old, new in zip(before[layer], bytes_of(store), strict=True):
                assert np.array_equal(old[kept], new[kept])
        seen.append(len(batch.rows))
        return logits

    served.runner.run = watched
    while served.unfinished:
        served.step()
    assert len(seen) > 10


def bytes_of(store):
    """The bytes of K and of V by slot."""
    return [
        each[: store.blocks].transpose(1, 2).reshape(store.slots, -1).view(torch.uint8).numpy().copy()
        for each in (store.keys, store.values)
    ]


def unchanged(before, served):
    """Whether every slot of every layer holds the bytes that it held."""
    after = [bytes_of(store) for store in served.cache.stores]
    return all(
        np.array_equal(*pair) for layers in zip(before, after, strict=True) for pair in zip(*layers, strict=True)
    )


def test_warming_up_changes_no_slot_and_no_counter(engine, asked, expected):
    served = engine(PLAIN["swap"], rounding=SMALL, max_running=3, preemption="swap")
    for prompt in asked[:3]:
        served.submit(prompt, GREEDY)
    served.step()
    before = [bytes_of(store) for store in served.cache.stores]
    served.runner.warm()
    after = [bytes_of(store) for store in served.cache.stores]
    assert all(
        np.array_equal(*pair) for olds, news in zip(before, after, strict=True) for pair in zip(olds, news, strict=True)
    )
    assert sum(served.runner.read) == 0
    assert served.cache.bytes_copied == served.cache.bytes_swapped == 0
    while served.unfinished:
        served.step()
    assert [served.result(f"r{number}").token_ids for number in range(3)] == expected[:3]


def test_an_interrupted_step_can_be_made_again(engine, asked, expected, monkeypatch):
    served = engine(PLAIN["swap"], rounding=SMALL, token_budget=9, max_running=4, preemption="swap")
    rids = [served.submit(prompt, GREEDY) for prompt in asked]
    graph, left = served.runner._graph, [7]

    def interrupted(*operands):
        left[0] -= 1
        if left[0] % 5 == 1:
            raise KeyboardInterrupt
        graph(*operands)

    monkeypatch.setattr(served.runner, "_graph", interrupted)
    caught = 0
    while served.unfinished:
        try:
            served.step()
        except KeyboardInterrupt:
            caught += 1
            served.policy.audit()
    assert caught > 5
    assert [served.result(rid).token_ids for rid in rids] == expected


@pytest.mark.parametrize("name", [name for name in OVERLAID if name in ROOMY])
def test_pools_over_the_same_memory_are_refused_by_name(engine, name):
    with pytest.raises(InvalidInput, match="do not read pools that lie over the same memory"):
        engine(ROOMY[name], rounding=SMALL)


def test_a_table_that_names_a_free_block_is_refused_before_anything_is_computed(engine, asked):
    served = engine(ROOMY["paged"], rounding=SMALL)
    served.submit(asked[4], GREEDY)
    plan = served.scheduler.allocate(served.scheduler.decide())
    batch = batch_of(plan.granted, {}, served.policy)
    layouts = [replace(batch.groups[0].layouts[0], blocks=[0, 1, 2])]  # as they were, but nobody holds them any more
    batch = replace(batch, groups=[places._replace(layouts=layouts) for places in batch.groups])
    before = [bytes_of(store) for store in served.cache.stores]
    served.scheduler.abandon(plan)
    with pytest.raises(InvalidInput, match="which nobody holds"):
        served.runner.run(batch)
    assert unchanged(before, served)
    served.cancel("r0")


def test_options_that_exclude_each_other(engine, decoder, tokenizer):
    with pytest.raises(InvalidInput, match="not by the route gather; leave route out"):
        engine(rounding=SMALL, route=get_route("gather"))

    class Elsewhere(CPU):
        torch_device = torch.device("meta")

    with pytest.raises(InvalidInput, match="the model lies on cpu, the device is meta"):
        Engine(decoder, tokenizer, device=Elsewhere())


def test_the_limits_are_those_of_model_pool_and_scheduler(engine):
    served = engine(
        PLAIN["paged"], rounding=Rounding(), token_budget=2048, max_running=5, drafts=PromptLookup(tokens=2)
    )
    shapes = served.runner.shapes
    assert (shapes.requests.limit, shapes.chunk.limit, shapes.context.limit, shapes.short) == (5, 72, 72, 3)
    assert engine(ROOMY["paged"], rounding=Rounding()).runner.shapes.context.limit == tiny_config().max_positions


def test_a_pretrained_model_is_served_on_the_device_that_was_asked_for():
    served = Engine.from_pretrained("embedded", device=CPU("a test"), rounding=Rounding())
    assert served.decoder.device == torch.device("cpu")
    assert isinstance(served.runner, StaticRunner)
    prompt = served.tokenizer.encode("In the beginning")
    (result,) = served.generate([prompt], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
    ids = list(prompt)
    for token in result.token_ids:
        assert int(dense_logits(served.decoder, ids)[-1].argmax()) == token
        ids.append(token)
