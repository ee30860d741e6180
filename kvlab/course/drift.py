"""What no longer agrees between lessons and notebooks: found by looking or, if strict, by running."""

import difflib
import itertools
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from kvlab.course.execute import Job, run_notebooks
from kvlab.course.exercises import Variant
from kvlab.course.lesson import (
    VARIANTS,
    LessonError,
    blank_notebook,
    lesson_stems,
    notebook_path,
    read_lesson,
)
from kvlab.course.lint import lint, lint_lesson
from kvlab.course.normalise import comparable, normalise
from kvlab.course.seal import broken_seals, unexecuted

_DIFF_LINES = 30


def check_notebooks(
    root: Path, stems: list[str] | None, *, strict: bool = False, report: Callable[[str], None]
) -> list[str]:
    """Return every problem of the lessons (all, or those in `stems`) and their notebooks.

    Found without running: a notebook that is missing, damaged, or has other cells than its lesson; cells
    never executed or out of order; outputs removed or edited since the build; lint; notebooks without a
    lesson (only when all are checked). `strict` runs those that are fine so far and compares outputs.
    Raises `InvalidInput` for an unknown lesson.
    """
    problems = []
    jobs = []
    for stem in lesson_stems(root, stems):
        try:
            lesson = read_lesson(root, stem)
            wanted = {variant: blank_notebook(lesson, variant) for variant in VARIANTS}
        except LessonError as error:
            problems.append(str(error))
            continue
        problems += [f"{lesson.source}: {problem}" for problem in lint_lesson(lesson)]
        for variant, blank in wanted.items():
            path = notebook_path(root, stem, variant)
            name = path.relative_to(root).as_posix()
            found = [f"{name}: {problem}" for problem in _file_problems(path, blank)]
            problems += found
            report(f"{'problems' if found else 'ok':<10} {name}")
            if strict and not found:
                jobs.append(_comparison(path, name, blank, problems, report))
    problems += [str(error) for error in run_notebooks(jobs)]
    if stems is None:
        problems += _orphans(root)
    return problems


def _file_problems(path: Path, blank: NotebookNode) -> list[str]:
    if not path.exists():
        return ["is missing; run `kvlab build`"]
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except (nbformat.reader.NotJSONError, nbformat.ValidationError) as error:
        return [f"is not a valid notebook ({type(error).__name__}); run `kvlab build`"]
    problems = _differences(notebook, blank)
    if not problems:
        problems = unexecuted(notebook) + broken_seals(notebook)
    if problems:
        problems[-1] += "; run `kvlab build`"
    return problems + lint(notebook, path.stat().st_size)


def _differences(notebook: NotebookNode, blank: NotebookNode) -> list[str]:
    if notebook.metadata.get("kernelspec") != blank.metadata.kernelspec:
        return ["its kernel is not python3 (saved from another environment?)"]
    if "widgets" in notebook.metadata:
        return ["holds saved widget state"]
    have, want = _skeleton(notebook), _skeleton(blank)
    if have == want:
        return []
    for number, (one, other) in enumerate(zip(have, want, strict=False), 1):
        if one != other:
            return [f"cell {number} is not the lesson's:\n{_diff(one, other, 'notebook', 'lesson')}"]
    return [f"has {len(have)} cells where the lesson makes {len(want)}"]


def _skeleton(notebook: NotebookNode) -> list[str]:
    return [f"{cell.id} {cell.cell_type} {cell.metadata.get('tags', [])}\n{cell.source}" for cell in notebook.cells]


def _comparison(path: Path, name: str, blank: NotebookNode, problems: list[str], report: Callable[[str], None]) -> Job:
    stored = comparable(nbformat.read(path, as_version=4))

    def compare(seconds: float) -> None:
        normalise(blank)
        fresh = comparable(blank)
        report(f"{'ran' if fresh == stored else 'stale':<10} {name}  {seconds:.1f} s")
        if fresh != stored:
            difference = _diff(stored, fresh, "stored", "fresh")
            problems.append(f"{name}: stale outputs; run `kvlab build`\n{difference}")

    return Job(name, blank, path.parent, compare)


def _orphans(root: Path) -> list[str]:
    known = lesson_stems(root)
    folders: list[Variant] = list(VARIANTS)
    paths = [path for variant in folders for path in notebook_path(root, "x", variant).parent.glob("*.ipynb")]
    return [
        f"{path.relative_to(root).as_posix()}: there is no lessons/{path.stem}.md; remove the notebook"
        for path in sorted(paths)
        if path.stem not in known
    ]


def _diff(one: str, other: str, from_name: str, to_name: str) -> str:
    lines = difflib.unified_diff(one.splitlines(), other.splitlines(), from_name, to_name, n=1, lineterm="")
    return "\n".join(line[:200] for line in itertools.islice(lines, _DIFF_LINES))
