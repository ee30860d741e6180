"""The course: exercises and their checks, quizzes, stored measurements, and the build of the notebooks.

What a lesson needs is imported from here; the build (`kvlab.course.build`) needs Jupyter and is not.
"""

from kvlab.bench.paired import Paired, measure
from kvlab.course.checks import Check, Trial, case, check, check_value, exercise
from kvlab.course.measured import Beside, measured_text
from kvlab.course.quiz import Option, Quiz, quiz
from kvlab.course.stored_run import load_stored_run, record_run

__all__ = [
    "Beside",
    "Check",
    "Option",
    "Paired",
    "Quiz",
    "Trial",
    "case",
    "check",
    "check_value",
    "exercise",
    "load_stored_run",
    "measure",
    "measured_text",
    "quiz",
    "record_run",
]
