"""`make lab` and `make test`: which Python they take, when they install, where they stop."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

RUNS = f'exec "{sys.executable}" "$@"'


def pretend(change: str) -> str:
    """A shell line that is this Python after `change`."""
    return f'exec "{sys.executable}" -c \'import sys; {change}; exec(sys.argv[1])\' "$2"'


OLD = pretend('sys.version_info = (3, 9, 2, "final", 0)')
NO_VENV = pretend('sys.modules["ensurepip"] = None')


def find_python(folder: Path, python: str | None = None, **programs: str) -> tuple[int, str, str]:
    """Run tools/find_python.sh where only `programs` (name -> shell line) are on the PATH."""
    script = Path(__file__).parents[2] / "tools" / "find_python.sh"
    for name, line in programs.items():
        path = folder / name.replace("_", ".")
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    env = {"PATH": str(folder)} | ({"PYTHON": python} if python else {})
    answer = subprocess.run(["/bin/sh", script], env=env, capture_output=True, text=True, check=False)
    return answer.returncode, answer.stdout, answer.stderr


def test_python3_is_taken_where_it_is_new_enough(tmp_path: Path) -> None:
    assert find_python(tmp_path, python3=RUNS, python3_12=RUNS) == (0, f"{tmp_path}/python3\n", "")


def test_a_newer_python_is_found_beside_an_old_or_incomplete_one(tmp_path: Path) -> None:
    assert find_python(tmp_path, python3=OLD, python3_12=RUNS)[1] == f"{tmp_path}/python3.12\n"
    assert find_python(tmp_path, python3=NO_VENV, python3_12=RUNS)[1] == f"{tmp_path}/python3.12\n"


def test_a_name_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    assert find_python(tmp_path, python3="exit 127", python3_12=RUNS)[1] == f"{tmp_path}/python3.12\n"


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        ({}, ["found no Python", "apt-get install python3 python3-venv"]),
        ({"python3": OLD}, ["/python3 is Python 3.9.2", "apt-get install python3 python3-venv", "PYTHON="]),
        ({"python3": OLD, "python3_12": NO_VENV}, ["/python3.12 (Python", "has no venv", "-venv)"]),
    ],
)
def test_without_a_python_one_line_says_what_to_install(
    tmp_path: Path, programs: dict[str, str], said: list[str]
) -> None:
    code, out, err = find_python(tmp_path, **programs)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert [words for words in said if words not in err] == []


def test_the_python_that_is_named_is_the_only_one_tried(tmp_path: Path) -> None:
    assert find_python(tmp_path, python=sys.executable, python3=RUNS)[1] == f"{sys.executable}\n"
    code, _, err = find_python(tmp_path, python="/not/there", python3=RUNS)
    assert code == 1
    assert "PYTHON=/not/there does not run" in err


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """The install script in a folder whose .venv/bin/python only writes down what it is asked."""
    shutil.copytree(root / "tools", tmp_path / "tools")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(root / name, tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$@" >>"{tmp_path}/asked"\n')
    python.chmod(0o755)
    return tmp_path


def installs(copy: Path, *extras: str) -> list[str]:
    """The pip installs of one run of tools/venv.sh."""
    asked = copy / "asked"
    asked.unlink(missing_ok=True)
    subprocess.run([copy / "tools" / "venv.sh", *extras], check=True, capture_output=True)
    lines = asked.read_text().splitlines() if asked.exists() else []
    return [line for line in lines if "pip install" in line]


def test_the_first_run_installs_the_pins_and_the_second_does_nothing(copy: Path) -> None:
    (first,) = installs(copy, "course")
    assert "-c constraints.txt -e .[course]" in first
    assert installs(copy, "course") == []


def test_the_tests_environment_is_also_the_labs(copy: Path) -> None:
    (first,) = installs(copy, "course", "test")
    assert "-e .[course,test]" in first
    assert installs(copy, "course") == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_changed_requirement_installs_again(copy: Path, name: str) -> None:
    installs(copy, "course")
    (copy / name).write_text("changed")
    assert len(installs(copy, "course")) == 1


def test_a_moved_project_installs_again(copy: Path, tmp_path: Path) -> None:
    installs(copy, "course")
    moved = copy.rename(tmp_path.parent / f"{tmp_path.name}-moved")
    (moved / ".venv" / "bin" / "python").write_text(f'#!/bin/sh\necho "$@" >>"{moved}/asked"\n')
    assert len(installs(moved, "course")) == 1


def test_an_intel_mac_is_told_at_once_that_no_torch_fits(copy: Path) -> None:
    uname = copy / "bin" / "uname"
    uname.parent.mkdir()
    uname.write_text("#!/bin/sh\necho Darwin x86_64\n")
    uname.chmod(0o755)
    env = os.environ | {"PATH": f"{uname.parent}{os.pathsep}{os.environ['PATH']}"}
    script = copy / "tools" / "venv.sh"
    answer = subprocess.run([script, "course"], env=env, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (1, "", 1)
    assert "environment.yml" in answer.stderr
    assert not (copy / "asked").exists()


@pytest.fixture
def runner(root: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """tools/run_tests.py with three quick stages, the second of which fails."""
    monkeypatch.syspath_prepend(root / "tools")
    module = importlib.import_module("run_tests")
    quick = {name: [sys.executable, "-c", f"raise SystemExit({code})"] for name, code in (("a", 0), ("b", 3), ("c", 0))}
    monkeypatch.setattr(module, "STAGES", quick)
    return module


def test_a_failing_stage_is_the_last_and_the_last_line_names_it(
    runner: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    assert runner.main([]) == 1
    out = capfd.readouterr().out.splitlines()
    assert "== c" not in out
    assert out[-1].startswith("make test: FAILED at stage b (exit 3) after ")


def test_stages_can_be_chosen_and_an_unknown_one_is_refused(
    runner: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    assert runner.main(["c"]) == 0
    assert runner.main(["z"]) == 2
    assert "no stage z; there are a, b, c" in capfd.readouterr().out


@pytest.mark.parametrize(("ci", "code"), [("true", 1), ("", 0)])
def test_without_a_chromium_the_browser_tests_are_skipped_loudly_and_in_ci_that_fails(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], ci: str, code: int
) -> None:
    monkeypatch.setattr(runner, "provide", lambda: False)
    monkeypatch.setitem(runner.STAGES, "browser", [sys.executable, "-c", ""])
    monkeypatch.setenv("CI", ci)
    assert runner.main(["browser"]) == code
    last = capfd.readouterr().out.splitlines()[-1]
    assert ("FAILED at stage browser" if code else "BROWSER TESTS WERE SKIPPED") in last


def test_a_users_own_jupyter_and_ipython_do_not_reach_the_tests(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_PATH", "/home/me/.local/share/jupyter")
    env = runner.environment(tmp_path)
    assert "JUPYTER_PATH" not in env
    assert Path(env["IPYTHONDIR"]).parent == tmp_path


def test_contributing_names_every_stage(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(root / "tools")
    stages = importlib.import_module("run_tests").STAGES
    assert f"some stages: {' '.join(stages)}" in (root / "CONTRIBUTING.md").read_text()


def test_lab_honours_port_browser_and_address(root: Path) -> None:
    options = ["PORT=1234", "BROWSER=none", "IP=0.0.0.0"]
    answer = subprocess.run(
        ["make", "--dry-run", "lab", *options],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    for part in (
        "--ServerApp.port=1234",
        "--ServerApp.port_retries=0",
        "--no-browser",
        "--ServerApp.ip=0.0.0.0",
    ):
        assert part in answer.stdout
    assert "/lab/tree/notebooks/00_start_here.ipynb" in answer.stdout


def test_ci_runs_make_test_and_nothing_cleverer(root: Path) -> None:
    script = root / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "exec make test"
