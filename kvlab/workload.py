"""Requests and the traces they come from. Lengths are in tokens, arrival times in seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Final, TypeAlias
from zlib import crc32

import numpy as np
import numpy.typing as npt

from kvlab.errors import InvalidInput, positive

RequestId = int | str
Salt: TypeAlias = str | int | None
Ints = npt.NDArray[np.int64]
TokenIds = npt.NDArray[np.int32]

TRACE_VOCABULARY: Final = 50_000


class Request:
    """One sequence: a prompt and what it generates. Each sample or beam is a request of its own.

    `prompt_tokens` counts every token to prefill, `max_tokens` bounds the output, `output_tokens` is the true output
    length where the trace knows it (only `ContiguousPow2`, `ContiguousOracle` and the accounting may read it).
    `known_tokens` = prompt + generated so far, and `computed` of them have their KV in memory. A policy sets
    `computed` at commit; within a quiet run the caller advances it (see `kvlab.policies.base`).

    Token ids of a trace that has only lengths are made from (conversation, position), so that a transcript that is
    sent again matches itself. Requests of different `salt` (a tenant, an adapter) never share a cached prefix.
    Raises `InvalidInput` on an empty prompt or a negative length.
    """

    __slots__ = (
        "_tokens", "arrival_s", "computed", "conversation", "known_tokens", "max_tokens", "output_tokens",
        "prompt_tokens", "rid", "salt",
    )  # fmt: skip

    def __init__(
        self,
        rid: RequestId,
        prompt_tokens: int | Sequence[int] | TokenIds,
        max_tokens: int,
        *,
        output_tokens: int | None = None,
        arrival_s: float = 0.0,
        conversation: int | None = None,
        salt: Salt = None,
    ) -> None:
        self._tokens: TokenIds | None = None
        if not isinstance(prompt_tokens, int | np.integer):
            self._tokens = _token_array(prompt_tokens)
            prompt_tokens = len(self._tokens)
        self.rid = rid
        self.prompt_tokens = positive(f"prompt tokens of request {rid!r}", int(prompt_tokens))
        self.max_tokens = positive(f"max_tokens of request {rid!r}", int(max_tokens))
        if output_tokens is not None and not 1 <= output_tokens <= max_tokens:
            raise InvalidInput(f"request {rid!r} outputs {output_tokens} tokens; max_tokens allows 1 to {max_tokens}")
        self.output_tokens = None if output_tokens is None else int(output_tokens)
        self.arrival_s = arrival_s
        if type(salt) not in (str, int, type(None)):
            raise InvalidInput(f"the salt of request {rid!r} must be a str, an int or None, not {salt!r}")
        self.salt = salt
        self.conversation = crc32(repr(rid).encode()) if conversation is None else conversation
        self.known_tokens = self.prompt_tokens
        self.computed = 0

    @property
    def final_tokens(self) -> int:
        """Prompt + true output where known, else prompt + `max_tokens`: how long this request can still become."""
        return self.prompt_tokens + (self.max_tokens if self.output_tokens is None else self.output_tokens)

    @property
    def limit_tokens(self) -> int:
        """Prompt + `max_tokens`: what a server must be able to hold to accept the request."""
        return self.prompt_tokens + self.max_tokens

    def token_ids(self, start: int, stop: int) -> TokenIds:
        """Ids of the tokens at positions [start, stop), int32 `[stop - start]`.

        Real ids where the request was given some (positions past them raise `InvalidInput`), else made ones.
        """
        if not 0 <= start <= stop or (self._tokens is not None and stop > self.known_tokens):
            raise InvalidInput(f"request {self.rid!r} knows {self.known_tokens} tokens, not [{start}, {stop})")
        if self._tokens is None:
            return made_token_ids(self.conversation, start, stop)
        return self._tokens[start:stop]

    def generated(self, token_ids: Sequence[int] | int) -> None:
        """Append sampled tokens (ids, or only their number for a trace of lengths)."""
        if isinstance(token_ids, int | np.integer):
            if self._tokens is not None:
                raise InvalidInput(f"request {self.rid!r} has real token ids; append ids, not a count")
            if token_ids < 0:
                raise InvalidInput(f"request {self.rid!r} cannot generate {token_ids} tokens")
            self.known_tokens += int(token_ids)
            return
        if self._tokens is None:
            raise InvalidInput(f"request {self.rid!r} has only lengths; append a count, not ids")
        if len(token_ids) == 1 and type(token_ids[0]) is int and 0 <= token_ids[0] < 1 << 31:
            new: Sequence[int] | TokenIds = token_ids  # what a decode step brings, a twentieth of the cost
        else:
            new = _token_array(token_ids)
        end = self.known_tokens + len(new)
        if end > len(self._tokens):
            grown = np.empty(max(end, 2 * len(self._tokens)), np.int32)
            grown[: self.known_tokens] = self._tokens[: self.known_tokens]
            self._tokens = grown
        self._tokens[self.known_tokens : end] = new
        self.known_tokens = end

    def fork(self, rid: RequestId) -> Request:
        """A request that continues this one: the same tokens so far, its own from here on."""
        child = Request.__new__(Request)
        child.rid, child.conversation, child.salt = rid, self.conversation, self.salt
        child.prompt_tokens, child.max_tokens = self.prompt_tokens, self.max_tokens
        child.output_tokens, child.arrival_s = self.output_tokens, self.arrival_s
        child.known_tokens, child.computed = self.known_tokens, self.computed
        child._tokens = None if self._tokens is None else self._tokens[: self.known_tokens].copy()
        return child

    def __repr__(self) -> str:
        return f"Request({self.rid!r}, {self.computed} of {self.known_tokens} computed, up to {self.final_tokens})"


def _token_array(ids: Sequence[int] | TokenIds) -> TokenIds:
    try:
        array = np.asarray(ids)
    except ValueError as error:
        raise InvalidInput(f"token ids must be a flat list of integers: {error}") from error
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise InvalidInput(f"token ids must be a flat list of integers, not {ids!r}")
    if array.size and not 0 <= array.min() <= array.max() < 1 << 31:
        raise InvalidInput(f"token ids must lie in [0, 2**31), not [{array.min()}, {array.max()}]")
    return array.astype(np.int32)


def made_token_ids(conversation: int, start: int, stop: int, vocabulary: int = TRACE_VOCABULARY) -> TokenIds:
    """Reproducible ids for positions [start, stop) of a conversation, int32 (a splitmix64 hash of both)."""
    with np.errstate(over="ignore"):
        x = np.arange(start, stop, dtype=np.uint64) + np.uint64((conversation + 1) << 20)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return (x % np.uint64(vocabulary)).astype(np.int32)


@dataclass(frozen=True)
class Workload:
    """A trace: one row a request, in arrival order. Iterating makes fresh `Request`s, so a workload can be run again.

    `prompt_tokens`, `output_tokens` and `conversation` are int64 `[n]`; `arrival_s` is float64 `[n]` or None (all at
    once). In a multi-turn trace `prompt_tokens` is the whole transcript that the turn sends, or the new text alone
    for `first_turns`. `provenance` says where the lengths come from.
    """

    name: str
    prompt_tokens: Ints
    output_tokens: Ints
    conversation: Ints
    arrival_s: npt.NDArray[np.float64] | None = None
    provenance: str = ""
    lines: Ints | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not len(self.prompt_tokens):
            raise InvalidInput(f"workload {self.name!r} has no requests")
        for name in ("output_tokens", "conversation", "arrival_s", "lines"):
            column = getattr(self, name)
            if column is not None and len(column) != len(self.prompt_tokens):
                raise InvalidInput(f"{name} has {len(column)} rows, prompt_tokens {len(self.prompt_tokens)}")
        for name, column in (("prompt_tokens", self.prompt_tokens), ("output_tokens", self.output_tokens)):
            bad = np.flatnonzero(column < 1)
            if len(bad):
                row = int(bad[0])
                at = f"line {self.lines[row]}" if self.lines is not None else f"row {row}"
                raise InvalidInput(f"{self.name}, {at}: {name} is {column[row]}, must be at least 1")

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def __iter__(self) -> Iterator[Request]:
        return (self.request(row) for row in range(len(self)))

    def request(self, row: int, rid: RequestId | None = None) -> Request:
        """A fresh request from row `row`."""
        output = int(self.output_tokens[row])
        return Request(
            row if rid is None else rid,
            int(self.prompt_tokens[row]),
            output,
            output_tokens=output,
            arrival_s=0.0 if self.arrival_s is None else float(self.arrival_s[row]),
            conversation=int(self.conversation[row]),
        )

    def saturated(self, seed: int = 0) -> Iterator[Request]:
        """Endless fresh requests in random order (each epoch a new permutation), numbered 0, 1, 2, ..."""
        rng = np.random.default_rng(seed)
        rid = 0
        while True:
            for row in rng.permutation(len(self)):
                yield self.request(int(row), rid)
                rid += 1

    def within(self, prompt_tokens: int, total_tokens: int) -> Workload:
        """Only the requests with at most `prompt_tokens` of prompt and `total_tokens` altogether."""
        kept = (self.prompt_tokens <= prompt_tokens) & (self.prompt_tokens + self.output_tokens <= total_tokens)
        if not kept.any():
            raise InvalidInput(
                f"no request of {self.name!r} has a prompt of at most {prompt_tokens} "
                f"and a total of at most {total_tokens} tokens"
            )
        return replace(
            self,
            prompt_tokens=self.prompt_tokens[kept],
            output_tokens=self.output_tokens[kept],
            conversation=self.conversation[kept],
            arrival_s=None if self.arrival_s is None else self.arrival_s[kept],
            lines=None if self.lines is None else self.lines[kept],
        )

    def describe(self) -> str:
        """One line: how many requests and their mean lengths."""
        return (
            f"{self.name}: {len(self):,} requests, prompt mean {self.prompt_tokens.mean():.1f} "
            f"(median {np.median(self.prompt_tokens):.0f}), output mean {self.output_tokens.mean():.1f} "
            f"(median {np.median(self.output_tokens):.0f})"
        )


def uniform(requests: int, prompt_max: int, output_max: int, *, seed: int = 0) -> Workload:
    """Lengths uniform on 1..prompt_max and 1..output_max."""
    rng = np.random.default_rng(seed)
    n = positive("requests", requests)
    return Workload(
        f"uniform({prompt_max}, {output_max})",
        rng.integers(1, positive("prompt_max", prompt_max), n, endpoint=True),
        rng.integers(1, positive("output_max", output_max), n, endpoint=True),
        np.arange(n),
        provenance=f"drawn with seed {seed}",
    )


def lognormal(
    requests: int,
    prompt_mean: float,
    output_mean: float,
    *,
    prompt_sigma: float,
    output_sigma: float,
    seed: int = 0,
) -> Workload:
    """Log-normal lengths with the given means (of the distribution before rounding) and log-space sigmas."""
    rng = np.random.default_rng(seed)
    n = positive("requests", requests)

    def column(name: str, mean: float, sigma: float) -> Ints:
        if not (1 <= mean < np.inf and 0 <= sigma < np.inf):
            raise InvalidInput(
                f"{name} lengths need a mean of at least 1 and a sigma of at least 0, not {mean}, {sigma}"
            )
        drawn = rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, n)
        return np.maximum(1, np.rint(drawn)).astype(np.int64)

    return Workload(
        f"lognormal({prompt_mean:g}, {output_mean:g})",
        column("prompt", prompt_mean, prompt_sigma),
        column("output", output_mean, output_sigma),
        np.arange(n),
        provenance=f"log-normal, sigma {prompt_sigma:g} and {output_sigma:g}, drawn with seed {seed}",
    )


def multi_turn(
    conversations: int,
    turns: int,
    prompt_mean: float,
    output_mean: float,
    *,
    sigma: float = 0.75,
    seed: int = 0,
) -> Workload:
    """Conversations that send their whole transcript again with each turn, interleaved turn by turn."""
    n, turns = positive("conversations", conversations), positive("turns", turns)
    text = lognormal(n * turns, prompt_mean, output_mean, prompt_sigma=sigma, output_sigma=sigma, seed=seed)
    new, out = text.prompt_tokens.reshape(turns, n), text.output_tokens.reshape(turns, n)
    before = np.cumsum(new + out, axis=0) - (new + out)
    return Workload(
        f"multi_turn({n} x {turns})",
        (before + new).ravel(),
        out.ravel(),
        np.tile(np.arange(n), turns),
        provenance=text.provenance,
    )


SHAREGPT_PROVENANCE: Final = (
    "2,000 conversations (13,797 turns) drawn with seed 20240917 from a truncated public copy of ShareGPT V3: "
    "lengths only, in SmolLM2 tokens, no text and no arrival times"
)


@cache
def _sharegpt_rows() -> npt.NDArray[np.int64]:
    path = files("kvlab").joinpath("data/sharegpt_lengths.csv")
    with path.open() as handle:
        return np.loadtxt(handle, delimiter=",", skiprows=1, dtype=np.int64)


def sharegpt(turns: str = "first") -> Workload:
    """The real ShareGPT lengths that ship with kvlab.

    `turns="first"`: the first turn of each conversation. `turns="all"`: every turn, its prompt the whole transcript
    so far plus the new text. Turns that lack a prompt or an answer are dropped (their text still counts as context).
    """
    conversation, turn, prompt, output = _sharegpt_rows().T
    if turns == "first":
        kept = (turn == 0) & (prompt > 0) & (output > 0)
        sent = prompt
    elif turns == "all":
        total = np.cumsum(prompt + output)
        starts = np.flatnonzero(turn == 0)
        base = np.repeat(np.concatenate(([0], total))[starts], np.diff(np.append(starts, len(turn))))
        sent = total - output - base
        kept = (sent > 0) & (output > 0)
    else:
        raise InvalidInput(f"turns must be 'first' or 'all', not {turns!r}")
    return Workload(f"sharegpt-{turns}", sent[kept], output[kept], conversation[kept], provenance=SHAREGPT_PROVENANCE)
