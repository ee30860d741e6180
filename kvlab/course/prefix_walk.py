"""Prefix caching as lesson 06 walks it: a chat to send again and again, chains in words, a lookup to write, a bug."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from kvlab.engine.engine import Engine, MakePolicy
from kvlab.engine.outputs import Result
from kvlab.engine.sampling import SamplingParams
from kvlab.engine.tokenizer import Tokenizer
from kvlab.events import Event, EventLog, State
from kvlab.memory.block_pool import Reuse
from kvlab.memory.caching_pool import CachingPool
from kvlab.memory.hash_chain import Digest, Prefixes, id_bytes, link, root, short
from kvlab.policies.prefix import PagedPrefix
from kvlab.shapes import LayerGroup, ModelShape
from kvlab.viz.drawing import Drawing
from kvlab.viz.scenes.hash_chain import hash_chain
from kvlab.viz.scenes.hash_links import prefix_chains
from kvlab.workload import Request, Salt, TokenIds

Find: TypeAlias = Callable[[Digest], int | None]
"""The block that is registered under a name, or None."""
Lookup: TypeAlias = Callable[[Sequence[Digest], Find, int, int], Sequence[int]]
"""lookup(names, find, tokens, block_size): the blocks that a prompt of `tokens` tokens takes over."""

STEWARD: Final = "You are the old steward of a great house, and you answer every guest in one sentence. "
HALL: Final = (
    "You are the steward of an old house that stands between the river and the woods. The master is a man of few "
    "words, the mistress is fond of music, and their three daughters are seldom of one mind. Breakfast is at nine, and "
    "the carriage is never ready before noon. You know every guest, every horse, and every quarrel of the last twenty "
    "years. Whoever speaks to you is answered with patience, as one speaks by the fire on a long and quiet evening.\n"
)
MESSAGES: Final = (
    f"{HALL}Guest: Pray tell me who has come to the house this week.\nSteward:",
    "\nGuest: And is the eldest daughter still so fond of walking by the river?\nSteward:",
    "\nGuest: I heard music last night, long after the candles were out. Who was it?\nSteward:",
    "\nGuest: Then I shall say nothing of it. May I have the grey horse tomorrow?\nSteward:",
    "\nGuest: You are very good. What does the master say of my letter?\nSteward:",
    "\nGuest: I am sorry for it. At what hour do we leave for church?\nSteward:",
)
LETTER: Final = (
    "My dear sister, I write to you from the coast, where it has rained for nine days without an end. The boats lie in "
    "the harbour, the fishermen sit in the church and mend their nets, and there is neither fish nor bread to be had. "
    "Yesterday the sea came over the wall and took the garden, the bench, and the two apple trees that our father set "
    "there when you were born. I went down in the evening with a lantern to look for them. What I found instead was a "
    "small chest of iron, locked, and so heavy that I could not lift it. I have told nobody of it. Come as soon as the "
    "roads are dry, and bring your eldest with you, for he is strong and asks no questions. Until then I keep the "
    "lantern in the window, and I sleep with the key under my head. Your brother, who is well."
)


def ask(engine: Engine, prompt: str | Sequence[int], params: SamplingParams, *, salt: str | None = None) -> Result:
    """Serve one request to its end."""
    rid = engine.submit(prompt, params, salt=salt)
    while rid in engine.served:
        engine.step()
    return engine.result(rid)


def names_of(ids: Sequence[int] | TokenIds, block_size: int, salt: Salt = None) -> list[Digest]:
    """The digests of the full blocks of a sequence, as `PagedPrefix` names them."""
    found, parent = [], root(salt)
    for start in range(0, len(ids) - block_size + 1, block_size):
        parent = link(parent, id_bytes(ids[start : start + block_size]))
        found.append(parent)
    return found


def words_of(tokenizer: Tokenizer, texts: Sequence[str], block_size: int) -> dict[str, str]:
    """For pictures: the name of each full block of the texts (8 hex digits) -> its tokens in words."""
    words = {}
    for text in texts:
        ids = tokenizer.encode(text)
        for index, digest in enumerate(names_of(ids, block_size)):
            words[short(digest)] = tokenizer.decode(ids[index * block_size : (index + 1) * block_size]).strip()
    return words


def chains(words: Mapping[str, str]) -> Callable[[State, Sequence[Event]], Drawing]:
    """A scene for `player`: the chains that are registered, the tokens in words."""
    return lambda state, events: hash_chain(prefix_chains(state, events, labels=words))


def small_cache(blocks: int, block_size: int, log: EventLog | None = None) -> PagedPrefix:
    """A prefix cache of a few blocks, for pictures."""
    return PagedPrefix(_groups(), blocks * block_size, block_size=block_size, log=log)


def prefill(policy: PagedPrefix, request: Request) -> int:
    """Admit a request and commit its prompt; the tokens that had to be computed. A frame where there is a log."""
    admission = policy.admit(request)
    assert admission is not None, "the pictures' pools have room for one more request"
    start, stop = admission.cached_tokens, request.known_tokens
    policy.extend(request.rid, stop - start)
    policy.commit(request.rid, request.token_ids(start, stop))
    if policy.log is not None:
        policy.log.step([(request.rid, stop - start)])
    return stop - start


def finish(policy: PagedPrefix, request: Request) -> None:
    """Release a request. A frame where there is a log."""
    policy.release(request.rid, "finished")
    if policy.log is not None:
        policy.log.step()


class OwnLookup(PagedPrefix):
    """`PagedPrefix` that asks a given function which blocks a prompt takes over."""

    lookup: Lookup

    def _hits(self, request: Request) -> list[int]:
        size = self.block_size
        names = names_of(request.token_ids(0, request.known_tokens), size, request.salt)
        self._wanted.digests[:] = [root(request.salt), *names]
        return list(self.lookup(names, self.pool.prefixes.find, request.known_tokens, size))


def with_lookup(lookup: Lookup, capacity_tokens: int = 2048) -> MakePolicy:
    """For `Engine`: a policy that looks prefixes up with `lookup`."""

    def make(groups: Sequence[LayerGroup]) -> PagedPrefix:
        policy = OwnLookup(groups, capacity_tokens)
        policy.lookup = lookup
        return policy

    return make


class _NamesStay(Prefixes):
    """Forgets what a block was named for, and still finds it under that name."""

    __slots__ = ()

    def forget(self, block: int) -> None:
        self._entries.pop(block)


class StaleNames(PagedPrefix):
    """Planted: a block that is handed out again can still be found under its old name."""

    def _new_pool(self, blocks: int, reuse: Reuse, order: Sequence[int] | None) -> CachingPool:
        pool = super()._new_pool(blocks, reuse, order)
        pool.prefixes = _NamesStay()
        return pool


class _RootsFirst(CachingPool):
    __slots__ = ()

    def _shelve(self, freed: Sequence[int]) -> None:
        super()._shelve(freed[::-1])


class RootsFirst(PagedPrefix):
    """Another order of eviction: the beginning of a sequence goes first."""

    def _new_pool(self, blocks: int, reuse: Reuse, order: Sequence[int] | None) -> CachingPool:
        return _RootsFirst(blocks, order=order, log=self.log)


def _groups() -> tuple[LayerGroup, ...]:
    return ModelShape.preset("llama-3.1-8b").groups()
