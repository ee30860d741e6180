"""A decoder to read in five minutes: one layer, a few words, weights from a fixed seed.

What it says is nonsense. How it computes is not: embedding, causal attention, a feed-forward block and
scores for the next word, in the order of a real decoder, in float64. It notes which tokens it computed.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kvlab.errors import InvalidInput

_VOCABULARY = """
the a old small quiet blue cat bird river moon stone garden
sees finds follows remembers and then under near slowly again home .
"""
WORDS = tuple(_VOCABULARY.split())


class ToyDecoder:
    """One layer with one attention head of `width` numbers, over the vocabulary `WORDS`.

    `computed` has one range a call of `project`: the positions whose rows were computed in it. Make a new
    decoder to start with an empty record.
    """

    def __init__(self, width: int = 16, seed: int = 58) -> None:
        source = np.random.default_rng(seed)

        def random(*shape: int) -> Tensor:
            return torch.from_numpy(source.standard_normal(shape)) / math.sqrt(shape[-1])

        self.width = width
        self.computed: list[range] = []
        self._embedding = random(len(WORDS), width) * math.sqrt(width)
        self._query, self._key, self._value, self._out = (random(width, width) for _ in range(4))
        self._up, self._down = random(4 * width, width), random(width, 4 * width)
        self._scores = random(len(WORDS), width)

    @property
    def tokens_per_step(self) -> list[int]:
        """How many tokens each call of `project` computed, in order."""
        return [len(positions) for positions in self.computed]

    def empty_cache(self) -> tuple[Tensor, Tensor]:
        """Keys and values of no token yet, [0, width] each."""
        nothing = torch.empty(0, self.width, dtype=torch.float64)
        return nothing, nothing

    def project(self, tokens: Sequence[int], start: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What each token needs of its own: x, q, k, v, each [len(tokens), width].

        `tokens` stand at the positions start, start + 1, ... of the text. A row depends on its token and its
        position and on nothing else. Raises `InvalidInput` for no tokens or a negative start.
        """
        if not tokens or start < 0:
            raise InvalidInput(f"project needs tokens and a start of 0 or more, not {list(tokens)} at {start}")
        self.computed.append(range(start, start + len(tokens)))
        x = self._embedding[torch.tensor(tokens)] + self._positions(start, len(tokens))
        return x, x @ self._query.T, x @ self._key.T, x @ self._value.T

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention: [n, width] queries of the last n tokens, [m, width] keys and values of all m so far.

        Raises `InvalidInput` unless keys and values agree and there are at least as many as queries.
        """
        n, m = len(q), len(k)
        if len(v) != m or n > m:
            raise InvalidInput(f"attend needs as many values as keys, and a key a query: {n} q, {m} k, {len(v)} v")
        scores = q @ k.T / math.sqrt(self.width)  # [n, m]
        later = torch.ones(n, m, dtype=torch.bool).triu(m - n + 1)
        return scores.masked_fill(later, -torch.inf).softmax(-1) @ v

    def next_token(self, x: Tensor, attended: Tensor) -> int:
        """The word with the highest score after the last token; only the last row is read."""
        row = x[-1] + attended[-1] @ self._out.T
        row = row + torch.relu(row @ self._up.T) @ self._down.T
        return int((row @ self._scores.T).argmax())

    def _positions(self, start: int, count: int) -> Tensor:
        """[count, width] sines and cosines of the positions from `start` on."""
        position = torch.arange(start, start + count, dtype=torch.float64)[:, None]
        angle = position / 10_000 ** (torch.arange(0, self.width, 2, dtype=torch.float64) / self.width)
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)


def encode(text: str) -> list[int]:
    """The token of each word. Raises `InvalidInput` naming a word that is not in `WORDS`."""
    unknown = [word for word in text.split() if word not in WORDS]
    if unknown or not text.split():
        raise InvalidInput(f"a prompt is made of {', '.join(WORDS)}; not of {unknown or 'nothing'}")
    return [WORDS.index(word) for word in text.split()]


def decode(tokens: Sequence[int]) -> str:
    """The words of the tokens."""
    return " ".join(WORDS[token] for token in tokens)


def generate(model: ToyDecoder, prompt: Sequence[int], steps: int) -> list[int]:
    """`steps` words after `prompt`, each from a pass over the whole text so far: no cache."""
    tokens = list(prompt)
    for _ in range(steps):
        x, q, k, v = model.project(tokens, start=0)
        tokens.append(model.next_token(x, model.attend(q, k, v)))
    return tokens[len(prompt) :]


def generate_with_cache(model: ToyDecoder, prompt: Sequence[int], steps: int) -> list[int]:
    """The same words; each pass computes only the tokens whose keys and values are not kept yet."""
    tokens = list(prompt)
    keys, values = model.empty_cache()
    for _ in range(steps):
        start = len(keys)
        x, q, k, v = model.project(tokens[start:], start)
        keys, values = torch.cat([keys, k]), torch.cat([values, v])
        tokens.append(model.next_token(x, model.attend(q, keys, values)))
    return tokens[len(prompt) :]
