"""What a trained model is worth: loss on the chapters held out, what a long context is worth, text it writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from kvlab.engine.decoder import Decoder
from kvlab.engine.dense import DenseAttend
from kvlab.engine.tokenizer import Tokenizer
from train.corpus import Document
from train.loop import losses
from train.model import MAX_POSITIONS

LATE, SHORT = 256, 64


@torch.inference_mode()
def held_out_losses(decoder: Decoder, tokenizer: Tokenizer, documents: Sequence[Document]) -> dict[str, Any]:
    """Loss per source and over all, in nats a token and in bits a byte of the text; the worth of a long context.

    A chapter is <bos> text <eos>, cut into pieces of `MAX_POSITIONS` tokens; nothing before a piece is seen. The
    bits include those of <eos>, the bytes don't. `context`: the last `LATE` tokens of the whole pieces, once with all
    of the piece before them, once with no more than `SHORT` tokens before the first of them.
    """
    nats: dict[str, float] = {}
    tokens: dict[str, int] = {}
    sizes: dict[str, int] = {}
    whole, cut = [], []
    for document in documents:
        ids = torch.tensor([*tokenizer.encode(document.text), *tokenizer.eos_token_ids])
        for start in range(0, len(ids) - 1, MAX_POSITIONS):
            piece = ids[None, start : start + MAX_POSITIONS + 1]
            each = losses(decoder, piece)
            nats[document.source] = nats.get(document.source, 0.0) + each.double().sum().item()
            if len(each) == MAX_POSITIONS:
                whole.append(each[-LATE:].mean().item())
                cut.append(losses(decoder, piece[:, -LATE - SHORT - 1 :])[-LATE:].mean().item())
        tokens[document.source] = tokens.get(document.source, 0) + len(ids) - 1
        sizes[document.source] = sizes.get(document.source, 0) + len(document.text.encode())
    rows = {source: row(nats[source], tokens[source], sizes[source]) for source in nats}
    rows["all"] = row(sum(nats.values()), sum(tokens.values()), sum(sizes.values()))
    found: dict[str, Any] = {"by_source": rows}
    if whole:
        found["context"] = {
            "targets": len(whole) * LATE,
            f"at_least_{MAX_POSITIONS - LATE}": round(sum(whole) / len(whole), 4),
            f"at_most_{SHORT + LATE}": round(sum(cut) / len(cut), 4),
        }
    return found


def row(nats: float, tokens: int, size: int) -> dict[str, float]:
    """A loss in both units, and what it was measured on."""
    return {
        "nats_per_token": round(nats / tokens, 4),
        "bits_per_byte": round(nats / math.log(2) / size, 4),
        "tokens": tokens,
        "bytes": size,
    }


@torch.inference_mode()
def sample(decoder: Decoder, tokenizer: Tokenizer, prompt: str, tokens: int, temperature: float, seed: int) -> str:
    """What the model writes after `prompt`, without it; the plainest loop, no cache. Ends early at <eos>."""
    generator = torch.Generator().manual_seed(seed)
    ids = tokenizer.encode(prompt)
    begun = len(ids)
    while len(ids) < begun + tokens:
        attend = DenseAttend(decoder.config, 1, len(ids))
        hidden = decoder.hidden(torch.tensor(ids), torch.arange(len(ids)), attend)
        chances = (decoder.logits(hidden[-1:])[0] / temperature).softmax(-1)
        ids.append(int(torch.multinomial(chances, 1, generator=generator)))
        if ids[-1] in tokenizer.eos_token_ids:
            break
    return tokenizer.decode(ids[begun:])
