"""What the commands of `kvlab` have in common."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kvlab.errors import KvlabError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


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


def progress(line: str) -> None:
    """Say how far a command is, on stderr."""
    typer.echo(line, err=True)


def print_json(value: Mapping[str, Any]) -> None:
    """Print the one object of a command's --json."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))
