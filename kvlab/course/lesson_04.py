"""Lesson 04: the checks of the running softmax and of the mask, and the quizzes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor

from kvlab.attention import KVStore
from kvlab.course.attention_walk import HEAD_DIM, SCALE, Memory, Readable, TakeIn, as_mask, walk
from kvlab.course.attention_walk import readable as right_mask
from kvlab.course.checks import Trial, exercise
from kvlab.course.quiz import Option, Quiz
from kvlab.course.values import show
from kvlab.policies.layout import Table

FASTER: Final = Quiz(
    "04-faster",
    "vLLM served two to four times as many requests a second as the servers before it (published). What did its "
    "attention kernel do for that?",
    (
        Option(
            "Each call is faster: small blocks stay in the processor's caches, long slabs do not",
            why="PagedAttention does not make attention faster. A decode step reads each key and value once, so a "
            "cache helps neither layout. Following the table is extra work.",
        ),
        Option(
            "It reads less: a slab's reserved slots no longer cross the memory bus",
            why="A kernel over a slab knows the length and stops there. Reserved slots cost memory, not reads.",
        ),
        Option(
            "It computes an approximation that is good enough",
            why="The running softmax is the same softmax in another order of sums. You compared it with the dense one.",
        ),
        Option(
            "It lets KV lie anywhere, so several times as many requests fit. Each call is a little slower",
            why="The gain is the larger batch: one read of the weights serves more requests.",
            correct=True,
        ),
    ),
)

NO_NAN: Final = Quiz(
    "04-no-nan",
    "A test fills every slot that holds no token of the request with NaN. The kernel's output has no NaN. What is "
    "proved?",
    (
        Option(
            "That it reads exactly the request's slots",
            why="Half of that. A kernel that skips the newest token reads no NaN either, and its answer is wrong.",
        ),
        Option(
            "That no slot went into the answer that should not; nothing about slots left out",
            why="NaN times any weight, even 0, is NaN, so one such read shows. What was left out leaves no trace: "
            "compare with a dense answer, or count the reads.",
            correct=True,
        ),
        Option(
            "Nothing: a masked slot has weight 0, and 0 times NaN is 0",
            why="0 times NaN is NaN. That is what makes NaN a good poison.",
        ),
    ),
)

SMALL: Final = ([1.0, 0.0], [3.0, 2.0], [0.0, -1.0])
"""Scores of three blocks; the maximum jumps at the second and stays at the third."""


@exercise(
    "One block into the accumulator",
    hint="The new maximum is the larger of `m` and the block's largest score. `l` and `acc` were computed against the "
    "old one: multiply both by `exp(m - new_m)` before the block's own weights `exp(scores - new_m)` are added.",
)
def check_take_in(trial: Trial, take_in: TakeIn) -> None:
    """m, l and acc after each of three small blocks; then logits from -2000 to 2000 in any cut and order."""
    values = torch.eye(6, dtype=torch.float64)
    state, seen = _nothing(6), torch.empty(0, dtype=torch.float64)
    for number, scores in enumerate(SMALL):
        trial.trying(f"block {number} of three: scores {scores}; the maximum before is {float(state[0]):g}")
        block = torch.tensor(scores, dtype=torch.float64)
        state = _called(trial, take_in, state, block, values[2 * number : 2 * number + 2])
        seen = torch.cat([seen, block])
        weights = torch.exp(seen - seen.max())
        _near(trial, "m, the largest score so far", state[0], seen.max())
        _near(trial, "l, the sum of exp(score - m) over all scores so far", state[1], weights.sum())
        _near(trial, "acc, the values summed with these weights", state[2], weights @ values[: len(seen)])
    generator = torch.Generator().manual_seed(4)
    for name, keys, spread in (("one token", 1, 5.0), ("24 tokens", 24, 5.0), ("24 tokens", 24, 2000.0)):
        logits = (2 * torch.rand(keys, generator=generator, dtype=torch.float64) - 1) * spread
        if keys > 1:
            logits[[7, 20]] = logits.new_tensor([-spread, spread])
        values = torch.randn(keys, 4, generator=generator, dtype=torch.float64)
        dense = logits.softmax(0) @ values
        for cuts in _cuts(keys):
            for order in ("in order", "the last block first"):
                trial.trying(f"{name}, scores from {-spread:g} to {spread:g}, in {len(cuts)} blocks, {order}")
                state = _nothing(4)
                for first, end in cuts if order == "in order" else cuts[::-1]:
                    state = _called(trial, take_in, state, logits[first:end], values[first:end])
                _near(trial, "acc / l, as the dense softmax gives it", state[2] / state[1], dense)


def _nothing(dim: int) -> tuple[Tensor, Tensor, Tensor]:
    zero = torch.zeros((), dtype=torch.float64)
    return zero - torch.inf, zero, torch.zeros(dim, dtype=torch.float64)


def _cuts(keys: int) -> list[list[tuple[int, int]]]:
    """All in one block, one token a block, blocks of 4, and two cuts at random places."""
    found = [[0, keys], list(range(keys + 1)), [*range(0, keys, 4), keys]]
    chance = random.Random(4)
    for _ in range(2):
        found.append([0, *sorted(chance.sample(range(1, keys), min(4, keys - 1))), keys])
    return [list(pairwise(edges)) for edges in found]


def _called(
    trial: Trial, take_in: TakeIn, state: tuple[Tensor, Tensor, Tensor], scores: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    before = [each.clone() for each in (*state, scores, values)]
    found = take_in(*state, scores, values)
    held = isinstance(found, tuple | list) and len(found) == 3
    trial.holds("three values are returned: m, l, acc", held, found)
    names = ("m", "l", "acc", "scores", "values")
    for name, old, new in zip(names, before, (*state, scores, values), strict=True):
        said = _Shown(f"{name} was changed in place")
        trial.holds(f"{name} as it was: return new values", torch.equal(old, new), said)
    m, total, acc = (torch.as_tensor(each, dtype=torch.float64) for each in found)
    trial.holds(f"acc has {values.shape[1]} components, m and l are numbers", _shaped(m, total, acc, values), found)
    return m.reshape(()), total.reshape(()), acc


def _shaped(m: Tensor, total: Tensor, acc: Tensor, values: Tensor) -> bool:
    return m.numel() == total.numel() == 1 and acc.shape == values.shape[1:]


def _near(trial: Trial, what: str, found: Tensor, expected: Tensor) -> None:
    """Within 1e-6, shown with four digits."""
    close = bool(torch.isclose(found, expected, rtol=1e-6, atol=1e-6).all())
    trial.holds(f"{what}: {_digits(expected)}", close, _Shown(_digits(found)))


def _digits(tensor: Tensor) -> str:
    numbers = [f"{float(each):.4g}" for each in tensor.reshape(-1)]
    return numbers[0] if tensor.dim() == 0 else f"[{', '.join(numbers)}]"


class _Shown(str):
    """Text that is shown as it is."""

    def __repr__(self) -> str:
        return str(self)


@exercise(
    "Exactly the right slots",
    hint="Entry `e` of a table holds the positions from `e * block_size` on. Readable are those from "
    "`length - window` (or 0) up to `length - 1`. `torch.arange(block_size)` counts the slots of a block.",
)
def check_readable(trial: Trial, readable: Readable) -> None:
    """Every entry's mask around block and window edges; then reads are counted in a store full of NaN."""
    cases = [(size, length, None) for size, length in ((16, 37), (16, 48), (16, 33), (16, 1), (4, 11), (1, 3))]
    windows = [(16, 37, window) for window in (20, 1, 5, 6, 21, 36, 37, 38, 4096)]
    for size, length, window in [*cases, *windows, (4, 10, 4), (4, 12, 8)]:
        for entry in range(-(-length // size)):
            found = trial.call(readable, entry, size, length, window)
            mask = [bool(each) for each in as_mask(found, size)]
            expected = right_mask(entry, size, length, window).tolist()
            claim = f"{_slots(expected, entry * size)} may be read"
            trial.holds(claim, mask == expected, _Shown(_fault(mask, expected, entry * size, length, window)))
    generator = torch.Generator().manual_seed(5)
    for length, window in ((37, None), (41, 20), (16, 16), (3, None)):
        trial.trying(f"a walk over {length} tokens, window {window}, NaN in every other slot")
        memory, table, query = _poisoned(length, generator)
        output = walk(query, memory, table, readable, window)
        slots = table.slots()[0 if window is None else max(0, length - window) :]
        trial.equal("slots read", sorted(memory.reads.elements()), sorted(slots.tolist()))
        keys, values = (each[:, 0] for each in memory.store.read(slots))
        dense = (SCALE * keys @ query).softmax(0) @ values
        trial.holds("the output equals the dense one", torch.allclose(output, dense, atol=1e-5), output)


def _poisoned(length: int, generator: torch.Generator) -> tuple[Memory, Table, Tensor]:
    store = KVStore(8 * 16, 16, 1, HEAD_DIM, dtype=torch.float32)
    store.keys[:-1], store.values[:-1] = torch.nan, torch.nan
    blocks = torch.randperm(8, generator=generator).tolist()[: -(-length // 16)]
    table = Table(blocks, 16, 0, length)
    keys, values = torch.randn(2, length, 1, HEAD_DIM, generator=generator)
    store.write(keys, values, table.slots())
    return Memory(store), table, torch.randn(HEAD_DIM, generator=generator)


def _slots(mask: Sequence[bool], first: int) -> str:
    """'slots 0 to 4 (positions 32 to 36)', or 'no slot'."""
    at = [offset for offset, each in enumerate(mask) if each]
    if not at:
        return "no slot"
    if at != list(range(at[0], at[-1] + 1)):
        return f"slots {show(at)}"
    return f"slots {at[0]} to {at[-1]} (positions {first + at[0]} to {first + at[-1]})"


def _fault(mask: Sequence[bool], expected: Sequence[bool], first: int, length: int, window: int | None) -> str:
    """What was found, and the first slot that is wrong."""
    for offset, (found, right) in enumerate(zip(mask, expected, strict=True)):
        position = first + offset
        if right and not found:
            newest = ", the newest token," if position == length - 1 else ""
            return f"{_slots(mask, first)}: position {position}{newest} is left out"
        if found and not right:
            why = "holds no token yet" if position >= length else f"is behind the window of {window}"
            return f"{_slots(mask, first)}: position {position} {why}"
    return _slots(mask, first)
