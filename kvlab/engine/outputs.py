"""What the engine answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from kvlab.engine.beams import BeamStep
from kvlab.engine.sampling import Logprobs
from kvlab.engine.stopping import FinishReason
from kvlab.workload import RequestId


class Delta(NamedTuple):
    """What one step added to one sample of a request; `reason` is set in its last one."""

    rid: RequestId
    sample: int
    token_ids: list[int]
    text: str
    reason: FinishReason | None


class BeamMove(NamedTuple):
    """What a beam search decided in one step: the beams that were live, in the order of `step.children`, and those that
    are now, in the order of `step.survivors` (a first child keeps the id of its parent)."""

    rid: RequestId
    before: tuple[RequestId, ...]
    after: tuple[RequestId, ...]
    step: BeamStep


@dataclass
class Completion:
    """One sample of a request, or one hypothesis of its beam search.

    `token_ids` include the token that ended it; `text` doesn't. `logprobs` has one entry a token where they were asked
    for. `score` is a hypothesis's, None for samples.
    """

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    reason: FinishReason | None = None
    logprobs: list[Logprobs] = field(default_factory=list)
    score: float | None = None


@dataclass
class Result:
    """A request and its answer. Times are seconds since the request came; `cached_tokens` of its prompt were found in
    a prefix cache when it was first admitted; `error` says why it was refused."""

    rid: RequestId
    prompt_tokens: int
    completions: list[Completion]
    cached_tokens: int = 0
    preemptions: int = 0
    first_token_s: float | None = None
    finished_s: float | None = None
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The result as plain data."""
        return asdict(self)

    @property
    def text(self) -> str:
        """The text of the first completion."""
        return self.completions[0].text

    @property
    def token_ids(self) -> list[int]:
        """The tokens of the first completion."""
        return self.completions[0].token_ids
