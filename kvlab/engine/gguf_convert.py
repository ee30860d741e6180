"""A GGUF file becomes a Hugging Face folder: config.json, model.safetensors, tokenizer.json and what goes with them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvlab.engine.cache import Progress, building, cache_folder, silent
from kvlab.engine.gguf_file import GGUFFile, gguf_package
from kvlab.engine.gguf_model import Part, config, end_ids, parts
from kvlab.engine.gguf_tokenizer import tokenizer, tokenizer_config
from kvlab.errors import InvalidInput

VERSION = 1  # part of the cache's keys: raise it when the same file would be converted differently
_DTYPES = {torch.bfloat16: ("bfloat16", "BF16"), torch.float32: ("float32", "F32")}


def converted(path: str | Path, dtype: torch.dtype = torch.bfloat16, progress: Progress = silent) -> Path:
    """The folder in the cache that holds this GGUF file as a checkpoint; made the first time it is asked for.

    It is found again by the file's path, size and time of change. Raises `InvalidInput` as `convert` does, and
    `CacheUnusable`.
    """
    path = Path(path).resolve()
    try:
        stat = path.stat()
    except OSError as error:
        raise InvalidInput(f"cannot read the model {path}: {error.strerror}") from error
    key = hashlib.sha256(repr((VERSION, str(path), stat.st_size, stat.st_mtime_ns)).encode()).hexdigest()[:12]
    final = cache_folder() / f"{path.stem}-{_named(dtype)[0]}-{key}"
    if not final.is_dir():
        with building(final) as folder:
            convert(path, folder, dtype, progress)
    return final


def convert(path: str | Path, folder: Path, dtype: torch.dtype = torch.bfloat16, progress: Progress = silent) -> None:
    """Write the checkpoint of the GGUF file at `path` into the empty `folder`, weights in bf16 or fp32.

    Raises `InvalidInput` naming the file for an architecture, a tokenizer or a quantisation that is not read, and for
    a truncated or incomplete file. Memory: a few MiB beside the tokenizer, whatever the model's size.
    """
    need_packages()
    name, stored_as = _named(dtype)
    file = GGUFFile(path)
    listed, fields = parts(file), config(file, name)
    progress("tokenizer", 0, 1)
    tokenizer(file, fields["vocab_size"]).save(str(folder / "tokenizer.json"))
    progress("tokenizer", 1, 1)
    _write_json(folder / "tokenizer_config.json", tokenizer_config(file))
    _write_json(folder / "config.json", fields)
    generation = {"bos_token_id": fields["bos_token_id"], "pad_token_id": fields["pad_token_id"]}
    _write_json(folder / "generation_config.json", {**generation, "eos_token_id": end_ids(file) or None})
    _write_safetensors(folder / "model.safetensors", file, listed, stored_as, progress)


def need_packages() -> None:
    """Raise `InvalidInput`, with the line that installs it, where a package that `convert` needs is missing."""
    gguf_package()
    if find_spec("tokenizers") is None:
        raise InvalidInput("reading a tokenizer needs the package tokenizers (pip install 'kvlab[gguf]')")


def _named(dtype: torch.dtype) -> tuple[str, str]:
    if dtype not in _DTYPES:
        raise InvalidInput(f"a GGUF file is converted to bfloat16 or float32, not to {dtype}")
    return _DTYPES[dtype]


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_safetensors(path: Path, file: GGUFFile, listed: list[Part], stored_as: str, progress: Progress) -> None:
    """One tensor after the other, so that no more than a piece of one is in memory."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end, width = 0, {"BF16": 2, "F32": 4}[stored_as]
    for part in listed:
        start, end = end, end + prod(part.shape) * width
        header[part.name] = {"dtype": stored_as, "shape": list(part.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    done = 0
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for part in listed:
            for piece in _pieces(file, part, stored_as):
                out.write(piece)
                done += len(piece)
                progress("weights", done, end)


def _pieces(file: GGUFFile, part: Part, stored_as: str) -> Iterator[bytes]:
    for numbers in file.chunks(file.tensors[part.source], part.order()):
        values = numbers - np.float32(1) if part.change == "one plus" else numbers
        if not np.isfinite(values).all():
            file.refuse(f"is damaged: {part.source} holds values that are not finite")
        if stored_as == "F32":
            yield values.astype("<f4", copy=False).tobytes()
        else:
            bits = values.view(np.uint32)
            yield ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()  # to the nearest, ties to even
