"""The engine over a radix tree: turns, running requests that others continue, aborts, and a cache that is saved."""

import pickle

import pytest
import torch
from support.hf_models import KINDS, VOCAB, model
from support.tiny_model import BLOCK, dense_logits, greedy, prompts

from kvlab.engine.engine import Engine
from kvlab.engine.loop import PromptLookup
from kvlab.engine.sampling import SamplingParams
from kvlab.engine.weights import load
from kvlab.policies.islands import RadixIslands
from kvlab.policies.paged import Paged
from kvlab.policies.radix_lazy import RadixLazy


class Numbers:
    """A tokenizer whose text is the ids."""

    eos_token_ids = ()

    def decode(self, ids):
        return " ".join(map(str, ids))


TURN = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def lazy(groups):
    return RadixLazy(groups, 600, page_size=BLOCK, chunk_tokens=16)


def islands(groups):
    return RadixIslands(groups, 800, ratio=0.4, page_size=BLOCK, chunk_tokens=16)


BOTH = pytest.mark.parametrize("policy", [lazy, islands], ids=["lazy", "islands"])


@BOTH
@pytest.mark.parametrize("drafts", [None, PromptLookup(tokens=4)], ids=["plain", "drafts"])
def test_every_turn_finds_the_last_ones_answer(engine, policy, drafts) -> None:
    served = engine(policy, token_budget=16, max_running=4, drafts=drafts)
    reference = engine(lambda groups: Paged(groups, 800, block_size=BLOCK))
    said, before = prompts((19,), seed=4)[0], 1
    for turn in range(4):
        (answer,) = served.generate([said], TURN)
        (expected,) = reference.generate([said], TURN)
        assert answer.token_ids == expected.token_ids
        assert answer.cached_tokens == (before - 1) // BLOCK * BLOCK, "the last token said was never computed"
        before = len(said) + len(answer.token_ids)
        said = [*said, *answer.token_ids, *prompts((3,), seed=turn)[0]]
        served.policy.audit()


def test_an_agent_finds_what_its_running_request_has_said(engine, decoder) -> None:
    for policy, found in ((islands, True), (lazy, False)):
        served = engine(policy, token_budget=16, max_running=4)
        prompt = prompts((16,), seed=1)[0]
        served.submit(prompt, SamplingParams(temperature=0, max_tokens=80, ignore_eos=True), rid="first")
        while served._loop.jobs["first"].lanes[0].request.known_tokens < 40:
            served.step()
        running = served._loop.jobs["first"].lanes[0].request
        transcript = running.token_ids(0, running.known_tokens).tolist()
        served.submit([*transcript, 7], TURN, rid="agent")
        while served.unfinished:
            served.step()
            served.policy.audit()
        answer = served.result("agent")
        assert (answer.cached_tokens > len(prompt)) == found
        assert answer.token_ids[:6] == greedy_after(decoder, [*transcript, 7], 6)


def greedy_after(decoder, prompt: list[int], tokens: int) -> list[int]:
    """What the model says, also past an end-of-sequence token."""
    ids = list(prompt)
    for _ in range(tokens):
        ids.append(int(dense_logits(decoder, ids)[-1].argmax()))
    return ids[len(prompt) :]


@BOTH
def test_an_abort_in_mid_prefill_leaves_its_first_chunks(engine, decoder, policy) -> None:
    served = engine(policy, token_budget=16, max_running=4)
    prompt = prompts((60,), seed=2)[0]
    served.submit(prompt, TURN, rid="gone")
    for _ in range(2):
        served.step()
    served.cancel("gone")
    served.policy.audit()
    assert {usage.owned for usage in served.policy.usage().values()} == {0}
    (answer,) = served.generate([prompt], SamplingParams(temperature=0, max_tokens=8))
    assert answer.cached_tokens == 32
    assert answer.token_ids == greedy(decoder, prompt, 8)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("gemma")])
def test_random_gemma_models_say_the_same_in_all_memories(kind: str, tmp_path) -> None:
    made = model(kind)
    made.save_pretrained(tmp_path)
    decoder = load(tmp_path)
    generator = torch.Generator().manual_seed(3)
    shared = torch.randint(1, VOCAB, (24,), generator=generator).tolist()
    asked = [
        [*shared[:cut], *torch.randint(1, VOCAB, (9,), generator=generator).tolist()] for cut in (0, 7, 8, 17, 24, 24)
    ]
    answers = []
    for policy in (lambda groups: Paged(groups, 800, block_size=4), lazy, islands):
        engine = Engine(decoder, Numbers(), policy, token_budget=16, max_running=3, drafts=PromptLookup())
        answers.append([[each.token_ids for each in engine.generate(asked, TURN)] for _ in range(2)])
        engine.policy.audit()
    assert answers[0] == answers[1] == answers[2]


@BOTH
def test_a_saved_cache_is_served_from_after_it_is_restored(decoder, tokenizer, policy) -> None:
    first = Engine(decoder, tokenizer, policy, token_budget=16, max_running=4)
    asked = prompts((19, 33, 40), seed=5)
    first.generate([[*asked[0], *asked[1]], asked[2]], TURN)
    saved = pickle.dumps(first.policy), [(each.keys.clone(), each.values.clone()) for each in first.cache.stores]
    again = first.generate(asked[2:], TURN)
    restored = Engine(decoder, tokenizer, lambda groups: pickle.loads(saved[0]), token_budget=16, max_running=4)
    restored.policy.audit()
    for store, (keys, values) in zip(restored.cache.stores, saved[1], strict=True):
        store.keys.copy_(keys)
        store.values.copy_(values)
    answers = restored.generate(asked[2:], TURN)
    assert answers[0].token_ids == again[0].token_ids
    assert answers[0].cached_tokens == again[0].cached_tokens > 0
    restored.policy.audit()


@BOTH
def test_a_tight_pool_evicts_and_says_the_same(engine, decoder, policy) -> None:
    served = engine(
        lambda groups: type(policy(groups))(groups, 140, ratio=0.6, page_size=BLOCK, chunk_tokens=16),
        token_budget=16, max_running=6,
    )  # fmt: skip
    asked = prompts((30, 30, 31, 29, 30, 45), seed=6)
    params = SamplingParams(temperature=0, max_tokens=8)
    for _ in range(2):
        assert [each.token_ids for each in served.generate(asked, params)] == [greedy(decoder, p, 8) for p in asked]
        served.policy.audit()
    stats = served.policy.stats
    assert stats.evicted_full_tokens + stats.evicted_swa_tokens > 0
