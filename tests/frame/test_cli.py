"""The command line as a whole: light imports, one JSON object, one-line errors, quiet Ctrl-C."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from kvlab import __version__
from kvlab.cli import Commands, app
from kvlab.errors import InvalidInput


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new interpreter."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def commands(group: Any, path: str = "kvlab") -> Iterator[tuple[str, Any]]:
    """Every command with its full name, subcommands included."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


ALL = dict(commands(get_command(app)))


def loaded(code: str) -> set[str]:
    """The top-level modules that are loaded after `code`."""
    answer = python(
        f"{code}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}), file=sys.stderr)"
    )
    assert answer.returncode == 0, answer.stderr
    return set(answer.stderr.split())


def test_importing_kvlab_loads_nothing_beside_the_standard_library() -> None:
    extra = loaded("import kvlab") - loaded("") - {"kvlab"}
    assert extra <= set(sys.stdlib_module_names)


def test_help_is_shown_without_torch_numpy_jupyter_or_plotly() -> None:
    shown = "from kvlab.cli import app\napp(['--help'], standalone_mode=False)"
    heavy = {"torch", "numpy", "plotly", "anywidget", "ipywidgets", "jupyterlab", "nbformat", "nbclient"}
    assert loaded(shown) & heavy == set()


def test_version_is_the_one_of_the_package() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"kvlab {__version__}\n")


def test_python_dash_m_kvlab_is_the_command() -> None:
    answer = subprocess.run([sys.executable, "-m", "kvlab", "--version"], capture_output=True, text=True, check=True)
    assert answer.stdout == f"kvlab {__version__}\n"


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_json_and_an_example_in_its_help(name: str) -> None:
    assert "--json" in [option for parameter in ALL[name].params for option in parameter.opts]
    assert f"Example: {name}" in ALL[name].help


def test_every_command_that_the_readme_lists_exists(root: Path) -> None:
    listed = re.findall(r"^\| `(kvlab [a-z]+)`", (root / "README.md").read_text(), flags=re.M)
    assert len(listed) >= 3
    assert [name for name in listed if not any(known.startswith(name) for known in ALL)] == []


def test_doctor_json_is_one_object_of_the_published_shape() -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    report = json.loads(result.stdout)
    assert set(report) == {"ok", "checks"}
    assert all(set(check) == {"name", "ok", "detail", "remedy"} for check in report["checks"])
    assert result.exit_code == (0 if report["ok"] else 1)


def small() -> typer.Typer:
    """A command line that fails in both of its commands."""
    line = typer.Typer(cls=Commands)

    @line.command()
    def refuse() -> None:
        raise InvalidInput("the pool has 4 blocks, 5 were asked for")

    @line.command()
    def interrupt() -> None:
        raise KeyboardInterrupt

    return line


def test_an_error_of_the_project_is_one_line_on_stderr_and_code_2() -> None:
    result = CliRunner().invoke(small(), ["refuse"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "kvlab: the pool has 4 blocks, 5 were asked for\n"


def test_ctrl_c_is_code_130_without_a_word() -> None:
    result = CliRunner().invoke(small(), ["interrupt"])
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "")


def test_a_real_sigint_ends_a_running_command_quietly() -> None:
    code = (
        "import time, typer\n"
        "from kvlab.cli import Commands\n"
        "line = typer.Typer(cls=Commands)\n"
        "@line.callback()\n"
        "def top(): pass\n"
        "@line.command()\n"
        "def sleep():\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "line(['sleep'])\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, out, err) == (130, "", "")
