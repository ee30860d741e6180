"""The starter of an exercise is made from its solution."""

import pytest

from kvlab.course.exercises import source_for
from kvlab.errors import InvalidInput

FUNCTION = """\
def slot(table, position):
    # solution
    block = table[position // 16]

    # the offset
    return block * 16 + position % 16
    # end solution"""


def test_a_solution_region_becomes_one_line_at_its_indentation():
    assert source_for("starter", FUNCTION) == ("def slot(table, position):\n    ...  # your code here (about 2 lines)")


def test_the_solution_keeps_its_code_and_loses_the_markers():
    solution = source_for("solution", FUNCTION)
    assert "solution" not in solution
    assert "return block * 16 + position % 16" in solution
    assert "# the offset" in solution


def test_a_region_outside_a_function_leaves_only_a_comment_so_that_nothing_is_displayed():
    source = "x = 1\n# solution\ny = x\n# end solution"
    assert source_for("starter", source) == "x = 1\n# your code here (about 1 line)"


def test_starter_lines_stand_in_the_starter_and_not_in_the_solution():
    starter = "# starter: def f(a):\n# starter:     return None\n"
    source = f"# solution\n{starter}def f(a):\n    return a\n# end solution"
    assert source_for("starter", source) == "def f(a):\n    return None  # your code here (about 2 lines)"
    assert source_for("solution", source) == "def f(a):\n    return a"


def test_a_starter_line_with_a_comment_of_its_own_is_left_as_it_is():
    source = '# solution\n# starter: quiz(Q, answer=None)  # a letter\nquiz(Q, answer="b")\n# end solution'
    assert source_for("starter", source) == "quiz(Q, answer=None)  # a letter"


def test_a_starter_of_any_exercise_is_valid_python_that_runs():
    namespace: dict[str, object] = {}
    exec(source_for("starter", FUNCTION), namespace)
    assert namespace["slot"]([1], 0) is None


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("# solution\nx = 1", "never closed"),
        ("x = 1\n# end solution", "line 2"),
        ("# solution\n# solution\nx = 1\n# end solution", "not closed"),
        ("# solution\n\n# end solution", "empty"),
        ("# starter: x = 1", "directly below"),
        ("# solution\nx = 1\n# starter: x = 2\n# end solution", "directly below"),
    ],
)
def test_markers_that_do_not_pair_are_refused(source: str, words: str):
    with pytest.raises(InvalidInput, match=words):
        source_for("starter", source)


def test_code_without_markers_is_the_same_in_both():
    source = "a = 1  # a solution of sorts\nb = 2"
    assert source_for("starter", source) == source_for("solution", source) == source
