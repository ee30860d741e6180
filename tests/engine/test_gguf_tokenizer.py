"""The tokenizer of a GGUF file: the ids of the one it was made from, and every text comes back."""

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from gguf import GGUFWriter
from hypothesis import given
from hypothesis import strategies as st
from support.gguf_files import (
    CORPUS,
    SPM_KINDS,
    SPM_SCORES,
    SPM_TOKENS,
    Edit,
    add_byte_level,
    add_sentencepiece,
    byte_level,
)
from tokenizers import Regex, Tokenizer, pre_tokenizers
from transformers import AutoTokenizer

from kvlab.engine.gguf_file import GGUFFile
from kvlab.engine.gguf_tokenizer import merges_of_scores, tokenizer, tokenizer_config
from kvlab.errors import InvalidInput

TEXTS = [
    *CORPUS[:3],
    "",
    " ",
    "  two  spaces ",
    "<|im_start|>user\nHi<|im_end|>",
    "a\tb\r\n\n\nc",
    "1234 ½ ٣٤",
    "\x00\x7f",
]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def header(path: Path, edit: Edit) -> GGUFFile:
    """A file of key/values only."""
    writer = GGUFWriter(path, "llama")
    edit(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return GGUFFile(path)


def read(path: Path, edit: Edit) -> Tokenizer:
    return tokenizer(header(path, edit), 1000)


@cache
def sentencepiece(*, prefix: bool) -> Tokenizer:
    with TemporaryDirectory() as folder:
        return read(Path(folder) / "spm.gguf", lambda writer: add_sentencepiece(writer, prefix=prefix))


def split_digits() -> Tokenizer:
    return byte_level(pre_tokenizers.Digits(individual_digits=True))


@pytest.mark.parametrize(("pre", "make"), [("gpt-2", byte_level), ("smollm", split_digits)])
def test_a_byte_level_tokenizer_gives_the_ids_of_its_original(pre: str, make: type, tmp_path: Path) -> None:
    original = make()
    ours = read(tmp_path / "tokens.gguf", lambda writer: add_byte_level(writer, original, pre))
    for text in TEXTS:
        assert ours.encode(text).ids == original.encode(text).ids, text
        assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text
    assert ours.get_vocab() == original.get_vocab()


def test_digits_stay_apart_only_where_the_rule_says_so(tmp_path: Path) -> None:
    original = byte_level()
    ids = {
        pre: read(tmp_path / f"{pre}.gguf", lambda writer, pre=pre: add_byte_level(writer, original, pre)).encode(
            "1234567"
        )
        for pre in ("gpt-2", "smollm")
    }
    assert len(ids["smollm"].ids) == 7
    assert len(ids["gpt-2"].ids) < 7


def test_a_llama_3_tokenizer_splits_by_its_own_rule_and_starts_with_its_first_token(tmp_path: Path) -> None:
    original = byte_level(pre_tokenizers.Split(Regex(LLAMA3), "isolated"), use_regex=False)
    ours = read(tmp_path / "tokens.gguf", lambda writer: add_byte_level(writer, original, "llama-bpe"))
    assert "(self" in original.get_vocab()
    for text in TEXTS:
        assert ours.encode(text).ids == [1, *original.encode(text).ids], text
        assert ours.encode(text, add_special_tokens=False).ids == original.encode(text).ids


def test_a_llama_3_tokenizer_takes_a_whole_word_it_knows_without_its_merges(tmp_path: Path) -> None:
    for pre, ids in (("gpt-2", [0, 1]), ("llama-bpe", [2])):
        edit = add(
            tokens("a", "b", "ab"), lambda writer, pre=pre: writer.add_tokenizer_pre(pre) or writer.add_bos_token_id(0)
        )
        assert read(tmp_path / f"{pre}.gguf", edit).encode("ab", add_special_tokens=False).ids == ids


def test_an_end_is_added_where_the_file_says_so(tmp_path: Path) -> None:
    def both(writer: GGUFWriter) -> None:
        add_byte_level(writer, byte_level(), "gpt-2")
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)

    ids = read(tmp_path / "tokens.gguf", both).encode("the dog").ids
    assert (ids[0], ids[-1]) == (1, 2)
    assert len(ids) > 2


def plainly(text: str) -> list[int]:
    """SentencePiece BPE as slowly as it can be said: join the neighbours of the highest score, leftmost first."""
    user = {"  ": SPM_TOKENS.index("▁▁"), "\n\n": SPM_TOKENS.index("\n\n")}
    for mark in user:
        if mark in text:
            left, right = text.split(mark, 1)
            return [*plainly(left), user[mark], *plainly(right)]
    pieces = list(text.replace(" ", "▁"))
    score = {token: SPM_SCORES[i] for i, token in enumerate(SPM_TOKENS) if SPM_KINDS[i] == 1}
    while True:
        found = [(-score[a + b], i) for i, (a, b) in enumerate(pairwise(pieces)) if a + b in score]
        if not found:
            break
        i = min(found)[1]
        pieces[i : i + 2] = ["".join(pieces[i : i + 2])]
    ids = []
    for piece in pieces:
        spelled = [piece] if piece in score else [f"<0x{byte:02X}>" for byte in piece.encode()]
        ids += [SPM_TOKENS.index(each) for each in spelled]
    return ids


WORDS = st.lists(
    st.sampled_from(["the", "and", " ", "word", "than", "hand", "in", "é", "東", "\n", "x", "W"]), max_size=12
)


@given(st.one_of(WORDS.map("".join), st.text(st.characters(codec="utf-8"), max_size=12)))
def test_a_sentencepiece_tokenizer_gives_the_ids_of_the_plain_algorithm(text: str) -> None:
    text = text.replace("▁", " ")
    ids = sentencepiece(prefix=False).encode(text).ids
    assert ids == [2, *plainly(text)]
    assert sentencepiece(prefix=False).decode(ids) == text


def test_a_space_is_put_in_front_where_the_file_says_so() -> None:
    ours = sentencepiece(prefix=True)
    assert ours.encode("the word").ids == [2, *plainly(" the word")]
    assert ours.decode(ours.encode("the word").ids) == "the word"


def test_runs_of_spaces_that_the_user_defined_are_one_token() -> None:
    ids = sentencepiece(prefix=False).encode("the  and\n\n").ids
    assert ids.count(SPM_TOKENS.index("▁▁")) == 1
    assert ids[-1] == SPM_TOKENS.index("\n\n")


def test_the_merges_of_scores_are_in_the_order_of_the_scores() -> None:
    assert merges_of_scores(["a", "b", "ab", "ba", "aba"], [-9, -9, -2, -1, -3]) == [
        ("b", "a"),
        ("a", "b"),
        ("a", "ba"),
        ("ab", "a"),
    ]


def test_transformers_reads_it_with_its_chat_template(tmp_path: Path) -> None:
    def chat(writer: GGUFWriter) -> None:
        add_byte_level(writer, split_digits(), "smollm")
        writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")

    file = header(tmp_path / "tokens.gguf", chat)
    ours = tokenizer(file, 1000)
    ours.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(file)))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert theirs(text).input_ids == ours.encode(text).ids, text
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id, theirs.unk_token_id) == (1, 2, 2, 0)
    assert theirs.apply_chat_template([{"content": "hi"}], tokenize=False) == "<|im_start|>hi<|im_end|>"


def tokens(*words: str, kinds: int | None = None) -> Edit:
    def edit(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(list(words))
        writer.add_token_types([1] * (len(words) if kinds is None else kinds))

    return edit


def add(first: Edit, *more: Edit) -> Edit:
    def edit(writer: GGUFWriter) -> None:
        for each in (first, *more):
            each(writer)

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda w: None, r"has no tokenizer\.ggml\.model"),
        (lambda w: w.add_tokenizer_model("t5"), "tokenizer of the kind 't5'; kvlab reads gpt2 and llama"),
        (add(tokens("a"), lambda w: w.add_tokenizer_pre("qwen2")), "by the rule 'qwen2'; kvlab reads gpt-2, smollm"),
        (tokens("a", "b", "a"), "3 tokens, 2 of them different, 3 token types"),
        (tokens("a", "b", "c", kinds=2), "3 tokens, 3 of them different, 2 token types"),
        (tokens(*map(str, range(1001))), "tokenizer that doesn't match: 1001 tokens, the model has 1000"),
        (add(tokens("a", "b"), lambda w: w.add_token_merges(["a b"])), "merges into 'ab', which its vocabulary lacks"),
        (add(tokens("a", "b"), lambda w: w.add_token_merges(["ab"])), "'ab' in its merges is not a pair"),
        (add(tokens("a"), lambda w: w.add_add_bos_token(True)), "adds the token bos to every text and does not say"),
        (
            add(tokens("a"), lambda w: w.add_bos_token_id(7) or w.add_add_bos_token(True)),
            r"has 7 for tokenizer\.ggml\.bos_token_id, and 1 tokens",
        ),
        (add(add_sentencepiece, lambda w: w.add_token_scores([1.0])), "1 scores for"),
        (add(add_sentencepiece, lambda w: w.add_remove_extra_whitespaces(True)), "removes extra white space"),
        (add(add_sentencepiece, lambda w: w.add_precompiled_charsmap(b"\x01\x02")), "normalises characters"),
    ],
)
def test_a_tokenizer_that_cannot_be_read_is_refused(edit: Edit, message: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens.gguf"
    file = header(path, edit)
    with pytest.raises(InvalidInput, match=message) as raised:
        tokenizer(file, 1000)
    assert str(path) in str(raised.value)
