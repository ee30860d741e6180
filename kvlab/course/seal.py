"""Seals: what a built notebook remembers of its build, so that a stripped or edited output is found unrun.

nbval passes a cell that has neither a count nor outputs, in silence. So each code cell carries a digest of
its source and its outputs, and the notebook one of all code it ran, both in metadata under `kvlab`. Clearing
or editing an output breaks the cell's seal; editing, adding or removing a cell breaks the notebook's. A seal
says that nothing changed since the build; whether the outputs are true is for nbval, which runs them again.
"""

import hashlib
import json
from typing import Any

from nbformat import NotebookNode

_KEY = "kvlab"


def seal(notebook: NotebookNode) -> None:
    """Write the seals of an executed, normalised notebook into its metadata."""
    for cell in _code(notebook):
        cell.metadata[_KEY] = {"seal": _digest([cell.source, cell.outputs])}
    notebook.metadata[_KEY]["ran"] = _digest([cell.source for cell in _code(notebook)])


def broken_seals(notebook: NotebookNode) -> list[str]:
    """What no longer is as it was built, one sentence each; empty for an untouched notebook."""
    problems = []
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type != "code":
            continue
        stored = cell.metadata.get(_KEY, {}).get("seal")
        if stored is None:
            problems.append(f"cell {number} was not written by `kvlab build`")
        elif stored != _digest([cell.source, cell.outputs]):
            problems.append(f"cell {number}: outputs or source were changed after the build")
    if notebook.metadata.get(_KEY, {}).get("ran") != _digest([cell.source for cell in _code(notebook)]):
        problems.append("the outputs come from other code than the notebook now holds")
    return problems


def unexecuted(notebook: NotebookNode) -> list[str]:
    """Code cells whose counts are not 1, 2, 3 ... in order, one sentence each."""
    problems = []
    numbered = [(number, cell) for number, cell in enumerate(notebook.cells, 1) if cell.cell_type == "code"]
    for expected, (number, cell) in enumerate(numbered, 1):
        count = cell.execution_count
        if count is None:
            problems.append(f"cell {number} was never executed")
        elif count != expected:
            problems.append(f"cell {number} has count [{count}]; a run from top to bottom gives [{expected}]")
    return problems


def _code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
