"""Names and paths become folders; the cache holds whole conversions or none."""

import errno
import json
import os
import sys
from pathlib import Path

import pytest
import torch
from support.gguf_files import write_llama

from kvlab.engine.cache import Progress, building, cache_folder
from kvlab.engine.gguf_convert import converted
from kvlab.engine.pretrained import resolve
from kvlab.engine.weights import load
from kvlab.errors import CacheUnusable, InvalidInput


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own."""
    monkeypatch.setenv("KVLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def stop_at(what: str, error: BaseException) -> Progress:
    def progress(now: str, done: int, of: int) -> None:
        if now == what and done > of // 2:
            raise error

    return progress


def forbidden(what: str, done: int, of: int) -> None:
    pytest.fail(f"{what} was done again")


def test_the_embedded_model_is_a_folder_of_the_package() -> None:
    folder = resolve("embedded")
    assert (folder / "config.json").is_file()
    assert (folder / "tokenizer.json").is_file()


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert resolve(tmp_path) == tmp_path
    assert resolve(str(tmp_path)) == tmp_path


def test_a_gguf_file_is_converted_once(tmp_path: Path, cache: Path) -> None:
    path = write_llama(tmp_path / "tiny.gguf")
    seen: list[tuple[str, int, int]] = []
    folder = resolve(path, lambda what, done, of: seen.append((what, done, of)))
    assert [each.name for each in cache.iterdir()] == [folder.name]
    assert folder.name.startswith("tiny-bfloat16-")
    assert {each.name for each in folder.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert load(folder).config.dtype == torch.bfloat16
    weights = [(done, of) for what, done, of in seen if what == "weights"]
    assert weights == sorted(weights)
    assert weights[-1][0] == weights[-1][1] > 0
    assert resolve(str(path), forbidden) == folder


def test_a_file_of_another_name_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "tiny.gguf").rename(tmp_path / "model.bin")
    assert (resolve(path) / "config.json").is_file()


def test_a_changed_file_and_another_dtype_are_converted_anew(tmp_path: Path, cache: Path) -> None:
    path = write_llama(tmp_path / "tiny.gguf")
    first = converted(path)
    os.utime(path, ns=(0, 1))
    second = converted(path)
    third = converted(path, torch.float32)
    assert len({first, second, third}) == 3 == len(list(cache.iterdir()))
    assert json.loads((third / "config.json").read_text())["dtype"] == "float32"


@pytest.mark.parametrize("what", ["tokenizer", "weights"])
def test_ctrl_c_leaves_nothing(what: str, tmp_path: Path, cache: Path) -> None:
    path = write_llama(tmp_path / "tiny.gguf")
    with pytest.raises(KeyboardInterrupt):
        resolve(path, stop_at(what, KeyboardInterrupt()))
    assert list(cache.iterdir()) == []
    assert (resolve(path) / "model.safetensors").is_file()


def test_a_refused_file_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    path = write_llama(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InvalidInput, match=r"tiny\.gguf is truncated"):
        resolve(path)
    assert list(cache.iterdir()) == []


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(CacheUnusable, match=r"is full.*KVLAB_CACHE"):
        resolve(write_llama(tmp_path / "tiny.gguf"), stop_at("weights", full))
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, cache: Path) -> None:
    cache.write_text("a file is in the way")
    with pytest.raises(CacheUnusable, match=r"cannot write to the cache folder.*KVLAB_CACHE"):
        resolve(write_llama(tmp_path / "tiny.gguf"))


def test_a_new_folder_takes_the_place_of_an_old_one_only_when_it_is_whole(cache: Path) -> None:
    final = cache / "model"
    for text in ("first", "second"):
        with building(final) as folder:
            (folder / "text").write_text(text)
        assert (final / "text").read_text() == text
    with pytest.raises(FileNotFoundError), building(final) as folder:
        (folder / "none" / "text").write_text("third")
    assert (final / "text").read_text() == "second"
    assert list(cache.iterdir()) == [final]


def test_the_cache_is_where_the_system_keeps_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KVLAB_CACHE", "~/here")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_folder() == tmp_path / "here"
    monkeypatch.delenv("KVLAB_CACHE")
    assert cache_folder() == Path("/xdg/kvlab")
    for unusable in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        monkeypatch.setattr(sys, "platform", "linux")
        assert cache_folder() == tmp_path / ".cache/kvlab"
        monkeypatch.setattr(sys, "platform", "darwin")
        assert cache_folder() == tmp_path / "Library/Caches/kvlab"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm2", "run: kvlab fetch smollm2"),
        ("smollm3", "no model 'smollm3': give one of embedded, smollm2, a Hugging Face folder, or a .gguf file"),
        ("gemma3", "never fetched: its weights come under the Gemma Terms of Use"),
        ("gemma-3-270m-it.gguf", r"no folder or file gemma-3-270m-it\.gguf\. Gemma 3 is never fetched"),
    ],
)
def test_what_is_not_there_is_answered_with_how_to_get_it(name: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        resolve(name)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"not a GGUF file")
    with pytest.raises(InvalidInput, match="is not a GGUF file; give one, or the folder"):
        resolve(path)
