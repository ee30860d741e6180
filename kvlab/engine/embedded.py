"""The small model that ships inside kvlab: nothing to download, the default everywhere."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

import torch

from kvlab.engine.decoder import Decoder
from kvlab.engine.tokenizer import Tokenizer
from kvlab.engine.weights import load
from kvlab.errors import InvalidInput


def embedded_folder() -> Path:
    """The Hugging Face folder of the embedded model; its README.md is the model card.

    Raises `InvalidInput` where this installation lies in an archive or lacks the folder.
    """
    with as_file(files("kvlab").joinpath("data/model")) as folder:
        if not (folder / "model.safetensors").is_file():
            raise InvalidInput(f"the embedded model is not in {folder}; install kvlab again, as a folder and whole")
        return folder


def load_model(
    dtype: torch.dtype | None = torch.float32, device: torch.device | str = "cpu"
) -> tuple[Decoder, Tokenizer]:
    """The embedded decoder and its tokenizer; the weights are stored in bf16, `dtype` None keeps that.

    Raises `InvalidInput` without the packages safetensors and tokenizers, which `pip install 'kvlab[engine]'` brings.
    """
    folder = embedded_folder()
    return load(folder, dtype, device), Tokenizer.from_dir(folder)
