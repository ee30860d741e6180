"""The installation that runs: Python, packages, JupyterLab, kernel, memory, Chromium. Only looked at."""

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from kvlab.device.host import free_bytes


@dataclass(frozen=True)
class FrontEnd:
    """What JupyterLab's server hands to the browser: extension name -> version, and the disabled names."""

    extensions: Mapping[str, str]
    disabled: frozenset[str]


def python_version() -> tuple[int, int, int]:
    """The version of the Python that runs."""
    return sys.version_info[:3]


def requirements() -> list[Requirement]:
    """What the installed kvlab and its extra `course` ask for, with their ranges."""
    found = [Requirement(line) for line in importlib.metadata.requires("kvlab") or []]
    return [each for each in found if each.marker is None or each.marker.evaluate({"extra": "course"})]


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, None where it is missing."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def has_module(name: str) -> bool:
    """Whether `import name` would find something; imports at most the parents."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def usable_cores() -> int:
    """The cores this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def front_end() -> FrontEnd:
    """Ask the functions that JupyterLab's own server asks, in the environment that runs."""
    from jupyter_core.paths import jupyter_path
    from jupyterlab.commands import get_app_dir
    from jupyterlab_server.config import get_federated_extensions, get_page_config

    paths = jupyter_path("labextensions")
    page = get_page_config(paths, str(Path(get_app_dir()) / "settings"))
    versions = {name: str(data["version"]) for name, data in get_federated_extensions(paths).items()}
    return FrontEnd(versions, frozenset(page["disabledExtensions"]))


def kernel() -> tuple[list[str], str]:
    """The command and folder of the kernel named python3, found as JupyterLab finds it."""
    from jupyter_client.kernelspec import KernelSpecManager

    spec = KernelSpecManager().get_kernel_spec("python3")
    return list(spec.argv), str(spec.resource_dir)


def chromium_candidates() -> list[str]:
    """Where a Chromium may be: KVLAB_CHROMIUM alone where it is set, else the usual names."""
    if named := os.environ.get("KVLAB_CHROMIUM"):
        return [named]
    return [
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
        "/Applications/Chromium.app/Contents/MacOS/Chromium",
        "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    ]


def find_chromium() -> Path | None:
    """The first Chromium that starts. A snap is passed over: it cannot see a temporary profile."""
    for candidate in chromium_candidates():
        path = shutil.which(candidate)
        if path is None or "/snap/" in os.path.realpath(path):
            continue
        answer = subprocess.run([path, "--version"], capture_output=True, check=False, timeout=60)
        if answer.returncode == 0:
            return Path(path)
    return None


@dataclass(frozen=True)
class Installation:
    """All that the doctor looks at. Each field looks at the real thing; a test replaces one."""

    python: Callable[[], tuple[int, int, int]] = python_version
    system: Callable[[], str] = platform.system
    architecture: Callable[[], str] = platform.machine
    cores: Callable[[], int] = usable_cores
    free_bytes: Callable[[], int] = free_bytes
    requirements: Callable[[], list[Requirement]] = requirements
    version_of: Callable[[str], str | None] = installed_version
    has_module: Callable[[str], bool] = has_module
    load: Callable[[str], Any] = importlib.import_module
    front_end: Callable[[], FrontEnd] = front_end
    kernel: Callable[[], tuple[list[str], str]] = kernel
    which: Callable[[str], str | None] = shutil.which
    chromium: Callable[[], Path | None] = find_chromium
