"""Learners run cells twice, and skip what is marked deeper; neither may fail."""

from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from kvlab.course.execute import Job, run_notebooks
from kvlab.course.lesson import blank_notebook, lesson_stems, read_lesson

ROOT = Path(__file__).parent.parent.parent


def each_cell_twice(cells: list[NotebookNode]) -> list[NotebookNode]:
    again = [nbformat.from_dict({**cell, "id": f"{cell.id}-again"}) for cell in cells]
    return [cell for pair in zip(cells, again, strict=True) for cell in pair]


def core_only(cells: list[NotebookNode]) -> list[NotebookNode]:
    return [cell for cell in cells if "deeper" not in cell.metadata.get("tags", [])]


@pytest.mark.parametrize("way", [each_cell_twice, core_only], ids=lambda way: way.__name__)
@pytest.mark.parametrize("stem", lesson_stems(ROOT))
def test_a_solution_runs(stem: str, way: Callable[[list[NotebookNode]], list[NotebookNode]], tmp_path: Path):
    notebook = blank_notebook(read_lesson(ROOT, stem), "solution")
    notebook.cells = way([cell for cell in notebook.cells if cell.cell_type == "code"])
    assert run_notebooks([Job(stem, notebook, tmp_path, lambda seconds: None)]) == []
