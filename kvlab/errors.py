"""The project's own errors: each says what was asked, what was there, and what to do."""


class KvlabError(Exception):
    """Base of every error kvlab raises on purpose."""


class InvalidInput(KvlabError, ValueError):
    """An argument, a file or a configuration that cannot be used; nothing was changed."""


class OutOfMemory(KvlabError):
    """The pool cannot serve this call now; nothing was changed. Free or preempt something, then ask again."""


class NeverFits(KvlabError):
    """The request needs more than the whole pool, so waiting cannot help."""


class UnknownRequest(KvlabError, LookupError):
    """The policy does not hold this request (never admitted, released or swapped out)."""


class StaleHandle(KvlabError):
    """A block that was freed (and perhaps handed to somebody else) since this handle was made."""


class DoubleFree(KvlabError):
    """More references to a block were returned than are held."""


class DeviceUnavailable(KvlabError):
    """The device that was asked for is not there; nothing was changed."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason, remedy)
        self.reason, self.remedy = reason, remedy

    def __str__(self) -> str:
        return f"{self.reason}. {self.remedy}"


class DeviceBroken(DeviceUnavailable):
    """The software of the device is installed and does not work, so that going on without it would hide a fault."""


class CacheUnusable(KvlabError):
    """The folder for converted checkpoints cannot be written, or its disk is full; nothing was left in it."""


class CannotFetch(KvlabError):
    """A checkpoint could not be had from the package index; nothing was left behind."""


class InvariantViolation(KvlabError, AssertionError):
    """`audit()` recomputed the books and they do not agree; the message names the broken invariant."""


def require(held: bool, invariant: str) -> None:
    """Raise `InvariantViolation` naming `invariant` unless it held."""
    if not held:
        raise InvariantViolation(invariant)


def positive(name: str, value: int) -> int:
    """Return `value` if it is an integer >= 1, else raise `InvalidInput` naming it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(f"{name} must be an integer of at least 1, not {value!r}")
    return value
