"""`kvlab simulate`: the articles' results under a modelled clock."""

from typing import Annotated

import typer

from kvlab.cli_parts import Json, print_json, progress


def simulate(
    preset: Annotated[str, typer.Argument(help="gaudi-ring.")],
    as_json: Json = False,
) -> None:
    """Reproduce an article at full size with the real policies and a modelled clock: published beside modelled.

    Example: kvlab simulate gaudi-ring --json
    """
    from kvlab.simulate.presets import preset_rows
    from kvlab.simulate.report import as_json as report_json
    from kvlab.simulate.report import table

    rows = preset_rows(preset, progress)
    if as_json:
        print_json(report_json(preset, rows))
    else:
        from rich.console import Console

        Console().print(table(rows))
