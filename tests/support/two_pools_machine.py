"""The state machine of `TwoPools` against two dictionaries: page -> SWA page, and who got it when."""

import pickle

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from kvlab.errors import InvalidInput, OutOfMemory, StaleHandle
from kvlab.events import EventLog, State, apply
from kvlab.memory.two_pools import TwoPools
from support.machines import Counted

PICK = st.integers(0, 999)


class TwoPoolsMachine(Counted):
    """Owners take pages, free some of their SWA pages, give them away, go, and come back with old handles."""

    @initialize(full=st.integers(1, 12), swa=st.integers(1, 12), size=st.integers(1, 3))
    def fresh(self, full: int, swa: int, size: int) -> None:
        self.sizes = full, swa
        self.log, self.state, self.told = EventLog(), State(), 0
        self.pools = TwoPools(size, full, swa, log=self.log)
        self.held: list[tuple[list[int], list[int]]] = []
        self.gone: list[tuple[list[int], list[int]]] = []
        self.swa_of: dict[int, bool] = {}

    @rule(count=st.integers(1, 5))
    def allocate(self, count: int) -> None:
        full, swa = self.sizes
        if count > min(full - len(self.swa_of), swa - sum(self.swa_of.values())):
            self.refused(OutOfMemory, lambda: self.pools.allocate(count))
            return
        pages = self.pools.allocate(count)
        assert not set(pages) & set(self.swa_of)
        assert -1 not in self.pools.swa_pages(pages)
        self.held.append((pages, self.pools.generations(pages)))
        self.swa_of |= dict.fromkeys(pages, True)

    @precondition(lambda self: self.held)
    @rule(pick=PICK, cut=st.integers(0, 5))
    def free_swa(self, pick: int, cut: int) -> None:
        pages, generations = self.held[pick % len(self.held)]
        freed = self.pools.free_swa(pages[:cut], generations[:cut])
        assert freed == sum(self.swa_of[page] for page in pages[:cut])
        assert self.pools.free_swa(pages[:cut]) == 0, "freed twice"
        self.swa_of |= dict.fromkeys(pages[:cut], False)

    @precondition(lambda self: self.held)
    @rule(pick=PICK)
    def free(self, pick: int) -> None:
        pages, generations = self.held.pop(pick % len(self.held))
        self.pools.free(pages, generations)
        self.gone = [*self.gone[-9:], (pages, generations)]
        for page in pages:
            del self.swa_of[page]

    @precondition(lambda self: self.gone)
    @rule(pick=PICK)
    def come_back_with_an_old_handle(self, pick: int) -> None:
        pages, generations = self.gone[pick % len(self.gone)]
        for call in (self.pools.free, self.pools.free_swa):
            self.refused(StaleHandle, lambda call=call: call(pages, generations))

    @precondition(lambda self: len(self.held) > 1)
    @rule(pick=PICK, count=st.integers(0, 5))
    def adopt(self, pick: int, count: int) -> None:
        (givers, _), (takers, _) = (self.held[(pick + step) % len(self.held)] for step in (0, 1))
        givers, takers = (
            [page for page in pages if self.swa_of[page] == live] for pages, live in ((givers, True), (takers, False))
        )
        count = min(count, len(givers), len(takers))
        if givers:
            self.refused(InvalidInput, lambda: self.pools.adopt(givers[:1], givers[:1]))
        if takers and givers:
            self.refused(InvalidInput, lambda: self.pools.adopt(givers[:1], takers[:1]))
        before = self.pools.swa_pages(givers[:count])
        self.pools.adopt(takers[:count], givers[:count])
        assert self.pools.swa_pages(takers[:count]) == before
        self.swa_of |= dict.fromkeys(givers[:count], False) | dict.fromkeys(takers[:count], True)

    @precondition(lambda self: self.held)
    @rule(pick=PICK)
    def name_a_page_twice_or_one_that_is_not_there(self, pick: int) -> None:
        page = self.held[pick % len(self.held)][0][0]
        for pages in ([page, page], [-1], [self.sizes[0]]):
            for call in (self.pools.free, self.pools.free_swa):
                self.refused(InvalidInput, lambda call=call, pages=pages: call(pages))

    def refused(self, error, call) -> None:
        before = pickle.dumps(self.pools)
        with pytest.raises(error):
            call()
        assert pickle.dumps(self.pools) == before, "a refused call changed something"

    @invariant()
    def agrees(self) -> None:
        self.pools.audit()
        full, swa = self.sizes
        assert self.pools.swa is not None
        assert self.pools.full.free_blocks == full - len(self.swa_of)
        assert self.pools.swa.free_blocks == swa - sum(self.swa_of.values())
        assert {page for page, own in enumerate(self.pools.swa_of) if own >= 0} == {
            p for p, live in self.swa_of.items() if live
        }
        for event in self.log.events[self.told :]:
            apply(self.state, event)
        self.told = len(self.log.events)
        assert self.state.swa_of == {page: own for page, own in enumerate(self.pools.swa_of) if own >= 0}
