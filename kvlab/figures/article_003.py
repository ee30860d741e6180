"""Article 003 (paging) and the PagedAttention paper: each exact or model claim, from the memory parts and policies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final

from kvlab.errors import OutOfMemory
from kvlab.figures.ledger import Figure, Recompute, claims, recompute
from kvlab.memory.block_table import BlockTable
from kvlab.policies.base import Usage
from kvlab.policies.contiguous import ContiguousMax
from kvlab.policies.paged import Paged
from kvlab.shapes import KVHeads, ModelShape
from kvlab.simulate import examples
from kvlab.workload import Request

KIB, MIB, GIB, GB = 2**10, 2**20, 2**30, 10**9
H100_BYTES: Final = 80 * GB
AFTER_WEIGHTS_BYTES: Final = 63_900_000_000
"""What the article rounds the rest of the card to; its pool is cut from this number."""

NOTES: Final[Mapping[str, str]] = {
    "s003-left-after-weights": "80 GB taken as decimal; activations and the 0.92 default are not subtracted",
    "s003-pool-blocks": "30,469.9 before the floor: only 30,469 whole blocks fit",
    "s003-pool-tokens": "487,518 tokens without blocks, 487,504 in 30,469 blocks; both round to 487,500",
    "s003-frag-largest-hole": "the two holes are not adjacent, so merging neighbours does not help",
    "s003-ps-cow-copies": "the last writer finds a count of 1 and writes in place: n - 1 copies, and still 114 blocks",
    "pap-kv-per-token": "the paper's KB is KiB",
    "pap-kv-2048": "1.5625 GiB, or 1.68 GB in decimal",
    "pap-table1-slots-66b": "21 GiB give 9.56; 9.7 needs 21.3 GiB, which the table prints as 21",
    "pap-orca-max-external": "the tail in which an eighth reservation of 2,048 does not fit",
    "pap-orca-max-tokens-per-req": "prompt + half of a length-biased mean output, from the published shares",
    "pap-output-cv2": "a workload needs heavy-tailed outputs (log-normal, sigma 0.75) to give the paper's split",
    "pap-last-block-util": "the published 96.3 % also counts blocks nobody holds; last blocks alone would leave 98.4 %",
}


def opt(name: str, layers: int, hidden: int) -> ModelShape:
    """An OPT model's KV: 16-bit, as many KV heads as query heads."""
    heads = {"global": KVHeads(hidden // 128, 128)}
    return ModelShape(name, ("global",) * layers, None, hidden // 128, heads, 2, 2, hidden, 50272, 2048, None, ())


class _Recomputation:
    """The runs that several figures share, each done once."""

    llama = ModelShape.preset("llama-3.1-8b")
    opt13 = ModelShape.preset("opt-13b")

    @cached_property
    def reserved(self) -> Usage:
        return examples.four_reserved().usage()["full"]

    @cached_property
    def paged(self) -> Usage:
        return examples.four_paged().usage()["full"]

    @cached_property
    def shared(self) -> Paged:
        return examples.parallel_samples()

    @cached_property
    def unshared(self) -> Paged:
        return examples.parallel_samples(share=False)

    @cached_property
    def orca_max(self) -> ContiguousMax:
        """OPT-13B with 12 GiB of KV, filled with reservations of 2,048 until one is refused."""
        slots = 12 * GIB // self.opt13.bytes_per_token
        policy = ContiguousMax(self.opt13.groups(), slots, max_model_tokens=2048)
        for rid in range(slots):
            if policy.admit(Request(rid, 161, 338)) is None:
                return policy
        raise AssertionError("a pool without end")

    def slots(self, bytes_: int) -> float:
        return bytes_ / self.llama.bytes_per_token

    def request_a_after(self, tokens: int) -> BlockTable:
        table = BlockTable(examples.request_a().pool, examples.BLOCK_SIZE)
        table.append(37)
        if tokens > 37:
            table.append(tokens - 37)
        return table

    def full_at(self) -> int:
        """Tokens of request A when its third block is full: one more takes a fourth."""
        table = self.request_a_after(37)
        while table.blocks_needed(1) == 0:
            table.append()
        return table.tokens

    def worst_last_block(self) -> int:
        """Most empty slots a table can have, over every fill of its last block."""
        lengths = range(37, 37 + examples.BLOCK_SIZE)
        return max(self.request_a_after(tokens).empty_slots for tokens in lengths)

    def refused(self) -> list[int]:
        """Holes that are left where 1,024 contiguous slots are refused."""
        region = examples.split_holes()
        try:
            region.allocate(1024)
        except OutOfMemory:
            return [hole.size for hole in region.holes()]
        return []

    def fit(self, tokens: int, bytes_: int) -> int:
        """Requests of `tokens` reserved slots that a memory of `bytes_` admits."""
        policy = ContiguousMax(
            self.llama.groups(), int(self.slots(bytes_)), max_model_tokens=tokens, placement="first-fit"
        )
        rid = 0
        while policy.admit(Request(rid, tokens - 1, 1)) is not None:
            rid += 1
        return rid

    def references(self) -> Counter[int]:
        return Counter(count for count in self.shared.pool.references if count)

    def block_copies(self) -> int:
        return sum(move.why == "copy-on-write" for move in examples.parallel_samples().drain_moves())

    def saving(self, samples: int, prompt_share: float) -> float:
        """Blocks saved by sharing, in %, when the prompt is `prompt_share` of a request's whole blocks."""
        blocks = 100
        prompt = round(prompt_share * blocks)
        lengths = (prompt * examples.BLOCK_SIZE, (blocks - prompt) * examples.BLOCK_SIZE)
        used = [
            policy.pool.blocks - policy.pool.free_blocks
            for policy in (
                examples.parallel_samples(samples, *lengths, share=True),
                examples.parallel_samples(samples, *lengths, share=False),
            )
        ]
        return 100 * (1 - used[0] / used[1])

    def last_block_utilisation(self, tokens_percent: float) -> float:
        return examples.last_block_utilisation(round(self.shares_per_request(tokens_percent)))

    def shares_per_request(self, percent: float) -> float:
        """Tokens a request holds when all requests of `orca_max` hold `percent` of its memory."""
        return percent / 100 * self.orca_max.regions.slots / len(self.orca_max.admitted())


def recomputed() -> dict[str, Recompute]:
    """Claim id -> the code that recomputes it."""
    run = _Recomputation()
    llama, opt13 = run.llama, run.opt13
    block = examples.BLOCK_SIZE
    block_bytes = block * llama.bytes_per_token
    published = {claim.id: claim.value for claim in claims("003")}
    prompt_mean, output_mean = published["pap-fig11-sharegpt"]
    tokens_share, reserved_share = published["pap-fig2-max"][:2]
    max_share, oracle_share = published["s003-pub-util-range"]

    def held(policy: Paged) -> int:
        return policy.pool.blocks - policy.pool.free_blocks

    def table_slots(shape: ModelShape, gib: int) -> float:
        return gib * GIB / shape.bytes_per_token / 1000

    def biased_final() -> float:
        return run.shares_per_request(tokens_share + reserved_share)

    return {
        "s003-kv-per-token": lambda: llama.bytes_per_token / KIB,
        "s003-max-len-reservation": lambda: run.reserved.capacity / 4 / MIB,
        "s003-reserved-slots": lambda: run.slots(run.reserved.owned),
        "s003-used-slots": lambda: run.slots(run.reserved.live),
        "s003-later-slots": lambda: run.slots(run.reserved.reserved),
        "s003-never-slots": lambda: run.slots(run.reserved.internal),
        "s003-slot-identity": lambda: run.slots(sum(run.reserved[:4])),
        "s003-utilization-4dp": lambda: run.reserved.shares()["live"],
        "s003-utilization-pct": lambda: 100 * run.reserved.shares()["live"],
        "s003-later-pct": lambda: 100 * run.reserved.shares()["reserved"],
        "s003-never-pct": lambda: 100 * run.reserved.shares()["internal"],
        "s003-reserved-mib": lambda: run.reserved.owned / MIB,
        "s003-used-mib": lambda: run.reserved.live / MIB,
        "s003-128k-request": lambda: llama.max_positions * llama.bytes_per_token / GIB,
        "s003-left-after-weights": lambda: (H100_BYTES - llama.dtype_bytes * (llama.params or 0)) / GB,
        "s003-requests-at-128k": lambda: run.fit(llama.max_positions, AFTER_WEIGHTS_BYTES),
        "s003-frag-region": lambda: examples.split_holes().slots,
        "s003-frag-free": lambda: sum(run.refused()),
        "s003-frag-largest-hole": lambda: max(run.refused()),
        "s003-a-blocks": lambda: len(run.request_a_after(37).blocks),
        "s003-a-empty": lambda: run.request_a_after(37).empty_slots,
        "s003-a-after3": lambda: run.request_a_after(40).tokens,
        "s003-a-free-after3": lambda: run.request_a_after(40).empty_slots,
        "s003-a-full-at": run.full_at,
        "s003-max-waste-slots": run.worst_last_block,
        "s003-max-waste-kib": lambda: run.worst_last_block() * llama.bytes_per_token / KIB,
        "s003-max-waste-mib": lambda: run.worst_last_block() * llama.bytes_per_token / MIB,
        "s003-paged-blocks": lambda: run.paged.owned / block_bytes,
        "s003-paged-utilization": lambda: run.paged.live / run.paged.owned,
        "s003-paged-utilization-pct": lambda: 100 * run.paged.live / run.paged.owned,
        "s003-paged-mib": lambda: run.paged.owned / MIB,
        "s003-freed-mib": lambda: run.paged.free / MIB,
        "s003-block-mib": lambda: block_bytes / MIB,
        "s003-block-layer-kib": lambda: block * llama.layer_bytes_per_token("global") / KIB,
        "s003-layers": lambda: llama.layers,
        "s003-pool-blocks": lambda: Paged(llama.groups(), int(run.slots(AFTER_WEIGHTS_BYTES))).pool.blocks,
        "s003-pool-tokens": lambda: int(run.slots(AFTER_WEIGHTS_BYTES)),
        "s003-ps-blocks-per-seq": lambda: held(run.unshared) / 4,
        "s003-ps-unshared": lambda: held(run.unshared),
        "s003-ps-unshared-mib": lambda: held(run.unshared) * block_bytes / MIB,
        "s003-ps-shared-full": lambda: run.references()[4],
        "s003-ps-private": lambda: run.references()[1] / 4,
        "s003-ps-shared": lambda: held(run.shared),
        "s003-ps-shared-mib": lambda: held(run.shared) * block_bytes / MIB,
        "s003-ps-saving": lambda: 100 * (1 - held(run.shared) / held(run.unshared)),
        "s003-ps-partial": lambda: next(m.tokens for m in examples.parallel_samples(generated=1).drain_moves()),
        "s003-ps-cow-copies": run.block_copies,
        "s003-waste-from-util-lo": lambda: 100 - oracle_share,
        "s003-waste-from-util-hi": lambda: 100 - max_share,
        "s003-under-4pct": lambda: 100 - published["s003-pub-util-vllm"],
        "s003-batch-ratio": lambda: published["pap-fig13-sharegpt"][3] / published["pap-fig13-sharegpt"][2],
        "s003-logical-block": lambda: next(
            entry for entry, b in enumerate(run.request_a_after(37).blocks)
            if b == run.request_a_after(37).slot(17 - 1) // block
        ),
        "pap-kv-per-token": lambda: opt13.bytes_per_token / KIB,
        "pap-kv-2048": lambda: 2048 * opt13.bytes_per_token / GIB,
        "pap-table1-slots-13b": lambda: table_slots(opt13, 12),
        "pap-table1-slots-66b": lambda: table_slots(opt("opt-66b", 64, 9216), 21),
        "pap-table1-slots-175b": lambda: table_slots(opt("opt-175b", 96, 12288), 264),
        "pap-orca-max-batch": lambda: len(run.orca_max.admitted()),
        "pap-orca-max-external": lambda: 100 * run.orca_max.usage(pending_tokens=2048)["full"].shares()["external"],
        "pap-orca-max-tokens-per-req": lambda: prompt_mean + (biased_final() - prompt_mean) / 2,
        "pap-output-cv2": lambda: (biased_final() - prompt_mean) / output_mean - 1,
        "pap-fig15-model-2": lambda: run.saving(2, published["pap-sec3-prompt-share"] / 100),
        "pap-fig15-model-4": lambda: run.saving(4, published["pap-sec3-prompt-share"] / 100),
        "pap-fig15-model-6": lambda: run.saving(6, published["pap-sec3-prompt-share"] / 100),
        "pap-last-block-util": lambda: 100 * run.last_block_utilisation(tokens_share),
    }  # fmt: skip


def figures(report: Callable[[int, int], None] | None = None) -> list[Figure]:
    """The whole ledger of article 003 and the paper."""
    return recompute("003", recomputed(), NOTES, report)
