"""Checks of exercises: they run a learner's code, never raise, and say what to do next.

A function of plain values needs a list of cases:

    check("The slot of a position", slot, [case([7, 1, 3], 17, expect=17)], hint="Which block? Which offset?")

Anything else is a function of a `Trial` and of what the learner wrote, in kvlab/course/lesson_NN.py:

    @exercise("A write to a shared block", hint="Who else reads this block?")
    def check_write(trial: Trial, write: Callable[..., None]) -> None:
        pool = ...
        trial.trying("write once from each of four samples")
        for sample in samples:
            write(pool, sample)
        trial.equal("copies", pool.copies, 3)

`check_write(write)` in the notebook returns a `Check`, which shows itself. Checks are deterministic: no
clock, no random number without a seed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from kvlab.course.card import GOOD, OPEN, card, heading, paragraph, terms
from kvlab.course.learner import raised_text, still_empty
from kvlab.course.time_limit import TooSlow, time_limit
from kvlab.course.values import duplicate, same, show, tidy

CHECK_MIME = "application/vnd.kvlab.check+json"
LIMIT_S = 5.0
_Learner = ParamSpec("_Learner")


@dataclass(frozen=True)
class Check:
    """How an exercise stands. A notebook shows it as text, HTML and JSON, the same each time."""

    title: str
    passed: bool
    steps: int
    rows: tuple[tuple[str, str], ...] = ()
    next: str = ""
    hint: str = ""

    @property
    def status(self) -> str:
        """`passed` or `not yet`."""
        return "passed" if self.passed else "not yet"

    def __repr__(self) -> str:
        if self.passed:
            return f"{self._headline()} ({self._count()})"
        return "\n".join([self._headline(), *(f"  {name}: {_indented(text)}" for name, text in self._advice())])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        label = f"Check {self.status}: {self.title}"
        rows = terms(self._advice(), code=frozenset({"tried", "expected", "found"}))
        done = paragraph(f"{self._count().capitalize()}.") if self.passed else rows
        return {
            "text/plain": repr(self),
            "text/html": card(label, GOOD if self.passed else OPEN, heading(self._headline()), done),
            CHECK_MIME: {"title": self.title, "status": self.status, **dict(self.rows)},
        }

    def _headline(self) -> str:
        return f"{'✓ passed' if self.passed else '○ not yet'}: {self.title}"

    def _count(self) -> str:
        return "as expected" if self.steps == 1 else f"all {self.steps} results as expected"

    def _advice(self) -> list[tuple[str, str]]:
        after = [("next", self.next), ("hint", self.hint)]
        return [*self.rows, *((name, text) for name, text in after if text)]


class _Missed(Exception):
    """Ends a trial: something was not as expected."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(expected, found)
        self.expected, self.found = expected, found


@dataclass
class Trial:
    """One run of a check. The first thing that is not as expected ends it."""

    steps: int = 0
    tried: str = ""
    expected: str = field(default="", repr=False)

    def trying(self, what: str) -> None:
        """Say what is tried now; shown if it fails."""
        self.tried = what

    def call(self, function: Callable[..., Any], *args: object, **kwargs: object) -> Any:
        """Call the learner's function with copies of plain data; changing its arguments is a failure."""
        named = [*map(show, args), *(f"{name}={show(value)}" for name, value in kwargs.items())]
        self.tried = f"{getattr(function, '__name__', show(function))}({', '.join(named)})"
        own, own_named = [duplicate(arg) for arg in args], {key: duplicate(v) for key, v in kwargs.items()}
        result = function(*own, **own_named)
        for before, after in zip((*args, *kwargs.values()), (*own, *own_named.values()), strict=True):
            if before is not after and not same(after, before):
                raise _Missed("the arguments as they were", f"{show(before)} was changed to {show(after)}")
        return result

    def equal(self, what: str, found: object, expected: object, tolerance: float = 0.0) -> None:
        """`found` must be the expected value (see `values.same`); `what` names it and may be empty."""
        if not same(found, expected, tolerance):
            raise _Missed(_named(what, expected), _named(what, found))
        self.steps += 1

    def holds(self, claim: str, condition: bool, found: object = False) -> None:
        """`claim` must be true; `found` is what was there instead."""
        if not condition:
            raise _Missed(claim, show(found))
        self.steps += 1

    def refuses(self, error: type[Exception], function: Callable[..., Any], *args: object) -> None:
        """The call must raise `error`."""
        try:
            result = self.call(function, *args)
        except error:
            self.steps += 1
            return
        raise _Missed(f"{error.__name__}", f"no error, but {show(result)}")


@dataclass(frozen=True)
class Case:
    """The arguments of a call and what it must return."""

    args: tuple[object, ...]
    expected: object


def case(*args: object, expect: object) -> Case:
    """A `Case` as one writes a call: `case([7, 1, 3], 17, expect=17)`."""
    return Case(args, expect)


def check(
    title: str,
    function: Callable[..., Any],
    cases: Sequence[Case],
    *,
    hint: str = "",
    tolerance: float = 0.0,
    limit_s: float = LIMIT_S,
) -> Check:
    """Call the learner's `function` on every case, in order, until one is not as expected."""

    def body(trial: Trial) -> None:
        for one in cases:
            trial.expected = show(one.expected)
            trial.equal("", trial.call(function, *one.args), one.expected, tolerance)

    return _run(title, body, (function,), hint, limit_s)


def check_value(title: str, found: object, expected: object, *, hint: str = "", tolerance: float = 0.0) -> Check:
    """Compare a value the learner computed with the expected one, which stays hidden: it is the answer."""
    missing = found is None or found is ...
    passed = same(found, expected, tolerance)
    rows = () if passed else (("found", "nothing yet" if missing else show(found)),)
    return Check(title, passed, 1, rows, "" if passed else _next(empty=missing), hint)


def exercise(
    title: str, *, hint: str = "", limit_s: float = LIMIT_S
) -> Callable[[Callable[Concatenate[Trial, _Learner], None]], Callable[_Learner, Check]]:
    """Make a check of a function `(trial, *what the learner wrote)`; see the module's text."""

    def wrap(body: Callable[Concatenate[Trial, _Learner], None]) -> Callable[_Learner, Check]:
        @wraps(body)
        def run(*args: _Learner.args, **kwargs: _Learner.kwargs) -> Check:
            learner = (*args, *kwargs.values())
            return _run(title, lambda trial: body(trial, *args, **kwargs), learner, hint, limit_s)

        return run

    return wrap


def _run(title: str, body: Callable[[Trial], None], learner: tuple[object, ...], hint: str, limit_s: float) -> Check:
    trial = Trial()
    try:
        with time_limit(limit_s):
            body(trial)
    except _Missed as missed:
        expected, found = missed.expected, missed.found
    except TooSlow:
        expected, found = trial.expected, f"no result after {limit_s:g} s; is there a loop that never ends?"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a learner's code may raise anything; it is shown
        expected, found = trial.expected, raised_text(error, learner)
    else:
        return Check(title, True, trial.steps)
    rows = [("tried", trial.tried), ("expected", expected), ("found", found)]
    shown = tuple((name, tidy(text)) for name, text in rows if text)
    return Check(title, False, trial.steps, shown, _next(empty=still_empty(learner)), hint)


def _next(*, empty: bool) -> str:
    if empty:
        return "Put your code in place of the line `# your code here`, run that cell, then this one again."
    return "Change your code, run its cell, then this one again."


def _named(what: str, value: object) -> str:
    return f"{what}: {show(value)}" if what else show(value)


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")
