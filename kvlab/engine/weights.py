"""Weights in Hugging Face's format: read into a decoder's fused matrices, and written back apart."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvlab.engine.checkpoint_names import Part, canonical, parts
from kvlab.engine.config import DecoderConfig, read_json
from kvlab.engine.decoder import Decoder, is_norm, is_projection, weight_shapes
from kvlab.errors import InvalidInput

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def load(path: str | Path, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> Decoder:
    """The decoder of a Hugging Face folder: `config.json` with `model.safetensors` or its sharded index.

    `dtype` None keeps the checkpoint's. Raises `InvalidInput` for an unsupported family or field, for missing,
    unexpected or misshapen tensors (named), for a truncated file, without the package safetensors.
    """
    folder = Path(path)
    config = DecoderConfig.from_config(folder)
    if dtype is not None:
        config = config.with_dtype(dtype)
    with Checkpoint(folder) as tensors:
        return assemble(config, tensors, device)


def assemble(config: DecoderConfig, tensors: Mapping[str, Tensor], device: torch.device | str = "cpu") -> Decoder:
    """A decoder from tensors under their Hugging Face names, in the dtype of `config`.

    Each tensor is asked for once, so a mapping may read lazily. Raises as `load` does, before any decoder exists.
    """
    name, wanted, shapes = config.shape.name, parts(config), weight_shapes(config)
    stored = {known: each for each in tensors if (known := canonical(each)) is not None}
    expected = {part.name for each in wanted.values() for part in each}
    if missing := sorted(expected - set(stored)):
        raise InvalidInput(f"{name} lacks {_listed(missing)}; is a shard missing, or the config.json another model's?")
    spare = {"lm_head.weight"} if config.tied else set()
    if unexpected := sorted(set(stored) - expected - spare):
        raise InvalidInput(f"{name} holds {_listed(unexpected)}, which this configuration has no place for")
    fused = {}
    for ours, pieces in wanted.items():
        dtype = torch.float32 if is_norm(ours) else config.dtype
        loaded = (_checked(name, part, tensors[stored[part.name]]) for part in pieces)
        whole = torch.cat([each.to(device=device, dtype=dtype) for each in loaded])
        if is_projection(ours):
            whole = whole.t().contiguous()
        elif is_norm(ours) and config.family.unit_offset:
            whole = whole + 1.0
        fused[ours] = whole.reshape(shapes[ours])
    return Decoder(config, fused)


def export(decoder: Decoder, folder: str | Path, dtype: torch.dtype | None = None) -> None:
    """Write `config.json` and `model.safetensors` that transformers and `load` read.

    `dtype` None keeps the decoder's. In the same dtype, loading gives the same bits back, norms aside (float32 here,
    rounded to the dtype there). Raises `InvalidInput` where the folder cannot be written.
    """
    save = _safetensors().torch.save_file
    config = decoder.config if dtype is None else decoder.config.with_dtype(dtype)
    weights = dict(decoder.named_parameters())
    apart = {}
    for ours, pieces in parts(config).items():
        whole = weights[ours].detach()
        if is_projection(ours):
            whole = whole.t()
        elif is_norm(ours) and config.family.unit_offset:
            whole = whole - 1.0
        for part, rows in zip(pieces, torch.split(whole, [each.rows for each in pieces]), strict=True):
            apart[part.name] = (
                rows.reshape(part.shape)
                .to(device="cpu", dtype=config.dtype)
                .clone(memory_format=torch.contiguous_format)
            )
    fields = {**config.source, "architectures": [config.family.architecture]}
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save(apart, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot write a model to {folder}: {error}") from error


class Checkpoint(Mapping[str, Tensor]):
    """The tensors of a Hugging Face folder by name, read when asked for; open while used as a context manager.

    Raises `InvalidInput` where a file is missing, truncated, or lacks a tensor that its index promises.
    """

    def __init__(self, folder: Path) -> None:
        self._open = ExitStack()
        self._files: dict[str, Any] = {}
        package = _safetensors()
        index = folder / "model.safetensors.index.json"
        promised: Mapping[str, str] = {}
        if (folder / "model.safetensors").exists():
            names = ["model.safetensors"]
        elif index.exists():
            promised = read_json(index).get("weight_map", {})
            names = sorted(set(promised.values()))
        else:
            raise InvalidInput(f"{folder} holds neither model.safetensors nor {index.name}")
        with ExitStack() as opened:
            for each in names:
                path = folder / each
                if not path.exists():
                    raise InvalidInput(f"{index} names {each}, which is not there")
                try:
                    file = opened.enter_context(package.safe_open(path, framework="pt"))
                except (package.SafetensorError, OSError) as error:
                    raise InvalidInput(f"{path} is truncated or not a safetensors file: {error}") from error
                self._files |= dict.fromkeys(file.keys(), file)
            if absent := sorted(set(promised) - set(self._files)):
                raise InvalidInput(f"{index} promises {_listed(absent)}, which no shard holds")
            self._open = opened.pop_all()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _checked(name: str, part: Part, tensor: Tensor) -> Tensor:
    if tensor.dtype not in FLOATS:
        raise InvalidInput(f"{name}: {part.name} is {tensor.dtype}; quantized weights are read from GGUF only")
    if tuple(tensor.shape) != part.shape:
        raise InvalidInput(f"{name}: {part.name} is {tuple(tensor.shape)}, the configuration says {part.shape}")
    return tensor


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise InvalidInput("reading weights needs the package safetensors (pip install 'kvlab[engine]')") from error
    return safetensors
