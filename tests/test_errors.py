"""The errors: one family, each also what a plain caller would expect to catch."""

import re
from pathlib import Path

import pytest

import kvlab.errors
from kvlab.errors import InvalidInput, InvariantViolation, KvlabError, UnknownRequest, positive, require

ERRORS = [each for each in vars(kvlab.errors).values() if isinstance(each, type) and issubclass(each, Exception)]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_is_a_kvlab_error_with_a_docstring(error: type[Exception]) -> None:
    assert issubclass(error, KvlabError)
    assert error.__doc__


def test_errors_can_be_caught_as_the_builtin_they_resemble() -> None:
    assert issubclass(InvalidInput, ValueError)
    assert issubclass(UnknownRequest, LookupError)
    assert issubclass(InvariantViolation, AssertionError)


def test_require_raises_with_the_name_of_the_invariant_only_when_it_does_not_hold() -> None:
    require(True, "never said")
    with pytest.raises(InvariantViolation, match=r"^two owners$"):
        require(False, "two owners")


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", None, True, float("nan")])
def test_positive_names_what_was_asked_and_what_is_wanted(value: object) -> None:
    with pytest.raises(InvalidInput, match=re.escape(f"size must be an integer of at least 1, not {value!r}")):
        positive("size", value)
    assert positive("size", 7) == 7


@pytest.mark.parametrize("folder", ["memory", "policies", "simulate"])
def test_the_core_raises_only_its_own_errors(root: Path, folder: str) -> None:
    for path in (root / "kvlab" / folder).glob("*.py"):
        raised = set(re.findall(r"^\s*raise ([A-Z]\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE))
        assert raised <= {error.__name__ for error in ERRORS} | {"NotImplementedError"}, path.name
