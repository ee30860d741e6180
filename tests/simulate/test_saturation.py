"""The saturated server: nothing is lost by skipping quiet runs, and the paper's shares come out."""

from collections.abc import Callable, Iterator

import pytest
from support.cases import GLOBAL, LONGEST, SLIDING
from support.lockstep import without_steps
from support.two_groups import TwoGroups

from kvlab.errors import InvalidInput, NeverFits
from kvlab.events import EventLog
from kvlab.policies.base import Policy, TokenList, Usage
from kvlab.policies.contiguous import ContiguousMax, ContiguousOracle, ContiguousPow2
from kvlab.policies.paged import Paged
from kvlab.policies.prefix import PagedPrefix
from kvlab.shapes import ModelShape
from kvlab.simulate.saturation import SaturatedServer, saturate
from kvlab.workload import Request, RequestId, Workload, lognormal, uniform

BOTH = (GLOBAL, SLIDING)
SMALL: dict[str, Callable[[EventLog | None], Policy]] = {
    "max": lambda log: ContiguousMax(BOTH, 300, max_model_tokens=LONGEST, log=log),
    "pow2": lambda log: ContiguousPow2(BOTH, 300, max_model_tokens=LONGEST, log=log),
    "oracle": lambda log: ContiguousOracle(BOTH, 300, max_model_tokens=LONGEST, log=log),
    "oracle, first fit": lambda log: ContiguousOracle(
        BOTH, 300, max_model_tokens=LONGEST, placement="first-fit", log=log
    ),
    "paged 1": lambda log: Paged((GLOBAL,), 101, block_size=1, log=log),
    "paged 4": lambda log: Paged(BOTH, 130, block_size=4, log=log),
    "paged 16": lambda log: Paged((GLOBAL,), 130, block_size=16, reuse="lowest-id", log=log),
    "paged 4, watermark": lambda log: Paged((GLOBAL,), 130, block_size=4, watermark_blocks=3, log=log),
    "prefix 1": lambda log: PagedPrefix((GLOBAL,), 101, block_size=1, log=log),
    "prefix 4": lambda log: PagedPrefix(BOTH, 130, block_size=4, log=log),
    "prefix 4, watermark": lambda log: PagedPrefix((GLOBAL,), 130, block_size=4, watermark_blocks=3, log=log),
    "two groups": lambda log: TwoGroups(24, 4, 5, log),
}
LENGTHS = uniform(60, 14, 18, seed=4)
CAPACITY = 15_728


def watched(policy: Policy, *, skip: bool, every: int, steps: int = 900) -> Iterator[tuple[object, ...]]:
    """What can be seen of a server at each sampled step."""
    server = SaturatedServer(policy, LENGTHS.saturated(3), skip=skip)
    for step in range(1, steps, every):
        server.advance(step)
        policy.audit()
        yield server.usage(), len(server), server.finished, server.preempted, server.tokens


@pytest.mark.parametrize("every", [1, 13])
@pytest.mark.parametrize("name", SMALL)
def test_skipping_quiet_runs_is_the_same_as_calling_at_every_token(name: str, every: int) -> None:
    logs = EventLog(), EventLog()
    skipped = list(watched(SMALL[name](logs[0]), skip=True, every=every))
    called = list(watched(SMALL[name](logs[1]), skip=False, every=every))
    for step, (one, other) in enumerate(zip(skipped, called, strict=True)):
        assert one == other, f"at sample {step}"
    assert without_steps(logs[0]) == without_steps(logs[1])
    finished = skipped[-1][2]
    assert isinstance(finished, int)
    assert finished > 20


@pytest.mark.parametrize("name", SMALL)
def test_how_often_it_is_watched_changes_nothing(name: str) -> None:
    dense = list(watched(SMALL[name](None), skip=True, every=1))
    assert dense[::13] == list(watched(SMALL[name](None), skip=True, every=13))


def test_a_saturation_is_the_same_with_and_without_skipping() -> None:
    for name in ("oracle", "paged 4", "two groups"):
        one, other = (
            saturate(SMALL[name](None), LENGTHS, steps=700, warmup_steps=51, sample_every=3, skip=skip)
            for skip in (True, False)
        )
        assert one == other
        assert sum(one.shares.values()) == pytest.approx(1)
    assert one.tokens > 649, "at least one token a step"


def test_preempted_requests_lose_their_memory_but_no_token() -> None:
    drawn: list[Request] = []

    def queue() -> Iterator[Request]:
        for request in LENGTHS.saturated(3):
            drawn.append(request)
            yield request

    server = SaturatedServer(SMALL["paged 4"](None), queue())
    for step in range(100, 1000, 100):
        server.advance(step)
        under_way = [run.request for run in server._running.values()] + list(server._waiting)
        done = [request for request in drawn if request not in under_way]
        assert len(done) == server.finished
        made = [max(request.computed, request.known_tokens) - request.prompt_tokens for request in under_way]
        assert server.tokens == sum(request.output_tokens or 0 for request in done) + sum(made)
    assert server.preempted > 10


class Reader(Paged):
    """A policy that reads the ids it is told, and checks that they are the request's own."""

    reads_tokens = True
    read = 0

    def commit(self, rid: RequestId, token_ids: TokenList) -> None:
        holding = self._holding(rid)
        start, stop = holding.committed, holding.committed + len(token_ids)
        assert list(token_ids) == holding.request.token_ids(start, stop).tolist()
        self.read += len(token_ids)
        super().commit(rid, token_ids)


def test_a_policy_that_reads_tokens_is_told_each_ones_id_once() -> None:
    policy = Reader((GLOBAL,), 130, block_size=4)
    server = SaturatedServer(policy, LENGTHS.saturated(3))
    server.advance(400)
    assert policy.read > server.tokens - 20 * len(server) > 0


def test_a_request_takes_one_step_for_its_prompt_and_one_for_each_token() -> None:
    policy = ContiguousMax((GLOBAL,), 8, max_model_tokens=8)
    request = Request("only", 5, 3, output_tokens=3)
    queue = iter([request, *(Request(f"next{i}", 5, 3, output_tokens=3) for i in range(9))])
    server = SaturatedServer(policy, queue)
    computed = []
    for step in range(6):
        server.advance(step)
        computed.append((request.computed, server.finished))
    assert computed == [(5, 0), (5, 0), (6, 0), (7, 0), (0, 1), (0, 1)]


@pytest.mark.parametrize(
    ("steps", "warmup", "every"), [(0, 0, 1), (10, 10, 1), (10, -1, 1), (10, 20, 1), (10, 5, 0), (-5, 0, 1)]
)
def test_numbers_of_steps_that_make_no_sense_are_refused(steps: int, warmup: int, every: int) -> None:
    policy = SMALL["paged 4"](None)
    with pytest.raises(InvalidInput):
        saturate(policy, LENGTHS, steps=steps, warmup_steps=warmup, sample_every=every)
    assert policy.usage()["full"].owned == 0


def test_a_request_larger_than_the_pool_is_refused_instead_of_waited_for() -> None:
    with pytest.raises(NeverFits):
        saturate(SMALL["paged 4"](None), uniform(3, 1, 1000), steps=10, warmup_steps=1)


def test_progress_ends_at_the_end() -> None:
    told: list[tuple[int, int]] = []
    saturate(
        SMALL["paged 4"](None), LENGTHS, steps=1200, warmup_steps=10, sample_every=1,
        progress=lambda done, of: told.append((done, of)),
    )  # fmt: skip
    assert told[-1] == (1200, 1200)
    assert len(told) == 3


def clipped_lengths() -> Workload:
    """Log-normal lengths with the published means, clipped to what the model holds."""
    drawn = lognormal(20_000, 161.3, 338, prompt_sigma=1.2, output_sigma=0.75)
    return drawn.within(1024, 2048)


def shares_of(policy: Policy) -> dict[str, float]:
    """Shares of the pool in percent over 300,000 steps."""
    return {name: 100 * share for name, share in saturate(policy, clipped_lengths()).shares.items()}


# Kwon et al. 2023, figure 2: tokens, reserved, internal, external in percent of the KV memory.
PUBLISHED = {
    ContiguousMax: ((20.4, 13.3, 57.3, 8.9), 5.0),
    ContiguousPow2: ((26.8, 17.9, 13.6, 41.6), 2.0),
    ContiguousOracle: ((38.2, 25.2, 0.0, 36.6), 2.0),
}


@pytest.mark.parametrize("kind", PUBLISHED, ids=lambda kind: kind.__name__)
def test_orcas_shares_are_the_published_ones(
    kind: type[ContiguousMax | ContiguousPow2 | ContiguousOracle],
) -> None:
    published, tolerance = PUBLISHED[kind]
    shares = shares_of(kind(ModelShape.preset("opt-13b").groups(), CAPACITY, max_model_tokens=2048))
    for name, expected in zip(("live", "reserved", "internal", "external"), published, strict=True):
        assert shares[name] == pytest.approx(expected, abs=tolerance), name
    assert shares["dead"] == shares["cached"] == 0


def test_seven_requests_with_the_longest_reservation_are_always_in_flight() -> None:
    policy = ContiguousMax(ModelShape.preset("opt-13b").groups(), CAPACITY, max_model_tokens=2048)
    found = saturate(policy, clipped_lengths(), steps=20_000)
    assert found.requests_in_flight == 7
    assert (found.policy, found.steps, found.preempted) == ("ContiguousMax", 20_000, 0)


def test_paging_fills_at_least_95_5_percent_of_the_memory_with_tokens() -> None:
    shares = shares_of(Paged(ModelShape.preset("opt-13b").groups(), CAPACITY))
    assert shares["live"] >= 95.5
    assert sum(shares.values()) == pytest.approx(100)


def test_the_terms_of_a_usage_add_up_and_owned_leaves_out_what_nobody_holds() -> None:
    usage = Usage(1, 2, 3, 4, 5, 6, 7)
    assert (usage.capacity, usage.owned) == (28, 10)
    assert usage.shares() == {name: value / 28 for name, value in usage._asdict().items()}
