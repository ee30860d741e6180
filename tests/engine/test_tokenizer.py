"""Text to ids and back: what was streamed joins to what is decoded at once, for every kind of tokenizer served."""

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from kvlab.engine.tokenizer import Detokenizer, Tokenizer
from kvlab.errors import InvalidInput

CONFIG = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SPECIAL = ["<unk>", "<s>", "</s>"]
# not what tokenizers write themselves: SentencePiece's space, special tokens
PLAIN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁<"), max_size=30)
HARD = "naïve 🐈‍⬛ of 東京, a\u00a0b\n\n  c �"


def byte_level() -> Backend:
    """As GPT-2, Llama 3 and the embedded model have it: tokens are pieces of UTF-8."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *letters, "th", "the", "Ġthe", "ðŁ"])}
    made = Backend(models.BPE(vocabulary, [("t", "h"), ("th", "e"), ("Ġ", "the"), ("ð", "Ł")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def sentencepiece(strip: bool) -> Backend:
    """As Llama 2 (which strips a leading space) and Gemma have it: words with ▁, bytes where no word fits."""
    pieces = [f"<0x{byte:02X}>" for byte in range(256)] + list("▁abcdehinot.") + ["▁t", "▁th", "▁the", "▁▁"]
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *pieces])}
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("▁", "▁")]
    made = Backend(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps = [normalizers.Prepend("▁")] if strip else []
    made.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    undo = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*undo, *([decoders.Strip(" ", 1, 0)] if strip else [])])
    return made


def finished(made: Backend) -> Backend:
    made.add_special_tokens([AddedToken(each, special=True) for each in SPECIAL])
    made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return made


BACKENDS = {
    "byte level": finished(byte_level()),
    "sentencepiece": finished(sentencepiece(strip=False)),
    "sentencepiece, stripped": finished(sentencepiece(strip=True)),
}
TOKENIZERS = {name: Tokenizer(each, each.get_vocab_size() + 8, (2,), 1) for name, each in BACKENDS.items()}


def save(folder: Path, backend: Backend, **files: dict[str, Any]) -> Path:
    """A Hugging Face folder with this tokenizer; `files` adds fields to the JSON files it holds."""
    backend.save(str(folder / "tokenizer.json"))
    config = {**CONFIG, "vocab_size": backend.get_vocab_size(), **files.get("config", {})}
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("generation_config", "tokenizer_config"):
        if name in files:
            (folder / f"{name}.json").write_text(json.dumps(files[name]))
    return folder


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
@given(data=st.data())
def test_streamed_pieces_join_to_the_decoded_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """Any ids: special ones, ids without a token, halves of characters, bytes that are no text."""
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
@given(text=PLAIN | st.just(HARD))
def test_a_text_comes_back_whole_and_in_whole_characters(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids[0] == 1
    assert tokenizer.decode(ids) == text
    pieces = streamed(tokenizer, ids)
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_of_several_tokens_comes_when_it_is_whole() -> None:
    tokenizer = TOKENIZERS["byte level"]
    ids = tokenizer.encode("a🐈b")[1:]
    assert streamed(tokenizer, ids) == ["a", "", "", "🐈", "b", ""]


def test_bytes_wait_for_the_token_after_them() -> None:
    """SentencePiece reads bytes in a row together: one bad byte would take back what was shown."""
    tokenizer = TOKENIZERS["sentencepiece"]
    euro = [3 + byte for byte in "€".encode()]
    assert streamed(tokenizer, [*euro, tokenizer.encode("a")[1]]) == ["", "", "", "€a", ""]
    assert streamed(tokenizer, [*euro, 3 + 0xC3]) == [""] * 4 + ["\ufffd" * 4]


def test_a_detokenizer_begins_again_after_a_flush() -> None:
    tokenizer = TOKENIZERS["sentencepiece, stripped"]
    detokenizer = Detokenizer(tokenizer)
    for _ in range(2):
        assert [detokenizer.push(each) for each in tokenizer.encode("the a")] == ["", "the", " ", "a"]
        assert detokenizer.flush() == ""


@pytest.mark.parametrize(
    ("files", "begins"),
    [
        ({}, [1]),
        ({"tokenizer_config": {"add_bos_token": True}}, [1]),
        ({"tokenizer_config": {"add_bos_token": True, "bos_token": {"content": "</s>"}}}, [2]),
        ({"tokenizer_config": {"add_bos_token": False}}, []),
    ],
    ids=["tokenizer.json", "config.json", "tokenizer_config.json", "none"],
)
def test_the_beginning_of_text_is_put_where_the_model_wants_it(
    tmp_path: Path, files: dict[str, Any], begins: list[int]
) -> None:
    tokenizer = Tokenizer.from_dir(save(tmp_path, BACKENDS["byte level"], **files))
    assert tokenizer.encode("the") == [*begins, tokenizer.encode("the")[-1]]
    assert tokenizer.encode("") == begins
    assert tokenizer.bos_token_id == next(iter(begins), None)


def test_a_beginning_that_is_written_out_is_not_doubled() -> None:
    tokenizer = TOKENIZERS["byte level"]
    assert tokenizer.encode("<s>the") == tokenizer.encode("the")


def test_no_beginning_where_tokenizer_json_has_none(tmp_path: Path) -> None:
    assert Tokenizer.from_dir(save(tmp_path, byte_level())).encode("") == []


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({}, (2,)),
        ({"config": {"eos_token_id": [2, 5]}, "tokenizer_config": {"eos_token": "<s>"}}, (2, 5)),
        ({"generation_config": {"eos_token_id": 7}}, (7,)),
        ({"config": {"eos_token_id": None}, "tokenizer_config": {"eos_token": "</s>"}}, (2,)),
        ({"config": {"eos_token_id": None}}, ()),
    ],
)
def test_the_ends_of_text_are_found(tmp_path: Path, files: dict[str, Any], ends: tuple[int, ...]) -> None:
    assert Tokenizer.from_dir(save(tmp_path, BACKENDS["byte level"], **files)).eos_token_ids == ends


def test_neither_truncation_nor_padding_comes_along(tmp_path: Path) -> None:
    backend = finished(byte_level())
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    tokenizer = Tokenizer.from_dir(save(tmp_path, backend))
    assert len(tokenizer.encode("x" * 40)) == 41


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    backend = BACKENDS["byte level"]
    known = backend.get_vocab_size()
    with pytest.raises(InvalidInput, match=f"doesn't match: it has {known} tokens, the model {known - 1}"):
        Tokenizer.from_dir(save(tmp_path, backend, config={"vocab_size": known - 1}))
    more = finished(byte_level())
    more.add_tokens(["<word>"])
    with pytest.raises(InvalidInput, match="doesn't match"):
        Tokenizer(more, known, (2,))


def test_a_special_token_above_the_models_is_refused_only_in_a_text() -> None:
    """Gemma 3 has such a one, for pictures, in checkpoints that read text alone."""
    backend = finished(byte_level())
    backend.add_special_tokens(["<picture>"])
    tokenizer = Tokenizer(backend, BACKENDS["byte level"].get_vocab_size(), (2,))
    assert tokenizer.decode(tokenizer.encode("the")) == "the"
    with pytest.raises(InvalidInput, match="'<picture>'"):
        tokenizer.encode("the <picture>")


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    save(tmp_path, byte_level())
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidInput, match=r"tokenizer\.json is not a tokenizer"):
        Tokenizer.from_dir(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(InvalidInput, match=r"tokenizer\.json is missing"):
        Tokenizer.from_dir(tmp_path)


def test_without_the_package_the_pip_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, byte_level())
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name == "tokenizers":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(InvalidInput, match=r"pip install 'kvlab\[engine\]'"):
        Tokenizer.from_dir(tmp_path)
