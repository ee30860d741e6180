"""One notebook on its way to its file: normalised, sealed, linted, written whole or not at all."""

from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from kvlab.course.lesson import LessonError
from kvlab.course.lint import lint
from kvlab.course.normalise import comparable, dumps, normalise
from kvlab.course.seal import broken_seals, seal, unexecuted


class NotebookFile:
    """A freshly built `notebook` and the `path` it is meant for; `changed` tells whether it was written."""

    def __init__(self, root: Path, path: Path, notebook: NotebookNode, report: Callable[[str], None]) -> None:
        self.path = path
        self.name = path.relative_to(root).as_posix()
        self.notebook = notebook
        self.changed = False
        self._report = report

    def refuse_problems(self) -> str:
        """Return the bytes to be written; raises `LessonError` with all lint problems."""
        text = dumps(self.notebook)
        problems = lint(self.notebook, len(text.encode()))
        if problems:
            raise LessonError("\n".join(f"{self.name}: {problem}" for problem in problems))
        return text

    def write_executed(self, seconds: float) -> None:
        """Normalise and seal the executed notebook, then write it."""
        normalise(self.notebook)
        seal(self.notebook)
        self.write(seconds)

    def write(self, seconds: float) -> None:
        """Replace the file, unless only noise differs. Raises `LessonError` for lint, the file untouched."""
        text = self.refuse_problems()
        if self._only_noise_differs(text):
            self._report(f"unchanged  {self.name}  {seconds:.1f} s")
            return
        scratch = self.path.with_name(f".{self.path.name}.new")
        try:
            scratch.write_text(text, encoding="utf-8")
            scratch.replace(self.path)
        finally:
            scratch.unlink(missing_ok=True)
        self.changed = True
        self._report(f"built      {self.name}  {seconds:.1f} s, {len(text) / 1000:.0f} kB")

    def _only_noise_differs(self, text: str) -> bool:
        if not self.path.exists():
            return False
        old_text = self.path.read_text(encoding="utf-8")
        if old_text == text:
            return True
        try:
            old = nbformat.reads(old_text, as_version=4)
            if broken_seals(old) or unexecuted(old) or old.metadata.kvlab != self.notebook.metadata.kvlab:
                return False
            return comparable(old) == comparable(self.notebook)
        except (nbformat.reader.NotJSONError, nbformat.ValidationError):
            return False  # a damaged file is what the build is there to replace
