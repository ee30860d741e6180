"""Chains of digests: where they are equal they are green and tied, the first that differs is red."""

import re
from xml.etree import ElementTree

import pytest

from kvlab.errors import InvalidInput
from kvlab.events import EventLog, Replay, State
from kvlab.policies.prefix import PagedPrefix
from kvlab.shapes import LayerGroup
from kvlab.viz import Link, Picture, hash_chain, prefix_chains
from kvlab.viz.palette import WARNING
from kvlab.viz.scenes.hash_rows import GREEN
from kvlab.workload import Request

A = [Link("d0", "You are", "held", 7), Link("d1", "a clerk.", "held", 1), Link("d2", "Hello", "held", 3)]
B = [Link("d0", "You are", "hit", 7), Link("d1", "a clerk.", "hit", 1), Link("e2", "Good day", "computed", 4),
     Link("e3", "Hello", "computed", 5)]  # fmt: skip


def drawn(chains, **options):
    one, other = (hash_chain(chains, **options) for _ in range(2))
    assert one == other
    root = ElementTree.fromstring(Picture(one)._repr_mimebundle_()["image/svg+xml"])
    assert root[0].text == one.title
    assert root[1].text == one.description
    for part in one.parts:
        ElementTree.fromstring(f"<g>{part}</g>")
    return one


def boxes(drawing):
    """Tip -> SVG of each block."""
    return {tip: part for part in drawing.parts for tip in re.findall(r'data-tip="([^"]+)"', part)}


def test_a_common_run_and_the_first_that_differs():
    picture = drawn({"A": A, "B": B})
    assert picture.title == "B finds 2 of its 4 blocks; block 2 is the first that A does not have"
    found = boxes(picture)
    tints = [next((t for t in (GREEN, WARNING) if t in part), "") for part in found.values()]
    assert tints == [GREEN, GREEN, "", GREEN, GREEN, WARNING, WARNING]
    framed = ["kv-curve" in part for part in found.values()]
    assert framed == [True, True, False, True, True, True, False]
    assert list(found)[3] == "B, block 0: digest d0, found in physical block 7; the same block as in A"
    parts = "".join(picture.parts)
    assert [parts.count(sign) for sign in ("✓ found", "≠ computed")] == [2, 1]


def test_the_table_says_the_same():
    table = drawn({"A": A, "B": B}).table
    assert table[0] == ("request", "block", "digest", "parent's digest", "tokens", "status", "also in")
    assert table[4] == ("B", "0", "d0", "-", "You are", "found in physical block 7", "A")
    assert table[6] == ("B", "2", "e2", "d1", "Good day", "computed in physical block 4", "-")
    assert len(table) == 1 + 3 + 4


def test_the_same_tokens_after_another_parent_are_another_block():
    picture = drawn({"A": A, "B": B})
    assert [row[-1] for row in picture.table if row[4] == "Hello"] == ["-", "-"]


def test_another_salt_shares_nothing():
    chains = {"A": A, "B": [Link(f"x{each.digest}", each.label, "computed") for each in A]}
    picture = drawn(chains, salts={"A": "red", "B": "blue"})
    assert picture.title == "B finds 0 of its 3 blocks; block 0 is the first that A does not have"
    assert GREEN not in "".join(picture.parts)
    assert all(f">{salt}<" in "".join(picture.parts) for salt in ("red", "blue"))


def test_cached_and_evicted_blocks_are_told_by_dashes_and_hatch():
    picture = drawn({"A": [("d0", "one", "cached"), ("d1", "two", "evicted")]})
    cached, evicted = boxes(picture).values()
    assert "kv-free" in cached
    assert "kv-hatch" not in cached
    assert "kv-hatch" in evicted
    assert [row[5] for row in picture.table[1:]] == ["cached", "evicted"]


def test_a_found_block_is_green_whoever_has_it():
    picture = drawn({"A": A[:1], "B": [("d0", "", "hit"), ("d1", "", "hit")]})
    assert WARNING not in "".join(picture.parts)


def test_long_chains_fold_but_not_where_they_part():
    long = [Link(f"d{i}", f"block {i}", "held") for i in range(5000)]
    other = [*(link._replace(status="hit") for link in long[:4000]), *(Link(f"e{i}", "", "computed") for i in range(9))]
    picture = drawn({"A": long, "B": other})
    parts = "".join(picture.parts)
    assert "block 3999<" in parts
    assert "block 4000<" in parts
    assert ("B", "1-3998", "…", "…", "3,998 blocks", "3,998 found", "A") in picture.table
    assert "block 4,000 is the first" in picture.title
    for x, width in re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', parts):
        assert float(x) + float(width) <= picture.width + 1


def test_three_chains_and_one_that_is_empty():
    picture = drawn({"A": A, "B": B, "C": [], 4: A[:1]})
    assert picture.title == "2 of 8 full blocks found in the cache"
    assert "no full block" in "".join(picture.parts)
    assert "There is no chain." in "".join(drawn({}).parts)


def test_words_of_a_model_are_escaped():
    picture = drawn({"<A>\n": [("<d>\x00&", "</text>\n\t\x00&amp; and a long text that goes on", "computed")]})
    assert not re.search(r"[\n\t\x00]", "".join(cell for row in picture.table for cell in row))


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(InvalidInput, match="block 1 of chain 'A' is 'lost'; a link is one of hit, held"):
        hash_chain({"A": [A[0], ("d1", "", "lost")]})
    with pytest.raises(InvalidInput, match="13 chains"):
        hash_chain(dict.fromkeys(range(13), A))
    with pytest.raises(InvalidInput, match="no pool"):
        prefix_chains(State())


@pytest.fixture
def chat():
    """A prefills 4 full blocks; B shares two of them; A finishes; C evicts."""
    log = EventLog()
    policy = PagedPrefix((LayerGroup("global", "full", (0,), None, 4),), 48, block_size=4, log=log)

    def serve(rid, ids):
        found = policy.admit(Request(rid, ids, 8)).cached_tokens
        policy.extend(rid, len(ids) - found)
        policy.commit(rid, ids[found:])
        log.step([(rid, len(ids) - found)])

    serve("A", list(range(18)))
    serve("B", [*range(9), *[77] * 9])
    policy.release("A", "finished")
    log.step()
    serve("C", list(range(100, 125)))
    return Replay(log)


def statuses(chains):
    return {rid: [link.status for link in links] for rid, links in chains.items()}


def test_a_state_tells_its_chains(chat):
    assert statuses(prefix_chains(chat.state(2), chat.events(2))) == {
        "A": ["held"] * 4,
        "B": ["hit", "hit", "computed", "computed"],
    }
    assert statuses(prefix_chains(chat.state(2)))["B"] == ["hit", "hit", "held", "held"]
    after = prefix_chains(chat.state(3))
    assert statuses(after) == {"cache 1": ["held", "held", "cached", "cached"], "B": ["hit", "hit", "held", "held"]}
    assert [link.digest for link in after["cache 1"][:2]] == [link.digest for link in after["B"][:2]]


def test_an_evicted_tail_is_gone_from_the_chain_of_the_state(chat):
    chains = prefix_chains(chat.state(4))
    assert any(event[0] == "evict" for event in chat.events(4))
    assert len(chains.get("cache 1", [])) < 4
    drawn(chains)


def test_labels_are_by_digest(chat):
    state = chat.state(2)
    first = prefix_chains(state)["A"][0].digest
    assert prefix_chains(state, labels={first: "Once upon"})["B"][0].label == "Once upon"


def test_a_state_without_a_cache_has_empty_chains(four_samples):
    assert prefix_chains(Replay(four_samples).state(2)) == {rid: [] for rid in "ABCD"}
