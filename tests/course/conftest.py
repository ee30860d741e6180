"""Small lessons in a folder of their own, for tests of the machinery."""

import json
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

HEAD = """---
kvlab:
  core_minutes: 5
  deeper_minutes: 0
---

# 01 · A small lesson
"""
TAIL = """
<details><summary>What does not reconcile</summary>

Nothing.

</details>

+++ {"tags": ["instructor"]}

<details><summary>For the instructor</summary>

Five minutes.

</details>
"""


class SmallCourse:
    """A project folder with lessons; keeps what the machinery reports."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.reported: list[str] = []
        (root / "lessons").mkdir()

    def write(self, *cells: str, stem: str = "01_small", tags: str = "") -> None:
        """A lesson whose code cells are `cells`."""
        body = "\n".join(f"```{{code-cell}}\n{tags}{cell}\n```\n" for cell in cells)
        (self.root / "lessons" / f"{stem}.md").write_text(HEAD.replace("01", stem[:2]) + body + TAIL)

    def path(self, stem: str = "01_small", solution: bool = False) -> Path:
        return self.root / "notebooks" / ("solutions" if solution else ".") / f"{stem}.ipynb"

    def notebook(self, stem: str = "01_small", solution: bool = False) -> NotebookNode:
        return nbformat.read(self.path(stem, solution), as_version=4)

    def edit(self, change: Callable[[list[NotebookNode]], None], stem: str = "01_small") -> None:
        """Change the code cells of a starter notebook on disk, as careless hands would."""
        notebook = self.notebook(stem)
        change([cell for cell in notebook.cells if cell.cell_type == "code"])
        self.path(stem).write_text(json.dumps(notebook, indent=1))


@pytest.fixture
def course(tmp_path: Path) -> SmallCourse:
    return SmallCourse(tmp_path)
