"""Reading a learner's code: was the exercise begun, and which of its lines raised."""

import inspect
import linecache
from collections.abc import Iterator
from types import CodeType, FunctionType, TracebackType

from kvlab.course.exercises import YOUR_CODE
from kvlab.course.values import tidy


def still_empty(learner: tuple[object, ...]) -> bool:
    """Whether something of the learner's is None or still has the placeholder of the starter."""
    return any(item is None or any(_placeholder(code) for code in _codes(item)) for item in learner)


def raised_text(error: BaseException, learner: tuple[object, ...]) -> str:
    """The error's type and message, and the learner's line it came from where there is one."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    line = _line(error.__traceback__, {code.co_filename for item in learner for code in _codes(item)})
    return tidy(f"{text}\n{line}" if line else text)


def _codes(item: object) -> Iterator[CodeType]:
    if isinstance(item, FunctionType):
        yield item.__code__
    elif isinstance(item, type):
        yield from (value.__code__ for value in vars(item).values() if isinstance(value, FunctionType))


def _placeholder(code: CodeType) -> bool:
    try:
        lines, _ = inspect.getsourcelines(code)
    except (OSError, TypeError):  # typed into a console: there is no source to look at
        return False
    return any(YOUR_CODE in line for line in lines)


def _line(traceback: TracebackType | None, files: set[str]) -> str:
    """The innermost line of the learner's that the error passed through: `line 3: the source`."""
    text = ""
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_filename in files or frame.f_globals.get("__name__") == "__main__":
            source = linecache.getline(frame.f_code.co_filename, traceback.tb_lineno).strip()
            text = f"in line {traceback.tb_lineno} of its cell: {source}"
        traceback = traceback.tb_next
    return text
