"""Lesson 06: the checks of the chained names and of the lookup, and the quizzes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from kvlab.course.checks import Trial, exercise
from kvlab.course.quiz import Option, Quiz
from kvlab.course.values import show
from kvlab.memory.hash_chain import Digest

Names: TypeAlias = Callable[[list[int], int, str | None], Sequence[Any]]
"""names(ids, block_size, salt): a name for each full block, whatever it is made of, as long as it compares."""
Lookup: TypeAlias = Callable[[Sequence[Digest], Callable[[Digest], int | None], int, int], Sequence[int]]
"""lookup(names, find, tokens, block_size): the blocks that a prompt of `tokens` tokens takes over."""

VLLM: Final = Quiz(
    "06-vllm",
    "A colleague says: PagedAttention is vLLM, so whoever pages the KV cache has prefix caching. What do you answer?",
    (
        Option(
            "True: both names stand for the same thing",
            why="PagedAttention and vLLM are not the same thing. The first is a way to store KV in blocks and to read "
            "it there; the second is a server that was built on it, and holds much more.",
        ),
        Option(
            "Nearly: block tables share equal blocks by themselves, the rest of vLLM is scheduling",
            why="A block table shares what it is told to share: a fork of a request that is running. Nothing in it "
            "remembers a request that has ended, or knows that two blocks are equal.",
        ),
        Option(
            "Paging makes it possible; names, lookup and eviction are a part of the server, on top of the block tables",
            why="A hit is a block id in one more table. Other servers page without a prefix cache, and SGLang caches "
            "prefixes with a tree in place of hashes.",
            correct=True,
        ),
        Option(
            "False: prefix caching needs contiguous memory, so a server has one or the other",
            why="It is the other way round. Blocks that lie anywhere can stand in any number of tables.",
        ),
    ),
)

CHAIN: Final = Quiz(
    "06-chain",
    "Why does a block's name hold the name of the block before it, and not just its own 16 tokens?",
    (
        Option(
            "To keep names apart: 16 tokens are so few that different blocks would get the same name",
            why="SHA-256 of 16 tokens would keep different tokens apart. The trouble is with equal tokens.",
        ),
        Option(
            "A token's keys and values depend on all tokens before it, so equal tokens after another past are another "
            "block",
            why="From the second layer on, a token's keys and values are computed from what attention read before it.",
            correct=True,
        ),
        Option(
            "So that blocks lie in memory in the order of the text",
            why="The blocks of a prefix may lie anywhere; the table puts them in order.",
        ),
        Option(
            "To save time: one long hash is faster than many short ones",
            why="The chain hashes each block once either way. What it saves is lookups: a hit vouches for all that "
            "came before.",
        ),
    ),
)


@exercise(
    "A name for each full block",
    hint="Begin with a `parent` made from the salt. For each full block hash the parent and the block's ids together; "
    "the digest is this block's name and the next block's parent.",
)
def check_names(trial: Trial, names: Names) -> None:
    """Full blocks only; another past, another order or another salt is another name."""
    chance = random.Random(6)
    ids = [chance.randrange(2048) for _ in range(40)]

    def named(what: str, ids: Sequence[int], size: int = 8, salt: str | None = None) -> list[Any]:
        trial.trying(f"{what}; blocks of {size}, salt {salt!r}")
        given = list(ids)
        found = names(given, size, salt)
        trial.holds("the ids as they were", given == list(ids), _Shown("the list of ids was changed"))
        count = len(found) if isinstance(found, list | tuple) else None
        wanted = len(ids) // size
        claim = f"a list of {wanted} names, one for each full block of {len(ids)} tokens"
        trial.holds(claim, count == wanted, _Shown(f"{count} names") if count is not None else found)
        return list(found)

    whole = named("40 tokens", ids)
    named("7 tokens: no block is full", ids[:7])
    trial.holds("the same names again", named("the same 40 tokens once more", ids) == whole, _Shown("other names"))
    part = named("the first 39 of them", ids[:39])
    trial.holds("the names of the first four blocks of 40", part == whole[:4], _Shown("other names"))
    for place in (0, 7, 8, 21, 39):
        other = list(ids)
        other[place] ^= 1
        block = place // 8
        found = named(f"40 tokens, the one at position {place} another", other)
        same = [index for index in range(5) if found[index] == whole[index]]
        kept = f"only blocks {list(range(block))} keep their names" if block else "every block has another name"
        trial.holds(kept, same == list(range(block)), _Shown(f"equal names: blocks {same}"))
    _apart(trial, "three blocks of equal tokens", named("the same 8 tokens three times", ids[:8] * 3))
    swapped = [ids[1], ids[0], *ids[2:8]]
    pair = [*named("8 tokens", ids[:8]), *named("8 tokens, the first two exchanged", swapped)]
    _apart(trial, "two orders of the same tokens", pair)
    pair = [*named("tokens [1, 23]", [1, 23], 2), *named("tokens [12, 3]", [12, 3], 2)]
    _apart(trial, "[1, 23] and [12, 3]", pair)
    salted = [named("the same 40 tokens", ids, salt=salt) for salt in (None, "anna", "ben")]
    for index in range(5):
        claim = f"block {index} under the salts None, 'anna' and 'ben'"
        _apart(trial, claim, [found[index] for found in salted])
    pair = [*named("tokens [23, 4]", [23, 4], 2, "1"), *named("tokens [3, 4]", [3, 4], 2, "12")]
    _apart(trial, "[23, 4] under the salt '1' and [3, 4] under the salt '12'", pair)


def _apart(trial: Trial, what: str, found: Sequence[Any]) -> None:
    equal = [(a, b) for a in range(len(found)) for b in range(a) if found[a] == found[b]]
    trial.holds(f"{what}: {len(found)} different names", not equal, _Shown("equal names"))


@exercise(
    "The cached blocks that a prompt takes over",
    hint="Walk the names in order and stop at the first that `find` answers with None. At most "
    "`(tokens - 1) // block_size` of them may be taken, so that one token is left to compute.",
)
def check_lookup(trial: Trial, lookup: Lookup) -> None:
    """kB - 1, kB and kB + 1 tokens leave one to compute; a gap ends the walk; block 0 is a block."""
    places = [7, 1, 3, 0, 5, 2]

    def tried(what: str, tokens: int, size: int, missing: Sequence[int] = ()) -> None:
        names = [f"name {index}".encode() for index in range(tokens // size)]
        found_at = {name: places[index % 6] for index, name in enumerate(names) if index not in missing}
        right: list[int] = []
        for name in names[: (tokens - 1) // size]:
            if name not in found_at:
                break
            right.append(found_at[name])
        trial.trying(f"{what}: {tokens} tokens in blocks of {size}, names in the cache: {_listed(names, found_at)}")
        given = list(names)
        found = lookup(given, found_at.get, tokens, size)
        trial.holds("the names as they were", given == names, _Shown("the list of names was changed"))
        seen = list(found) if isinstance(found, list | tuple) else None
        claim = f"blocks {show(right)}, {tokens - len(right) * size} to compute"
        fault = show(found) if seen is None else _fault(seen, right, tokens, size)
        trial.holds(claim, seen == right, _Shown(fault))

    for size in (16, 4, 1):
        for blocks in (1, 2, 3, 4):
            for tokens in (blocks * size - 1, blocks * size, blocks * size + 1):
                if tokens:
                    tried("all is cached", tokens, size)
    tried("the second block was evicted", 70, 16, missing=(1,))
    tried("the first block was evicted", 70, 16, missing=(0,))
    tried("the last block was evicted", 65, 16, missing=(3,))
    tried("nothing is cached", 70, 16, missing=range(4))


def _listed(names: Sequence[Digest], found_at: dict[Digest, int]) -> str:
    if not found_at:
        return "none"
    kept = [index for index, name in enumerate(names) if name in found_at]
    return f"all {len(kept)}" if len(kept) == len(names) else f"{kept} of 0 to {len(names) - 1}"


def _fault(found: list[Any], right: list[int], tokens: int, size: int) -> str:
    """What was found, and what is wrong with it."""
    left = tokens - len(found) * size
    said = f"blocks {show(found)}"
    if left <= 0:
        return f"{said}: nothing is left to compute, so there are no logits"
    if None in found:
        return f"{said}: None is no block; the walk ends there"
    if len(found) > len(right):
        return f"{said}: it went on behind a block that is not cached"
    if len(found) < len(right) and right[len(found)] == 0:
        return f"{said}: block 0 was taken for none"
    return f"{said}: {left} to compute"


class _Shown(str):
    """Text that is shown as it is."""

    def __repr__(self) -> str:
        return str(self)
