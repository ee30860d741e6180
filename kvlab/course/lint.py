"""What a lesson and its notebooks must not contain, found without running them.

Each rule is there because courses broke without it: Output widgets stall when nobody watches, downloads fail
in a classroom, absolute paths and magics tie a notebook to one machine, directives show as raw text.
"""

import json
import re
from typing import NamedTuple

from nbformat import NotebookNode

from kvlab.course.lesson import Lesson

MOST_BYTES = 1_000_000


class _Rule(NamedTuple):
    why: str
    pattern: str


_CODE = (
    _Rule(
        "an Output widget stalls when run unattended",
        r"\b(?:ipywidgets|widgets|w)\.Output\b|import.*\bOutput\b",
    ),
    _Rule(
        "interact and interactive stall when run unattended",
        r"\b(?:interact|interactive|interactive_output|interact_manual)\s*\(|import.*\binteract",
    ),
    _Rule("a FigureWidget stores 5 MB and random ids; use go.Figure", r"\bFigureWidget\b"),
    _Rule(
        "nbval cannot follow an output that is replaced",
        r"\bclear_output\b|\bupdate_display\b|\bdisplay_id\b",
    ),
    _Rule("a line over 100 characters scrolls sideways", r"^.{101,}"),
    _Rule("magics and shell commands differ between machines", r"^\s*(?:!|%{1,2})[A-Za-z]"),
    _Rule(
        "lessons make no network calls",
        r"\burllib\.request|\burlopen\b|\b(?:import|from) (?:requests|httpx|aiohttp|socket)\b"
        r"|\bhttp\.client\b|\b(?:hf_hub|snapshot)_download\b",
    ),
)
_CDN = _Rule(
    "a script or style from the network",
    r"//cdn\.|\bunpkg\.com|\bjsdelivr\b|\bcdnjs\b|<script[^>]+src=|<link[^>]+href=",
)
_ANYWHERE = (_CDN, _Rule("unfinished text", r"\bTO[-_ ]?DO\b|\bFIX[-_ ]?ME\b"))
_MARKDOWN = (
    _Rule("a MyST directive shows as raw text in JupyterLab", r"^:::|^```\{|\{(?:ref|numref|term|cite)[^}]*\}`"),
)
_OUTPUT = (
    _CDN,
    _Rule(
        "an absolute path in the output",
        r"(?<![\w:/.<\\-])/(?:home|root|Users|tmp|private|work|mnt|opt|usr|var|srv|workspace)/\w"
        r"|\b[A-Za-z]:\\+(?:Users|Windows|Program)",
    ),
)


def lint(notebook: NotebookNode, size_bytes: int) -> list[str]:
    """Problems of a notebook, one sentence each, with the number of the cell counted from 1."""
    problems = []
    if size_bytes > MOST_BYTES:
        problems.append(f"is {size_bytes:,} bytes; more than {MOST_BYTES:,} cannot be reviewed")
    for number, cell in enumerate(notebook.cells, 1):
        rules = _ANYWHERE + (_CODE if cell.cell_type == "code" else _MARKDOWN)
        found = _broken(rules, cell.source)
        for text in _output_texts(cell):
            found += _broken(_OUTPUT, text)
        problems += [f"cell {number}: {problem}" for problem in found]
    return problems


def lint_lesson(lesson: Lesson) -> list[str]:
    """Parts that every lesson has and this one lacks (lessons/README.md), one sentence each."""
    problems = []
    prose = [cell.source for cell in lesson.cells if cell.cell_type == "markdown"]
    if not prose or not prose[0].startswith(f"# {lesson.stem[:2]} "):
        problems.append(f"the first cell does not start with '# {lesson.stem[:2]} ' and the title")
    if not any("<summary>What does not reconcile</summary>" in text for text in prose):
        problems.append("there is no collapsed box 'What does not reconcile'")
    if not any("instructor" in _tags(cell) for cell in lesson.cells):
        problems.append("there is no cell tagged `instructor` (minutes, expected misconceptions)")
    deeper = False
    for number, cell in enumerate(lesson.cells, 1):
        heading = re.search(r"^## (.*)", cell.source, re.MULTILINE) if cell.cell_type == "markdown" else None
        deeper = heading[1].startswith("Deeper") if heading else deeper
        if cell.cell_type == "code" and deeper != ("deeper" in _tags(cell)):
            problems.append(f"cell {number}: code is tagged `deeper` exactly if it stands below '## Deeper ...'")
    return problems


def _broken(rules: tuple[_Rule, ...], text: str) -> list[str]:
    matches = [(rule.why, re.search(rule.pattern, text, re.MULTILINE)) for rule in rules]
    return [f"{why}: {match[0].strip()!r}" for why, match in matches if match]


def _output_texts(cell: NotebookNode) -> list[str]:
    texts: list[str] = []
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            texts.append(output.text)
        elif output.output_type == "error":
            texts.append(output.evalue)
        else:
            texts += [item if isinstance(item, str) else json.dumps(item) for item in output.data.values()]
    return texts


def _tags(cell: NotebookNode) -> list[str]:
    tags: list[str] = cell.metadata.get("tags", [])
    return tags
