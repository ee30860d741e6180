"""The Gaudi bridge is found, or its absence is told apart from its failure."""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from device.gaudi_standin import Gaudi
from packaging.requirements import Requirement

from kvlab.device.bridge import load_bridge
from kvlab.device.choose import get_device
from kvlab.device.pairing import TORCH_OF_BRIDGE, bridge_version, pairing, torch_for
from kvlab.doctor import check_device
from kvlab.errors import DeviceBroken, DeviceUnavailable
from kvlab.installation import Installation


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for packages that are found first; what is imported from it is forgotten."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "habana_frameworks":
            del sys.modules[name]


def plant(packages: Path, **files: str) -> None:
    """Write files of the package habana_frameworks; `torch__init__` is torch/__init__.py."""
    for name, text in files.items():
        path = packages / "habana_frameworks" / f"{name.replace('__init__', '/__init__')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def refused(error: type[DeviceUnavailable], text: str) -> None:
    """Asking for the Gaudi ends in exactly this error."""
    with pytest.raises(error, match=text) as caught:
        get_device("hpu")
    assert type(caught.value) is error


def test_a_namespace_package_without_the_bridge_is_no_bridge(packages: Path) -> None:
    plant(packages, mediapipe="")
    refused(DeviceUnavailable, "not installed")
    assert get_device().name != "hpu"


def test_an_empty_folder_torch_in_it_is_no_bridge_either(packages: Path) -> None:
    (packages / "habana_frameworks" / "torch").mkdir(parents=True)
    refused(DeviceUnavailable, "not installed")
    assert get_device().name != "hpu"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("assert False, 'Compile-time major/minor PyTorch version 2.11 differs'", "AssertionError: Compile-time"),
        ("raise OSError('libhabana_pytorch2_plugin.so: undefined symbol')", "OSError: libhabana"),
        ("import torch; torch.hpu", "AttributeError"),
        ("", "KeyError: 'hpu'"),
    ],
)
def test_a_bridge_that_does_not_load_is_broken_and_auto_does_not_hide_it(packages: Path, code: str, told: str) -> None:
    plant(packages, torch__init__=code)
    refused(DeviceBroken, told)
    with pytest.raises(DeviceBroken, match="To go on without the Gaudi, ask for 'cpu'"):
        get_device("auto")
    assert get_device("cpu").name == "cpu"


def test_a_bridge_of_another_torch_says_which_torch_it_wants(packages: Path) -> None:
    plant(packages, torch__init__="assert False, 'versions differ'")
    info = packages / "habana_torch_plugin-1.21.0.555.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: habana-torch-plugin\nVersion: 1.21.0.555\n")
    assert bridge_version() == "1.21.0.555"
    refused(DeviceBroken, rf"belongs to torch 2\.6\.0, but torch {torch.__version__.replace('+', '.')}")


def test_an_interrupt_while_loading_is_no_broken_bridge(packages: Path) -> None:
    plant(packages, torch__init__="raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_bridge()


def test_a_bridge_without_a_card(gaudi: Gaudi) -> None:
    gaudi.available = False
    refused(DeviceUnavailable, "sees no device")
    assert "sees no device" in get_device().why


def test_a_bridge_that_fails_half_way(gaudi: Gaudi) -> None:
    gaudi.broken = RuntimeError("synStatus=8 [Device not found]")
    refused(DeviceBroken, "Device not found")


@pytest.mark.parametrize(
    ("bridge", "torch_version", "fits"),
    [
        ("1.21.0.555", "2.6.0+hpu_1.21.0-555.gitabc", True),
        ("1.23.0", "2.9.1", True),
        ("1.24.0.17", "2.10.0", True),
        ("1.24.1", "2.11.0+hpu", True),
        ("1.24.0", "2.11.0", False),
        ("1.22.1", "2.13.0+cpu", False),
        ("1.20.0", "2.6.0", None),
        ("1.9.0", "2.6.0", None),
        ("nightly", "2.6.0", None),
        (None, "2.6.0", None),
    ],
)
def test_the_pairs_of_bridge_and_torch(bridge: str | None, torch_version: str, fits: bool | None) -> None:
    answer, sentence = pairing(bridge, torch_version)
    assert answer is fits
    assert torch_version in sentence
    assert bridge is None or (torch_for(bridge) is None) == (fits is None)


def test_the_plain_doctor_reports_a_bridge_of_another_torch(packages: Path) -> None:
    plant(packages, torch__init__="assert False, 'Compile-time major/minor PyTorch version differs'")
    check = check_device(Installation())
    assert not check.ok
    assert "Compile-time" in check.detail
    assert "vendor" in (check.remedy or "")


def test_the_guide_prints_the_pairs_that_the_code_knows(root: Path) -> None:
    guide = (root / "GAUDI.md").read_text()
    for bridge, torch_version in TORCH_OF_BRIDGE.items():
        usable = tuple(map(int, torch_version.split(".")[:2])) >= (2, 6)
        assert bool(re.search(rf"^\| {bridge}(\.0)? \| {torch_version} \|$", guide, re.MULTILINE)) == usable


def test_the_guide_installs_what_kvlab_needs_without_torch(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["course"]]
    names = {Requirement(line).name for line in wanted} - {"torch"}
    guide = (root / "GAUDI.md").read_text()
    listed = set(re.sub(r"#.*", "", " ".join(re.findall(r"^pip install (?!--)(.*)$", guide, re.MULTILINE))).split())
    assert listed == names
