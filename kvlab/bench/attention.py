"""`kvlab bench attention`: attention over scattered blocks and over contiguous KV, one route beside the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvlab.attention import Bytes, KVStore, Route, Step, Takes, Trace, routes
from kvlab.bench.paired import Paired, Spread, measure
from kvlab.bench.provenance import provenance
from kvlab.device.base import Bandwidth
from kvlab.device.choose import get_device
from kvlab.errors import InvalidInput, require
from kvlab.policies.layout import Layout, Region, Table

CONTEXT: Final = 1024
PROMPT: Final = 2048
KV_HEADS: Final = 8
HEAD_DIM: Final = 128
BATCHES: Final = (8, 24, 56)
QUERY_HEADS: Final = (8, 32)
BLOCK_SIZES: Final = (16, 64)
DTYPES: Final = {"bf16": torch.bfloat16, "fp32": torch.float32}
SLOW_ARMS_UP_TO: Final = 8
"""Largest batch at which `blockwise`, a Python loop over blocks, is timed too."""
_FIRST: Final = "first "
CACHE_BYTES: Final = 64 << 20
"""Last-level cache where the system does not tell its size."""


@dataclass(frozen=True)
class Case:
    """One point of the benchmark: `batch` requests of `context` tokens each, the last `new_tokens` of them queries."""

    batch: int
    query_heads: int
    block_size: int
    dtype: str
    context: int = CONTEXT
    new_tokens: int = 1


@dataclass(frozen=True)
class Measured:
    """The arms of one case: the times of a layer's call and of a step's first call, and the bytes each reported."""

    case: Case
    times: Paired
    firsts: Paired
    bytes: Mapping[str, Bytes]

    def rows(self, bandwidth: Bandwidth) -> Iterator[dict[str, Any]]:
        """The rows of `--json`. Times and ratios are of a layer's call, as an engine makes it once for each layer of a
        step: what follows from the layouts is there already. `per_step_s` is how much longer the first call of a step
        takes, which works that out. `ratio` is how many times as fast as each other arm, paired by repeat."""
        for name, own in self.times.samples_s.items():
            time = self.times.time_s(name)
            ratio = {
                other: Spread.of([theirs / ours for theirs, ours in zip(samples, own, strict=True)]).median
                for other, samples in self.times.samples_s.items()
                if other != name
            }
            yield {
                "case": asdict(self.case) | {"kv_heads": KV_HEADS, "head_dim": HEAD_DIM},
                "name": name,
                "median_s": time.median,
                "iqr_s": time.iqr,
                "per_step_s": Spread.of(
                    [first - later for first, later in zip(self.firsts.samples_s[name], own, strict=True)]
                ).median,
                "ratio": ratio,
                "mbu": self.bytes[name].useful / (time.median * bandwidth.bytes_per_s),
                "bytes": self.bytes[name]._asdict(),
            }


def cases(
    batches: Sequence[int] | None = None,
    dtypes: Sequence[str] | None = None,
    *,
    quick: bool = False,
    prompt: bool = False,
) -> list[Case]:
    """The points to measure: decode steps, or with `prompt` one prompt of 2,048 tokens for each dtype and block size.

    `quick` keeps the smallest batch, number of query heads and block size.
    """
    dtypes = tuple(DTYPES) if dtypes is None else dtypes
    batches = (BATCHES[:1] if quick else BATCHES) if batches is None else batches
    if set(dtypes) - set(DTYPES) or not batches or min(batches) < 1:
        raise InvalidInput(f"a batch is at least 1, a dtype {' or '.join(DTYPES)}; got {list(batches)}, {list(dtypes)}")
    heads, sizes = (QUERY_HEADS[:1], BLOCK_SIZES[:1]) if quick else (QUERY_HEADS, BLOCK_SIZES)
    if prompt:
        return [Case(1, heads[0], size, dtype, PROMPT, PROMPT) for dtype in dtypes for size in sizes]
    return [
        Case(batch, query_heads, size, dtype)
        for dtype in dtypes
        for batch in batches
        for size in sizes
        for query_heads in heads
    ]


def bench(points: Sequence[Case], repeats: int = 15, report: Callable[[str], None] | None = None) -> Iterator[Measured]:
    """Measure the points one after the other."""
    for number, case in enumerate(points, 1):
        if report is not None:
            report(f"{number} of {len(points)}: {_words(asdict(case))}")
        yield measure_case(case, repeats)


def measure_case(case: Case, repeats: int) -> Measured:
    """Time every arm of one case, interleaved; `contiguous` is the baseline.

    The inputs do not come from the cache: calls rotate over as many batches as fill twice the last-level cache. What
    the arms compute is compared before it is timed; `InvariantViolation` where two disagree.
    """
    kv_bytes = case.batch * case.context * 2 * KV_HEADS * HEAD_DIM * DTYPES[case.dtype].itemsize
    turns = -(-2 * last_level_cache() // kv_bytes)
    scattered, slabs = _inputs(case, turns)
    found = routes()
    arms: dict[str, tuple[Route, list[Step], KVStore]] = {
        "contiguous": (found["contiguous"], *slabs),
        "gather": (found["gather"], *scattered),
    }
    if case.new_tokens == 1:
        arms |= {"indexing": (_Indexing(), *scattered), "flat_pa": (found["flat_pa"], *scattered)}
    if "native" in found:
        arms |= {"native": (found["native"], *scattered), "native_contiguous": (found["native"], *slabs)}
    if case.new_tokens == 1 and case.batch <= SLOW_ARMS_UP_TO:
        arms["blockwise"] = (found["blockwise"], *scattered)
    answers = {name: route(steps[0], store) for name, (route, steps, store) in arms.items()}
    for name, (output, _) in answers.items():
        error = float((output.float() - answers["contiguous"][0].float()).abs().max())
        require(error < 0.05, f"{name} and contiguous differ by {error:.3g} over the same KV")
    calls = {name: _calls(*arm) for name, arm in arms.items()}
    laters = {name: later for name, (_, later) in calls.items()}
    firsts = {_FIRST + name: first for name, (first, _) in calls.items()}
    samples = measure(laters | firsts, repeats=repeats).samples_s
    return Measured(
        case,
        Paired({name: samples[name] for name in arms}),
        Paired({name: samples[_FIRST + name] for name in arms}),
        {name: read for name, (_, read) in answers.items()},
    )


class _Indexing:
    """Not a route of kvlab's: the gather that one writes first. Indexing makes new tensors of all blocks, heads are
    brought before tokens by another copy, and SDPA reads that."""

    name = "indexing"
    takes = Takes(layouts=(Table,))

    def __call__(self, step: Step, store: KVStore, trace: Trace | None = None) -> tuple[Tensor, Bytes]:
        """A decode step whose tables are full and of one length."""
        blocks = torch.tensor([layout.blocks for layout in step.layouts if isinstance(layout, Table)])
        keys, values = (
            stored[blocks].transpose(1, 2).reshape(step.requests, store.kv_heads, -1, store.head_dim)
            for stored in (store.keys, store.values)
        )
        queries = step.queries[:, :, None]
        output = scaled_dot_product_attention(queries, keys, values, scale=step.scale, enable_gqa=True)
        useful = step.useful_tokens() * store.bytes_per_token
        return output[:, :, 0], Bytes(useful, useful, 5 * useful)


def _calls(route: Route, steps: list[Step], store: KVStore) -> tuple[Callable[[], object], Callable[[], object]]:
    """The call of a step's first layer, and that of a later one; each reads the KV of the next turn."""
    turn = cycle(steps)

    def first() -> object:
        return route(replace(next(turn)), store)

    def later() -> object:
        step = next(turn)
        return route(step.with_operands(step.queries, step.keys, step.values), store)

    for step in steps:
        route(step, store)
    return first, later


def _inputs(case: Case, turns: int) -> tuple[tuple[list[Step], KVStore], tuple[list[Step], KVStore]]:
    """The same KV twice: in blocks that lie at random, and as one slab a request; a step for each turn."""
    random, requests, size, context = np.random.default_rng(0), turns * case.batch, case.block_size, case.context
    per_request = context // size
    dtype = DTYPES[case.dtype]
    scattered = KVStore(requests * context, size, KV_HEADS, HEAD_DIM, dtype=dtype)
    slabs = KVStore(requests * context, context, KV_HEADS, HEAD_DIM, dtype=dtype)
    tables = random.permutation(requests * per_request).reshape(requests, per_request)
    torch.manual_seed(0)
    for request, table in enumerate(tables):
        for paged, slab in ((scattered.keys, slabs.keys), (scattered.values, slabs.values)):
            blocks = slab[request].normal_().view(KV_HEADS, per_request, size, HEAD_DIM)
            paged[torch.from_numpy(table)] = blocks.transpose(0, 1)
    queries = torch.randn(case.batch * case.new_tokens, case.query_heads, HEAD_DIM).to(dtype)
    tabled: list[Layout] = [Table(table.tolist(), size, 0, context) for table in tables]
    regions: list[Layout] = [Region(request * context, 0, context) for request in range(requests)]
    return (_steps(case, queries, tabled), scattered), (_steps(case, queries, regions), slabs)


def _steps(case: Case, queries: Tensor, layouts: list[Layout]) -> list[Step]:
    """A step for each batch of layouts. Tables and regions hold the step's own K and V already: zeros stand in here."""
    own = torch.zeros(len(queries), KV_HEADS, HEAD_DIM, dtype=queries.dtype)
    starts, lengths = range(0, len(queries) + 1, case.new_tokens), [case.context] * case.batch
    return [
        Step(queries, own, own, starts, lengths, layouts[first : first + case.batch], HEAD_DIM**-0.5)
        for first in range(0, len(layouts), case.batch)
    ]


def last_level_cache() -> int:
    """Bytes of the largest cache of the first processor, as Linux tells it; else `CACHE_BYTES`."""
    sizes = [CACHE_BYTES]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="utf-8").strip()
        sizes.append(int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]])
    return max(sizes)


def as_json(measured: Sequence[Measured], repeats: int) -> dict[str, Any]:
    """The object of `kvlab bench attention --json`."""
    device = get_device("cpu")
    bandwidth = device.read_bandwidth()
    known = provenance() | {
        "device": device.describe(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "read_bandwidth": bandwidth.bytes_per_s,
        "read_bandwidth_how": bandwidth.how,
        "last_level_cache": last_level_cache(),
        "repeats": repeats,
    }
    return {
        "bench": "attention",
        "provenance": known,
        "rows": [row for each in measured for row in each.rows(bandwidth)],
    }


def text(found: dict[str, Any]) -> str:
    """The same for people: a line for each arm, a block for each case."""
    known = found["provenance"]
    lines = [
        f"{known['device']}; MBU of {known['read_bandwidth'] / 1e9:.1f} GB/s ({known['read_bandwidth_how']})",
        "ms: the call of one layer; per step: ms that the first layer's call takes on top, for checks and plans",
    ]
    case = None
    for row in found["rows"]:
        if row["case"] != case:
            case = row["case"]
            lines += ["", _words(case)]
            lines.append(f"  {'':18}{'ms':>9}{'+-':>8}{'MBU':>7}{'per step':>10}  times as fast as contiguous")
        ratio = row["ratio"].get("contiguous", 1.0)
        times = f"{row['median_s'] * 1e3:9.2f}{row['iqr_s'] * 1e3:8.2f}"
        lines.append(f"  {row['name']:18}{times}{row['mbu']:7.2f}{row['per_step_s'] * 1e3:10.2f}  {ratio:.2f}")
    return "\n".join(lines)


def _words(case: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in case.items())
