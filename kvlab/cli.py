"""The command `kvlab`. A command imports what it needs in its own body, so that `kvlab --help` is fast.

Every command prints for people, or with --json one JSON object and nothing else on stdout; progress goes to
stderr. Exit codes: 0 fine, 1 the command found something wrong, 2 it could not do what was asked, 130 Ctrl-C.
"""

import os
from pathlib import Path
from typing import Annotated

import typer

from kvlab import __version__
from kvlab.cli_bench import bench
from kvlab.cli_model import fetch, gate, generate
from kvlab.cli_parts import Commands, Json, print_json, progress
from kvlab.cli_simulate import simulate

Stems = Annotated[list[str] | None, typer.Argument(help="Lessons by file name, such as 02_paging; else all.")]
Root = Annotated[Path, typer.Option(help="The folder that holds lessons/ and notebooks/.", file_okay=False)]


app = typer.Typer(
    cls=Commands,
    help="Build, watch, measure and break the memory systems behind LLM serving.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


app.command()(fetch)
app.command()(generate)
app.command()(simulate)
app.command()(gate)
app.add_typer(bench, name="bench")


@app.command()
def figures(as_json: Json = False) -> None:
    """Recompute the figures of the articles with kvlab's own code: ours beside theirs, with a verdict.

    `published` marks what was measured elsewhere and cannot be recomputed here. Exit 1 where a verdict is not
    the one the ledger records.

    Example: kvlab figures --json
    """
    from kvlab.figures.every import figures as every_figure

    found = every_figure()
    if as_json:
        print_json({"rows": [figure.row() for figure in found]})
    else:
        from rich.console import Console

        from kvlab.figures.show import table

        Console().print(table(found))
    raise typer.Exit(0 if all(figure.verdict == figure.claim.expect for figure in found) else 1)


def main() -> None:
    """Run the command line; what the console script `kvlab` calls.

    torch and Numba each bring a pool of threads that wait for work by spinning, for milliseconds, on the cores that the
    other one needs. Told before they are loaded, they sleep after some microseconds. What is set already stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    app(prog_name="kvlab")
