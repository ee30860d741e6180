"""environment.yml, pyproject.toml and constraints.txt must tell one story; conda itself is not needed."""

import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from rattler import MatchSpec, VersionSpec
from rattler import Version as CondaVersion
from rattler.exceptions import InvalidMatchSpecError

PYPI_NAME = {"pytorch-cpu": "torch"}  # conda-forge's names where they differ
ON_BOTH_SYSTEMS = {"python", "pip", "pytorch-cpu"}  # conda-forge builds these for Linux and macOS
PROBES = [f"{major}.{minor}.0" for major in (1, 2, 3, 4) for minor in range(21)]
EDITABLE = re.compile(r"-e \.\[([a-z,]+)\]")


def read_pins(text: str) -> dict[str, str]:
    """constraints.txt as name -> version."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[0-9][0-9a-z.]*", line) for line in lines), lines
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def ranges(project: dict[str, Any]) -> dict[str, SpecifierSet]:
    """Every direct dependency of pyproject.toml, extras included, but without `gaudi`."""
    lines = list(project["dependencies"])
    for extra, wanted in project["optional-dependencies"].items():
        lines += wanted if extra not in ("gaudi", "dev") else []
    found = [Requirement(line) for line in lines]
    return {canonicalize_name(each.name): each.specifier for each in found}


def problems(environment: str, project: dict[str, Any], pins: dict[str, str]) -> list[str]:
    """What is wrong with the text of an environment.yml, given the `project` table and the pins."""
    content = yaml.safe_load(environment)
    found = [f"unknown key {key}" for key in content.keys() - {"name", "channels", "dependencies"}]
    allowed = ranges(project) | {"python": SpecifierSet(project["requires-python"]), "pip": SpecifierSet()}
    conda = [line for line in content["dependencies"] if isinstance(line, str)]
    for line in conda:
        try:
            spec = MatchSpec(line, strict=True)
        except InvalidMatchSpecError as error:
            found.append(f"{line}: {error}")
            continue
        name = spec.name.normalized
        found += [f"{line}: a build hash"] if spec.build or spec.build_number else []
        found += [] if name in ON_BOTH_SYSTEMS else [f"{line}: not known on Linux and macOS"]
        wanted = allowed.get(PYPI_NAME.get(name, name))
        if wanted is None:
            found.append(f"{line}: not in pyproject.toml")
        elif spec.version is not None:
            versions = VersionSpec(spec.version)
            admitted = [probe for probe in PROBES if versions.matches(CondaVersion(probe))]
            found += [f"{line}: admits {probe}" for probe in admitted if not wanted.contains(probe)][:1]
            pin = pins.get(PYPI_NAME.get(name, name))
            if pin and not versions.matches(CondaVersion(pin)):
                found.append(f"{line}: excludes {pin} of constraints.txt")
    blocks = [line["pip"] for line in content["dependencies"] if isinstance(line, dict) and set(line) == {"pip"}]
    if len(conda) + len(blocks) != len(content["dependencies"]):
        found.append("an entry that is neither a conda spec nor a pip list")
    if blocks and "pip" not in conda:
        found.append("a pip list without pip itself")
    for line in [line for block in blocks for line in block]:
        if match := EDITABLE.fullmatch(line):
            extras = set(match[1].split(","))
            found += [f"no extra {extra}" for extra in sorted(extras - project["optional-dependencies"].keys())]
            found += ["gaudi cannot be installed elsewhere"] if "gaudi" in extras else []
            continue
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        if name not in allowed or name not in pins or not requirement.specifier.contains(pins[name]):
            found.append(f"{line}: disagrees with pyproject.toml or constraints.txt")
    return found


@pytest.fixture(scope="module")
def project(root: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return table


@pytest.fixture(scope="module")
def pins(root: Path) -> dict[str, str]:
    return read_pins((root / "constraints.txt").read_text())


@pytest.fixture(scope="module")
def environment(root: Path) -> str:
    return (root / "environment.yml").read_text()


def test_environment_yml_agrees_with_pyproject_and_constraints(
    environment: str, project: dict[str, Any], pins: dict[str, str]
) -> None:
    assert problems(environment, project, pins) == []


def test_environment_yml_installs_python_pip_torch_and_the_course(environment: str) -> None:
    dependencies = yaml.safe_load(environment)["dependencies"]
    names = [re.split(r"[ =<>]", line)[0] for line in dependencies if isinstance(line, str)]
    assert names == ["python", "pip", "pytorch-cpu"]
    assert dependencies[-1] == {"pip": ["-e .[course]"]}


@pytest.mark.parametrize(
    ("good", "bad", "complaint"),
    [
        ("pytorch-cpu >=2.6", "pytorch-cpu >=2.4", "admits 2.4.0"),
        ("pytorch-cpu >=2.6", "pytorch-cpu =2.12", "excludes 2.13.0"),
        ("pytorch-cpu >=2.6", "pytorch-cpu ==2.13.0 cpu_generic_h1234567_0", "a build hash"),
        ("pytorch-cpu >=2.6", "pytorch-cpu=2.13.0=cpu_generic_h1234567_0", "build string"),
        ("pytorch-cpu >=2.6", "pytorch-cpu >=", "pytorch-cpu >="),
        ("pytorch-cpu >=2.6", "cuda-toolkit", "not known on Linux and macOS"),
        ("pytorch-cpu >=2.6", "pytorch-cpu >=2.6\n  - habana-torch-plugin", "not in pyproject.toml"),
        ("python=3.11", "python=3.10", "admits 3.10.0"),
        ("  - pip\n", "", "without pip itself"),
        ("-e .[course]", "-e .[courses]", "no extra courses"),
        ("-e .[course]", "-e .[course,gaudi]", "gaudi cannot be installed elsewhere"),
        ("-e .[course]", "plotly==6.0.0", "disagrees"),
        ("name: kvlab", "name: kvlab\nprefix: there", "unknown key prefix"),
    ],
)
def test_a_wrong_environment_yml_is_caught(
    environment: str, project: dict[str, Any], pins: dict[str, str], good: str, bad: str, complaint: str
) -> None:
    assert good in environment
    assert complaint in "\n".join(problems(environment.replace(good, bad), project, pins))


def test_habana_is_an_extra_and_a_comment_but_nothing_to_install(environment: str, project: dict[str, Any]) -> None:
    assert project["optional-dependencies"]["gaudi"] == ["habana-torch-plugin"]
    mentions = [line for line in environment.splitlines() if "habana" in line]
    assert mentions
    assert all(line.startswith("#") for line in mentions)


def test_every_direct_dependency_is_pinned_inside_its_range(project: dict[str, Any], pins: dict[str, str]) -> None:
    wanted = ranges(project)
    assert [name for name in wanted if name not in pins] == []
    assert [name for name, spec in wanted.items() if not spec.contains(pins[name])] == []


def test_the_tests_run_on_the_pinned_versions(project: dict[str, Any], pins: dict[str, str]) -> None:
    installed = {name: Version(metadata.version(name)).public for name in ranges(project)}
    assert installed == {name: pins[name] for name in installed}


def test_constraints_name_nothing_that_one_system_alone_has(pins: dict[str, str]) -> None:
    alone = [name for name in pins if re.match(r"nvidia-|triton|appnope|pywin|colorama|habana|kvlab", name)]
    assert alone == []


def test_pyproject_has_ranges_and_leaves_every_torch_from_2_6_in_place(project: dict[str, Any]) -> None:
    wanted = ranges(project)
    assert [name for name, spec in wanted.items() if any(part.operator == "==" for part in spec)] == []
    assert all(wanted["torch"].contains(vendor) for vendor in ("2.6.0+hpu", "2.9.0+hpu.git", "2.11.0"))
