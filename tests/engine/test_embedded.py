"""The embedded model: whole, small enough, what its card says, and recognisably English."""

import json
import re
from pathlib import Path

import pytest
import torch
from support.tiny_model import dense_logits

from kvlab.engine import embedded
from kvlab.engine.config import DecoderConfig
from kvlab.engine.decoder import Decoder, random_weights
from kvlab.engine.dense import DenseAttend
from kvlab.errors import InvalidInput

SIZE_LIMIT = 6_000_000

# From two chapters that were held out: James 3, Pride and Prejudice 4.
HELD_OUT = (
    "Behold, we put bits in the horses' mouths, that they may obey us; and we turn about their whole body.\n"
    "Even so the tongue is a little member, and boasteth great things. Behold, how great a matter a little fire "
    "kindleth!\n"
    "Out of the same mouth proceedeth blessing and cursing. My brethren, these things ought not so to be.",
    "When Jane and Elizabeth were alone, the former, who had been cautious in her praise of Mr. Bingley before, "
    "expressed to her sister just how very much she admired him.\n"
    '"I was very much flattered by his asking me to dance a second time. I did not expect such a compliment."',
)
NATS_PER_TOKEN = (4.0, 3.5)  # the most that they may cost; 3.79 and 3.29 were measured, and ln 2048 = 7.62 is a guess
ENGLISH = 0.9  # the least share of its words that are common ones; the chapters that were held out have 0.93


@pytest.fixture(scope="module")
def loaded():
    return embedded.load_model()


@pytest.fixture(scope="module")
def untrained(loaded):
    config = loaded[0].config
    return Decoder(config, random_weights(config, torch.Generator().manual_seed(0)))


@pytest.fixture(scope="module")
def common():
    """The 3,000 words most frequent in the training text."""
    return set((Path(__file__).parent / "common_words.txt").read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def training():
    return json.loads((embedded.embedded_folder() / "training.json").read_text(encoding="utf-8"))


def cost(decoder, tokenizer, text):
    """Nats a token."""
    ids = tokenizer.encode(text)
    return torch.nn.functional.cross_entropy(dense_logits(decoder, ids)[:-1], torch.tensor(ids[1:])).item()


def written(decoder, tokenizer, count=12, tokens=60, temperature=0.8):
    """Texts from nothing but <bos>, all at once and without a cache."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.full((count, 1), tokenizer.bos_token_id)
    with torch.inference_mode():
        while ids.shape[1] <= tokens:
            length = ids.shape[1]
            attend = DenseAttend(decoder.config, count, length)
            hidden = decoder.hidden(ids.flatten(), torch.arange(length).repeat(count), attend)
            chances = (decoder.logits(hidden.view(count, length, -1)[:, -1]) / temperature).softmax(-1)
            ids = torch.cat((ids, torch.multinomial(chances, 1, generator=generator)), 1)
    return [tokenizer.decode(each) for each in ids.tolist()]


def common_share(texts, common):
    """The share of common words; the last of a text may be cut off and doesn't count."""
    words = [word for text in texts for word in re.findall(r"\w+(?:'\w+)?", text.lower())[:-1]]
    return sum(word in common for word in words) / len(words)


def test_it_is_a_small_hybrid_model(loaded):
    decoder, tokenizer = loaded
    config = decoder.config
    assert config.shape.window_tokens == 64
    assert [config.kind(layer) for layer in range(6)] == ["sliding", "sliding", "global"] * 2
    assert config.shape.q_heads > config.kv_heads(0) > 1
    assert config.max_positions >= 1024
    assert config.vocab_size == tokenizer.vocab_size == 2048
    assert config.eos_token_ids == tokenizer.eos_token_ids == (1,)
    assert config.bos_token_id == tokenizer.bos_token_id == 2
    assert next(decoder.parameters()).dtype == torch.float32


def test_it_takes_at_most_six_megabytes():
    assert sum(file.stat().st_size for file in embedded.embedded_folder().iterdir()) < SIZE_LIMIT


def test_bf16_is_what_is_stored(loaded):
    decoder, _ = embedded.load_model(dtype=None)
    assert decoder.config.dtype == torch.bfloat16
    for (name, stored), whole in zip(decoder.named_parameters(), loaded[0].parameters(), strict=True):
        assert torch.equal(stored.float(), whole), name


@pytest.mark.parametrize(("text", "most"), list(zip(HELD_OUT, NATS_PER_TOKEN, strict=True)), ids=["James", "Austen"])
def test_text_it_never_saw_is_likely(loaded, untrained, text, most):
    decoder, tokenizer = loaded
    assert cost(decoder, tokenizer, text) < most
    assert cost(untrained, tokenizer, text) > 7


def test_what_it_writes_is_english(loaded, untrained, common):
    decoder, tokenizer = loaded
    texts = written(decoder, tokenizer)
    assert common_share(texts, common) >= ENGLISH
    words = [word for text in texts for word in re.findall(r"\w+", text.lower())]
    assert len(set(words)) > 0.3 * len(words), "it repeats itself"
    assert common_share(written(untrained, tokenizer), common) < 0.6 * ENGLISH


def test_a_token_beyond_every_window_still_counts(loaded):
    """Four sliding layers carry 4 x 63 tokens far at most; what came before reaches the end through the global ones."""
    decoder, tokenizer = loaded
    ids = tokenizer.encode("\n".join(HELD_OUT) * 4)[:400]
    other = [*ids[:40], *tokenizer.encode("Bingley")[1:3], *ids[42:]]
    assert len(ids) == len(other)
    assert (dense_logits(decoder, ids)[-1] - dense_logits(decoder, other)[-1]).abs().max() > 1e-3


def test_a_long_context_stays_sane(training, loaded):
    late = training["held_out"]["context"]
    assert late["at_least_768"] < late["at_most_320"] + 0.02
    decoder, tokenizer = loaded
    ids = tokenizer.encode("\n".join(HELD_OUT) * 9)[:1024]
    assert len(ids) == 1024
    assert dense_logits(decoder, ids).isfinite().all()


def test_transformers_reads_the_folder_and_agrees(loaded):
    transformers = pytest.importorskip("transformers")
    decoder, tokenizer = loaded
    folder = embedded.embedded_folder()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    words = transformers.AutoTokenizer.from_pretrained(folder)
    text = "\n".join(HELD_OUT) * 2
    ids = tokenizer.encode(text)
    assert words(text)["input_ids"] == ids
    assert words.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids) == text
    assert (words.pad_token_id, words.eos_token_id, words.bos_token_id, words.unk_token_id) == (0, 1, 2, 3)
    assert len(ids) > 3 * 64
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0]
    assert (dense_logits(decoder, ids) - expected).abs().max() < 1e-4
    assert theirs.generation_config.eos_token_id == 1


def test_the_run_came_to_its_end_and_is_told_as_it_was(training, loaded):
    folder = embedded.embedded_folder()
    assert training["run"]["share_of_schedule"] >= 0.95, "the learning rate has not come down"
    assert training["model"]["parameters"] == sum(each.numel() for each in loaded[0].parameters())
    assert training["model"]["safetensors_bytes"] == (folder / "model.safetensors").stat().st_size
    card = (folder / "README.md").read_text(encoding="utf-8")
    for source in training["sources"]:
        assert source["sha256"] in card
        assert "public domain" in source["status"]
    overall = training["held_out"]["by_source"]["all"]
    assert f"{overall['nats_per_token']:.3f} nats a token, {overall['bits_per_byte']:.3f} bits a byte" in card


def test_an_installation_without_the_model_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(embedded, "files", lambda package: tmp_path)
    with pytest.raises(InvalidInput, match=r"not in .*model; install kvlab again"):
        embedded.load_model()


@pytest.mark.parametrize("package", ["safetensors", "tokenizers"])
def test_a_missing_package_is_named(package, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(InvalidInput, match=rf"{package} \(pip install 'kvlab\[engine\]'\)"):
        embedded.load_model()


def test_the_configuration_is_what_the_weights_were_trained_with(loaded):
    assert DecoderConfig.from_config(embedded.embedded_folder()).source == loaded[0].config.source | {
        "dtype": "bfloat16"
    }
