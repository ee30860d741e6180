"""A random decoder small enough to run in a test, its tokenizer of single bytes, and the plainest way to generate."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer as Rust
from tokenizers import decoders, models, pre_tokenizers

from kvlab.engine.config import DecoderConfig
from kvlab.engine.decoder import Decoder, random_weights
from kvlab.engine.dense import DenseAttend
from kvlab.engine.tokenizer import Tokenizer
from kvlab.policies.base import Policy
from kvlab.policies.contiguous import ContiguousMax, ContiguousOracle, ContiguousPow2
from kvlab.policies.hybrid_ring import HybridRing
from kvlab.policies.islands import RadixIslands
from kvlab.policies.paged import Paged
from kvlab.policies.prefix import PagedPrefix
from kvlab.policies.radix_lazy import RadixLazy

VOCAB, EOS, WINDOW, BLOCK, CONTEXT = 260, 1, 8, 4, 128
SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>")

ROOMY: dict[str, Callable[..., Policy]] = {
    "ring": lambda groups, log=None: HybridRing(groups, 2048, block_size=BLOCK, log=log),
    "max": lambda groups, log=None: ContiguousMax(groups, 2048, max_model_tokens=CONTEXT, log=log),
    "pow2": lambda groups, log=None: ContiguousPow2(groups, 2048, max_model_tokens=CONTEXT, log=log),
    "oracle": lambda groups, log=None: ContiguousOracle(groups, 2048, max_model_tokens=CONTEXT, log=log),
    "paged": lambda groups, log=None: Paged(groups, 2048, block_size=BLOCK, log=log),
    "prefix": lambda groups, log=None: PagedPrefix(groups, 2048, block_size=BLOCK, log=log),
    "radix": lambda groups, log=None: RadixLazy(groups, 2048, page_size=BLOCK, log=log),
    "islands": lambda groups, log=None: RadixIslands(groups, 2048, ratio=0.5, page_size=BLOCK, interval=8, log=log),
}
TIGHT: dict[str, Callable[..., Policy]] = {
    "ring": lambda groups, log=None: HybridRing(groups, 56, block_size=BLOCK, log=log),
    "ring swap": lambda groups, log=None: HybridRing(groups, 56, block_size=BLOCK, host_tokens=256, log=log),
    "max": lambda groups, log=None: ContiguousMax(groups, 256, max_model_tokens=CONTEXT, log=log),
    "pow2": lambda groups, log=None: ContiguousPow2(groups, 160, max_model_tokens=CONTEXT, log=log),
    "oracle": lambda groups, log=None: ContiguousOracle(groups, 160, max_model_tokens=CONTEXT, log=log),
    "paged": lambda groups, log=None: Paged(groups, 72, block_size=BLOCK, log=log),
    "swap": lambda groups, log=None: Paged(groups, 72, block_size=BLOCK, host_tokens=256, log=log),
    "prefix": lambda groups, log=None: PagedPrefix(groups, 72, block_size=BLOCK, log=log),
    "radix": lambda groups, log=None: RadixLazy(groups, 72, page_size=BLOCK, log=log),
    "islands": lambda groups, log=None: RadixIslands(
        groups, 144, ratio=0.5, page_size=BLOCK, interval=8, branch_islands=True, log=log
    ),
}
OVERLAID = ("ring", "ring swap", "window free", "window free swap")
"""Those whose pools lie over one memory: steps of static shapes do not read them."""
PLAIN = {name: policy for name, policy in TIGHT.items() if name not in OVERLAID}


def tiny_config(family: str = "gemma3_text") -> DecoderConfig:
    """Three layers, two of them with a window in the Gemma family."""
    fields = {
        "model_type": family, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 96, "vocab_size": VOCAB,
        "max_position_embeddings": CONTEXT, "dtype": "float32", "eos_token_id": EOS, "initializer_range": 0.3,
        "tie_word_embeddings": False,
    }  # fmt: skip
    if family != "llama":
        fields |= {
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        }
    return DecoderConfig.from_config(fields)


def tiny_decoder(family: str = "gemma3_text", seed: int = 0) -> Decoder:
    """Random weights, spread enough that what it says depends on all it has read."""
    config = tiny_config(family)
    return Decoder(config, random_weights(config, torch.Generator().manual_seed(seed)))


def byte_tokenizer(folder: Path) -> Tokenizer:
    """Four special tokens, then one token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: number for number, text in enumerate([*SPECIAL, *alphabet])}
    rust = Rust(models.BPE(vocab=vocabulary, merges=[]))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    rust.decoder = decoders.ByteLevel()
    rust.add_special_tokens(list(SPECIAL))
    rust.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(tiny_config().source | {"eos_token_id": EOS}))
    return Tokenizer.from_dir(folder)


def dense_logits(decoder: Decoder, ids: list[int]) -> torch.Tensor:
    """Logits of every position, computed at once and without a cache, `[tokens, vocab]`."""
    with torch.inference_mode():
        attend = DenseAttend(decoder.config, 1, len(ids))
        return decoder.logits(decoder.hidden(torch.tensor(ids), torch.arange(len(ids)), attend))


def greedy(decoder: Decoder, prompt: list[int], tokens: int) -> list[int]:
    """What the model says after the prompt, the whole sequence computed again for each token."""
    ids = list(prompt)
    while len(ids) < len(prompt) + tokens:
        best = dense_logits(decoder, ids)[-1].topk(2)
        assert best.values[0] - best.values[1] > 1e-4, "a tie: choose another prompt or seed"
        ids.append(int(best.indices[0]))
        if ids[-1] == EOS:
            break
    return ids[len(prompt) :]


def prompts(lengths: tuple[int, ...], seed: int = 0) -> list[list[int]]:
    """Random prompts of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, VOCAB, (length,), generator=generator).tolist() for length in lengths]
