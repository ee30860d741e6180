"""Training the embedded model: tokenizer, order of the data, schedule, and a run that is stopped and taken up."""

import itertools

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from kvlab.engine.config import DecoderConfig
from kvlab.engine.decoder import Decoder, random_weights

TEXTS = ["In the beginning was the word. " * 9, "And the word was with the king, the king's servant said. " * 9]


@pytest.fixture(scope="module")
def tokenizer(root):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root / "tools")
        from train.bpe import train_tokenizer

        return train_tokenizer(TEXTS, 300)


@given(text=st.text(max_size=40).filter(lambda text: "<" not in text))
def test_any_text_comes_back(tokenizer, text):
    ids = tokenizer.encode(text).ids
    assert ids[0] == 2
    assert all(4 <= each < tokenizer.get_vocab_size() for each in ids[1:])
    assert tokenizer.decode(ids) == text


def test_special_tokens_stand_where_gemma_has_them(tokenizer):
    assert [tokenizer.token_to_id(each) for each in ("<pad>", "<eos>", "<bos>", "<unk>")] == [0, 1, 2, 3]
    assert tokenizer.get_vocab_size() <= 300
    assert len(tokenizer.encode(TEXTS[0]).ids) < len(TEXTS[0]) / 3


def test_the_rate_rises_stays_and_falls_to_nothing():
    from train.schedule import Schedule, Stage

    schedule = Schedule(10, 0.5, (Stage(1.0, 8, 1),))
    assert schedule.rate(0, 0.0) == pytest.approx(0.1)
    assert schedule.rate(9, 0.2) == 1.0
    assert schedule.rate(500, 0.5) == 1.0
    assert schedule.rate(500, 0.75) == pytest.approx(0.5)
    assert schedule.rate(500, 1.0) == schedule.rate(500, 1.3) == 0.0


@given(st.floats(0.0, 0.99), st.integers(1, 50))
def test_after_the_warm_up_the_rate_never_rises(decay_from, warm_up):
    from train.schedule import Schedule, Stage

    schedule = Schedule(warm_up, decay_from, (Stage(1.0, 8, 1),))
    rates = [schedule.rate(warm_up, share / 20) for share in range(21)]
    assert rates == sorted(rates, reverse=True)
    assert 0 <= min(rates) <= max(rates) <= 1


def test_stages_follow_the_share_of_the_time():
    from train.schedule import Schedule, Stage

    short, long = Stage(0.7, 256, 16), Stage(1.0, 1024, 4)
    schedule = Schedule(1, 0.5, (short, long))
    assert [schedule.stage(share) for share in (0.0, 0.69, 0.7, 1.0, 1.5)] == [short, short, long, long, long]
    for wrong in ((), (short,), (long, short)):
        with pytest.raises(ValueError, match="stages must rise"):
            Schedule(1, 0.5, wrong)


def documents(count=7):
    """Token ids, all different, so that each can be found again."""
    edges = np.cumsum([0, *(5 + 3 * n for n in range(count))])
    return [np.arange(start, end, dtype=np.int32) for start, end in itertools.pairwise(edges)]


def test_an_epoch_shows_every_token_at_most_once_and_in_order():
    from train.batches import Batches

    whole = documents()
    follows = {int(a): int(b) for each in whole for a, b in itertools.pairwise(each)}
    batches = Batches(whole, seed=3)
    seen = []
    while batches.epoch == 0:
        window = batches.next(4, 2)
        assert window.shape == (2, 5)
        if batches.epoch == 0:
            seen += window[:, :-1].flatten().tolist()
            for a, b in zip(window[:, :-1].flatten().tolist(), window[:, 1:].flatten().tolist(), strict=True):
                assert follows.get(a, b) == b, "a token is followed by the next of its document, or by another document"
    assert len(seen) == len(set(seen)) > 0.8 * sum(map(len, whole))


def test_the_data_goes_on_where_it_was_left():
    from train.batches import Batches

    batches, again = Batches(documents(), 3), Batches(documents(), 3)
    for _ in range(13):
        batches.next(4, 2)
    again.restore(batches.state())
    for _ in range(20):
        assert torch.equal(batches.next(4, 2), again.next(4, 2))
    batches.next(8, 2)
    assert batches.state() == {"epoch": again.epoch + 1, "at": 2, "length": 8}


@pytest.fixture
def alone():
    """A process group of one worker."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def begin(alone, monkeypatch, tmp_path):
    """Makes runs of a tiny model on a clock that moves by 10 ms each time it is read."""
    from train import loop
    from train.batches import Batches
    from train.schedule import Schedule, Stage

    ticks = itertools.count()
    monkeypatch.setattr(loop.time, "monotonic", lambda: next(ticks) / 100)
    config = DecoderConfig.from_config(
        {
            "model_type": "gemma3_text", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 48, "vocab_size": 120,
            "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"], "dtype": "float32",
        }
    )  # fmt: skip
    schedule = Schedule(5, 0.5, (Stage(0.6, 8, 8), Stage(1.0, 16, 4)))
    settings = loop.Settings(minutes=0.01, workers=1, compiled=False)

    def make():
        model = Decoder(config, random_weights(config, torch.Generator().manual_seed(0)))
        return loop.Run(model, Batches(documents(), 0), schedule, settings, tmp_path, 0)

    return make


def test_a_run_learns_and_ends_with_its_minutes(begin):
    run = begin()
    losses = []
    while run.share < 1:
        losses.append(run.step())
    assert run.steps == len(losses) == 60
    assert losses[-1] < 0.6 * losses[0]
    assert run.tokens == 60 * 64
    assert run.batches.state()["length"] == 16
    moved = [not torch.equal(weight, run.average[name]) for name, weight in run.model.named_parameters()]
    assert all(moved), "the average trails the weights"


def test_stopped_and_taken_up_again_is_as_undisturbed(begin):
    undisturbed, stopped = begin(), begin()
    expected = [undisturbed.step() for _ in range(45)]
    found = [stopped.step() for _ in range(20)]
    stopped.save()
    resumed = begin()
    resumed.restore()
    found += [resumed.step() for _ in range(25)]
    assert found == expected
    for (name, one), other in zip(undisturbed.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other), name
        assert torch.equal(undisturbed.average[name], resumed.average[name])


def test_a_checkpoint_of_two_times_is_refused(begin):
    run = begin()
    run.step()
    run.save()
    run.step()
    part = torch.load(run.folder / "optimizers.0.pt", weights_only=True)
    torch.save(part | {"steps": 7}, run.folder / "optimizers.0.pt")
    with pytest.raises(SystemExit, match="different steps"):
        begin().restore()
