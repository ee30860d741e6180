"""The folder where kvlab keeps converted checkpoints, and how a folder appears in it: whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvlab.errors import CacheUnusable

REMEDY = "Free some space, or set KVLAB_CACHE to a folder that can be written"

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much (bytes, where the thing has bytes)."""


def silent(what: str, done: int, of: int) -> None:
    """A `Progress` that says nothing."""


def cache_folder() -> Path:
    """Where this user's checkpoints are kept: KVLAB_CACHE, else `kvlab` in the system's cache folder."""
    if named := os.environ.get("KVLAB_CACHE"):
        return Path(named).expanduser()
    if (xdg := os.environ.get("XDG_CACHE_HOME")) and Path(xdg).is_absolute():
        return Path(xdg) / "kvlab"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "kvlab"


@contextmanager
def scratch(folder: Path, name: str) -> Iterator[Path]:
    """A new hidden folder inside `folder`, removed with all it holds, whatever ends the block (Ctrl-C too).

    Raises `CacheUnusable` where `folder` cannot be written, or its disk is full before the block ends.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder))
    except OSError as error:
        raise CacheUnusable(f"cannot write to the cache folder {folder}: {error.strerror}. {REMEDY}") from error
    try:
        yield made
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise CacheUnusable(f"the disk that holds the cache folder {folder} is full. {REMEDY}") from error
    finally:
        shutil.rmtree(made)


@contextmanager
def building(final: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of `final` when the block ends well and is removed when it does not."""
    with scratch(final.parent, final.name) as made:
        new, old = made / "new", made / "old"
        new.mkdir()
        yield new
        if final.exists():
            final.rename(old)
        new.rename(final)
