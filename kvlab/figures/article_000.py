"""Article 000 (sliding KV on Gaudi 3): each exact or model claim, from the shape, the policies and the clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kvlab.figures.ledger import Figure, Recompute, claims, recompute
from kvlab.simulate.gaudi_ring import BLOCK_TOKENS, LONGEST_TOKENS, GaudiRing, bucket, first, owned_bytes

GB: Final = 10**9

NOTES: Final[Mapping[str, str]] = {
    "s000-kv-global-layer": "K and V come from one projection but are normed differently, so engines store both",
    "s000-usable-kv": "exact if a global layer is counted as one tensor of 4 x 512; no public engine stores it so",
    "s000-usable-kv-kv": "3.14 with K and V stored on globals; 3.5 would need 4,779 tokens",
    "s000-usable-kv-padded": "3.43 if stock globals are padded to the page of a sliding layer",
    "s000-usable-kv-9blocks": "3.17: a ninth block behind the window costs a tenth of the gain",
    "s000-moved-512": "448 blocks padded to the bucket of 512: exactly 1 GiB",
    "s000-moved-448": "0.940 GB is what is useful; the printed figure counts the padding",
    "s000-moved-9": "1.057 GB would print as 1.06",
    "s000-moved-fp8w": "a rival reading: windows and the layer's projections in one byte a weight",
    "s000-moved-gather3x": "read, write, read again: 3.22 GB in 1.10 ms is 79 % of the peak",
    "s000-mbu-295": "1.07 GB in 1.10 ms is 26.3 % of 3.7 TB/s",
    "s000-mbu-implied-bytes": "the printed 29.5 % means 1.20 GB",
    "s000-mbu-with-weights": "windows plus the layer's q, k, v, o weights are 1.204 GB: the reading that fits",
    "s000-speedup-vs-mbu": "2.54: both MBU figures are high by the same factor",
    "s000-step-saved": "50 layers save 33.0 ms by the trace; two MBU figures and one tensor on globals say 32.1",
    "s000-step-amdahl": "the saving in the traced layer explains the gain of the whole step",
    "s000-fits-hbm": "117.8 GB of 128; 127.2 GB with K and V on globals would leave no room",
    "s000-batch1": "bandwidth alone gives 2.1 %; 11 % needs a fixed cost of 35 to 55 us a gather",
}


class _Recomputation:
    """The article's model and card, and the readings of its figures."""

    run = GaudiRing.preset()
    shape = run.shape
    batch = 56
    peak: float = run.clock.machine.bandwidth.value

    def layer_bytes(self, kind: str, tensors: int = 2) -> int:
        return self.shape.layer_bytes_per_token(kind) * tensors // self.shape.kv_tensors

    def request_bytes(self, global_tensors: int) -> int:
        """KV of a request of 4,096 tokens, sliding layers keeping their window."""
        sliding = self.shape.kind_bytes_per_token("sliding") * self.run.window_tokens
        return sliding + self.shape.kind_bytes_per_token("global") * global_tensors // 2 * LONGEST_TOKENS

    def crossover(self) -> int:
        """Context at which a request's global pages take as much as its rings."""
        ring = self.shape.kind_bytes_per_token("sliding") * self.run.window_tokens
        return first(lambda tokens: self.shape.kind_bytes_per_token("global") * tokens >= ring)

    def padded_usable(self) -> float:
        """Stock layers all as wide as a sliding one, over what rings and unpadded pages keep."""
        heads = dict.fromkeys(("sliding", "global"), self.shape.heads["sliding"])
        stock = replace(self.shape, heads=heads)
        kept = owned_bytes(self.shape.groups(), LONGEST_TOKENS) / self.run.usable_kv(LONGEST_TOKENS)
        return owned_bytes(stock.groups(), LONGEST_TOKENS) / kept

    def moved_gb(self, blocks: int) -> float:
        return blocks * BLOCK_TOKENS * self.layer_bytes("sliding") / GB

    def mbu_percent(self, bytes_: float, time_s: float) -> float:
        return 100 * self.run.clock.mbu(bytes_, time_s)

    def mbu_step_s(self, mbu: float) -> float:
        """The time of a step that an MBU means: weights and 56 requests at 4k, one tensor on globals."""
        useful = self.run.clock.weight_bytes + self.batch * self.request_bytes(1)
        return float(useful / (mbu * self.peak))

    def traced_saving_s(self) -> float:
        """What all sliding layers save by the trace of one and the printed speed-up."""
        time_s, speedup = TRACED_MS / 1e3, published("s000-m-speedup")
        return self.shape.kinds.count("sliding") * time_s * (1 - 1 / speedup)

    def batch1_gain_percent(self) -> float:
        """The gain at batch 1 if what attention takes shrank with the bytes: a 56th, beside all of the weights."""
        step = self.run.clock.weight_bytes / (MBU_AFTER * self.peak)
        saved = self.traced_saving_s() / self.batch
        return float(100 * saved / (step - saved))


def published(claim: str) -> float:
    """What the article prints."""
    return float(next(each.value for each in claims("000") if each.id == claim))


TRACED_MS: Final = published("s000-m-time")
MBU_BEFORE, MBU_AFTER = (each / 100 for each in next(c.value for c in claims("000") if c.id == "s000-m-step-mbu"))


def recomputed() -> dict[str, Recompute]:
    """Claim id -> the code that recomputes it."""
    this = _Recomputation()
    run, shape, batch = this.run, this.shape, this.batch
    window, traced_s = run.window_tokens, TRACED_MS / 1e3
    window_bytes = run.window_bytes(batch, LONGEST_TOKENS)
    padded_blocks = bucket(batch * window // BLOCK_TOKENS)
    traced_bytes = published("s000-m-bytes") * GB

    return {
        "s000-layers": lambda: shape.layers,
        "s000-kv-sliding-layer": lambda: this.layer_bytes("sliding"),
        "s000-kv-global-layer": lambda: this.layer_bytes("global"),
        "s000-kv-global-layer-k": lambda: this.layer_bytes("global", tensors=1),
        "s000-kv-all-sliding": lambda: shape.kind_bytes_per_token("sliding"),
        "s000-kv-all-global": lambda: shape.kind_bytes_per_token("global"),
        "s000-kv-stock": lambda: shape.bytes_per_token,
        "s000-ring-bytes": lambda: shape.kind_bytes_per_token("sliding") * window,
        "s000-crossover": this.crossover,
        "s000-usable-kv": lambda: run.usable_kv(LONGEST_TOKENS, global_tensors=1),
        "s000-usable-kv-kv": lambda: run.usable_kv(LONGEST_TOKENS),
        "s000-usable-kv-padded": this.padded_usable,
        "s000-usable-kv-9blocks": lambda: run.usable_kv(
            LONGEST_TOKENS, global_tensors=1, kept_tokens=window + BLOCK_TOKENS
        ),
        "s000-moved-512": lambda: this.moved_gb(padded_blocks),
        "s000-moved-448": lambda: window_bytes / GB,
        "s000-moved-9": lambda: this.moved_gb(batch * (window // BLOCK_TOKENS + 1)),
        "s000-moved-fp8w": lambda: (window_bytes + run.projection_bytes() / 2) / GB,
        "s000-moved-gather3x": lambda: 3 * this.moved_gb(padded_blocks),
        "s000-mbu-295": lambda: this.mbu_percent(traced_bytes, traced_s),
        "s000-mbu-implied-bytes": lambda: published("s000-m-mbu") / 100 * this.peak * traced_s / GB,
        "s000-mbu-with-weights": lambda: this.mbu_percent(window_bytes + run.projection_bytes(), traced_s),
        "s000-speedup-vs-mbu": lambda: published("s000-m-mbu-ring") / published("s000-m-mbu"),
        "s000-ring-time": lambda: TRACED_MS / published("s000-m-speedup"),
        "s000-step-mbu-ratio": lambda: MBU_AFTER / MBU_BEFORE,
        "s000-step-mbu-pct": lambda: 100 * (MBU_AFTER / MBU_BEFORE - 1),
        "s000-step-saved": lambda: 1e3 * (this.mbu_step_s(MBU_BEFORE) - this.mbu_step_s(MBU_AFTER)),
        "s000-step-amdahl": lambda: (
            this.mbu_step_s(MBU_BEFORE) / (this.mbu_step_s(MBU_BEFORE) - this.traced_saving_s())
        ),
        "s000-fits-hbm": lambda: (run.clock.weight_bytes + batch * this.request_bytes(1)) / GB,
        "s000-batch1": this.batch1_gain_percent,
    }


def figures(report: Callable[[int, int], None] | None = None) -> list[Figure]:
    """The whole ledger of article 000."""
    return recompute("000", recomputed(), NOTES, report)
