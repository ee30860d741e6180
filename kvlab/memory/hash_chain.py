"""Names of full blocks: a digest stands for a block's tokens and, through its parent's digest, for all before them."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from kvlab.errors import InvalidInput, require
from kvlab.workload import Request, Salt

Digest: TypeAlias = bytes
ID_BYTES: Final = 4


def root(salt: Salt) -> Digest:
    """The parent of a first block. Salts of different type or value have different roots, hence nothing in common."""
    kind = type(salt).__name__.encode()
    # Hashed twice: what is hashed last has 32 bytes, and a block's input always has more.
    return sha256(sha256(kind + b":" + str(salt).encode("utf-8", "surrogatepass")).digest()).digest()


def link(parent: Digest, ids: bytes) -> Digest:
    """The digest of a block of these token ids after `parent`.

    SHA-256, because a collision would hand one user's KV to another, and collisions of a hash that is merely fast can
    be searched for.
    """
    return sha256(parent + ids).digest()


def id_bytes(token_ids: Sequence[int] | npt.NDArray[Any]) -> bytes:
    """Token ids as int32 bytes. Raises `InvalidInput` for what is not a flat list of 32-bit integers."""
    ids = array("i")
    try:
        if isinstance(token_ids, np.ndarray):
            if token_ids.ndim == 1 and token_ids.dtype == np.int32:
                return token_ids.tobytes()
            token_ids = token_ids.tolist()
        ids.extend(token_ids)
        return ids.tobytes()
    except (TypeError, OverflowError) as error:
        raise InvalidInput(f"token ids must be a flat list of 32-bit integers: {error}") from error


def short(digest: Digest) -> str:
    """The first 8 hexadecimal digits: enough for a picture, not for a comparison."""
    return digest[:4].hex()


class Chain:
    """Where one request's chain stands: the digest of its last full block, and the ids after that block."""

    __slots__ = ("digest", "pending")

    def __init__(self, digest: Digest, pending: bytes = b"") -> None:
        self.digest = digest
        self.pending = pending

    def copy(self) -> Chain:
        """The same place, to go on from separately."""
        return Chain(self.digest, self.pending)


class Wanted:
    """The digests of one request's full blocks, `digests[0]` the root, hashed only as far as lookups come.

    Worth keeping while a request waits at the head of the queue. It is no state: pickled, it is empty.
    """

    __slots__ = ("block_size", "digests", "request")

    def __init__(self, request: Request | None = None, block_size: int = 1) -> None:
        self.request = request
        self.block_size = block_size
        self.digests = [] if request is None else [root(request.salt)]

    def __reduce__(self) -> tuple[type[Wanted], tuple[()]]:
        return Wanted, ()

    def more(self, request: Request, blocks: int) -> None:
        """Hash a few more of the request's blocks, up to `blocks` altogether: one, then twice as many each time."""
        digests, size = self.digests, self.block_size
        done = len(digests) - 1
        stop = min(blocks, max(8, 2 * done)) if done else 1
        ids = id_bytes(request.token_ids(done * size, stop * size))
        step = size * ID_BYTES
        digest = digests[-1]
        for at in range(0, len(ids), step):
            digest = link(digest, ids[at : at + step])
            digests.append(digest)


class Entry(NamedTuple):
    """A registered block: its digest, and what that was made from."""

    digest: Digest
    parent: Digest
    ids: bytes


class Prefixes:
    """Which block holds which prefix. Blocks of equal content are all kept; a lookup finds the first of them."""

    __slots__ = ("_entries", "_first", "_others")

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._first: dict[Digest, int] = {}
        self._others: dict[Digest, dict[int, None]] = {}

    @property
    def entries(self) -> Mapping[int, Entry]:
        """The registered blocks."""
        return self._entries

    def find(self, digest: Digest) -> int | None:
        """The first block that was registered under this digest and still is."""
        return self._first.get(digest)

    def register(self, blocks: Sequence[int], parent: Digest, ids: bytes) -> Digest:
        """Name full blocks that follow `parent`; `ids` holds the token ids of all of them. The last one's digest.

        The caller has seen to it that the blocks are not registered yet.
        """
        entries, first, others = self._entries, self._first, self._others
        step = len(ids) // len(blocks)
        at = 0
        for block in blocks:
            own = ids[at : at + step]
            at += step
            digest = sha256(parent + own).digest()
            entries[block] = Entry(digest, parent, own)
            if first.setdefault(digest, block) != block:
                others.setdefault(digest, {})[block] = None
            parent = digest
        return parent

    def forget(self, block: int) -> None:
        """The block is about to hold something else."""
        digest = self._entries.pop(block).digest
        others = self._others.get(digest)
        if others is None:
            del self._first[digest]
            return
        if self._first[digest] == block:
            block = self._first[digest] = next(iter(others))
        del others[block]
        if not others:
            del self._others[digest]

    def audit(self) -> None:
        """Check the entries against each other; `InvariantViolation` names what is broken."""
        named: list[int] = []
        for digest, block in self._first.items():
            copies = [block, *self._others.get(digest, ())]
            named += copies
            for each in copies:
                require(
                    each in self._entries and self._entries[each].digest == digest,
                    f"prefix {short(digest)} names block {each}, which holds another or none",
                )
        require(len(named) == len(set(named)), "a block is registered under two prefixes")
        require(set(named) == set(self._entries), "a registered block cannot be found by its prefix")
        require(set(self._others) <= set(self._first), "a prefix has further blocks but no first one")
        require(all(self._others.values()), "an empty list of further blocks was kept")
        for block, entry in self._entries.items():
            require(
                entry.digest == link(entry.parent, entry.ids),
                f"the digest of block {block} is not that of its parent and its tokens",
            )
