"""The doctor finds what is broken on purpose, and its remedy is something one can do."""

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement

from kvlab.doctor import CHECKS, Check, examine
from kvlab.installation import FrontEnd, Installation, find_chromium, free_bytes, front_end, kernel

MANAGER = "@jupyter-widgets/jupyterlab-manager"
VERSIONS = {"torch": "2.13.0+cpu", "plotly": "7.1.0", "anywidget": "0.11.0", "jupyterlab-widgets": "3.0.17"}
EXTENSIONS = {MANAGER: "5.0.16", "anywidget": "0.11.0", "jupyterlab-plotly": "7.1.0"}
WANTED = ["torch>=2.6", 'plotly<8,>=6; extra == "course"', 'anywidget<1,>=0.9; extra == "course"']


def fake_torch(threads: int = 4, cuda: bool = False, hpu: bool = False) -> Any:
    """What the doctor asks of torch."""
    return SimpleNamespace(
        __version__="2.13.0+cpu",
        get_num_threads=lambda: threads,
        zeros=lambda size: SimpleNamespace(numpy=lambda: [0.0] * size),
        cuda=SimpleNamespace(is_available=lambda: cuda, get_device_name=lambda: "H200"),
        hpu=SimpleNamespace(is_available=lambda: hpu, get_device_name=lambda: "GAUDI3"),
    )


def modules(**found: Any) -> Any:
    """A loader that knows `found` and torch; a value that is an error is raised."""
    known = {"torch": fake_torch()} | {name.replace("__", "."): value for name, value in found.items()}

    def load(name: str) -> Any:
        if isinstance(known.get(name), BaseException):
            raise known[name]
        return known[name]

    return load


def raises(error: Exception) -> Any:
    """A look that finds only `error`."""

    def look() -> Any:
        raise error

    return look


HEALTHY = Installation(
    python=lambda: (3, 12, 4),
    system=lambda: "Linux",
    architecture=lambda: "x86_64",
    cores=lambda: 4,
    free_bytes=lambda: 8_000_000_000,
    requirements=lambda: [Requirement(line) for line in WANTED],
    version_of=VERSIONS.get,
    has_module=lambda name: name == "torch",
    load=modules(),
    front_end=lambda: FrontEnd(EXTENSIONS, frozenset()),
    kernel=lambda: (["python", "-m", "ipykernel_launcher"], "share/jupyter/kernels/python3"),
    which=lambda name: None,
    chromium=lambda: Path("chromium"),
)


def version_of(**changed: str | None) -> Any:
    """The healthy versions, some changed."""
    return (VERSIONS | changed).get


def without(extension: str) -> Any:
    """The healthy front end without one extension."""
    return lambda: FrontEnd({name: v for name, v in EXTENSIONS.items() if name != extension}, frozenset())


def test_a_healthy_machine_has_nothing_to_mend() -> None:
    checks = examine(HEALTHY)
    assert [check.name for check in checks] == list(CHECKS)
    assert [check for check in checks if check.word != "ok"] == []


BRIDGE = {"has_module": lambda name: name in ("torch", "habana_frameworks", "habana_frameworks.torch")}
FAILURES: list[tuple[str, dict[str, Any], str, str]] = [
    ("python", {"python": lambda: (3, 10, 13)}, "3.10.13", "PYTHON="),
    ("torch", {"version_of": version_of(torch=None)}, "not installed", "-m pip install 'torch>=2.6'"),
    ("torch", {"version_of": version_of(torch="2.2.2")}, "2.2.2", "-m pip install"),
    (
        "torch",
        {"load": modules(torch=OSError("libtorch.so: no such file"))},
        "libtorch.so",
        "--force-reinstall",
    ),
    ("jupyter", {"version_of": version_of(plotly=None)}, "plotly is missing", "'plotly<8,>=6'"),
    ("jupyter", {"version_of": version_of(plotly="5.24.1")}, "plotly 5.24.1", "'plotly<8,>=6'"),
    ("widgets", {"front_end": without(MANAGER)}, MANAGER, "jupyterlab-widgets==3.0.17"),
    ("anywidget", {"front_end": without("anywidget")}, "no extension anywidget", "anywidget==0.11.0"),
    ("plotly", {"front_end": without("jupyterlab-plotly")}, "no extension", "plotly==7.1.0"),
    ("plotly", {"version_of": version_of(plotly="7.0.0")}, "7.1.0, but plotly is 7.0.0", "plotly==7.0.0"),
    (
        "plotly",
        {"front_end": lambda: FrontEnd(EXTENSIONS, frozenset({"jupyterlab-plotly"}))},
        "disabled",
        "labextension enable jupyterlab-plotly",
    ),
    (
        "widgets",
        {"front_end": raises(ModuleNotFoundError("No module named 'jupyterlab'"))},
        "jupyterlab",
        "make",
    ),
    (
        "kernel",
        {"kernel": lambda: (["/elsewhere/bin/python"], "home")},
        "home runs /elsewhere",
        "remove python3",
    ),
    ("kernel", {"kernel": raises(LookupError("no such kernel: python3"))}, "no such kernel", "make"),
    ("memory", {"free_bytes": lambda: 900_000_000}, "0.9 GB", "idle kernels"),
    (
        "device",
        BRIDGE | {"load": modules(habana_frameworks__torch=ImportError("needs torch 2.11"))},
        "needs torch 2.11",
        "vendor",
    ),
]
WARNINGS: list[tuple[str, dict[str, Any], str, str]] = [
    ("threads", {"load": modules(torch=fake_torch(threads=16))}, "16 threads on 4", "OMP_NUM_THREADS=4"),
    (
        "device",
        {"has_module": lambda name: name in ("torch", "habana_frameworks")},
        "not its torch bridge",
        "Remove",
    ),
    ("device", BRIDGE | {"load": modules(habana_frameworks__torch=None)}, "sees no Gaudi", "hl-smi"),
    ("memory", {"free_bytes": lambda: 1_500_000_000}, "1.5 GB", "idle kernels"),
    ("jupyter", {"which": lambda name: f"/elsewhere/{name}"}, "/elsewhere/jupyter-lab", "make lab"),
    ("chromium", {"chromium": lambda: None}, "browser tests", "KVLAB_CHROMIUM"),
]


def find(name: str, broken: dict[str, Any]) -> Check:
    """The check called `name` on the healthy machine with some fields replaced."""
    return {check.name: check for check in examine(replace(HEALTHY, **broken))}[name]


@pytest.mark.parametrize(("name", "broken", "detail", "remedy"), FAILURES)
def test_what_breaks_the_course_fails_with_a_remedy(
    name: str, broken: dict[str, Any], detail: str, remedy: str
) -> None:
    check = find(name, broken)
    assert check.word == "FAIL"
    assert detail in check.detail
    assert remedy in (check.remedy or "")


@pytest.mark.parametrize(("name", "broken", "detail", "remedy"), WARNINGS)
def test_what_only_disturbs_is_a_warning(name: str, broken: dict[str, Any], detail: str, remedy: str) -> None:
    check = find(name, broken)
    assert check.word == "warn"
    assert detail in check.detail
    assert remedy in (check.remedy or "")


@pytest.mark.parametrize(("name", "broken", "detail", "remedy"), FAILURES + WARNINGS)
def test_a_remedy_is_one_command_or_one_sentence(name: str, broken: dict[str, Any], detail: str, remedy: str) -> None:
    text = find(name, broken).remedy or ""
    assert "\n" not in text
    sentence = re.fullmatch(r"[A-Z][^.]*(\.[^ ][^.]*)*\.", text)
    command = text.split()[0] in (sys.executable, "make", "export", "unset", "hl-smi")
    assert sentence or command


def test_an_intel_mac_is_told_that_its_torch_wheels_ended() -> None:
    mac = {
        "system": lambda: "Darwin",
        "architecture": lambda: "x86_64",
        "version_of": version_of(torch="2.2.2"),
    }
    assert "environment.yml" in (find("torch", mac).remedy or "")
    assert find("torch", mac | {"version_of": VERSIONS.get}).ok


def test_one_broken_thing_leaves_the_other_checks_standing() -> None:
    checks = examine(replace(HEALTHY, front_end=raises(ValueError("page_config.json is not JSON"))))
    assert [check.name for check in checks if not check.ok] == ["widgets", "anywidget", "plotly"]


def test_the_devices_are_told_apart() -> None:
    assert find("device", {}).detail == "cpu: x86_64"
    assert find("device", {"load": modules(torch=fake_torch(cuda=True))}).detail == "cuda: H200"
    gaudi = modules(torch=fake_torch(hpu=True), habana_frameworks__torch=None)
    assert find("device", BRIDGE | {"load": gaudi}).detail == "hpu: GAUDI3"


def test_threads_limited_by_the_user_are_a_warning_but_fewer_threads_alone_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = {"load": modules(torch=fake_torch(threads=2))}
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert find("threads", few).word == "ok"
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert find("threads", few).remedy == "unset OMP_NUM_THREADS"


def test_this_environment_serves_the_front_ends_of_the_course() -> None:
    checks = {check.name: check for check in examine(Installation())}
    names = ("python", "torch", "jupyter", "widgets", "anywidget", "plotly", "kernel")
    assert [checks[name] for name in names if not checks[name].ok] == []


def write_json(path: Path, value: Any) -> None:
    """Write `value` where the folders may not exist yet."""
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(value))


def test_a_kernel_of_another_python_that_hides_ours_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["/elsewhere/bin/python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "mine", "language": "python"}
    write_json(tmp_path / "kernels" / "python3" / "kernel.json", spec)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    check = find("kernel", {"kernel": kernel})
    assert not check.ok
    assert str(tmp_path) in check.detail


def test_a_renderer_that_the_user_disabled_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "labconfig" / "page_config.json", {"disabledExtensions": {"jupyterlab-plotly": True}})
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    assert "disabled" in find("plotly", {"front_end": front_end}).detail


def test_an_old_renderer_that_hides_the_new_one_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = {"name": "jupyterlab-plotly", "version": "5.0.0", "jupyterlab": {"_build": {"load": "x.js"}}}
    write_json(tmp_path / "labextensions" / "jupyterlab-plotly" / "package.json", old)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    assert "jupyterlab-plotly is 5.0.0" in find("plotly", {"front_end": front_end}).detail


def test_free_memory_is_what_the_container_leaves(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("2000000000\n")
    (tmp_path / "memory.current").write_text("700000000\n")
    (tmp_path / "memory.stat").write_text("anon 500000000\ninactive_file 200000000\n")
    assert free_bytes(tmp_path) == 1_500_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes(tmp_path) > 0


def program(path: Path, text: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_chromium_counts_only_if_it_starts_and_is_no_snap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = program(tmp_path / "good", "echo Chromium 156")
    for name, wanted in {
        str(good): good,
        str(program(tmp_path / "stub", "exit 1")): None,
        str(program(tmp_path / "snap" / "bin" / "chromium", "echo Chromium 156")): None,
        str(tmp_path / "absent"): None,
    }.items():
        monkeypatch.setenv("KVLAB_CHROMIUM", name)
        assert find_chromium() == wanted
    monkeypatch.delenv("KVLAB_CHROMIUM")
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "bin"), "/bin"]))
    assert find_chromium() != program(tmp_path / "bin" / "chromium", "exit 1")
    program(tmp_path / "bin" / "chromium", "echo Chromium 156")
    assert find_chromium() == tmp_path / "bin" / "chromium"
