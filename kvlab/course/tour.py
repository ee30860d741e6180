"""The course in sixty seconds on a terminal: each step runs the real policies and keeps what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from kvlab.figures.ledger import claims
from kvlab.policies.base import Usage
from kvlab.simulate import examples, orca
from kvlab.simulate.saturation import Saturation

STEPS: Final = 60_000
BAR: Final = 28
MIB: Final = 2**20
TERMS: Final = (
    ("live", "█", "green"),
    ("reserved", "▒", "yellow"),
    ("internal", "░", "red"),
    ("external", "╳", "blue"),
)
PUBLISHED: Final = {
    "Orca (Max)": "pap-fig2-max",
    "Orca (Pow2)": "pap-fig2-pow2",
    "Orca (Oracle)": "pap-fig2-oracle",
    "vLLM": "pap-fig2-vllm",
}

Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class TourStep:
    """One stop: what it shows (`facts`, for machines) and how (`rows` under `columns`, and a closing sentence)."""

    title: str
    facts: Mapping[str, Any]
    columns: Sequence[str]
    rows: Sequence[Sequence[RenderableType]] = field(repr=False)
    say: str


def bar(shares: Mapping[str, float]) -> Text:
    """The accounting terms as one bar; what is left blank is free."""
    text = Text()
    drawn, total = 0, 0.0
    for name, glyph, colour in TERMS:
        total += shares[name]
        width = round(total * BAR) - drawn
        drawn += width
        text.append(glyph * width, style=colour)
    return text.append(" " * (BAR - drawn))


def four_requests() -> TourStep:
    """Lesson 01 in one picture: reserved for the longest answer, beside blocks on demand."""
    reserved, paged = examples.four_reserved().usage()["full"], examples.four_paged().usage()["full"]
    facts = {
        "reserved_bytes": reserved.owned,
        "token_bytes": reserved.live,
        "utilisation": reserved.live / reserved.owned,
        "paged_bytes": paged.owned,
        "paged_utilisation": paged.live / paged.owned,
    }

    def row(name: str, usage: Usage) -> list[RenderableType]:
        share = usage.live / usage.owned
        return [name, bar(usage.shares()), f"{usage.owned / MIB:,.0f} MiB", f"{share:.1%}"]

    return TourStep(
        "Four requests, half way through their answers (Llama 3.1 8B)",
        facts,
        ("memory", "", "owned", "holds tokens"),
        [row("4,096 slots each", reserved), row("blocks of 16", paged)],
        "█ tokens  ▒ for later  ░ never written  ╳ lost to placement\n"
        "Reserving for the longest answer strands what blocks on demand give back. Lessons 01 and 02.",
    )


def utilisation(steps: int, report: Report | None) -> Iterator[TourStep]:
    """The paper's utilisation figure on real lengths, modelled here beside what the paper published."""
    published = {claim.id: claim.value for claim in claims("003")}
    workload = orca.length_sets()["ShareGPT, first turns"]
    found = orca.utilisation(workload, steps=steps, progress=report)

    def row(name: str, run: Saturation) -> list[RenderableType]:
        theirs = published[PUBLISHED[name]]
        theirs = theirs[0] if isinstance(theirs, list) else theirs
        return [
            name,
            bar(run.shares),
            f"{run.shares['live']:.1%}",
            f"{theirs} %",
            f"{run.requests_in_flight:.1f}",
        ]

    yield TourStep(
        "A saturated server on real ShareGPT lengths (OPT-13B, 12 GiB of KV)",
        {
            name: {
                "shares": run.shares,
                "requests_in_flight": run.requests_in_flight,
                "preempted": run.preempted,
            }
            for name, run in found.items()
        },
        ("system", "", "modelled", "published", "in flight"),
        [row(name, run) for name, run in found.items()],
        "`modelled` is the share of all slots that holds tokens, averaged over time: the real policies on our lengths. "
        "`published` is the paper's own measurement, on its lengths. Lesson 01.",
    )


def sharing() -> TourStep:
    """Lesson 03: four samples of one prompt, with and without sharing."""
    rows, facts = [], {}
    for name, share in (("each its own", False), ("copy-on-write", True)):
        policy = examples.parallel_samples(share=share)
        blocks = policy.pool.blocks - policy.pool.free_blocks
        copies = sum(move.why == "copy-on-write" for move in policy.drain_moves())
        facts[name.replace(" ", "_").replace("-", "_")] = {"blocks": blocks, "copies": copies}
        owned = policy.usage()["full"].owned
        rows.append([name, f"{blocks}", f"{owned / MIB:,.0f} MiB", f"{copies}"])
    return TourStep(
        "Four answers to one 1,000-token prompt, 200 tokens each",
        facts,
        ("sequences", "blocks", "owned", "copies"),
        rows,
        "62 prompt blocks are stored once; the partial one is copied for all but the last writer. Lesson 03.",
    )


def run(steps: int = STEPS, report: Report | None = None) -> Iterator[TourStep]:
    """The stops in order, each computed when it is asked for."""
    yield four_requests()
    yield from utilisation(steps, report)
    yield sharing()


def show(console: Console, steps: int = STEPS) -> list[TourStep]:
    """Run the tour on a terminal, with a progress bar while the server is simulated."""
    shown = []
    with Progress(
        TextColumn("  simulating {task.description}"),
        BarColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task("", total=len(orca.systems()) * steps, visible=False)
        order = list(orca.systems())

        def report(name: str, done: int, of: int) -> None:
            progress.update(task, description=name, completed=order.index(name) * of + done, visible=True)

        for number, step in enumerate(run(steps, report), start=1):
            table = Table(*step.columns, box=None, pad_edge=False, header_style="dim")
            for row in step.rows:
                table.add_row(*row)
            progress.update(task, visible=False)
            console.print(
                Panel(
                    Group(table, Text(step.say, style="italic")),
                    title=f"{number}. {step.title}",
                    title_align="left",
                )
            )
            shown.append(step)
    return shown
