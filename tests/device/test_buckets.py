"""What is warmed up is what a step is rounded to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.device.buckets import Buckets, reachable_pairs
from kvlab.errors import InvalidInput
from kvlab.gaudi_report.static_routes import shared_out

BUCKETS = st.builds(
    lambda limit, first, step, form: Buckets(limit, min(first, limit), step, form),
    st.integers(1, 300), st.integers(1, 40), st.integers(1, 9), st.sampled_from(["linear", "exponential"]),
)  # fmt: skip


def test_the_two_forms() -> None:
    assert Buckets(512).reachable() == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    assert Buckets(56).reachable(30) == (32, 56)
    assert Buckets(64, first=8, step=4).reachable() == (8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
    assert Buckets(100, first=8, step=32, form="linear").reachable() == (8, 40, 72, 100)
    assert Buckets(512).bucket(56 * 8) == 512


@given(BUCKETS, st.data())
def test_the_buckets_of_all_sizes_are_the_reachable_ones(buckets: Buckets, data: st.DataObject) -> None:
    low = data.draw(st.integers(1, buckets.limit))
    high = data.draw(st.integers(low, buckets.limit))
    assert list(buckets.reachable(low, high)) == sorted({buckets.bucket(n) for n in range(low, high + 1)})


@given(BUCKETS, st.data())
def test_a_bucket_holds_its_size_and_costs_little_padding(buckets: Buckets, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, buckets.limit))
    size = buckets.bucket(n)
    assert n <= size <= buckets.limit
    assert buckets.bucket(size) == size
    if n > buckets.first:
        most = n + buckets.step - 1 if buckets.form == "linear" else n * (1 + 1 / buckets.step)
        assert size <= most


@pytest.mark.parametrize("n", [0, -1, 65])
def test_a_size_outside_the_buckets_is_refused(n: int) -> None:
    with pytest.raises(InvalidInput, match="they hold 1 to 64"):
        Buckets(64).bucket(n)


@pytest.mark.parametrize(
    "wrong", [{"limit": 0}, {"limit": 4, "first": 5}, {"limit": 4, "step": 0}, {"limit": 4, "form": "x"}]
)
def test_wrong_buckets_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        Buckets(**wrong)


@given(BUCKETS.filter(lambda each: each.limit <= 24), st.integers(1, 5), st.integers(0, 40))
def test_the_reachable_pairs_are_those_of_all_steps(requests: Buckets, each: int, fewer: int) -> None:
    blocks = Buckets(max(requests.limit, requests.limit * each - fewer))
    possible = {
        (requests.bucket(n), blocks.bucket(total))
        for n in range(1, requests.limit + 1)
        for total in range(n, min(n * each, blocks.limit) + 1)
    }
    pairs = reachable_pairs(requests, blocks, each)
    assert pairs == sorted(possible)
    for rows, total in pairs:
        shared = shared_out(total, rows)
        assert (requests.bucket(len(shared)), blocks.bucket(sum(shared))) == (rows, total), "warming up misses the pair"
