"""Text to token ids and back, also one id at a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvlab.engine.config import DecoderConfig, read_json
from kvlab.errors import InvalidInput

if TYPE_CHECKING:
    import tokenizers

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_UNFINISHED = "\ufffd"  # what bytes that are no text yet decode to


class Tokenizer:
    """A model's tokenizer: `tokenizer.json` and the special tokens its model uses.

    `bos_token_id` is put before a text (None: nothing is); `eos_token_ids` end one. `vocab_size` is the model's: no id
    that `encode` returns reaches it.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        bos_token_id: int | None = None,
    ) -> None:
        """Raises `InvalidInput` where the tokenizer knows more tokens than the model; special tokens alone may lie
        above (Gemma 3's picture token does), since a text need not use them."""
        self._backend = backend
        self.vocab_size, self.eos_token_ids, self.bos_token_id = vocab_size, eos_token_ids, bos_token_id
        added = backend.get_added_tokens_decoder()
        self._special = frozenset(each for each, token in added.items() if token.special)
        plain = max((each + 1 for each in added if each not in self._special), default=0)
        known = max(backend.get_vocab_size(with_added_tokens=False), plain)
        if known > vocab_size:
            raise InvalidInput(
                f"the tokenizer doesn't match: it has {known} tokens, the model {vocab_size}; use the model's own"
            )

    @classmethod
    def from_dir(cls, path: str | Path) -> Tokenizer:
        """The tokenizer of a Hugging Face folder.

        The ids that end a text are those of `generation_config.json`, else of `config.json`, else the `eos_token` of
        `tokenizer_config.json`. Raises `InvalidInput` on a missing or broken file, a tokenizer that doesn't fit the
        model, and without the package tokenizers.
        """
        folder = Path(path)
        config = DecoderConfig.from_config(folder)
        backend = _read(folder / "tokenizer.json")
        settings_file = folder / "tokenizer_config.json"
        settings = read_json(settings_file) if settings_file.exists() else {}
        eos = config.eos_token_ids or _ids_of(backend, settings.get("eos_token"))
        wanted = settings.get("add_bos_token")
        if wanted is None:  # then tokenizer.json says it
            begun, plain = (backend.encode("a", add_special_tokens=each).ids for each in (True, False))
            bos = begun[0] if begun[:1] != plain[:1] else None
        elif wanted:
            bos = next(iter(_ids_of(backend, settings.get("bos_token"))), config.bos_token_id)
        else:
            bos = None
        return cls(backend, config.vocab_size, eos, bos)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, the beginning-of-text token first where the model wants one.

        A special token written out in the text becomes that token, once. Raises `InvalidInput` for a token the model
        does not know.
        """
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        if self.bos_token_id is not None and ids[:1] != [self.bos_token_id]:
            ids = [self.bos_token_id, *ids]
        if max(ids, default=0) >= self.vocab_size:
            raise InvalidInput(
                f"the text holds the token {self._backend.id_to_token(max(ids))!r} ({max(ids)}), which this model of "
                f"{self.vocab_size} tokens does not know; leave it out"
            )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids; special tokens and ids without a token leave nothing."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=True)
        return text

    def token(self, token_id: int) -> str | None:
        """How the tokenizer writes one token down, None where it has none with this id."""
        name: str | None = self._backend.id_to_token(token_id)
        return name

    def is_silent(self, token_id: int) -> bool:
        """Whether this id leaves nothing in a text, whatever is around it."""
        return token_id in self._special or self.token(token_id) is None


class Detokenizer:
    """Turns ids into text as they come: what `push` and a last `flush` return joins to `decode` of all the ids.

    A character may need several tokens: until it is whole, `push` returns less than it could (often "").

        ids    ... | a b | c d e |         the text of [.., b] was returned; c, d, e are waiting
                   start read    end       [start, read) is decoded again with them: tokens can depend on the one before
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []  # [start, read)
        self._waiting: list[int] = []  # [read, end)
        self._shown = 0  # characters of the text of _before

    def push(self, token_id: int) -> str:
        """The text that is certain now and was not before this id."""
        if self._tokenizer.is_silent(token_id):
            return ""
        self._waiting.append(token_id)
        token = self._tokenizer.token(token_id)
        if token is not None and _BYTE.fullmatch(token):  # bytes in a row are read as text only together
            return ""
        text = self._tokenizer.decode(self._before + self._waiting)
        if text.endswith(_UNFINISHED):
            return ""
        return self._show(text)

    def flush(self) -> str:
        """The rest, unfinished characters as U+FFFD. The next id begins a new text."""
        rest = self._show(self._tokenizer.decode(self._before + self._waiting))
        self._before, self._shown = [], 0
        return rest

    def _show(self, text: str) -> str:
        fresh = text[self._shown :]
        self._before, self._waiting = self._waiting, []
        self._shown = len(self._tokenizer.decode(self._before))
        return fresh


def _read(path: Path) -> tokenizers.Tokenizer:
    try:
        import tokenizers
    except ImportError as error:
        raise InvalidInput("reading a tokenizer needs the package tokenizers (pip install 'kvlab[engine]')") from error
    if not path.exists():
        raise InvalidInput(f"{path} is missing; a Hugging Face folder of a fast tokenizer holds it")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise InvalidInput(f"{path} is not a tokenizer: {error}") from error
    backend.no_truncation()  # the file may carry what somebody trained with
    backend.no_padding()
    return backend


def _ids_of(backend: tokenizers.Tokenizer, token: object) -> tuple[int, ...]:
    """The id of a token of `tokenizer_config.json`, written as its text or as an object that holds it."""
    content = token.get("content") if isinstance(token, dict) else token
    found = backend.token_to_id(content) if isinstance(content, str) else None
    return () if found is None else (found,)
