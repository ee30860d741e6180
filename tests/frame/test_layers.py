"""The floors hold, and the contracts that say so catch what breaks them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def lint_imports(folder: Path) -> str:
    """Run import-linter there; its report when a contract is broken, empty when all hold."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return answer.stdout + answer.stderr if answer.returncode else ""


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """A copy of the package and its contracts, to break."""
    shutil.copytree(root / "kvlab", tmp_path / "kvlab", ignore=shutil.ignore_patterns("__pycache__", "data"))
    shutil.copy(root / "pyproject.toml", tmp_path)
    return tmp_path


def plant(copy: Path, module: str, line: str) -> None:
    """Add an import to a module of the copy, which is made where it does not exist."""
    path = copy / module
    path.parent.mkdir(exist_ok=True)
    (path.parent / "__init__.py").touch()
    with path.open("a") as file:
        file.write(f"\n{line}\n")


def test_every_contract_holds(copy: Path) -> None:
    assert lint_imports(copy) == ""


def test_an_import_from_a_higher_floor_is_caught(copy: Path) -> None:
    plant(copy, "kvlab/events.py", "import kvlab.memory")
    assert "kvlab.events -> kvlab.memory" in lint_imports(copy)


def test_the_simulator_cannot_reach_the_engine_even_through_another_floor(copy: Path) -> None:
    plant(copy, "kvlab/engine/extra.py", "")
    plant(copy, "kvlab/simulate/extra.py", "import kvlab.engine.extra")
    assert "the simulator touches no tensor" in lint_imports(copy)


def test_a_module_without_a_floor_is_caught(copy: Path) -> None:
    plant(copy, "kvlab/somewhere.py", "")
    assert "kvlab.somewhere" in lint_imports(copy)
