"""Two pools over one index space: the state machine, stale handles, and frees that may come twice."""

import numpy as np
import pytest
from support.machines import Bug, catches, keeps_its_invariants
from support.two_pools_machine import TwoPoolsMachine

from kvlab.errors import InvalidInput, StaleHandle
from kvlab.memory.two_pools import NO_PAGE, TwoPools


def test_the_pools_are_two_dictionaries_for_ten_thousand_operations() -> None:
    keeps_its_invariants(TwoPoolsMachine)


def test_freeing_twice_is_harmless_and_freeing_with_an_old_handle_is_refused() -> None:
    pools = TwoPools(4, 2, 2)
    (page,) = pools.allocate(1)
    (old,) = pools.generations([page])
    assert [pools.free_swa([page], [old]) for _ in range(3)] == [1, 0, 0]
    pools.free([page], [old])
    (again,) = pools.allocate(1)
    assert again == page
    with pytest.raises(StaleHandle, match="generation 0 then, 1 now"):
        pools.free_swa([page], [old])
    assert pools.swa_of[page] != NO_PAGE, "the old handle released the page of its new owner"


def test_a_page_goes_as_a_whole_and_nothing_stale_is_left_mapped() -> None:
    pools = TwoPools(4, 4, 4)
    pages = pools.allocate(2)
    assert pools.slots(pages).tolist() == [*range(8)]
    pools.free_swa(pages[:1])
    pools.free_swa(pages)
    assert set(pools.swa_of) == {NO_PAGE}
    assert pools.swa is not None
    assert pools.swa.free_blocks == 4


def test_without_an_swa_pool_nothing_is_mapped() -> None:
    pools = TwoPools(2, 3, None)
    pages = pools.allocate(3)
    assert pools.free_swa(pages) == 0
    pools.audit()
    pools.free(pages)
    assert np.array_equal(pools.swa_of, [NO_PAGE] * 3)


@pytest.mark.parametrize("sizes", [(0, 4, 4), (4, 0, 4), (4, 4, 0), (True, 4, 4)])
def test_sizes_below_one_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidInput):
        TwoPools(*sizes)


def stale_handles_pass(patch: pytest.MonkeyPatch) -> None:
    refuse = TwoPools._refuse_stale
    patch.setattr(TwoPools, "_refuse_stale", lambda self, pages, generations: refuse(self, pages, None))


def the_swa_page_outlives_its_page(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TwoPools, "free", lambda self, pages, generations=None: self.full.free(pages))


def the_giver_keeps_its_mapping(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TwoPools, "adopt", lambda self, takers, givers: self._map(takers, self.swa_pages(givers)))


@pytest.mark.parametrize("bug", [stale_handles_pass, the_swa_page_outlives_its_page, the_giver_keeps_its_mapping])
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    catches(TwoPoolsMachine, bug)
