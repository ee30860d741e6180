"""The whole engine step on a Gaudi that is not there: on fake tensors it stays on the card and meets nothing new after
the warm-up; on real ones, with the graphs counted, it compiles nothing new and says what the plain runner says."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from device.conftest import OnTheCPU, installed
from device.dry_run import HPU as CARD
from device.dry_run import NotForGaudi, Watched, device_only, fake_hpu
from device.gaudi_standin import Gaudi
from support.tiny_model import PLAIN, VOCAB, prompts, tiny_config
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from kvlab.attention.registry import get_route
from kvlab.attention.step import Bytes
from kvlab.device.hpu import HPU
from kvlab.engine.config import DecoderConfig
from kvlab.engine.decoder import Decoder, random_weights
from kvlab.engine.engine import Engine
from kvlab.engine.loop import PromptLookup
from kvlab.engine.sampling import SamplingParams
from kvlab.engine.static_runner import StaticRunner
from kvlab.engine.static_shapes import Rounding, Shapes
from kvlab.policies.prefix import PagedPrefix

# torch's own tracing of an autograd function, as FusedSDPA is one, makes an instance of it and warns about that
pytestmark = pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*instantiated:DeprecationWarning")

ROUNDING = Rounding(requests=2, chunk=8, context=128, moved=32)
OPTIONS: dict[str, Any] = {
    "rounding": ROUNDING, "max_running": 3, "token_budget": 8, "drafts": PromptLookup(tokens=2),
}  # fmt: skip
every_policy = pytest.mark.parametrize("name", PLAIN)


def small_decoder(dtype: torch.dtype = torch.float32) -> Decoder:
    """One layer of each kind."""
    fields = {
        **tiny_config().source, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"],
        "hidden_size": 32, "head_dim": 16, "intermediate_size": 32,
    }  # fmt: skip
    config = DecoderConfig.from_config(fields).with_dtype(dtype)
    return Decoder(config, random_weights(config, torch.Generator().manual_seed(0)))


def engine_of(name: str, decoder: Decoder, tokenizer: Any, device: HPU, **options: Any) -> Engine:
    preemption = "swap" if name == "swap" else "recompute"
    return Engine(decoder, tokenizer, PLAIN[name], device=device, preemption=preemption, **OPTIONS, **options)


def a_day(served: Engine) -> Iterator[str]:
    """Submit a day's requests, more than fit: greedy, sampled, forked and beams; what is asked for, in order."""
    long, short, middle, other = prompts((30, 3, 17, 9))
    greedy = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
    for prompt in (long, short * 3, middle, other):
        yield served.submit(prompt, greedy)
    yield served.submit(other[:5], SamplingParams(n=3, temperature=0.9, seed=1, max_tokens=4, ignore_eos=True))
    yield served.submit(middle[:7], SamplingParams(beams=2, max_tokens=4))
    yield served.submit(long[:11] * 2, SamplingParams(temperature=0.7, seed=2, max_tokens=12, ignore_eos=True))


def finish(served: Engine) -> None:
    while served.unfinished:
        served.step()
        served.policy.audit()


@pytest.fixture
def gaudi(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gaudi]:
    yield from installed(Gaudi(), monkeypatch)


class Card(HPU):
    """A Gaudi whose graphs run as they are, held to the rules of a graph."""

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def graph(*operands: Any) -> Any:
            with device_only():
                return function(*operands)

        return graph


def on_card(mode: FakeTensorMode, decoder: Decoder) -> Decoder:
    """The decoder with its weights as fake tensors on the card."""
    for module in decoder.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(mode.from_tensor(weight.detach()).to(CARD), weight.requires_grad))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, mode.from_tensor(buffer).to(CARD))
    return decoder


@pytest.fixture
def values_of_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes back to the host gets values: any logits and beams, and of few tokens any, so that they repeat and
    drafts are found. Nothing on the card has a value."""
    draw = np.random.default_rng(0)

    def values(tensor: Tensor) -> Any:
        assert tensor.device.type == "cpu"
        shape = tuple(tensor.shape)
        if tensor.dtype.is_floating_point:
            return draw.standard_normal(shape, np.float32)
        return draw.permutation(np.arange(4, VOCAB))[: tensor.numel()].reshape(shape)

    def tokens(tensor: Tensor) -> list[int]:
        assert tensor.device.type == "cpu"
        return draw.integers(4, 10, len(tensor)).tolist()

    monkeypatch.setattr(FakeTensor, "numpy", values, raising=False)
    monkeypatch.setattr(FakeTensor, "tolist", tokens, raising=False)


@every_policy
def test_the_whole_step_stays_on_the_card_and_meets_nothing_new(
    gaudi: Gaudi, values_of_fakes: None, tokenizer: Any, name: str
) -> None:
    """Prompts in chunks, decoding and drafts beside them, forks, beams, preemption, copies and swaps: the card meets
    no operator and no shape, in a graph or outside, that it did not meet while it warmed up."""
    decoder, told = small_decoder(torch.bfloat16), []
    with fake_hpu() as mode, Watched() as watched:
        served = engine_of(name, on_card(mode, decoder), tokenizer, Card.open(), announce=told.append)
        assert isinstance(served.runner, StaticRunner)
        assert told == [f"warming up {served.runner.graphs} graphs, so that none has to be made while requests wait"]
        assert all(store.keys.device == CARD for store in served.cache.stores)
        warmed = set(watched.met)
        rids = list(a_day(served))
        finish(served)
        assert sorted(watched.met - warmed) == []
    results = [served.result(rid) for rid in rids]
    assert all(completion.token_ids for result in results for completion in result.completions)
    assert served.spent.drafted > 0
    assert (served.cache.bytes_swapped > 0) == (name == "swap")
    if name in ("paged", "swap", "prefix"):
        assert sum(result.preemptions for result in results) > 0
    if name != "max":  # a region of the longest sequence for each: a fork finds no second one here and is computed
        assert served.cache.bytes_copied > 0


def test_a_step_that_was_not_rounded_meets_something_new(gaudi: Gaudi, values_of_fakes: None, tokenizer: Any) -> None:
    with fake_hpu() as mode, Watched() as watched:
        served = engine_of("paged", on_card(mode, small_decoder()), tokenizer, Card.open())
        warmed = set(watched.met)
        for store in served.cache.stores:
            store.copies = None
        list(a_day(served))
        finish(served)
        assert watched.met - warmed


def test_a_logit_that_is_looked_at_in_a_graph_is_caught(
    gaudi: Gaudi, values_of_fakes: None, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = Decoder.logits
    monkeypatch.setattr(Decoder, "logits", lambda self, hidden: logits(self, hidden) * float(hidden.sum()))
    with fake_hpu() as mode, pytest.raises(NotForGaudi, match="waits for a value"):
        engine_of("paged", on_card(mode, small_decoder()), tokenizer, Card.open())


def test_weights_that_stayed_on_the_host_are_caught(gaudi: Gaudi, values_of_fakes: None, tokenizer: Any) -> None:
    with fake_hpu() as mode:
        decoder = on_card(mode, small_decoder())
        decoder.frequencies = mode.from_tensor(torch.ones(decoder.frequencies.shape))
        with pytest.raises(NotForGaudi, match="of the CPU"):
            engine_of("paged", decoder, tokenizer, Card.open())


@every_policy
def test_after_the_warm_up_a_day_compiles_no_graph_and_says_what_the_plain_runner_says(
    gaudi: Gaudi, tokenizer: Any, name: str
) -> None:
    decoder = small_decoder()
    served = engine_of(name, decoder, tokenizer, OnTheCPU.open())
    assert gaudi.compiled == served.runner.graphs
    assert served.runner.read == Bytes(0, 0, 0)
    rids = list(a_day(served))
    finish(served)
    assert gaudi.compiled == served.runner.graphs
    options = OPTIONS | {"rounding": None, "route": get_route("gather"), "preemption": served.scheduler.preemption}
    plain = Engine(decoder, tokenizer, PLAIN[name], **options)
    assert list(a_day(plain)) == rids
    finish(plain)
    for rid in rids:
        answers = [[c.token_ids for c in each.result(rid).completions] for each in (served, plain)]
        assert answers[0] == answers[1]


def test_a_shape_that_was_not_warmed_up_is_noticed(
    gaudi: Gaudi, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = Shapes.reachable
    monkeypatch.setattr(Shapes, "reachable", lambda self: every(self)[1:])
    served = engine_of("paged", small_decoder(), tokenizer, OnTheCPU.open())
    warmed = gaudi.compiled
    list(a_day(served))
    finish(served)
    assert gaudi.compiled == warmed + 1


def test_in_lazy_mode_nothing_is_traced(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    gaudi = Gaudi(lazy=True)
    gaudi.install(monkeypatch)
    served = engine_of("prefix", small_decoder(), tokenizer, OnTheCPU.open())
    assert isinstance(served.policy, PagedPrefix)
    list(a_day(served))
    finish(served)
    assert gaudi.compiled == 0
    steps = gaudi.paths().count("habana_frameworks.torch.core.mark_step")
    assert steps >= served.runner.graphs + served.spent.steps
