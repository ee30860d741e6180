"""`make test`: run the stages in order, say how long each took, stop at the first that fails.

`run_tests.py [STAGE ...]` runs only those named.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from chromium import provide

ROOT = Path(__file__).parent.parent
WORKERS = str(min(4, max(2, os.cpu_count() or 2)))
PYTEST = [sys.executable, "-m", "pytest", "-q"]
NBVAL = [
    *("--nbval", "--nbval-current-env", "--nbval-sanitize-with=tests/course/sanitize.cfg"),
    *("--nbval-cell-timeout=120", "-p", "no:cacheprovider"),
]

STAGES = {
    "lint": [sys.executable, "-m", "ruff", "check"],
    "format": [sys.executable, "-m", "ruff", "format", "--check"],
    "types": [sys.executable, "-m", "mypy"],
    "layers": [str(Path(sys.executable).with_name("lint-imports")), "--no-logo"],
    "unit": [
        *PYTEST,
        "-n",
        WORKERS,
        "--dist",
        "worksteal",
        "--ignore=tests/figures",
        "--ignore=tests/browser",
        "tests",
    ],
    "figures": [*PYTEST, "tests/figures"],
    "drift": [sys.executable, "-m", "kvlab", "check"],
    "notebooks": [*PYTEST, *NBVAL, "-n", WORKERS, "--dist", "loadfile", "notebooks"],
    "browser": [*PYTEST, "tests/browser"],
}


def environment(scratch: Path) -> dict[str, str]:
    """The caller's environment without what is personal to a user's Jupyter and IPython."""
    folders = {
        "IPYTHONDIR": "ipython",
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
    }
    kept = {name: value for name, value in os.environ.items() if name != "JUPYTER_PATH"}
    return kept | {name: str(scratch / folder) for name, folder in folders.items()}


def run(name: str, env: dict[str, str]) -> int | None:
    """Run one stage and return its exit code; None where it cannot run here, which CI counts as a failure."""
    if name == "browser" and not provide():
        return 1 if os.environ.get("CI") == "true" else None
    return subprocess.run(STAGES[name], cwd=ROOT, env=env, check=False).returncode


def main(names: list[str]) -> int:
    """Run the stages called `names`, or all; return 0 where every one passed."""
    unknown = [name for name in names if name not in STAGES]
    if unknown:
        print(f"make test: no stage {', '.join(unknown)}; there are {', '.join(STAGES)}")
        return 2
    took = {}
    skipped = ""
    with tempfile.TemporaryDirectory(prefix="kvlab-test-") as scratch:
        for name in names or STAGES:
            print(f"== {name}", flush=True)
            start = time.perf_counter()
            code = run(name, environment(Path(scratch)))
            took[name] = time.perf_counter() - start
            if code is None:
                skipped = ", but THE BROWSER TESTS WERE SKIPPED: there is no Chromium to run them"
            elif code:
                print(f"make test: FAILED at stage {name} (exit {code}) after {took[name]:.1f} s", flush=True)
                return 1
            print(f"== {name}: {'skipped' if code is None else 'passed'} in {took[name]:.1f} s", flush=True)
    passed = len(took) - bool(skipped)
    print(
        f"make test: {passed} of {len(STAGES)} stages passed in {sum(took.values()):.0f} s{skipped}",
        flush=True,
    )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
