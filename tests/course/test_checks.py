"""Checks run a learner's code, never raise, and say what to do next."""

import threading
import time

import numpy as np
import pytest
import torch

from kvlab.course import Check, Trial, case, check, check_value, exercise
from kvlab.course.checks import CHECK_MIME
from kvlab.course.time_limit import TooSlow, time_limit
from kvlab.course.values import same, show

CASES = [case([7, 1, 3], 17, expect=17), case([7, 1, 3], 0, expect=112)]


def good(table: list[int], position: int) -> int:
    return table[position // 16] * 16 + position % 16


def shown(result: Check) -> dict[str, str]:
    state = result._repr_mimebundle_()[CHECK_MIME]
    assert isinstance(state, dict)
    return state


def test_a_right_function_passes_and_says_how_much_was_tried():
    result = check("The slot", good, CASES)
    assert result.passed
    assert repr(result) == "✓ passed: The slot (all 2 results as expected)"
    assert shown(result) == {"title": "The slot", "status": "passed"}


def test_a_wrong_function_is_shown_what_was_tried_expected_and_found():
    result = check("The slot", lambda table, position: position, CASES, hint="Which block?")
    assert not result.passed
    assert shown(result) == {
        "title": "The slot",
        "status": "not yet",
        "tried": "<lambda>([7, 1, 3], 0)",
        "expected": "112",
        "found": "0",
    }
    assert "hint: Which block?" in repr(result)


def test_an_error_of_the_learners_is_shown_with_its_line_and_without_a_folder():
    def slot(table: list[int], position: int) -> int:
        return table[position]

    result = check("The slot", slot, CASES)
    assert shown(result)["found"].startswith("IndexError: list index out of range\nin line ")
    assert shown(result)["found"].endswith("of its cell: return table[position]")
    assert shown(result)["expected"] == "17"
    assert "/" not in repr(result)


@pytest.mark.parametrize("raises", [SystemExit, RecursionError, MemoryError, AssertionError])
def test_whatever_is_raised_the_check_does_not_raise(raises: type[BaseException]):
    def slot(table: list[int], position: int) -> int:
        raise raises

    assert shown(check("The slot", slot, CASES))["found"].startswith(raises.__name__)


def test_a_starter_is_told_where_to_write():
    def slot(table: list[int], position: int) -> None: ...  # your code here (about 1 line)

    result = check("The slot", slot, CASES)
    assert result.status == "not yet"
    assert shown(result)["found"] == "None"
    assert "# your code here" in result.next


def test_something_that_is_no_function_or_takes_other_arguments_is_shown_not_raised():
    assert "not callable" in shown(check("The slot", None, CASES))["found"]
    assert "positional argument" in shown(check("The slot", lambda table: 0, CASES))["found"]


def test_a_function_that_changes_its_arguments_fails_and_does_not_spoil_the_cases():
    cases = [case([7, 1, 3], expect=3)]
    result = check("Last", lambda table: table.pop(), cases)
    assert shown(result)["expected"] == "the arguments as they were"
    assert shown(result)["found"] == "[7, 1, 3] was changed to [7, 1]"
    assert check("Last", lambda table: table[-1], cases).passed


def test_a_loop_that_never_ends_is_ended_even_if_it_swallows_exceptions():
    def slot(table: list[int], position: int) -> int:
        while True:
            try:
                position += 1
            except Exception:  # noqa: BLE001, S112 - what a learner may write
                continue

    started_s = time.monotonic()
    result = check("The slot", slot, CASES, limit_s=0.2)
    assert "no result after 0.2 s" in shown(result)["found"]
    assert time.monotonic() - started_s < 5


def test_the_time_limit_leaves_no_timer_behind():
    with pytest.raises(TooSlow), time_limit(0.01):
        time.sleep(10)
    with time_limit(0.05):
        pass
    time.sleep(0.1)


def test_in_another_thread_there_is_no_limit_but_checks_work():
    results: list[Check] = []
    thread = threading.Thread(target=lambda: results.append(check("The slot", good, CASES)))
    thread.start()
    thread.join()
    assert results[0].passed


def test_an_exercise_of_several_steps_stops_at_the_first_that_is_not_as_expected():
    @exercise("A stack", hint="Last in, first out.")
    def check_stack(trial: Trial, stack: type) -> None:
        mine = stack()
        trial.trying("push 1, push 2, pop")
        mine.push(1)
        mine.push(2)
        trial.equal("popped", mine.pop(), 2)
        trial.holds("one item is left", len(mine.items) == 1, mine.items)
        trial.refuses(IndexError, lambda: [mine.pop(), mine.pop()])

    class Stack:
        def __init__(self) -> None:
            self.items: list[int] = []

        def push(self, item: int) -> None:
            self.items.append(item)

        def pop(self) -> int:
            return self.items.pop()

    class Queue(Stack):
        def pop(self) -> int:
            return self.items.pop(0)

    class Unfinished(Stack):
        def push(self, item: int) -> None: ...  # your code here (about 1 line)

    assert check_stack(Stack) == Check("A stack", True, 3, hint="")
    wrong = shown(check_stack(Queue))
    assert (wrong["tried"], wrong["expected"], wrong["found"]) == (
        "push 1, push 2, pop",
        "popped: 2",
        "popped: 1",
    )
    assert "# your code here" in check_stack(Unfinished).next


def test_a_call_that_must_be_refused_and_is_not_fails():
    @exercise("A refusal")
    def check_refusal(trial: Trial, function: object) -> None:
        trial.refuses(ValueError, function, 3)

    assert shown(check_refusal(lambda n: n))["found"] == "no error, but 3"
    assert check_refusal(lambda n: int("x")).passed


def test_a_value_is_compared_without_giving_the_answer_away():
    assert check_value("Bytes", 131_072, 131_072).passed
    wrong = check_value("Bytes", 65_536, 131_072, hint="K and V")
    assert not wrong.passed
    assert "131" not in repr(wrong)
    assert shown(check_value("Bytes", None, 131_072))["found"] == "nothing yet"


def test_html_escapes_what_the_learner_returned_and_says_the_result_in_words():
    html = check("The <slot>", lambda *_: "<b>&", CASES)._repr_mimebundle_()["text/html"]
    assert "<b>" not in html
    assert "&lt;b&gt;&amp;" in html
    assert 'aria-label="Check not yet: The &lt;slot&gt;"' in html


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (np.int64(3), 3),
        ((1, 2), [1, 2]),
        (np.array([1, 2]), [1, 2]),
        (torch.tensor([[1, 2]]), [[1, 2]]),
        ({"a": [1]}, {"a": (1,)}),
        ({1, 2}, {2, 1}),
        (np.float32(0.5), 0.5),
        (None, None),
    ],
)
def test_values_are_the_same_whichever_library_they_come_from(found: object, expected: object):
    assert same(found, expected)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (3.0, 3),
        (True, 1),
        (1, True),
        ("3", 3),
        ([1], [1, 2]),
        (None, 0),
        (float("nan"), 1.0),
        ("ab", ["a", "b"]),
    ],
)
def test_values_of_another_type_are_not_the_same(found: object, expected: object):
    assert not same(found, expected)


def test_floats_are_equal_within_the_tolerance_only():
    assert same(1.0001, 1.0, tolerance=1e-3)
    assert not same(1.0001, 1.0)


def test_values_show_the_same_on_every_machine():
    assert "0x" not in show(object())
    assert show(np.arange(3)) == "ndarray([0, 1, 2])"
    assert show(ValueError("/usr/lib/x/module.py")) == "ValueError('module.py')"
    assert len(show(list(range(1000)))) < 120
