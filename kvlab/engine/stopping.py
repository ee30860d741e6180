"""When a sequence ends, and which text may leave before that."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple

from kvlab.engine.sampling import SamplingParams
from kvlab.errors import InvalidInput

FinishReason = Literal["stop", "length", "aborted", "refused"]


class Progress(NamedTuple):
    """Text that may leave now, and why the sequence ended (None: it goes on)."""

    text: str
    reason: FinishReason | None


def output_limit(params: SamplingParams, prompt_tokens: int, context_tokens: int) -> int:
    """How many tokens may follow the prompt: `max_tokens`, or what is left of the model's `context_tokens` positions.

    Raises `InvalidInput` if the prompt leaves no position.
    """
    if prompt_tokens >= context_tokens:
        raise InvalidInput(
            f"the prompt has {prompt_tokens} tokens and the model {context_tokens} positions, "
            f"which leaves none for an answer; shorten it to at most {context_tokens - 1}"
        )
    return min(params.max_tokens, context_tokens - prompt_tokens)


class StopChecker:
    """Watches one sequence: each new token and the text it completed go in, the text that may leave comes out.

    A stop string ends the text before its first character, wherever token boundaries fall. The match is the one that
    reading character by character completes first (of several, the longest), so it does not depend on how the text
    arrives. Text that could still become a stop string is held back; whatever is held leaves when the sequence ends
    otherwise. A stop token (end-of-sequence unless `ignore_eos`, or one of `stop_token_ids`) adds no text. Where
    reasons coincide: stop token, then stop string, then length.
    """

    def __init__(self, params: SamplingParams, *, eos_token_ids: Collection[int], output_limit: int) -> None:
        self.reason: FinishReason | None = None
        self.matched: str | int | None = None  # the stop string or token that ended it
        self.output_tokens = 0
        self.output_limit = output_limit
        self._stop_ids = frozenset(params.stop_token_ids).union(() if params.ignore_eos else eos_token_ids)
        self._stops = params.stop
        self._longest = max(map(len, params.stop), default=0)
        self._held = ""

    def push(self, token_id: int, text: str) -> Progress:
        """Count the token; `text` is what it completed (nothing, where a character is still open).

        Raises `InvalidInput` if the sequence has already ended.
        """
        self._require_open()
        self.output_tokens += 1
        if token_id in self._stop_ids:
            self.matched = token_id
            return self._end("stop", self._held)
        text = self._held + text
        match = self._first_match(text)
        if match is not None:
            start, self.matched = match
            return self._end("stop", text[:start])
        if self.output_tokens >= self.output_limit:
            return self._end("length", text)
        free = len(text) - self._possible_start(text)
        self._held = text[free:]
        return Progress(text[:free], None)

    def end(self, reason: FinishReason) -> Progress:
        """End it from outside ("aborted", "refused"); what was held back leaves. Raises as `push` does."""
        self._require_open()
        return self._end(reason, self._held)

    def _require_open(self) -> None:
        if self.reason is not None:
            raise InvalidInput(f"the sequence has ended already ({self.reason}, after {self.output_tokens} tokens)")

    def _end(self, reason: FinishReason, text: str) -> Progress:
        self.reason, self._held = reason, ""
        return Progress(text, reason)

    def _first_match(self, text: str) -> tuple[int, str] | None:
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if not found:
            return None
        _, start, stop = min(found)
        return start, stop

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of `text` with which a stop string begins."""
        lengths = range(min(self._longest - 1, len(text)), 0, -1)
        return next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)
