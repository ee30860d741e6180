"""Which folder a model's name or path means."""

from __future__ import annotations

from pathlib import Path

from kvlab.engine.cache import Progress, silent
from kvlab.engine.fetch import GEMMA, PUBLISHED, location
from kvlab.errors import InvalidInput

EMBEDDED = "embedded"


def resolve(path_or_name: str | Path, progress: Progress = silent) -> Path:
    """The Hugging Face folder of a model: of the names `embedded` and `smollm2`, of a folder, of a GGUF file.

    A GGUF file is converted into the user's cache the first time, in bf16; `progress` is told how far that is. A
    string that is one of the names means that model; write ./smollm2 for a folder called so. Raises `InvalidInput`
    for a model that is not there (saying how to get it) or a file of another kind.
    """
    if path_or_name == EMBEDDED:
        from kvlab.engine.embedded import embedded_folder

        return embedded_folder()
    if isinstance(path_or_name, str) and path_or_name in PUBLISHED:
        found = location(path_or_name)
        if not found.is_dir():
            raise InvalidInput(f"{path_or_name} is not in the cache {found.parent}; run: kvlab fetch {path_or_name}")
        return found
    path = Path(path_or_name).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        return _of_file(path, progress)
    raise InvalidInput(_unknown(str(path_or_name)))


def _of_file(path: Path, progress: Progress) -> Path:
    with path.open("rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    if not is_gguf and path.suffix != ".gguf":
        raise InvalidInput(f"{path} is not a GGUF file; give one, or the folder that holds config.json")
    from kvlab.engine.gguf_convert import converted

    return converted(path, progress=progress)


def _unknown(name: str) -> str:
    if name.lower().startswith("gemma"):
        return f"there is no folder or file {name}. {GEMMA}"
    names = ", ".join((EMBEDDED, *PUBLISHED))
    return f"there is no model {name!r}: give one of {names}, a Hugging Face folder, or a .gguf file"
