"""Article 002 (radix islands): each exact or model claim, from the model's shape and the arithmetic of the split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from kvlab.figures.ledger import Figure, Recompute, claims, recompute
from kvlab.policies.islands import RadixIslands
from kvlab.shapes import ModelShape
from kvlab.simulate.pool_split import PoolSplit, bind

GIB: Final = 2**30
KILO: Final = 1000
OLD_RATIO, LEAN_RATIO, LEANEST_RATIO = 0.32, 0.17, 0.10
OLD_TOKENS: Final = 740_000
LEAN_TOKENS: Final = 980_000

NOTES: Final[Mapping[str, str]] = {
    "s002-over-retention": "14.2 against a window and a page, 15.1 against the bare window",
    "s002-capacity-gain": "32.4; called a third elsewhere in the text",
    "s002-full-kb": "the configuration gives 10.24 kB; 9.5 is GiB for a million tokens, printed as KB a token",
    "s002-swa-kb": "102.4 kB; the same slip of 2^30 as in the full pool",
    "s002-draft-kb": "here the unit is decimal: the two costs that are equal, 10,240 B, are printed as 9.5 and 10.24",
    "s002-c-032": "the formula is reconstructed: 9.5 + 95 r + 10.24; in one unit it is 53.25 kB",
    "s002-c-017": "in one unit 37.89 kB",
    "s002-t-017-deployed": "the formula allows 1,031k: a margin of 5 % that the text does not mention",
    "s002-t-gain-formula": "39.7 by the formula alone; the deployed pool keeps a margin",
    "s002-budget": "36.7 GiB: the budget of 37 GB is in GiB as well",
    "s002-budget-980": "34.6 GiB: the deployed pool leaves 2 GiB unused",
    "s002-bind-032": "the low end of the 15 to 18 that were measured",
    "s002-full-idle": "53 % with all requests at 32k + 16k",
    "s002-modulo-hit": "with steps of 8.5 tokens a multiple is hit once in 8.5 times: rare, but not never",
    "s002-floor": "68.6, printed truncated",
    "s002-workload-fixed": "1,507k indices for 46 prompts of 32k: the lengths must be maxima of a uniform draw",
    "s002-workload-uniform": "with uniform lengths the space is 96 % full",
    "s002-little-fixed": "16.2 requests by Little's law if all outputs were 16,384 long",
    "s002-little-uniform": "an average over ramp and tail; 46 at the plateau",
    "s002-hold-implied": "21 running requests imply 11.3k each, not 15.5k",
    "s002-hold-uniform": "half a chunk, the one before it if the last is short, a window and a page, a share in flight",
}


def _stated(claim: str) -> Any:
    return next(each.value for each in claims("002") if each.id == claim)


class _Recomputation:
    """The article's model, pools and measured figures."""

    shape = ModelShape.preset("gemma-4-26b-a4b")
    draft = ModelShape.preset("gemma-4-26b-a4b-dflash-draft")
    chunk: int = _stated("s002-in-chunk")
    page: int = _stated("s002-in-page")
    cap: int = _stated("s002-m-load")[1]
    hold: int = _stated("s002-m-hold")
    running_lazy, running_islands = _stated("s002-m-running")
    prompt_max, output_max = (1024 * each for each in _stated("s002-m-workload"))

    def __init__(self) -> None:
        full_kb, swa_kb, draft = _stated("s002-full-kb"), _stated("s002-swa-kb"), self.draft.bytes_per_token
        full, swa = (self.shape.kind_bytes_per_token(kind) for kind in ("global", "sliding"))
        self.printed = self._split(full_kb * KILO, swa_kb * KILO, draft)
        self.real = self._split(full, swa, draft)

    def _split(self, full_bytes: float, swa_bytes: float, draft_bytes: int) -> PoolSplit:
        budget = _stated("s002-in-budget") * 1e9
        return PoolSplit(budget, full_bytes, swa_bytes, draft_bytes, self.window, self.page, self.chunk)

    @property
    def window(self) -> int:
        return int(_stated("s002-in-window"))

    def tail(self, tokens: int) -> int:
        """SWA tokens kept after a commit of `tokens`."""
        return tokens - self.real.frontier(tokens)

    def island_interval(self) -> int:
        """Generated tokens between two decode islands, as the policy sets it."""
        pool = 4 * self.chunk
        return RadixIslands(self.shape.groups(), pool, page_size=self.page, chunk_tokens=self.chunk).interval

    def gib_per_million(self, kind: str) -> float:
        return self.shape.kind_bytes_per_token(kind) * 1e6 / GIB

    def hold_uniform(self) -> float:
        """The hold of a lazy tree for uniform prompts: the last chunk is half full on average, and where it is shorter
        than a window the one before is locked too; then w + p of generated text, and a share of the chunk in flight."""
        chunk, window, running = self.chunk, self.window, int(self.running_lazy)
        return chunk / 2 + window / 2 + self.real.need_tokens + chunk / running


def recomputed() -> dict[str, Recompute]:
    """Claim id -> the code that recomputes it."""
    this = _Recomputation()
    printed, real, shape, draft = this.printed, this.real, this.shape, this.draft
    tokens_per_s, latency_s, accepted = (_stated(f"s002-m-{each}") for each in ("throughput", "latency", "accept"))

    def gain(pair: tuple[float, float]) -> float:
        return 100 * (pair[1] / pair[0] - 1)

    def little(outputs: float) -> float:
        return float(tokens_per_s[1] * latency_s[1] / outputs)

    return {
        "s002-need": lambda: real.need_tokens,
        "s002-over-retention": lambda: this.hold / real.need_tokens,
        "s002-capacity-gain": lambda: gain((OLD_TOKENS, LEAN_TOKENS)),
        "s002-concurrency-gain": lambda: this.running_islands / this.running_lazy,
        "s002-throughput-gain": lambda: gain(tokens_per_s),
        "s002-latency-drop": lambda: gain(latency_s),
        "s002-accept-gain": lambda: gain(accepted),
        "s002-layers": lambda: shape.layers,
        "s002-full-bytes": lambda: shape.kind_bytes_per_token("global"),
        "s002-swa-bytes": lambda: shape.kind_bytes_per_token("sliding"),
        "s002-full-kb": lambda: shape.kind_bytes_per_token("global") / KILO,
        "s002-full-kb-gib": lambda: this.gib_per_million("global"),
        "s002-swa-kb": lambda: shape.kind_bytes_per_token("sliding") / KILO,
        "s002-swa-kb-gib": lambda: this.gib_per_million("sliding"),
        "s002-draft-kb": lambda: draft.bytes_per_token / KILO,
        "s002-pool-ratio": lambda: real.swa_bytes / real.full_bytes,
        "s002-c-032": lambda: printed.cost(OLD_RATIO) / KILO,
        "s002-c-017": lambda: printed.cost(LEAN_RATIO) / KILO,
        "s002-t-032": lambda: printed.tokens(OLD_RATIO) / KILO,
        "s002-t-017": lambda: printed.tokens(LEAN_RATIO) / KILO,
        "s002-t-017-deployed": lambda: printed.tokens(LEAN_RATIO) / KILO,
        "s002-t-gain-formula": lambda: gain((printed.tokens(OLD_RATIO), printed.tokens(LEAN_RATIO))),
        "s002-c-true-032": lambda: real.cost(OLD_RATIO),
        "s002-c-true-017": lambda: real.cost(LEAN_RATIO),
        "s002-budget": lambda: OLD_TOKENS * real.cost(OLD_RATIO) / GIB,
        "s002-budget-980": lambda: LEAN_TOKENS * real.cost(LEAN_RATIO) / GIB,
        "s002-c-true-010": lambda: printed.tokens(LEANEST_RATIO) / KILO,
        "s002-bind-017": lambda: bind(LEAN_RATIO, LEAN_TOKENS, this.hold),
        "s002-bind-032": lambda: bind(OLD_RATIO, OLD_TOKENS, this.hold),
        "s002-shrink": lambda: -gain((LEAN_TOKENS, OLD_TOKENS)),
        "s002-prefill-chunk": lambda: this.chunk / 1024,
        "s002-lock-inflation": lambda: this.chunk / this.window,
        "s002-full-idle": lambda: 100 * (sum(_stated("s002-m-bind")) / 2) * (this.prompt_max + this.output_max)
        / LEAN_TOKENS,
        "s002-frontier-16384": lambda: real.frontier(this.chunk),
        "s002-tail-min": lambda: this.tail(this.chunk),
        "s002-tail-max": lambda: max(this.tail(tokens) for tokens in range(4096, 4096 + this.page)),
        "s002-cadence": this.island_interval,
        "s002-modulo-hit": lambda: 100 / _stated("s002-m-accept-avg"),
        "s002-provisioned": lambda: OLD_RATIO * OLD_TOKENS / KILO,
        "s002-floor": lambda: real.floor(this.cap) / KILO,
        "s002-pool-017": lambda: LEAN_RATIO * LEAN_TOKENS / KILO,
        "s002-margin-010": lambda: printed.margin(LEANEST_RATIO, this.cap),
        "s002-r-min": lambda: printed.lowest_ratio(this.cap),
        "s002-workload-fixed": lambda: this.running_islands * this.prompt_max / KILO,
        "s002-workload-uniform": lambda: this.running_islands * (this.prompt_max / 2 + this.output_max / 4) / KILO,
        "s002-little-fixed": lambda: little(this.output_max),
        "s002-little-uniform": lambda: little(this.output_max / 2),
        "s002-hold-implied": lambda: OLD_RATIO * OLD_TOKENS / this.running_lazy / KILO,
        "s002-hold-uniform": lambda: this.hold_uniform() / KILO,
    }  # fmt: skip


def figures(report: Callable[[int, int], None] | None = None) -> list[Figure]:
    """The whole ledger of article 002."""
    return recompute("002", recomputed(), NOTES, report)
