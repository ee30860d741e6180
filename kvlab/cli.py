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
def doctor(as_json: Json = False) -> None:
    """Look for what breaks the course on this machine, and say how to mend it.

    Exit 1 where something fails; a warning (a Chromium missing, say) does not count.

    Example: kvlab doctor --json
    """
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


def main() -> None:
    """Run the command line; what the console script `kvlab` calls."""
    app(prog_name="kvlab")
