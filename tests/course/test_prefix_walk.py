"""What lesson 06 shows about real policies is true of them, and what it breaks is broken."""

import pytest

from kvlab.course.prefix_walk import (
    HALL,
    LETTER,
    OwnLookup,
    RootsFirst,
    StaleNames,
    ask,
    chains,
    finish,
    names_of,
    prefill,
    small_cache,
    with_lookup,
    words_of,
)
from kvlab.engine.engine import Engine
from kvlab.engine.sampling import SamplingParams
from kvlab.errors import InvalidInput, InvariantViolation
from kvlab.events import EventLog, Replay
from kvlab.policies.prefix import PagedPrefix
from kvlab.workload import Request

BRIEF = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def model() -> Engine:
    return Engine.from_pretrained("embedded")


def right(names, find, tokens, block_size):
    found = []
    for name in names[: (tokens - 1) // block_size]:
        if (block := find(name)) is None:
            break
        found.append(block)
    return found


def test_names_are_those_of_the_policy():
    cache = small_cache(8, 8)
    ids = list(range(30))
    prefill(cache, Request("a", ids, 8, salt="anna"))
    registered = [cache.pool.prefixes.find(name) for name in names_of(ids, 8, "anna")]
    assert registered == [0, 1, 2]
    assert [cache.pool.prefixes.find(name) for name in names_of(ids, 8)] == [None] * 3


def test_the_scene_says_the_words_of_each_block(model: Engine):
    log = EventLog()
    prefill(small_cache(40, 8, log), Request("A", model.tokenizer.encode(HALL), 8))
    replay = Replay(log)
    words = words_of(model.tokenizer, [HALL], 8)
    told = chains(words)(replay.state(-1), replay.events(len(replay) - 1)).table
    assert any("You are the steward" in cell for row in told for cell in row)


def test_an_own_lookup_serves_as_the_policys(model: Engine):
    engines = [
        Engine(model.decoder, model.tokenizer, make) for make in (with_lookup(right), lambda g: PagedPrefix(g, 2048))
    ]
    assert isinstance(engines[0].policy, OwnLookup)
    ids = model.tokenizer.encode(HALL)
    for tokens in (64, 47, 48, 49):
        one, other = (ask(engine, ids[:tokens], BRIEF) for engine in engines)
        assert (one.cached_tokens, one.token_ids) == (other.cached_tokens, other.token_ids)
    engines[0].policy.audit()


def test_a_lookup_that_leaves_nothing_to_compute_is_refused_by_attention(model: Engine):
    def all_of_it(names, find, tokens, block_size):
        return right(names, find, tokens + 1, block_size)

    engine = Engine(model.decoder, model.tokenizer, with_lookup(all_of_it))
    ids = model.tokenizer.encode(HALL)[:48]
    ask(engine, ids, BRIEF)
    with pytest.raises(InvalidInput, match="0 queries and a length of 48"):
        ask(engine, ids, BRIEF)


def test_a_stale_name_hands_out_anothers_blocks_and_the_audit_says_so(model: Engine):
    anna, ben = (model.tokenizer.encode(text)[:tokens] for text, tokens in ((HALL, 81), (LETTER, 165)))
    found = {}
    for kind in (PagedPrefix, StaleNames):
        engine = Engine(model.decoder, model.tokenizer, lambda groups, kind=kind: kind(groups, 192))
        results = [ask(engine, ids, BRIEF) for ids in (anna, ben, anna)]
        found[kind] = (results[2].cached_tokens, results[0].token_ids == results[2].token_ids)
    assert found == {PagedPrefix: (16, True), StaleNames: (80, False)}
    with pytest.raises(InvariantViolation, match="holds another or none"):
        engine.policy.audit()


def test_with_roots_first_what_is_left_cannot_be_found(model: Engine):
    found = []
    for kind in (PagedPrefix, RootsFirst):
        cache = kind(model.policy.groups, 64, block_size=8)
        for rid, first in (("a", 0), ("b", 500)):
            request = Request(rid, list(range(first, first + 46 - 10 * (rid == "a"))), 8)
            prefill(cache, request)
            finish(cache, request)
        cache.audit()
        kept = [cache.pool.prefixes.find(name) is not None for name in names_of(range(36), 8)]
        found.append((kept, cache.peek(Request("again", list(range(36)), 8))))
    assert found == [([True, True, False, False], 16), ([False, False, True, True], 0)]
