"""A limit on how long a learner's code may run.

The interval timer of Unix interrupts the main thread, where a notebook's cells run, so a loop that never ends
is really ended. A watching thread could only report it: Python cannot stop a thread, and the loop would go on
eating a core under the rest of the lesson. Tracing every line could stop it, but slows the code tenfold.
Where there is no such timer (Windows, a subshell's thread) nothing is limited, as in any cell; the stop
button works there. A call into C (a matrix product) is interrupted only when it returns.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_AGAIN_S = 0.25


class TooSlow(BaseException):
    """The time is up. Not an `Exception`, so that a learner's `except Exception` does not swallow it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TooSlow` inside the block when it takes longer than `seconds`."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
