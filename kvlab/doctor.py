"""`kvlab doctor`: what breaks a notebook course on a machine, and the remedy. A check changes nothing."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvlab.installation import Installation

ENOUGH_BYTES = 2_000_000_000  # what a lesson may need
TOO_FEW_BYTES = 1_000_000_000
PIP = f"{sys.executable} -m pip install"
INTEL_MAC = "use environment.yml (conda) or Linux in a container: PyTorch's Intel Mac wheels end at 2.2"


@dataclass(frozen=True)
class Check:
    """One line of the report. A warning is `ok` and has a remedy; a failure is not `ok`."""

    name: str
    ok: bool
    detail: str
    remedy: str | None = None

    @property
    def word(self) -> str:
        """`ok`, `warn` or `FAIL`."""
        if not self.ok:
            return "FAIL"
        return "ok" if self.remedy is None else "warn"


def check_python(here: Installation) -> Check:
    """Python 3.11 or newer."""
    version = here.python()
    text = ".".join(map(str, version))
    if version >= (3, 11):
        return Check("python", True, text)
    return Check("python", False, f"{text} is older than 3.11", "make clean lab PYTHON=/path/to/python3.11")


def check_torch(here: Installation) -> Check:
    """A torch that is new enough, imports, and exchanges arrays with this numpy."""
    wanted = next(each for each in here.requirements() if each.name == "torch")
    remedy = f"{PIP} '{wanted.name}{wanted.specifier}'"
    if here.system() == "Darwin" and here.architecture() == "x86_64":
        remedy = INTEL_MAC
    version = here.version_of("torch")
    if version is None:
        return Check("torch", False, "not installed", remedy)
    if not wanted.specifier.contains(version, prereleases=True):
        return Check("torch", False, f"{version}, but kvlab needs {wanted.specifier}", remedy)
    try:
        torch = here.load("torch")
        torch.zeros(1).numpy()
    except (ImportError, OSError, RuntimeError) as error:
        mend = f"{PIP} --force-reinstall 'torch{wanted.specifier}'"
        return Check("torch", False, f"{version} does not work: {first_line(error)}", mend)
    return Check("torch", True, f"{torch.__version__}, {torch.get_num_threads()} threads")


def check_threads(here: Installation) -> Check:
    """As many torch threads as cores; otherwise the lessons' timings mislead."""
    threads, cores = here.load("torch").get_num_threads(), here.cores()
    detail = f"torch runs {threads} threads on {cores} cores"
    if threads > cores:
        return Check("threads", True, f"{detail}: they wait for each other", f"export OMP_NUM_THREADS={cores}")
    if threads < cores and "OMP_NUM_THREADS" in os.environ:
        return Check("threads", True, f"{detail}, limited by OMP_NUM_THREADS", "unset OMP_NUM_THREADS")
    return Check("threads", True, detail)


def check_device(here: Installation) -> Check:
    """Which device torch sees; the trap is a folder `habana_frameworks` without the bridge in it."""
    torch = here.load("torch")
    if here.has_module("habana_frameworks.torch"):
        try:
            here.load("habana_frameworks.torch")
            seen = bool(torch.hpu.is_available())
        except (ImportError, OSError, RuntimeError, AttributeError, AssertionError) as error:
            detail = f"the Gaudi bridge does not load with torch {torch.__version__}: {first_line(error)}"
            return Check("device", False, detail, "Put back the torch of the vendor's container image.")
        if seen:
            return Check("device", True, f"hpu: {torch.hpu.get_device_name()}")
        return Check("device", True, "cpu: the Gaudi bridge loads but sees no Gaudi", "hl-smi")
    if torch.cuda.is_available():
        return Check("device", True, f"cuda: {torch.cuda.get_device_name()}")
    if here.has_module("habana_frameworks"):
        detail = "cpu: a package habana_frameworks is there, but not its torch bridge"
        return Check("device", True, detail, "Remove it, or install the vendor's habana-torch-plugin.")
    return Check("device", True, f"cpu: {here.architecture()}")


def check_memory(here: Installation) -> Check:
    """Room for a lesson: 2 GB, and not without 1 GB."""
    free = here.free_bytes()
    remedy = "Shut down idle kernels and close other programs: a lesson may need 2 GB."
    return Check("memory", free >= TOO_FEW_BYTES, f"{free / 1e9:.1f} GB free", remedy if free < ENOUGH_BYTES else None)


def check_jupyter(here: Installation) -> Check:
    """Every package of the course within its range; and which JupyterLab a shell would start."""
    versions = {each: here.version_of(each.name) for each in here.requirements() if each.marker}
    wrong = {
        each: version
        for each, version in versions.items()
        if version is None or not each.specifier.contains(version, prereleases=True)
    }
    if wrong:
        detail = ", ".join(f"{each.name} {version or 'is missing'}" for each, version in wrong.items())
        wanted = " ".join(f"'{each.name}{each.specifier}'" for each in wrong)
        return Check("jupyter", False, detail, f"{PIP} {wanted}")
    detail = ", ".join(f"{each.name} {version}" for each, version in versions.items())
    other = here.which("jupyter-lab")
    if other and not Path(other).is_relative_to(sys.prefix):
        return Check("jupyter", True, f"{detail}; typing `jupyter lab` would start {other}", "make lab")
    return Check("jupyter", True, detail)


def check_extension(here: Installation, name: str, extension: str, package: str, same: bool) -> Check:
    """The server must hand out the extension that `package` installs; with `same`, at its version."""
    served = here.front_end()
    mend = f"{PIP} --force-reinstall --no-deps {package}=={here.version_of(package)}"
    version = served.extensions.get(extension)
    if version is None:
        return Check(name, False, f"the server finds no extension {extension}", mend)
    if extension in served.disabled:
        enable = f"{sys.executable} -m jupyter labextension enable {extension}"
        return Check(name, False, f"the extension {extension} is disabled", enable)
    if same and version != here.version_of(package):
        detail = f"the server's {extension} is {version}, but {package} is {here.version_of(package)}"
        return Check(name, False, detail, mend)
    return Check(name, True, f"{extension} {version}")


def check_widgets(here: Installation) -> Check:
    """JupyterLab's widget manager, which has version numbers of its own."""
    return check_extension(here, "widgets", "@jupyter-widgets/jupyterlab-manager", "jupyterlab-widgets", False)


def check_anywidget(here: Installation) -> Check:
    """The front end of anywidget, which draws the players."""
    return check_extension(here, "anywidget", "anywidget", "anywidget", True)


def check_plotly(here: Installation) -> Check:
    """The plotly renderer: absent or of another version, every chart is blank."""
    return check_extension(here, "plotly", "jupyterlab-plotly", "plotly", True)


def check_kernel(here: Installation) -> Check:
    """The kernel python3 must run in this environment; one in the user's folder may hide it."""
    command, folder = here.kernel()
    program = Path(command[0])
    if command[0] in ("python", "python3", f"python3.{sys.version_info[1]}"):  # jupyter_client means its own
        return Check("kernel", True, "python3 runs this environment's Python")
    if program.parent.is_dir() and program.parent.samefile(Path(sys.executable).parent):
        return Check("kernel", True, f"python3 runs {program}")
    detail = f"the kernel python3 in {folder} runs {program}, not {sys.executable}"
    return Check("kernel", False, detail, f"{sys.executable} -m jupyter kernelspec remove python3")


def check_chromium(here: Installation) -> Check:
    """Only the browser tests need one."""
    path = here.chromium()
    if path is not None:
        return Check("chromium", True, str(path))
    remedy = "Install Debian's chromium or Google Chrome, or set KVLAB_CHROMIUM to the path of one."
    return Check("chromium", True, "none found, so make test cannot run the browser tests", remedy)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


CHECKS: Mapping[str, Callable[[Installation], Check]] = {
    "python": check_python,
    "torch": check_torch,
    "threads": check_threads,
    "device": check_device,
    "memory": check_memory,
    "jupyter": check_jupyter,
    "widgets": check_widgets,
    "anywidget": check_anywidget,
    "plotly": check_plotly,
    "kernel": check_kernel,
    "chromium": check_chromium,
}


def examine(here: Installation) -> list[Check]:
    """Run every check, in order. What a check itself trips over is the finding of that check."""
    found = []
    for name, check in CHECKS.items():
        try:
            found.append(check(here))
        except Exception as error:  # noqa: BLE001 (a broken installation can raise anything)
            detail = f"could not look: {type(error).__name__}: {first_line(error)}"
            found.append(Check(name, False, detail, "make clean lab"))
    return found
