"""Quiz items: a letter is answered with the reason."""

import pytest

from kvlab.course import Option, Quiz, quiz
from kvlab.course.quiz import QUIZ_MIME
from kvlab.errors import InvalidInput

WASTE = Quiz(
    "02-zero-waste",
    "What does paging waste, with `B` slots a block?",
    (
        Option("Nothing", why="The last block is rarely full."),
        Option("Less than a block a request", why="Only the tail of the last block.", correct=True),
        Option("As much as <before>", why="Nothing is reserved ahead."),
    ),
)


def state(answer: object) -> str:
    return quiz(WASTE, answer=answer)._repr_mimebundle_()[QUIZ_MIME]["state"]


def test_without_an_answer_it_asks_for_a_letter():
    text = repr(quiz(WASTE))
    assert text.splitlines()[0] == "Question: What does paging waste, with `B` slots a block?"
    assert "b) Less than a block a request" in text
    assert "Replace None with your answer (a, b, c in quotes)" in text
    assert "rarely full" not in text


def test_a_wrong_answer_names_its_misconception_and_does_not_give_the_right_one_away():
    text = repr(quiz(WASTE, answer="a"))
    assert "✗ Not a." in text
    assert "The last block is rarely full." in text
    assert "Only the tail" not in text


def test_the_right_answer_explains_itself_and_what_is_wrong_with_each_other():
    text = repr(quiz(WASTE, answer="b"))
    assert "✓ Right: b." in text
    assert "Not a: The last block is rarely full." in text
    assert "Not c: Nothing is reserved ahead." in text


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, "open"),
        ("b", "right"),
        (" B ", "right"),
        ("c", "wrong"),
        ("d", "unknown"),
        ("", "unknown"),
        (2, "unknown"),
    ],
)
def test_whatever_is_typed_there_is_an_answer_and_no_error(answer: object, expected: str):
    assert state(answer) == expected


def test_html_needs_no_script_and_escapes_text():
    html = quiz(WASTE, answer="b")._repr_mimebundle_()["text/html"]
    assert "<script" not in html
    assert "&lt;before&gt;" in html
    assert "<li>b) Less than a block a request</li>" in html
    assert "`" not in html.partition(">")[2]
    assert "var(--jp-" in html


@pytest.mark.parametrize("correct", [(False, False), (True, True)])
def test_an_item_without_exactly_one_right_option_is_refused(correct: tuple[bool, bool]):
    with pytest.raises(InvalidInput, match="one of them correct"):
        Quiz("x", "?", tuple(Option("o", "w", right) for right in correct))
