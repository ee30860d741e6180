"""Rings in the engine: written when tokens are accepted, in memory that pages share, and read without a copy."""

import pytest
import torch
from support.hf_models import KINDS, model
from support.tiny_model import BLOCK, ROOMY, TIGHT, WINDOW, dense_logits, prompts

from kvlab.attention import KVStore, Step, get_route
from kvlab.engine.engine import Engine
from kvlab.engine.loop import PromptLookup
from kvlab.engine.overlay import LayerKV, overlaid, plan
from kvlab.engine.sampling import SamplingParams
from kvlab.engine.weights import load
from kvlab.errors import InvalidInput
from kvlab.policies.base import Overlay, Pool
from kvlab.policies.hybrid_ring import HybridRing
from kvlab.policies.layout import Ring

GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)


class Numbers:
    """A tokenizer whose text is the ids."""

    eos_token_ids = ()

    def decode(self, ids):
        return " ".join(map(str, ids))


def rings(engine) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Copies of the K and V of the ring of request "r", by layer. (Pages lie in other rows of the same memory.)"""
    ring = next(layout for layout in engine.policy.layout("r") if isinstance(layout, Ring))
    row = ring.first_slot // WINDOW
    return {
        layer: (store.keys[row].clone(), store.values[row].clone())
        for layer, store in enumerate(engine.cache.stores)
        if engine.policy.groups[engine.cache.group_of[layer]].pool == "ring"
    }


def same(left, right) -> bool:
    return all(torch.equal(a, b) for layer in left for a, b in zip(left[layer], right[layer], strict=True))


@pytest.mark.parametrize("kind", ["gemma 3", "gemma 4"])
def test_gemma_checkpoints_say_the_same_as_with_pages(kind, tmp_path):
    found = next(name for name in KINDS if name.startswith(kind))
    model(found).save_pretrained(tmp_path)
    decoder = load(tmp_path)
    asked = [[token % 90 + 1 for token in prompt] for prompt in prompts((1, WINDOW, WINDOW + 1, 3 * WINDOW, 29))]
    said = [
        Engine(decoder, Numbers(), policy, token_budget=11, max_running=8, drafts=PromptLookup()).generate(
            asked, GREEDY
        )
        for policy in (ROOMY["paged"], lambda groups: HybridRing(groups, 200, block_size=BLOCK))
    ]
    assert [each.token_ids for each in said[0]] == [each.token_ids for each in said[1]]


def test_a_step_that_is_undone_leaves_the_ring_as_it_was(engine):
    served = engine(ROOMY["ring"])
    served.submit(prompts((2 * WINDOW + 3,))[0], GREEDY, rid="r")
    for _ in range(3):
        served.step()
    before, logits = rings(served), served.decoder.logits
    served.decoder.logits = lambda hidden: (_ for _ in ()).throw(RuntimeError("gone"))
    with pytest.raises(RuntimeError, match="gone"):
        served.step()
    served.decoder.logits = logits
    assert same(before, rings(served))
    served.step()
    assert not same(before, rings(served))


def test_rejected_drafts_are_not_written(engine):
    """After every step a ring holds what the committed tokens alone would have put there."""
    served, plain = engine(ROOMY["ring"], drafts=PromptLookup(tokens=5)), engine(ROOMY["ring"])
    prompt = prompts((7,))[0] * 3
    for each in (served, plain):
        each.submit(prompt, GREEDY, rid="r")
        while (each.unfinished and each.policy.admitted()[:1] == []) or (each._loop.jobs and known(each) < 40):
            each.step()
    assert served.spent.drafted > served.spent.accepted, "no draft was rejected"
    computed = min(each.policy.admitted()[0].computed for each in (served, plain))
    assert computed > 2 * WINDOW
    for layer in rings(served):
        held = []
        for each in (served, plain):
            ring = next(layout for layout in each.policy.layout("r") if isinstance(layout, Ring))
            last = ring.first_slot + torch.arange(ring.end - WINDOW + 1, computed) % WINDOW
            held.append(each.cache.stores[layer].read(last.numpy()))
        for drafted, undrafted in zip(*held, strict=True):
            torch.testing.assert_close(drafted, undrafted)


def known(engine) -> int:
    admitted = engine.policy.admitted()
    return admitted[0].known_tokens if admitted else 0


def test_a_decode_step_copies_no_kv(engine):
    served = engine(ROOMY["ring"], route=get_route("native"))
    served.submit(prompts((2 * WINDOW,))[0], GREEDY)
    served.step()
    copied, read = served.cache.bytes_copied, served.runner.read
    served.step()
    assert served.cache.bytes_copied == copied == 0
    useful, padded, physical = (after - before for after, before in zip(served.runner.read, read, strict=True))
    assert useful == padded == physical > 0


def test_a_chunk_that_is_written_before_it_is_read_gives_wrong_answers():
    """Why rings are written at commit: the chunk's own tokens lie where its first queries still look."""
    torch.manual_seed(0)
    past, new, dim = 12, 5, 32
    keys, values, queries = torch.randn(3, past + new, 1, dim)
    store = KVStore(WINDOW, WINDOW, 1, dim, dtype=torch.float32)

    def put(start, stop):
        ring = Ring(0, WINDOW, start, stop)
        store.write(keys[start:stop], values[start:stop], ring.slots())

    def answer(layout):
        own = keys[past:], values[past:]
        step = Step(queries[past:], *own, [0, new], [past + new], [layout], dim**-0.5, WINDOW)
        return get_route("reference")(step, store)[0]

    put(past - WINDOW, past)
    before = Ring(0, WINDOW, past - WINDOW + 1, past)
    right = answer(before)
    expected = []
    for position in range(past, past + new):
        span = slice(position - WINDOW + 1, position + 1)
        weights = torch.softmax(keys[span, 0] @ queries[position, 0] * dim**-0.5, 0)
        expected.append(weights @ values[span, 0])
    torch.testing.assert_close(right[:, 0], torch.stack(expected))
    put(past, past + new)
    assert (answer(before) - right).abs().max() > 0.1


def test_forks_of_a_ring_copy_it_once(engine):
    served = engine(ROOMY["ring"])
    (answer,) = served.generate([prompts((2 * WINDOW,))[0]], SamplingParams(n=3, temperature=0.9, seed=1, max_tokens=9))
    assert len({tuple(each.token_ids) for each in answer.completions}) > 1
    groups = {group.pool: group for group in served.policy.groups}
    assert served.cache.bytes_copied >= 2 * WINDOW * groups["ring"].bytes_per_token


def test_a_long_prompt_in_small_chunks_ends_with_the_models_own_token(engine, decoder):
    served = engine(TIGHT["ring"], token_budget=6, max_running=6)
    prompt = prompts((3 * WINDOW + 1,))[0]
    (answer,) = served.generate([prompt], SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))
    assert answer.token_ids == [int(dense_logits(decoder, prompt)[-1].argmax())]


LAYERS = {"ring": [LayerKV(2, 8), LayerKV(2, 8)], "page": [LayerKV(1, 16)]}


def pools(rows: int, window: int, page: int, pages: int) -> dict[str, Pool]:
    over = Overlay("arena", rows)
    count = rows * pages
    return {"ring": Pool(rows * window, window, None, over), "page": Pool(count * page, page, [1] * count, over)}


@pytest.mark.parametrize(("window", "page", "pages"), [(8, 4, 8), (7, 4, 8), (8, 3, 16), (5, 16, 1)])
def test_a_row_is_a_ring_or_pages_and_no_two_places_of_one_kind_are_the_same(window, page, pages):
    rows = 3
    given = pools(rows, window, page, pages)
    memory, store = overlaid(rows, given, LAYERS, dtype=torch.float32, device="cpu", copies=None)
    found = plan(rows, given, LAYERS)
    assert found.apart["page"] * pages == found.apart["ring"] == found.row_values
    for name, layers in LAYERS.items():
        memory.zero_()
        stores = [store(name, index) for index in range(len(layers))]
        for each in stores:
            each.keys.add_(1), each.values.add_(1)
        assert memory.max() == 1, f"two places of {name} are one"
        assert memory.sum() == sum(each.keys.numel() + each.values.numel() for each in stores)
    for row in range(rows):
        memory.zero_()
        store("ring", 1).keys[row] = 1
        touched = torch.nonzero(memory)[:, 0] // found.row_values
        assert touched.unique().tolist() == [row], "a ring reaches into another row"
        pages_of = store("page", 0)
        memory.zero_()
        pages_of.values[row * pages : (row + 1) * pages] = 1
        assert (torch.nonzero(memory)[:, 0] // found.row_values).unique().tolist() == [row]


def test_pools_that_do_not_lie_over_rows_are_refused():
    over = Overlay("arena", 3)
    with pytest.raises(InvalidInput, match="no whole blocks in 3 rows"):
        plan(3, {"ring": Pool(20, 8, None, over)}, {"ring": LAYERS["ring"]})
    several = {name: Pool(24, 4, [1] * 6, over) for name in ("a", "b")}
    with pytest.raises(InvalidInput, match="several blocks a row"):
        plan(3, several, {"a": LAYERS["page"], "b": LAYERS["page"]})
