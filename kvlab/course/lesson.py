"""A lesson's source: its Markdown file, the front matter, and the cells of its two notebooks.

lessons/02_paging.md --+--> notebooks/02_paging.ipynb            starter: exercises are empty
                       +--> notebooks/solutions/02_paging.ipynb  solution: exercises are filled in
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jupytext
import nbformat
import yaml
from nbformat import NotebookNode

from kvlab.course.exercises import Variant, source_for
from kvlab.errors import InvalidInput, KvlabError

LESSON_NAME = re.compile(r"\d\d_[a-z0-9_]+")
TAGS = frozenset({"core", "deeper", "solution-only", "instructor", "nbval-ignore-output", "raises-exception"})
SOLUTION_TAGS = frozenset({"solution-only", "instructor"})
VARIANTS: tuple[Variant, ...] = ("starter", "solution")
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE = {
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "pygments_lexer": "ipython3",
}
_FOLDER = {"starter": "notebooks", "solution": "notebooks/solutions"}


class LessonError(KvlabError):
    """A lesson that cannot be built, or a notebook that failed; the message names lesson, cell and error."""


@dataclass(frozen=True)
class Lesson:
    """One lesson file. `minutes` is human time: core cells first, deeper ones second."""

    stem: str
    minutes: tuple[int, int]
    cells: tuple[NotebookNode, ...]

    @property
    def source(self) -> str:
        """The lesson's path in the project, as it is written into its notebooks."""
        return f"lessons/{self.stem}.md"


def notebook_path(root: Path, stem: str, variant: Variant) -> Path:
    """Where the notebook of a lesson is kept."""
    return root / _FOLDER[variant] / f"{stem}.ipynb"


def lesson_stems(root: Path, asked: list[str] | None = None) -> list[str]:
    """The lessons in `root`, or the asked ones; a stem may be shortened to its number ("02").

    Raises `InvalidInput` for a lesson that is not there and for a file that is not named NN_name.md.
    """
    names = sorted(path.stem for path in (root / "lessons").glob("*.md") if path.name != "README.md")
    for name in names:
        if not LESSON_NAME.fullmatch(name):
            raise InvalidInput(f"lessons/{name}.md: a lesson is named NN_name.md (two digits, lower case)")
    if asked is None:
        return names
    stems = []
    for want in asked:
        found = [name for name in names if want in (name, name[:2])]
        if len(found) != 1:
            raise InvalidInput(f"no lesson {want!r} in lessons/; there are: {', '.join(names) or 'none'}")
        stems.append(found[0])
    return stems


def read_lesson(root: Path, stem: str) -> Lesson:
    """Read and validate lessons/<stem>.md. Raises `LessonError` naming what is wrong and where."""
    path = root / "lessons" / f"{stem}.md"
    try:
        parsed = jupytext.reads(path.read_text(encoding="utf-8"), fmt="md:myst")
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise LessonError(f"lessons/{stem}.md cannot be read: {error}") from error
    minutes = _minutes(stem, parsed.metadata.get("kvlab"))
    for number, cell in enumerate(parsed.cells, 1):
        unknown = set(cell.metadata.get("tags", [])) - TAGS
        if unknown:
            raise LessonError(
                f"lessons/{stem}.md, cell {number}: unknown tag {', '.join(sorted(unknown))}; "
                f"known are {', '.join(sorted(TAGS))}"
            )
        if not cell.source.strip():
            raise LessonError(f"lessons/{stem}.md, cell {number}: the cell is empty; remove it")
    return Lesson(stem, minutes, tuple(parsed.cells))


def blank_notebook(lesson: Lesson, variant: Variant) -> NotebookNode:
    """The unexecuted notebook of a lesson, the same bytes on every machine.

    Cell ids are hashes of lesson, type and source, so an untouched cell keeps its id and its diff is empty.
    Raises `LessonError` for exercise markers that do not pair.
    """
    cells: list[NotebookNode] = []
    seen: dict[str, int] = {}
    for number, cell in enumerate(lesson.cells, 1):
        tags = set(cell.metadata.get("tags", []))
        if variant == "starter" and tags & SOLUTION_TAGS:
            continue
        source = cell.source
        if cell.cell_type == "code":
            try:
                source = source_for(variant, source)
            except InvalidInput as error:
                raise LessonError(f"{lesson.source}, cell {number}: {error}") from error
        digest = hashlib.sha256(f"{lesson.stem}\0{cell.cell_type}\0{source}".encode()).hexdigest()[:12]
        seen[digest] = seen.get(digest, 0) + 1
        name = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"
        cells.append(_cell(cell.cell_type, name, source, tags))
    metadata = {
        "kernelspec": KERNELSPEC,
        "language_info": LANGUAGE,
        "kvlab": {"lesson": lesson.source, "variant": variant},
    }
    return _node({"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells})


def _cell(kind: Literal["code", "markdown", "raw"], name: str, source: str, tags: set[str]) -> NotebookNode:
    cell: dict[str, Any] = {"cell_type": kind, "id": name, "source": source, "metadata": {}}
    if tags:
        cell["metadata"] = {"tags": sorted(tags)}
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return _node(cell)


def _node(value: dict[str, Any]) -> NotebookNode:
    made = nbformat.from_dict(value)
    assert isinstance(made, NotebookNode)
    return made


def _minutes(stem: str, front: object) -> tuple[int, int]:
    if not isinstance(front, dict):
        raise LessonError(f"lessons/{stem}.md: no `kvlab:` section in the front matter (lessons/README.md)")
    found = tuple(front.get(key) for key in ("core_minutes", "deeper_minutes"))
    core, deeper = found
    if not isinstance(core, int) or not isinstance(deeper, int) or not 0 < core <= 25 or deeper < 0:
        raise LessonError(f"lessons/{stem}.md: core_minutes must be 1 to 25 and deeper_minutes 0 or more, not {found}")
    return core, deeper
