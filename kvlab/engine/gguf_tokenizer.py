"""The tokenizer inside a GGUF file, as the `tokenizers` package reads it.

Two kinds are read: `gpt2`, byte-level BPE with its merges, and `llama`, SentencePiece BPE, whose pieces have scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvlab.engine.gguf_file import GGUFFile
from kvlab.engine.gguf_model import special_id

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
SPACE = "▁"  # how SentencePiece writes a space
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PRE_TOKENIZERS = ("gpt-2", "smollm", "llama-bpe")
MODELS = ("gpt2", "llama")


def tokenizer(file: GGUFFile, vocab_size: int) -> Tokenizer:
    """The tokenizer of the file, special tokens and the beginning-of-text rule included.

    Raises `InvalidInput` naming the file for a kind that is not read, or a vocabulary that does not fit the model's.
    """
    model = file.value("tokenizer.ggml.model", str)
    if model not in MODELS:
        file.refuse(f"has a tokenizer of the kind {model!r}; kvlab reads {' and '.join(MODELS)} from GGUF")
    tokens, kinds = _tokens(file)
    if len(tokens) > vocab_size:
        file.refuse(f"has a tokenizer that doesn't match: {len(tokens)} tokens, the model has {vocab_size}")
    if model == "gpt2":
        made = _byte_level(file, tokens)
    else:
        made = _sentencepiece(file, tokens, kinds)
    _add_special(made, tokens, kinds)
    _add_ends(file, made, tokens)
    return made


def tokenizer_config(file: GGUFFile) -> dict[str, Any]:
    """The `tokenizer_config.json` beside it: special tokens and the chat template."""
    tokens, _ = _tokens(file)
    named = {each: special_id(file, each) for each in ("bos", "eos", "unk", "pad")}
    made: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **{f"{name}_token": tokens[at] for name, at in named.items() if at is not None},
    }
    if "tokenizer.chat_template" in file:
        made["chat_template"] = file.value("tokenizer.chat_template", str)
    return made


def merges_of_scores(pieces: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges of a SentencePiece BPE, first the one that is applied first.

    SentencePiece joins the neighbours whose union has the highest score; so every way to cut a piece in two known
    pieces is a merge, and its rank is the piece's.
    """
    rank = {piece: i for i, piece in enumerate(pieces)}
    found = []
    for piece, score in zip(pieces, scores, strict=True):
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in rank and right in rank:
                found.append((-score, rank[piece], left, right))
    return [(left, right) for _, _, left, right in sorted(found)]


def _tokens(file: GGUFFile) -> tuple[list[str], list[int]]:
    """The vocabulary in the order of the ids, and the kind of each token."""
    tokens, kinds = file.listed("tokenizer.ggml.tokens", str), file.listed("tokenizer.ggml.token_type", int)
    if file.value("tokenizer.ggml.model", str) == "llama":
        # What the user defined is looked for in the text itself, before its spaces are replaced.
        for i in (i for i, kind in enumerate(kinds[: len(tokens)]) if kind == USER_DEFINED):
            tokens[i] = tokens[i].replace(SPACE, " ")
    if not tokens or len(kinds) != len(tokens) or len(set(tokens)) != len(tokens):
        file.refuse(f"is damaged: {len(tokens)} tokens, {len(set(tokens))} of them different, {len(kinds)} token types")
    return tokens, kinds


def _byte_level(file: GGUFFile, tokens: list[str]) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    pre = file.value("tokenizer.ggml.pre", str)
    if pre not in PRE_TOKENIZERS:
        file.refuse(f"splits text by the rule {pre!r}; kvlab reads {', '.join(PRE_TOKENIZERS)} from GGUF")
    merges = [_pair(file, each) for each in file.listed("tokenizer.ggml.merges", str)]
    vocab = {token: i for i, token in enumerate(tokens)}
    strange = next((a + b for a, b in merges if not {a, b, a + b} <= vocab.keys()), None)
    if strange is not None:
        file.refuse(f"is damaged: it merges into {strange!r}, which its vocabulary lacks")
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe"))
    steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre != "llama-bpe")]
    if pre == "smollm":
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    if pre == "llama-bpe":
        steps.insert(0, pre_tokenizers.Split(Regex(_LLAMA3), "isolated"))
    made.pre_tokenizer = pre_tokenizers.Sequence(steps)
    made.decoder = decoders.ByteLevel()
    return made


def _pair(file: GGUFFile, merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        file.refuse(f"is damaged: {merge!r} in its merges is not a pair")
    return left, right


def _sentencepiece(file: GGUFFile, tokens: list[str], kinds: list[int]) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = file.listed("tokenizer.ggml.scores", float)
    if len(scores) != len(tokens):
        file.refuse(f"is damaged: {len(scores)} scores for {len(tokens)} tokens")
    if file.value("tokenizer.ggml.remove_extra_whitespaces", bool, False):
        file.refuse("has a tokenizer that removes extra white space; kvlab reads those that keep the text as it is")
    if file.count("tokenizer.ggml.precompiled_charsmap"):
        file.refuse("has a tokenizer that normalises characters; kvlab reads those that keep the text as it is")
    normal = [(token, score) for token, score, kind in zip(tokens, scores, kinds, strict=True) if kind == NORMAL]
    unknown = special_id(file, "unk")
    made = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=merges_of_scores([token for token, _ in normal], [score for _, score in normal]),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = file.value("tokenizer.ggml.add_space_prefix", bool, True)
    spaces = normalizers.Replace(" ", SPACE)
    made.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    made.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return made


def _add_special(made: Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    from tokenizers import AddedToken

    pairs = [(token, kind) for token, kind in zip(tokens, kinds, strict=True) if token]
    control = [AddedToken(token, special=True, normalized=False) for token, kind in pairs if kind in (UNKNOWN, CONTROL)]
    made.add_special_tokens(control)
    made.add_tokens([AddedToken(token, normalized=False) for token, kind in pairs if kind == USER_DEFINED])


def _add_ends(file: GGUFFile, made: Tokenizer, tokens: list[str]) -> None:
    from tokenizers import processors

    model, pre = file.value("tokenizer.ggml.model", str), file.value("tokenizer.ggml.pre", str, "")
    by_default = model == "llama" or pre == "llama-bpe"
    ends = {}
    for name, default in (("bos", by_default), ("eos", False)):
        if file.value(f"tokenizer.ggml.add_{name}_token", bool, default):
            at = special_id(file, name)
            if at is None:
                file.refuse(f"adds the token {name} to every text and does not say which it is")
            ends[name] = (tokens[at], at)
    if not ends:
        return
    start = [ends["bos"][0]] if "bos" in ends else []
    stop = [ends["eos"][0]] if "eos" in ends else []
    pair = [*start, "$A", *stop, *(f"{each}:1" for each in start), "$B:1", *(f"{each}:1" for each in stop)]
    try:
        made.post_processor = processors.TemplateProcessing([*start, "$A", *stop], pair, list(ends.values()))
    except ValueError as error:
        file.refuse(f"adds {ends} to every text, which cannot be written as a template", error)
