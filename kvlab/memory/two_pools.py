"""Two pools over one space of token indices: full-attention KV for every page, sliding-window KV for some of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvlab.errors import InvalidInput, OutOfMemory, StaleHandle, positive, require
from kvlab.events import EventLog, to_ranges
from kvlab.memory.block_pool import BlockPool

NO_PAGE = -1


class TwoPools:
    """Pages of `page_size` tokens. A page is a page of the full pool; its SWA page, if any, is `swa_of[page]`.

        index space      page 0   1   2   3   4   5        full: T tokens, the layers that read everything
        swa_of                5  -1  -1   0   -   2        SWA: r x T tokens, the layers that read a window
                           live  dead dead live free live

    Both come together (`allocate`); the SWA page can go first (`free_swa`, as often as one likes) and goes at the
    latest with its page (`free`). Whole pages only: a page of part of which is freed cannot be told. A caller that
    remembers pages remembers their generations too; a handle from before a page was freed is refused, also by
    `free_swa`, which must not release the SWA page of whoever has the page now. `swa_pages` None: there is no SWA pool.
    A refused call changes nothing.
    """

    def __init__(self, page_size: int, full_pages: int, swa_pages: int | None, *, log: EventLog | None = None) -> None:
        self.page_size = positive("page_size", page_size)
        self.full = BlockPool(full_pages)
        self.swa = None if swa_pages is None else BlockPool(swa_pages)
        self.log = log
        self._swa_of = [NO_PAGE] * full_pages

    @property
    def swa_of(self) -> Sequence[int]:
        """SWA page of each page, -1 where it has none; read only."""
        return self._swa_of

    def swa_pages(self, pages: Sequence[int]) -> list[int]:
        """The SWA pages of these pages, -1 for those without."""
        swa_of = self._swa_of
        return [swa_of[page] for page in pages]

    def generations(self, pages: Sequence[int]) -> list[int]:
        """How often each of these pages has been freed, to be remembered with it."""
        generations = self.full.generations
        return [generations[page] for page in pages]

    def slots(self, pages: Sequence[int]) -> npt.NDArray[np.int64]:
        """All slots of these pages in their pool, int64 `[pages * page_size]`."""
        offsets = np.arange(self.page_size)
        return (np.asarray(pages, np.int64)[:, None] * self.page_size + offsets).reshape(-1)

    def allocate(self, count: int) -> list[int]:
        """`count` pages with SWA pages. Raises `OutOfMemory` when either pool has fewer."""
        if self.swa is not None and count > self.swa.free_blocks:
            raise OutOfMemory(
                f"asked for {count} pages, {self.swa.free_blocks} of {self.swa.blocks} of the SWA pool are free "
                f"({self.full.free_blocks} of {self.full.blocks} of the full pool)"
            )
        pages = self.full.allocate(count)
        if self.swa is not None:
            self._map(pages, self.swa.allocate(count))
        return pages

    def free(self, pages: Sequence[int], generations: Sequence[int] | None = None) -> None:
        """Give pages back, with their SWA pages where they still have them. Raises `StaleHandle` or `DoubleFree`."""
        self._refuse_stale(pages, generations)
        self.full.free(pages)
        self._unmap(pages)

    def free_swa(self, pages: Sequence[int], generations: Sequence[int] | None = None) -> int:
        """Give the SWA pages of these pages back; how many there were. Raises `StaleHandle`."""
        self._refuse_stale(pages, generations)
        return self._unmap(pages)

    def adopt(self, takers: Sequence[int], givers: Sequence[int]) -> None:
        """The SWA page of each giver becomes that of its taker, which has none."""
        self._refuse_stale([*takers, *givers], None)
        swa = self.swa_pages(givers)
        if NO_PAGE in swa or any(self._swa_of[page] != NO_PAGE for page in takers):
            raise InvalidInput(f"pages {list(givers)} must have SWA pages to give, and {list(takers)} none")
        if not swa:
            return
        for page in givers:
            self._swa_of[page] = NO_PAGE
        if self.log is not None:
            self.log.write("unmap", to_ranges(givers))
        self._map(takers, swa)

    def _map(self, pages: Sequence[int], swa: Sequence[int]) -> None:
        for page, own in zip(pages, swa, strict=True):
            self._swa_of[page] = own
        if self.log is not None:
            self.log.write("map", to_ranges(pages), to_ranges(swa))

    def _unmap(self, pages: Sequence[int]) -> int:
        if self.swa is None:
            return 0
        mapped = [page for page in pages if self._swa_of[page] != NO_PAGE]
        if mapped:
            self.swa.free(self.swa_pages(mapped))
            for page in mapped:
                self._swa_of[page] = NO_PAGE
            if self.log is not None:
                self.log.write("unmap", to_ranges(mapped))
        return len(mapped)

    def _refuse_stale(self, pages: Sequence[int], generations: Sequence[int] | None) -> None:
        if len(set(pages)) != len(pages):
            raise InvalidInput(f"a page is named twice among {list(pages)}")
        if pages and not 0 <= min(pages) <= max(pages) < self.full.blocks:
            raise InvalidInput(f"the pool has pages 0 to {self.full.blocks - 1}, not {min(pages)} to {max(pages)}")
        then = self.generations(pages) if generations is None else list(generations)
        references, now = self.full.references, self.full.generations
        for page, generation in zip(pages, then, strict=True):
            if not references[page] or now[page] != generation:
                raise StaleHandle(
                    f"page {page} was freed since this handle was made (generation {generation} then, "
                    f"{now[page]} now); nothing was freed"
                )

    def audit(self) -> None:
        """Check the pools and their mapping; `InvariantViolation` names what is broken."""
        self.full.audit()
        mapped = [(page, own) for page, own in enumerate(self._swa_of) if own != NO_PAGE]
        require(all(self.full.references[page] for page, _ in mapped), "a free page has an SWA page")
        if self.swa is None:
            require(not mapped, "a page is mapped into an SWA pool that is not there")
            return
        self.swa.audit()
        owned = [own for _, own in mapped]
        require(len(owned) == len(set(owned)), "an SWA page belongs to two pages")
        held = {page for page, count in enumerate(self.swa.references) if count}
        require(set(owned) == held, "the SWA pages held and those mapped differ")
