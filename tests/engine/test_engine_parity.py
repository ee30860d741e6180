"""The engine beside `generate` of transformers: the same tokens, on random models and the embedded one."""

import pytest
import torch
from support.hf_models import KINDS, VOCAB, WINDOW, model
from transformers import AutoModelForCausalLM

from kvlab.attention.registry import get_route
from kvlab.engine.embedded import embedded_folder
from kvlab.engine.engine import Engine
from kvlab.engine.sampling import SamplingParams
from kvlab.engine.weights import load
from kvlab.policies.paged import Paged

BLOCK, CHUNK, TOKENS = 4, 7, 12
LENGTHS = sorted({1, *(n + d for n in (BLOCK, CHUNK, WINDOW, 2 * WINDOW) for d in (-1, 0, 1))})


class Numbers:
    """A tokenizer whose text is the ids."""

    eos_token_ids = ()

    def decode(self, ids):
        return " ".join(map(str, ids))


def generated(made, ids, tokens, **options):
    made.generation_config.eos_token_id = None
    made.generation_config.pad_token_id = 0
    whole = torch.tensor([ids])
    answer = made.generate(
        whole, attention_mask=torch.ones_like(whole), do_sample=False, max_new_tokens=tokens, **options
    )
    return answer[:, len(ids) :].tolist()


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory):
    made, folder = model(request.param), tmp_path_factory.mktemp("saved")
    made.save_pretrained(folder)
    return made, load(folder)


def prompts():
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(1, VOCAB, (length,), generator=generator).tolist() for length in LENGTHS]


def test_greedy(pair):
    made, decoder = pair
    engine = Engine(
        decoder, Numbers(), lambda groups: Paged(groups, 160, block_size=BLOCK), route=get_route("gather"),
        token_budget=CHUNK, max_running=CHUNK,
    )  # fmt: skip
    answers = engine.generate(prompts(), SamplingParams(temperature=0, max_tokens=TOKENS))
    assert [each.token_ids for each in answers] == [generated(made, prompt, TOKENS)[0] for prompt in prompts()]
    assert engine.spent.steps > TOKENS


def test_beams(pair):
    made, decoder = pair
    engine = Engine(decoder, Numbers(), lambda groups: Paged(groups, 400, block_size=BLOCK), route=get_route("gather"))
    for prompt in prompts()[::4]:
        (answer,) = engine.generate([prompt], SamplingParams(beams=3, max_tokens=TOKENS))
        expected = generated(made, prompt, TOKENS, num_beams=3, num_return_sequences=3)
        assert [each.token_ids for each in answer.completions] == expected


def test_the_embedded_model_past_its_window():
    made = AutoModelForCausalLM.from_pretrained(embedded_folder(), dtype=torch.float32)
    engine = Engine.from_pretrained("embedded")
    ids = engine.tokenizer.encode(
        "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want "
        "of a wife. However little known the feelings or views of such a man may be on his first entering a "
        "neighbourhood, this truth is so well fixed in the minds of the surrounding families, that he is considered "
        "as the rightful property of some one or other of their daughters."
    )
    asked = [ids[:length] for length in (5, 15, 16, 17, 63, 64, 65, len(ids))]
    assert len(ids) > 80
    answers = engine.generate(asked, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    assert [each.token_ids for each in answers] == [generated(made, prompt, 40)[0] for prompt in asked]
