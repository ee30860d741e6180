"""Lesson 00: checks of the cache in `generate` and of the bytes of a token, and the quiz."""

from collections import Counter
from collections.abc import Callable, Sequence

from torch import Tensor

from kvlab.course import Option, Quiz, Trial, exercise
from kvlab.course.toy_decoder import ToyDecoder, decode, encode, generate
from kvlab.shapes import KVHeads, ModelShape

PROMPTS = (("the old cat sees a bird near the", 12), ("moon", 5), ("a small river follows the garden again", 1))


class _Watched(ToyDecoder):
    """Also notes which tokens each call of `project` was given, and how many rows met in each attention."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[int, list[int]]] = []
        self.met: list[tuple[int, int]] = []

    def project(self, tokens: Sequence[int], start: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        self.given.append((start, list(tokens)))
        return super().project(tokens, start)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.met.append((len(q), len(k)))
        return super().attend(q, k, v)


@exercise(
    "A cache in `generate`",
    hint="`len(keys)` says how many tokens the cache holds. Only the tokens after them need `project`, and they "
    "stand at positions from `len(keys)` on. `torch.cat([keys, k])` joins old rows and new ones.",
)
def check_generate(trial: Trial, generate_cached: Callable[[ToyDecoder, Sequence[int], int], list[int]]) -> None:
    """The words of `generate`; every token computed once, at its own position; every query meets all keys."""
    for text, steps in PROMPTS:
        prompt = encode(text)
        trial.trying(f"{steps} word{'s' * (steps > 1)} after '{text}'")
        model = _Watched()
        words = list(generate_cached(model, list(prompt), steps))
        trial.equal("words", len(words), steps)
        sequence = prompt + words
        for start, tokens in model.given:
            place = f"position {start}" if len(tokens) == 1 else f"positions {start} to {start + len(tokens) - 1}"
            trial.holds(
                f"`project` gets the tokens that stand at {place}: '{decode(sequence[start : start + len(tokens)])}'",
                tokens == sequence[start : start + len(tokens)],
                f"'{decode(tokens)}', called with start={start}",
            )
        trial.equal("keys that each step's queries meet", [m for _, m in model.met], _lengths(prompt, steps))
        trial.equal("words", decode(words), decode(generate(ToyDecoder(), prompt, steps)))
        times = Counter(position for span in model.computed for position in span)
        again = {position: count for position, count in times.items() if count > 1}
        trial.holds(
            "K and V of each token are computed once",
            not again,
            "; ".join(f"position {position}: {count} times" for position, count in list(again.items())[:3]),
        )
        trial.equal("tokens computed in each step", model.tokens_per_step, [len(prompt)] + [1] * (steps - 1))


def _lengths(prompt: Sequence[int], steps: int) -> list[int]:
    return [len(prompt) + step for step in range(steps)]


@exercise(
    "Bytes per token",
    hint="One layer keeps two rows of `kv_heads * head_dim` values for a token, a key and a value. Each value "
    "takes `dtype_bytes`. Add up the layers: `kinds` names the kind of each, `heads[kind]` has its sizes.",
)
def check_bytes_per_token(trial: Trial, bytes_per_token: Callable[[ModelShape], int]) -> None:
    """Llama 3.1 8B first, then a model without grouped queries, two hybrids, an fp8 cache and one small shape."""
    heads = {"global": KVHeads(kv_heads=2, head_dim=16)}
    small = ModelShape("a small model in 32 bits", ("global",) * 3, None, 6, heads, 2, 4, 96, 100, 64, None, ())
    presets = ("llama-3.1-8b", "opt-13b", "gemma-4-31b", "gemma-4-26b-a4b")
    for shape in (*map(ModelShape.preset, presets), small):
        trial.trying(f"bytes_per_token of {shape.name}")
        found, expected = bytes_per_token(shape), shape.bytes_per_token
        missed = [claim for claim, wrong in _wrong(shape).items() if found == wrong != expected]
        trial.holds(f"{'; or: '.join(missed)}", not missed, found)
        trial.equal("bytes", found, expected)


def _wrong(shape: ModelShape) -> dict[str, int]:
    """What `bytes_per_token` must do -> what comes out where it does not. Some agree on some shapes."""
    right, kinds = shape.bytes_per_token, list(shape.heads)
    first, last = (shape.layers * shape.layer_bytes_per_token(kind) for kind in (kinds[0], kinds[-1]))
    queries = sum(
        shape.kv_tensors * shape.q_heads * shape.heads[kind].head_dim * shape.dtype_bytes for kind in shape.kinds
    )
    return {
        "keys and values are both counted": right // shape.kv_tensors,
        "KV heads are counted, not query heads": queries,
        "keys and values are both counted, with KV heads": queries // shape.kv_tensors,
        "all layers are counted": sum(map(shape.layer_bytes_per_token, kinds)),
        "each layer has the heads of its own kind": first,
        "each layer has its own heads": last,
        "each number is counted with its bytes": right // shape.dtype_bytes,
        "the bytes of a number are the shape's `dtype_bytes`, not always 2": right // shape.dtype_bytes * 2,
        "bytes are counted, not bits": right * 8,
    }


WHAT_THE_CACHE_IS = Quiz(
    "00-what-the-cache-is",
    "Which sentence about the KV cache is true?",
    (
        Option(
            "It saves memory: the text is stored once instead of once a step",
            why="Nothing of the earlier steps was stored before: they were computed and thrown away. The cache "
            "takes memory, more with each token, and saves computing.",
        ),
        Option(
            "It stores the query, the key and the value of each token",
            why="The query of a token is used once, in the token's own row. Later rows have queries of their own "
            "and read only the earlier keys and values.",
        ),
        Option(
            "It spends memory to save computing: the key and the value of each token so far, in each layer",
            why="A later token reads an earlier one through its key and its value and in no other way. The causal "
            "mask keeps both fixed once they are computed.",
            correct=True,
        ),
        Option(
            "It stores the answers of the model, so that the same question is not computed twice",
            why="That would be a cache of responses. A KV cache belongs to one request while it runs. Sharing it "
            "between requests is possible where prompts begin alike: lesson 06.",
        ),
    ),
)

WHY_BATCHING_HELPS = Quiz(
    "00-why-batching-helps",
    "Why do 32 requests in one step give more tokens a second than one?",
    (
        Option(
            "They share one KV cache",
            why="Each request has its own keys and values, and reads its own. What they share are the weights.",
        ),
        Option(
            "Each weight is read from memory once for all 32",
            why="Reading the weights takes most of a small step. A read that serves 32 rows costs as much as one "
            "that serves a single row, until the arithmetic takes longer than the reading.",
            correct=True,
        ),
        Option(
            "Each request gets a core of its own",
            why="You measured on one thread. Nothing ran in parallel, and there was still a gain.",
        ),
        Option(
            "A step takes the same time for any number of requests",
            why="Nearly so while reading the weights takes most of it. Each row adds arithmetic, and from some "
            "batch on the step grows with it: that is where the measured line bends.",
        ),
    ),
)
