"""The engine says what the model says, whatever the memory system, the batch and the interruptions."""

import pytest
import torch
from support.tiny_model import BLOCK, CONTEXT, EOS, ROOMY, TIGHT, VOCAB, WINDOW, dense_logits, greedy, prompts

from kvlab.attention.registry import get_route
from kvlab.engine.beams import BeamGroup, best_tokens
from kvlab.engine.loop import PromptLookup
from kvlab.engine.sampling import SamplingParams
from kvlab.errors import InvalidInput, UnknownRequest
from kvlab.policies.paged import Paged
from kvlab.policies.prefix import PagedPrefix

BOUNDARIES = (1, BLOCK - 1, BLOCK, BLOCK + 1, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW, 2 * WINDOW + 1)
TOKENS = 12
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS)


@pytest.fixture(scope="module")
def asked():
    return prompts(BOUNDARIES)


@pytest.fixture(scope="module")
def expected(decoder, asked):
    return [greedy(decoder, prompt, TOKENS) for prompt in asked]


def said(results):
    return [result.token_ids for result in results]


def finish(engine):
    while engine.unfinished:
        engine.step()
        engine.policy.audit()


@pytest.mark.parametrize("policy", ROOMY.values(), ids=ROOMY)
@pytest.mark.parametrize("budget", [2048, 9, 5], ids="budget {}".format)
def test_greedy_is_the_dense_answer_under_every_policy_and_chunk(engine, policy, budget, asked, expected):
    served = engine(policy, token_budget=budget, max_running=min(budget, 64))
    results = served.generate(asked, GREEDY)
    assert said(results) == expected
    assert all(
        result.completions[0].reason == ("stop" if result.token_ids[-1] == EOS else "length") for result in results
    )
    assert [result.prompt_tokens for result in results] == list(BOUNDARIES)
    assert all(0 < result.first_token_s <= result.finished_s for result in results)


@pytest.mark.parametrize("name", TIGHT)
def test_preempted_is_undisturbed(engine, name, asked, expected):
    served = engine(TIGHT[name], preemption="swap" if "swap" in name else "recompute")
    results = served.generate(asked, GREEDY)
    assert said(results) == expected
    if name not in ("max", "pow2", "oracle"):  # a reservation never has to preempt
        assert sum(result.preemptions for result in results) > 0
    assert (served.cache.bytes_swapped > 0) == ("swap" in name)


@pytest.mark.parametrize("route", ["reference", "gather", "blockwise", "native"])
def test_every_route_serves(engine, route, asked, expected):
    assert said(engine(ROOMY["paged"], route=get_route(route)).generate(asked, GREEDY)) == expected


@pytest.mark.parametrize("policy", TIGHT.values(), ids=TIGHT)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_drafts_change_nothing_but_the_steps(engine, policy, temperature, asked):
    params = SamplingParams(temperature=temperature, max_tokens=30, seed=5, top_k=3)
    repeating = [prompt * 3 for prompt in asked[:5]]
    plain, drafted = engine(policy), engine(policy, drafts=PromptLookup(tokens=5))
    assert said(plain.generate(repeating, params)) == said(drafted.generate(repeating, params))
    assert 0 < drafted.spent.accepted < drafted.spent.drafted


def test_static_batching_says_the_same(engine, asked, expected):
    served = engine(ROOMY["paged"], batching="static", max_running=3)
    assert said(served.generate(asked, GREEDY)) == expected


CACHES = pytest.mark.parametrize("name", ["prefix", "radix", "islands"])


@CACHES
def test_a_cached_prompt_is_computed_from_its_last_block_only(engine, name, asked, expected):
    served = engine(ROOMY[name])
    for _ in range(2):
        results = served.generate(asked, GREEDY)
        assert said(results) == expected
    assert [result.cached_tokens for result in results] == [(length - 1) // BLOCK * BLOCK for length in BOUNDARIES]


@CACHES
def test_a_salt_keeps_prefixes_apart(engine, name, asked, expected):
    served = engine(ROOMY[name])
    cached = []
    for salt in ("a", "b", "a"):
        rid = served.submit(asked[-1], GREEDY, salt=salt)
        finish(served)
        result = served.result(rid)
        assert result.token_ids == expected[-1]
        cached.append(result.cached_tokens)
    assert cached[:2] == [0, 0]
    assert cached[2] > 0


SAMPLED = SamplingParams(n=4, temperature=0.9, seed=3, max_tokens=TOKENS)


@pytest.fixture(scope="module")
def four_samples(decoder, tokenizer, asked):
    from kvlab.engine.engine import Engine

    return [
        c.token_ids for c in Engine(decoder, tokenizer, ROOMY["paged"]).generate([asked[-1]], SAMPLED)[0].completions
    ]


@pytest.mark.parametrize(
    "policy", [*ROOMY.values(), *TIGHT.values()], ids=[*ROOMY, *(f"tight {each}" for each in TIGHT)]
)
@pytest.mark.parametrize("samples", ["fork", "cache"])
def test_samples_depend_on_the_seed_alone(engine, policy, samples, asked, four_samples):
    served = engine(policy, samples=samples)
    beside = [served.submit(prompt, SamplingParams(seed=9, max_tokens=TOKENS)) for prompt in asked[:3]]
    (result,) = served.generate([asked[-1]], SAMPLED)
    assert [completion.token_ids for completion in result.completions] == four_samples
    assert len({tuple(each) for each in four_samples}) == 4
    finish(served)
    assert all(served.result(rid).token_ids for rid in beside)


def test_forked_samples_share_the_prompt_and_copy_its_open_block_for_all_but_the_last(engine, asked):
    prompt = asked[-1]  # 17 tokens: four full blocks and one token
    served = engine(ROOMY["paged"])
    params = SamplingParams(n=4, temperature=0.9, seed=3, max_tokens=3, ignore_eos=True)
    served.submit(prompt, params)
    served.step()
    served.step()
    copied = served.cache.bytes_copied / served.policy.bytes_per_token
    assert copied == 3  # three copies of one token; the last writer writes in place
    assert served.policy.pool.blocks - served.policy.pool.free_blocks == 4 + 4
    finish(served)


def test_samples_through_the_cache_each_fill_their_own_last_block(engine, asked):
    served = engine(ROOMY["prefix"], samples="cache")
    params = SamplingParams(n=4, temperature=0.9, seed=3, max_tokens=3, ignore_eos=True)
    served.submit(asked[-1], params)
    served.step()
    served.step()
    assert served.cache.bytes_copied == 0
    assert served.policy.pool.references.count(4) == 4  # the four full blocks of the prompt
    finish(served)


def plain_beams(decoder, prompt, width, tokens):
    return plain_search(decoder, prompt, width, tokens)[0].hypotheses


def plain_search(decoder, prompt, width, tokens):
    group, steps = BeamGroup(width, max_tokens=tokens, eos_token_ids=(EOS,)), []
    while not group.done:
        logits = torch.stack([dense_logits(decoder, [*prompt, *beam.token_ids])[-1] for beam in group.live])
        steps.append(group.step(*best_tokens(logits, group.candidates)))
    return group, steps


@pytest.mark.parametrize(
    "policy", [*ROOMY.values(), *TIGHT.values()], ids=[*ROOMY, *(f"tight {each}" for each in TIGHT)]
)
@pytest.mark.parametrize("width", [1, 3, 5])
def test_beams_are_those_of_a_plain_search(engine, decoder, policy, width, asked, expected):
    served = engine(policy)
    beside = served.submit(asked[2], GREEDY)
    results = served.generate([asked[5], asked[8]], SamplingParams(beams=width, max_tokens=TOKENS))
    for prompt, result in zip((asked[5], asked[8]), results, strict=True):
        plain = plain_beams(decoder, prompt, width, TOKENS)
        assert [tuple(c.token_ids) for c in result.completions] == [each.token_ids for each in plain]
        assert [c.score for c in result.completions] == pytest.approx([each.score for each in plain], abs=1e-4)
    finish(served)
    assert served.result(beside).token_ids == expected[2]


def test_who_watches_sees_what_every_beam_search_decided(engine, decoder, asked):
    moves = []
    served = engine(watch=moves.append)
    served.submit(asked[2], GREEDY)
    prompts_of = {served.submit(asked[at], SamplingParams(beams=3, max_tokens=TOKENS)): asked[at] for at in (5, 8)}
    finish(served)
    assert {move.rid for move in moves} == set(prompts_of)
    for rid, prompt in prompts_of.items():
        own = [move for move in moves if move.rid == rid]
        _, plain = plain_search(decoder, prompt, 3, TOKENS)
        for move, step in zip(own, plain, strict=True):
            assert move.step.children == step.children
            for seen, known in ((move.step.survivors, step.survivors), (move.step.ranked, step.ranked)):
                assert [each[:2] for each in seen] == [each[:2] for each in known]
            assert set(move.step.survivors) <= set(move.step.ranked)
            kept = [beam for beam, children in zip(move.before, step.children, strict=True) if children]
            assert set(kept) <= set(move.after)  # the first child keeps its parent's place
            assert len(set(move.after)) == len(step.survivors)
        assert [move.before for move in own] == [(rid,), *(move.after for move in own[:-1])]
        assert [move.step.done for move in own] == [False] * (len(own) - 1) + [True]


def test_logprobs_are_the_models(engine, decoder, asked):
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=5, logprobs=3, ignore_eos=True)
    (result,) = engine().generate([asked[4]], params)
    logits = dense_logits(decoder, asked[4] + result.token_ids)[len(asked[4]) - 1 : -1]
    raw = logits.log_softmax(-1)
    for token, entry, row in zip(result.token_ids, result.completions[0].logprobs, raw, strict=True):
        assert entry.chosen == pytest.approx(float(row[token]), abs=1e-4)
        assert [each for each, _ in entry.top] == row.topk(3).indices.tolist()


def test_a_stream_is_the_text_in_pieces(engine, tokenizer, asked):
    served = engine()
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    (whole,) = served.generate([asked[3]], params)
    deltas = list(served.stream(asked[3], params))
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [token for delta in deltas for token in delta.token_ids] == whole.token_ids
    assert [delta.reason for delta in deltas] == [None] * (len(deltas) - 1) + ["length"]


def test_a_stop_string_ends_the_text_before_itself(engine, asked):
    served = engine()
    (whole,) = served.generate([asked[3]], SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True))
    stop = whole.text[4:6]
    (stopped,) = served.generate(
        [asked[3]], SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, stop=stop)
    )
    assert stopped.text == whole.text[: whole.text.index(stop)]
    assert stopped.completions[0].reason == "stop"


def test_a_request_that_can_never_fit_is_refused_and_the_others_are_served(engine, asked, expected):
    served = engine(lambda groups: Paged(groups, 40, block_size=BLOCK))
    long = prompts((41,))[0]
    results = served.generate([long, asked[0], long, asked[1]], GREEDY)
    assert [result.completions[0].reason for result in results[::2]] == ["refused", "refused"]
    assert "10 blocks" in results[0].error
    assert said(results[1::2]) == expected[:2]
    (beams,) = served.generate([long], SamplingParams(beams=2, max_tokens=4))
    assert beams.completions[0].reason == "refused"


@pytest.mark.parametrize(
    "params", [GREEDY, SAMPLED, SamplingParams(beams=3, max_tokens=TOKENS)], ids=["1", "n", "beams"]
)
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
@pytest.mark.parametrize("name", TIGHT)
def test_cancel_at_any_moment(engine, name, steps, params, asked, expected):
    served = engine(TIGHT[name], preemption="swap" if "swap" in name else "recompute")
    others = [served.submit(prompt, GREEDY) for prompt in asked[4:]]
    rid = served.submit(asked[3], params)
    for _ in range(steps):
        served.step()
    cancelled = served.cancel(rid)
    assert all(completion.reason == "aborted" for completion in cancelled.completions)
    with pytest.raises(UnknownRequest, match="not being served"):
        served.cancel(rid)
    finish(served)
    assert [served.result(each).token_ids for each in others] == expected[4:]


def test_cancel_of_a_finished_request_says_so(engine, asked):
    served = engine()
    rid = served.submit(asked[0], GREEDY)
    finish(served)
    with pytest.raises(UnknownRequest, match="finished already"):
        served.cancel(rid)
    assert served.result(rid).token_ids
    with pytest.raises(UnknownRequest):
        served.result(rid)


def test_a_closed_stream_is_cancelled(engine, asked):
    served = engine()
    stream = served.stream(asked[0], GREEDY)
    next(stream)
    stream.close()
    assert served.unfinished == 0


class Interrupted:
    """A route that is interrupted at its `at`-th call."""

    def __init__(self, at, error):
        self.route, self.left, self.error = get_route("gather"), at, error
        self.name, self.takes = self.route.name, self.route.takes

    def __call__(self, step, store, trace=None):
        self.left -= 1
        if self.left == 0:
            raise self.error
        return self.route(step, store, trace)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("the device is gone")], ids=["Ctrl-C", "error"])
@pytest.mark.parametrize("at", [1, 2, 7, 20, 29])
@pytest.mark.parametrize("name", TIGHT)
def test_an_interrupted_step_can_be_made_again(engine, name, at, error, asked, expected):
    options = {"preemption": "swap" if name == "swap" else "recompute", "drafts": PromptLookup()}
    served = engine(TIGHT[name], route=Interrupted(at, error), **options)
    rids = [served.submit(prompt, GREEDY) for prompt in asked]
    with pytest.raises(type(error)):
        finish(served)
    served.policy.audit()
    finish(served)
    assert [served.result(rid).token_ids for rid in rids] == expected


def test_a_refusal_in_a_step_that_fails_is_told_by_the_next(engine, asked, expected):
    served = engine(lambda groups: Paged(groups, 40, block_size=BLOCK), route=Interrupted(1, RuntimeError("gone")))
    never, other = served.submit(prompts((41,))[0], GREEDY), served.submit(asked[0], GREEDY)
    with pytest.raises(RuntimeError):
        served.step()
    finish(served)
    assert served.result(never).completions[0].reason == "refused"
    assert served.result(other).token_ids == expected[0]


def test_a_refused_request_can_be_cancelled_before_it_is_told(engine):
    served = engine(lambda groups: Paged(groups, 40, block_size=BLOCK), route=Interrupted(1, RuntimeError("gone")))
    never, other = served.submit(prompts((41,))[0], GREEDY), served.submit([5], GREEDY)
    with pytest.raises(RuntimeError):
        served.step()
    assert served.cancel(never).completions[0].reason == "aborted"
    finish(served)
    assert served.result(other).token_ids


def test_an_interrupted_generate_leaves_only_the_others(engine, asked, expected):
    served = engine(ROOMY["paged"], route=Interrupted(20, KeyboardInterrupt()))
    other = served.submit(asked[2], GREEDY)
    with pytest.raises(KeyboardInterrupt):
        served.generate(asked, GREEDY)
    assert served.unfinished == 1
    finish(served)
    assert served.result(other).token_ids == expected[2]


@pytest.mark.parametrize(
    ("prompt", "params", "words"),
    [
        ([], {}, "empty"),
        ("", {}, "empty"),
        ([VOCAB], {}, f"token {VOCAB}"),
        ([-1], {}, "token -1"),
        ([5] * CONTEXT, {}, f"{CONTEXT} positions"),
        ([5], {"beams": VOCAB + 1}, "beams"),
        ([5], {"stop_token_ids": (VOCAB,)}, "never appear"),
    ],
)
def test_bad_requests_are_refused_by_name_and_nothing_is_queued(engine, prompt, params, words):
    served = engine()
    with pytest.raises(InvalidInput, match=words):
        served.submit(prompt, SamplingParams(**params))
    assert served.unfinished == 0
    assert served.step() == []


def test_an_id_in_use_is_refused(engine, asked):
    served = engine()
    served.submit(asked[0], GREEDY, rid="a")
    with pytest.raises(InvalidInput, match="'a'"):
        served.submit(asked[1], GREEDY, rid="a")
    finish(served)
    served.submit(asked[1], GREEDY, rid="a")
    served.cancel("a")


def test_the_context_ends_an_answer(engine):
    (result,) = engine().generate([[5] * (CONTEXT - 3)], SamplingParams(temperature=0, max_tokens=50, ignore_eos=True))
    assert len(result.token_ids) == 3
    assert result.completions[0].reason == "length"


@pytest.mark.parametrize("options", [{"samples": "clone"}, {"drafts": PromptLookup(tokens=0)}, {"preemption": "swap"}])
def test_bad_options(engine, options):
    with pytest.raises(InvalidInput):
        engine(ROOMY["paged"], **options)


def test_seeds_come_from_the_engines_seed_and_the_number(engine, asked):
    params = SamplingParams(max_tokens=TOKENS)
    first, again, other = (engine(seed=seed).generate([asked[2]] * 2, params) for seed in (1, 1, 2))
    assert said(first) == said(again) != said(other)
    assert first[0].token_ids != first[1].token_ids


def test_prefix_policy_of_preempted_requests_finds_their_own_blocks(engine, asked, expected):
    served = engine(lambda groups: PagedPrefix(groups, 72, block_size=BLOCK))
    assert said(served.generate(asked, GREEDY)) == expected
    assert served.policy.stats.hit_tokens > 0
