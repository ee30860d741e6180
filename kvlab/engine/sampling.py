"""Token choice: what a request asks for, and the draw from a row of logits. No scheduler, no policy, no model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from kvlab.engine.draws import Draw, first_above, uniforms
from kvlab.errors import InvalidInput, positive

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

COLDEST: Final = 1e-5  # a lower temperature above 0 is greedy in all but rounding
BELOW_ONE: Final = float(np.nextafter(1.0, 0.0))


@dataclass(frozen=True)
class SamplingParams:
    """What one request asks of token choice. `None` switches a limit off.

    - `n` samples of one prompt; sample i draws its own randomness.
    - `temperature` 0 is greedy: the largest logit, of equal ones the lowest id.
    - `top_k`, `top_p`, `min_p` keep the k largest, the smallest set that holds `top_p` of the mass, and the tokens
      with at least `min_p` times the largest probability. They follow the temperature in this order, as in
      `transformers`. (vLLM applies min-p before top-k and top-p: a different set where top-p is on as well.)
    - `seed` fixes the randomness; `None` leaves the choice of a seed to the engine.
    - `stop` strings (one string or a list is taken too) are cut from the text; `stop_token_ids` end it like an
      end-of-sequence token; `ignore_eos` lets only these, the strings and the length end it.
    - `logprobs` k reports the chosen token's log-probability and the k largest, of the model's raw distribution:
      before temperature and limits, like vLLM's default.
    - `beams` is the width of a beam search, see `kvlab.engine.beams`; `length_penalty` and `early_stopping` are its.

    Raises `InvalidInput` for anything that cannot be meant; `check_vocabulary` does so once the model is known.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int = 128
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    beams: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        positive("n", self.n)
        positive("max_tokens", self.max_tokens)
        temperature = _number("temperature", self.temperature)
        if temperature < 0 or 0 < temperature < COLDEST:
            raise InvalidInput(f"temperature must be 0 (greedy) or at least {COLDEST:g}, not {temperature!r}")
        if self.top_k is not None:
            positive("top_k", self.top_k)
        if not 0 < _number("top_p", self.top_p) <= 1:
            raise InvalidInput(f"top_p must lie in (0, 1], not {self.top_p!r}; 1 keeps everything")
        if not 0 <= _number("min_p", self.min_p) <= 1:
            raise InvalidInput(f"min_p must lie in [0, 1], not {self.min_p!r}; 0 keeps everything")
        if self.seed is not None:
            _integer("seed", self.seed, 1 << 64)
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise InvalidInput(f"a stop string needs at least one character, not {text!r}: it would match anywhere")
        for token_id in self.stop_token_ids:
            _integer("a stop token id", token_id, 1 << 31)
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, 1 << 31)
        _number("length_penalty", self.length_penalty)
        if not (isinstance(self.early_stopping, bool) or self.early_stopping == "never"):
            raise InvalidInput(f"early_stopping must be True, False or 'never', not {self.early_stopping!r}")
        self._check_combination()

    def _check_combination(self) -> None:
        if self.beams is None:
            if self.n > 1 and self.greedy:
                raise InvalidInput(f"n = {self.n} samples at temperature 0 would be {self.n} copies; raise one of them")
            return
        positive("beams", self.beams)
        if self.n > 1:
            raise InvalidInput(
                f"n = {self.n} and beams = {self.beams} exclude each other: a beam search returns {self.beams} already"
            )
        for name, given in (
            ("top_k", self.top_k is not None),
            ("top_p", self.top_p < 1),
            ("min_p", self.min_p > 0),
            ("stop", bool(self.stop)),
            ("logprobs", self.logprobs is not None),
        ):
            if given:
                raise InvalidInput(f"{name} has no effect on a beam search (beams = {self.beams}); leave one out")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise `InvalidInput` if this asks for more tokens, or for other ids, than a model of `vocab_size` has."""
        for name, asked in (("beams", self.beams), ("logprobs", self.logprobs)):
            if asked is not None and asked > vocab_size:
                raise InvalidInput(f"{name} = {asked}, but the vocabulary has {vocab_size} tokens")
        outside = [token_id for token_id in self.stop_token_ids if token_id >= vocab_size]
        if outside:
            raise InvalidInput(f"stop token {outside[0]} can never appear: the vocabulary has {vocab_size} tokens")


def _number(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not isfinite(value):
        raise InvalidInput(f"{name} must be a finite number, not {value!r}")
    return float(value)


def _integer(name: str, value: int, stop: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < stop:
        raise InvalidInput(f"{name} must be an integer in [0, {stop}), not {value!r}")


class Logprobs(NamedTuple):
    """Natural logarithms: of the chosen token, and (id, logarithm) of the largest ones, of equal ones the lower id."""

    chosen: float
    top: tuple[tuple[int, float], ...]


class Sampled(NamedTuple):
    """One token id for each row; log-probabilities where that row asked for them."""

    token_ids: list[int]
    logprobs: list[Logprobs | None]


def sample(logits: Tensor, params: Sequence[SamplingParams], draws: Sequence[Draw]) -> Sampled:
    """Choose a token for each row of `logits` `[rows, vocab]`; rows past `len(params)` are padding.

    A row's token depends on its own logits, parameters and draw alone: not on the other rows, on how the batch was
    scheduled, or on the device. Where all is greedy and no log-probability is asked for, a device tensor stays there
    and only ids come back; else all of it goes to the host. Both have the shape of `logits`, whoever is in the batch.
    Raises `InvalidInput` on fewer rows than `params`, and on a row whose largest logit is not finite.
    """
    rows = len(params)
    if logits.ndim != 2 or logits.shape[0] < rows or not logits.shape[1] or len(draws) != rows:
        raise InvalidInput(f"logits {tuple(logits.shape)} and {len(draws)} draws do not fit {rows} rows of parameters")
    if logits.device.type != "cpu" and all(p.greedy and p.logprobs is None for p in params):
        return Sampled(greedy_on_device(logits, rows), [None] * rows)
    host: Floats = logits.detach().float().cpu().numpy()[:rows]
    ids = host.argmax(axis=-1)
    _refuse_unusable(host[np.arange(rows), ids])
    drawn = [row for row, p in enumerate(params) if not p.greedy]
    if drawn:
        chosen = host if len(drawn) == rows else host[drawn]
        ids[drawn] = first_above(_weights(chosen, [params[row] for row in drawn]), uniforms([draws[r] for r in drawn]))
    logprobs = [
        None if p.logprobs is None else _logprobs(host[row], int(ids[row]), p.logprobs) for row, p in enumerate(params)
    ]
    return Sampled(ids.tolist(), logprobs)


def greedy_on_device(logits: Tensor, rows: int) -> list[int]:
    """What `sample` does with `rows` greedy rows on a device: the largest logit is found there. Raises as it does."""
    largest, ids = logits.detach().float().max(dim=-1)
    _refuse_unusable(largest.cpu().numpy()[:rows])
    best: list[int] = ids.cpu()[:rows].tolist()
    return best


def probabilities(logits: Tensor, params: Sequence[SamplingParams]) -> Doubles:
    """What `sample` draws from, float64 `[rows, vocab]`: after temperature, top-k, top-p and min-p, summing to 1.

    Raises `InvalidInput` unless there is a row of logits for each of `params`, and for a greedy row.
    """
    if logits.ndim != 2 or len(logits) != len(params):
        raise InvalidInput(f"logits {tuple(logits.shape)} do not fit {len(params)} rows of parameters")
    if any(p.greedy for p in params):
        raise InvalidInput("a greedy row draws from no distribution; its token is the largest logit")
    weights = _weights(logits.detach().float().cpu().numpy(), params).astype(np.float64)
    normal: Doubles = weights / weights.sum(axis=-1, keepdims=True)
    return normal


def _refuse_unusable(largest: Floats) -> None:
    bad = np.flatnonzero(~np.isfinite(largest))
    if len(bad):
        raise InvalidInput(f"rows {bad.tolist()} have no finite largest logit, but {largest[bad].tolist()}")


def _weights(logits: Floats, params: Sequence[SamplingParams]) -> Floats:
    """Unnormalised probabilities `[rows, vocab]`, the largest of each row exactly 1, what is cut off exactly 0.

    A limit multiplies by the mask of what it keeps: several times faster than assigning through a mask.
    """
    scaled: Floats = np.divide(logits, np.array([[p.temperature] for p in params], np.float32))
    below_largest = scaled - scaled.max(axis=-1, keepdims=True)
    weights: Floats = np.exp(below_largest, out=below_largest)
    if any(p.top_k is not None for p in params):
        weights *= scaled >= _top_k_lowest(scaled, params)
    if any(p.top_p < 1 for p in params):
        _cut_top_p(weights, params)
    if any(p.min_p > 0 for p in params):
        weights *= weights >= np.array([[p.min_p] for p in params], np.float32)
    return weights


def _top_k_lowest(scaled: Floats, params: Sequence[SamplingParams]) -> Floats:
    """The k-th largest of each row, `[rows, 1]`, or -inf where k takes them all; what equals it is kept."""
    vocab = scaled.shape[1]
    lowest = np.full((len(scaled), 1), -np.inf, np.float32)
    places = {row: vocab - p.top_k for row, p in enumerate(params) if p.top_k is not None and p.top_k < vocab}
    if places:
        rows, at = list(places), list(places.values())
        lowest[rows, 0] = np.partition(scaled[rows], sorted(set(at)), axis=-1)[np.arange(len(rows)), at]
    return lowest


def _cut_top_p(weights: Floats, params: Sequence[SamplingParams]) -> None:
    """What together holds at most 1 - top_p of its row becomes 0: the smallest, of equal ones the higher ids."""
    rows = [row for row, p in enumerate(params) if p.top_p < 1]
    ascending = np.sort(weights[rows], axis=-1)
    first = first_above(ascending, np.array([min(1 - params[row].top_p, BELOW_ONE) for row in rows]))
    lowest = np.zeros((len(weights), 1), np.float32)
    lowest[rows, 0] = ascending[np.arange(len(rows)), first]
    keep = weights >= lowest
    weights *= keep
    surplus = np.count_nonzero(keep[rows], axis=-1) - (weights.shape[1] - first)
    for at in np.flatnonzero(surplus):
        row = rows[at]
        weights[row, np.flatnonzero(weights[row] == lowest[row])[-surplus[at] :]] = 0


def _logprobs(logits: Floats, chosen: int, count: int) -> Logprobs:
    shifted = logits - logits.max()
    total = float(np.log(np.exp(shifted).sum(dtype=np.float64)))
    top: Iterable[Any] = ()
    if count:
        ids = np.flatnonzero(shifted >= np.partition(shifted, len(shifted) - count)[-count])
        top = ids[np.lexsort((ids, -shifted[ids]))][:count]
    return Logprobs(float(shifted[chosen]) - total, tuple((int(i), float(shifted[i]) - total) for i in top))
