"""From lessons to notebooks: `build_notebooks` runs and writes them, `check_notebooks` finds what drifted."""

from collections.abc import Callable
from pathlib import Path

from kvlab.course.drift import check_notebooks
from kvlab.course.execute import Job, run_notebooks
from kvlab.course.lesson import (
    VARIANTS,
    LessonError,
    blank_notebook,
    lesson_stems,
    notebook_path,
    read_lesson,
)
from kvlab.course.notebook_file import NotebookFile
from kvlab.errors import InvalidInput

__all__ = ["build_notebooks", "check_notebooks"]


def build_notebooks(
    root: Path, stems: list[str] | None, *, execute: bool = True, report: Callable[[str], None]
) -> list[Path]:
    """Build the starter and solution notebooks of the lessons (all, or those in `stems`).

    Returns the files that were written.
    A notebook is written whole or not at all: a failing cell or Ctrl-C leaves the old file. Where only noise
    differs (see `normalise`) the file is left alone too, so building twice changes no byte. Without `execute`
    the notebooks have no outputs, for a quick look; `check_notebooks` refuses them.
    Raises `InvalidInput` for an unknown lesson, `LessonError` naming every notebook that could not be built
    (the others are built).
    """
    names = lesson_stems(root, stems)
    if not names:
        raise InvalidInput(f"no lessons to build: {root / 'lessons'} holds no NN_name.md")
    lessons = [read_lesson(root, name) for name in names]
    files = [
        NotebookFile(root, notebook_path(root, lesson.stem, variant), blank_notebook(lesson, variant), report)
        for lesson in lessons
        for variant in VARIANTS
    ]
    for file in files:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        file.refuse_problems()
    if execute:
        jobs = [Job(file.name, file.notebook, file.path.parent, file.write_executed) for file in files]
        failed = run_notebooks(jobs)
        if failed:
            raise LessonError("\n".join(str(error) for error in failed))
    else:
        for file in files:
            file.write(0.0)
    return [file.path for file in files if file.changed]
