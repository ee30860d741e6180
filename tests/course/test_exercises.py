"""In every lesson: no check passes on the starter, every check passes on the solution.

Read from the stored outputs, which nbval proves to be what the cells give today.
"""

from pathlib import Path

import nbformat
import pytest

from kvlab.course.checks import CHECK_MIME
from kvlab.course.exercises import Variant
from kvlab.course.lesson import lesson_stems, notebook_path
from kvlab.course.quiz import QUIZ_MIME

ROOT = Path(__file__).parent.parent.parent
STEMS = lesson_stems(ROOT)


def shown(stem: str, variant: Variant, mime: str) -> list[dict[str, str]]:
    notebook = nbformat.read(notebook_path(ROOT, stem, variant), as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [output.data[mime] for output in outputs if mime in output.get("data", {})]


def test_the_first_four_lessons_are_there():
    assert {stem[:2] for stem in STEMS} >= {"00", "01", "02", "03"}


@pytest.mark.parametrize("stem", STEMS)
def test_checks_stand_at_not_yet_in_the_starter_and_at_passed_in_the_solution(stem: str):
    starter, solution = shown(stem, "starter", CHECK_MIME), shown(stem, "solution", CHECK_MIME)
    assert [check["status"] for check in starter] == ["not yet"] * len(starter)
    assert [check["status"] for check in solution] == ["passed"] * len(solution)
    assert [check["title"] for check in starter] == [check["title"] for check in solution]
    assert len(solution) >= 2, "each lesson has two exercises or more"


@pytest.mark.parametrize("stem", STEMS)
def test_quizzes_are_open_in_the_starter_and_right_in_the_solution(stem: str):
    starter, solution = shown(stem, "starter", QUIZ_MIME), shown(stem, "solution", QUIZ_MIME)
    assert [quiz["state"] for quiz in starter] == ["open"] * len(starter)
    assert [quiz["state"] for quiz in solution] == ["right"] * len(solution)
    assert [quiz["name"] for quiz in starter] == [quiz["name"] for quiz in solution]
    assert all(quiz["name"].startswith(f"{stem[:2]}-") for quiz in solution)
    assert solution, "each lesson has a quiz"
