"""Quiz items without widgets: a learner types a letter, runs the cell again, and reads why.

A wrong answer is met with the misconception behind it and invites another try; the right one is explained
together with what is wrong with the others. Lessons keep their items in kvlab/course/lesson_NN.py:

    ZERO_WASTE = Quiz("02-zero-waste", "What does paging waste?", (
        Option("Nothing", why="The last block of each request is rarely full."),
        Option("Less than one block a request", why="Only the tail of the last block.", correct=True),
    ))

and ask them in the notebook with `quiz(ZERO_WASTE, answer=None)`.
"""

from dataclasses import dataclass
from html import escape
from string import ascii_lowercase
from typing import Any

from kvlab.course.card import GOOD, OPEN, PLAIN, card, heading, inline, paragraph
from kvlab.errors import InvalidInput

QUIZ_MIME = "application/vnd.kvlab.quiz+json"


@dataclass(frozen=True)
class Option:
    """One answer. `why` explains the right one, or names the misconception behind a wrong one."""

    text: str
    why: str
    correct: bool = False


@dataclass(frozen=True)
class Quiz:
    """A question with 2 to 5 options of which one is right. Raises `InvalidInput` otherwise."""

    name: str
    question: str
    options: tuple[Option, ...]

    def __post_init__(self) -> None:
        right = sum(option.correct for option in self.options)
        if not 2 <= len(self.options) <= 5 or right != 1:
            raise InvalidInput(
                f"quiz {self.name}: needs 2 to 5 options, one of them correct; "
                f"has {len(self.options)} with {right} correct"
            )

    def lettered(self) -> list[tuple[str, Option]]:
        """The options with their letters, a first."""
        return list(zip(ascii_lowercase, self.options, strict=False))


@dataclass(frozen=True)
class Answered:
    """A quiz item with an answer, or with None before there is one. Shows itself, the same each time."""

    quiz: Quiz
    answer: str | None

    @property
    def state(self) -> str:
        """`open`, `right`, `wrong`, or `unknown` for an answer that is no letter of an option."""
        if self.answer is None:
            return "open"
        chosen = dict(self.quiz.lettered()).get(self.answer)
        if chosen is None:
            return "unknown"
        return "right" if chosen.correct else "wrong"

    def __repr__(self) -> str:
        options = [f"  {letter}) {option.text}" for letter, option in self.quiz.lettered()]
        verdict, *reasons = self._feedback()
        return "\n".join([f"Question: {self.quiz.question}", *options, verdict, *(f"  {r}" for r in reasons)])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        lettered = self.quiz.lettered()
        options = "\n".join(f"<li>{letter}) {inline(option.text)}</li>" for letter, option in lettered)
        verdict, *reasons = self._feedback()
        colour = {"right": GOOD, "wrong": OPEN}.get(self.state, PLAIN)
        return {
            "text/plain": repr(self),
            "text/html": card(
                f"Question: {self.quiz.question}",
                colour,
                heading(self.quiz.question),
                f'<ul style="margin:4px 0;padding-left:1.2em;list-style:none">\n{options}\n</ul>',
                f'<p style="margin:6px 0 0 0"><strong>{escape(verdict)}</strong></p>',
                *(paragraph(reason) for reason in reasons),
            ),
            QUIZ_MIME: {"name": self.quiz.name, "answer": self.answer, "state": self.state},
        }

    def _feedback(self) -> list[str]:
        lettered = self.quiz.lettered()
        letters = ", ".join(letter for letter, _ in lettered)
        if self.state == "open":
            return [f"→ Replace None with your answer ({letters} in quotes) and run the cell again."]
        if self.state == "unknown":
            return [f"→ There is no option {self.answer!r}; the answer is one of {letters}, in quotes."]
        chosen = dict(lettered)[str(self.answer)]
        if self.state == "wrong":
            return [f"✗ Not {self.answer}.", chosen.why, "Try another letter."]
        others = [f"Not {letter}: {option.why}" for letter, option in lettered if not option.correct]
        return [f"✓ Right: {self.answer}.", chosen.why, *others]


def quiz(item: Quiz, answer: str | None = None) -> Answered:
    """Ask `item`; `answer` is the letter of an option, or None before there is one."""
    return Answered(item, answer.strip().lower() if isinstance(answer, str) else answer)
