"""A language model served: continuous batching of real requests over any memory policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Literal

import torch

from kvlab.attention.step import Route
from kvlab.device.base import Device
from kvlab.device.choose import get_device
from kvlab.engine.cache import Progress, silent
from kvlab.engine.decoder import Decoder
from kvlab.engine.draws import derived_seed
from kvlab.engine.interrupt import uninterrupted
from kvlab.engine.job import Job
from kvlab.engine.loop import Loop, PromptLookup, Spent, end_lanes
from kvlab.engine.outputs import BeamMove, Delta, Result
from kvlab.engine.pretrained import EMBEDDED, resolve
from kvlab.engine.runners import cache_and_runner
from kvlab.engine.sampling import SamplingParams
from kvlab.engine.static_shapes import Rounding
from kvlab.engine.stopping import output_limit
from kvlab.engine.tokenizer import Tokenizer
from kvlab.engine.weights import load
from kvlab.errors import InvalidInput, UnknownRequest, positive
from kvlab.policies.base import Policy
from kvlab.policies.paged import Paged
from kvlab.scheduling.plan import Preemption
from kvlab.scheduling.scheduler import Batching, Scheduler
from kvlab.shapes import LayerGroup
from kvlab.workload import Request, RequestId

MakePolicy = Callable[[Sequence[LayerGroup]], Policy]
DEFAULT_CAPACITY_TOKENS = 8192


class Engine:
    """Serves requests: `submit` and `step`, or `stream` and `generate` on top of them.

    `policy` makes the memory system from the model's layer groups; without one, `Paged` with blocks of 16 and 8,192
    tokens. `route` computes attention (the fastest that this machine has). `token_budget`, `max_running`, `preemption`
    and `batching` are the scheduler's. `samples` says how n samples share their prompt: "fork" (copy-on-write, 2023),
    or "cache": each is a request of its own that finds the prompt in the prefix cache (today's vLLM). `drafts` turns
    speculative decoding on. Requests without a seed get one from `seed` and their number. `watch` is called after each
    step with what every beam search decided in it.

    `device` is where the decoder lies (found out by itself). With a `rounding` each step is rounded up to static
    shapes; a Gaudi always has one, and there making the engine warms the shapes up, one graph for each.

    A request that cannot run ends with the reason "refused" and the others go on. One engine is for one thread.
    """

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        policy: MakePolicy | None = None,
        *,
        route: Route | None = None,
        token_budget: int = 2048,
        max_running: int = 64,
        preemption: Preemption = "recompute",
        batching: Batching = "continuous",
        samples: Literal["fork", "cache"] = "fork",
        drafts: PromptLookup | None = None,
        seed: int = 0,
        device: Device | None = None,
        rounding: Rounding | None = None,
        announce: Callable[[str], None] | None = None,
        watch: Callable[[BeamMove], None] | None = None,
    ) -> None:
        if samples not in ("fork", "cache"):
            raise InvalidInput(f"samples share their prompt by 'fork' or 'cache', not {samples!r}")
        if drafts is not None:
            positive("drafts.tokens", drafts.tokens)
        self.decoder = decoder
        self.config = decoder.config
        self.tokenizer = tokenizer
        groups = self.config.shape.groups()
        self.policy = policy(groups) if policy else Paged(groups, DEFAULT_CAPACITY_TOKENS)
        self.log = self.policy.log
        self.scheduler = Scheduler(
            self.policy, token_budget=token_budget, max_running=max_running, preemption=preemption,
            batching=batching, log=self.log,
        )  # fmt: skip
        self.cache, self.runner = cache_and_runner(
            decoder, self.scheduler, device or get_device(decoder.device.type), route=route, rounding=rounding,
            drafts=drafts.tokens if drafts else 0, announce=announce or _silent,
        )  # fmt: skip
        self.seed = seed
        self._loop = Loop(self.scheduler, self.cache, self.runner, drafts, samples == "fork")
        self._watch = watch
        self._results: dict[RequestId, Result] = {}
        self._numbers = count()

    @classmethod
    def from_pretrained(
        cls,
        path_or_name: str | Path = "embedded",
        policy: MakePolicy | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: Device | None = None,
        progress: Progress = silent,
        **options: Any,
    ) -> Engine:
        """An engine for a model: `embedded` (it comes with kvlab), a name of `kvlab fetch`, a Hugging Face folder or a
        GGUF file. `dtype` None: float32 for the embedded model, the checkpoint's for others; `device` None: the CPU.
        `options` are `Engine`'s.

        Raises `InvalidInput` where the model cannot be read, nothing half-loaded.
        """
        if dtype is None and path_or_name == EMBEDDED:
            dtype = torch.float32
        folder = resolve(path_or_name, progress)
        device = device or get_device("cpu")
        decoder = load(folder, dtype, device.torch_device)
        return cls(decoder, Tokenizer.from_dir(folder), policy, device=device, **options)

    # Requests

    def submit(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        rid: RequestId | None = None,
        salt: str | None = None,
        stream: bool = False,
    ) -> RequestId:
        """Queue a prompt, text or token ids; the request's id. Requests share cached prefixes only under equal salts.
        With `stream`, each step brings its text; without, the last one does.

        Raises `InvalidInput`, nothing changed: an empty prompt, one that fills the model's context, ids or parameters
        that this vocabulary does not have, an id in use.
        """
        params = params or SamplingParams()
        params.check_vocabulary(self.config.vocab_size)
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else [int(each) for each in prompt]
        if not ids:
            raise InvalidInput("the prompt is empty; give it at least one token")
        outside = [each for each in ids if not 0 <= each < self.config.vocab_size]
        if outside:
            raise InvalidInput(f"token {outside[0]} is not in the model's vocabulary of {self.config.vocab_size}")
        number = next(self._numbers)
        rid = f"r{number}" if rid is None else rid
        if rid in self._loop.jobs:
            raise InvalidInput(f"request {rid!r} is being served already; use another id")
        limit = output_limit(params, len(ids), self.config.max_positions)
        request = Request(rid if params.n == 1 else f"{rid}.0", ids, limit, salt=salt)
        seed = derived_seed(self.seed, number) if params.seed is None else params.seed
        job = Job(
            rid, request, params, seed=seed, tokenizer=self.tokenizer, streams=stream, now=time.perf_counter()
        )  # fmt: skip
        self._loop.add(job, request)
        self._results.pop(rid, None)
        return rid

    def cancel(self, rid: RequestId) -> Result:
        """End a request now; what it has said so far. Raises `UnknownRequest` if it is not being served."""
        job = self._loop.jobs.get(rid)
        if job is None:
            done = "has finished already" if rid in self._results else "is not being served"
            raise UnknownRequest(f"request {rid!r} {done}; {self.unfinished} requests are being served")
        with uninterrupted():
            end_lanes(job, "aborted")
            self._loop.close(job, "aborted")
        return job.result

    @property
    def unfinished(self) -> int:
        """Requests that are being served or wait."""
        return len(self._loop.jobs)

    @property
    def served(self) -> Collection[RequestId]:
        """Their ids."""
        return self._loop.jobs.keys()

    def result(self, rid: RequestId) -> Result:
        """The answer of a finished request, which the engine then forgets. Raises `UnknownRequest`."""
        if rid not in self._results:
            raise UnknownRequest(f"no finished request {rid!r}; {len(self._results)} are, {self.unfinished} run")
        return self._results.pop(rid)

    def stream(
        self, prompt: str | Sequence[int], params: SamplingParams | None = None, *, rid: RequestId | None = None,
        salt: str | None = None,
    ) -> Iterator[Delta]:  # fmt: skip
        """Submit and yield what each step adds, while other requests go on too. Closing the iterator cancels."""
        rid = self.submit(prompt, params, rid=rid, salt=salt, stream=True)
        try:
            while rid in self._loop.jobs:
                yield from (delta for delta in self.step() if delta.rid == rid)
        finally:
            if rid in self._loop.jobs:
                self.cancel(rid)

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Result]:
        """Serve all prompts to the end; results in their order. `progress(done, of)` counts requests.

        An interrupt cancels these requests and leaves the others as they are.
        """
        each = [params] * len(prompts) if isinstance(params, SamplingParams | None) else list(params)
        if len(each) != len(prompts):
            raise InvalidInput(f"{len(prompts)} prompts need as many parameters, or one for all, not {len(each)}")
        rids: list[RequestId] = []
        try:
            for prompt, wanted in zip(prompts, each, strict=True):
                rids.append(self.submit(prompt, wanted))
            left = set(rids)
            while left:
                self.step()
                if done := {rid for rid in left if rid in self._results}:
                    left -= done
                    if progress is not None:
                        progress(len(rids) - len(left), len(rids))
        except BaseException:
            for rid in rids:
                if rid in self._loop.jobs:
                    self.cancel(rid)
                self._results.pop(rid, None)
            raise
        return [self.result(rid) for rid in rids]

    def step(self) -> list[Delta]:
        """Decide who runs, allocate memory, run the model, sample; what each sample said.

        An interrupt or an error in the model leaves the step undone: it can be made again. Nothing to do is no error.
        """
        if not self._loop.jobs:
            return []
        before = dict(self._loop.jobs)
        deltas = self._loop.step()
        for rid in {delta.rid for delta in deltas if delta.reason is not None} - self._loop.jobs.keys():
            self._results[rid] = before[rid].result
        if self._watch is not None:
            for move in self._loop.moves:
                self._watch(move)
        return deltas

    @property
    def spent(self) -> Spent:
        """Where the time of all steps so far went."""
        return self._loop.spent


def _silent(message: str) -> None:
    """Where nobody asked to be told."""
