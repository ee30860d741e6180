"""The checks of lesson 03 name what is wrong with plausible answers and accept right ones."""

from collections import Counter

import pytest

from kvlab.course import quiz
from kvlab.course.checks import CHECK_MIME
from kvlab.course.lesson_03 import FULL_BLOCK, PROMPT_KV, check_next_beams, check_write
from kvlab.course.shared_samples import Samples, copy_on_write
from kvlab.errors import InvariantViolation
from kvlab.events import Replay
from kvlab.viz import player, sharing


def shown(check):
    return check._repr_mimebundle_()[CHECK_MIME]


def copy_with_numbers_first(pool, memory, table, position, token):
    if position % 16 == 0:
        table.append(pool.allocate(1)[0])
    elif pool.references[table[-1]] != 1:
        contents = memory[table[-1]].copy()
        pool.free((table.pop(),))
        table.append(pool.allocate(1)[0])
        memory[table[-1]] = contents
    memory[table[-1]][position % 16] = token


@pytest.mark.parametrize("right", [copy_on_write, copy_with_numbers_first])
def test_a_right_write_passes(right):
    assert check_write(right).passed


def never_copies(pool, memory, table, position, token):
    index, offset = divmod(position, 16)
    if index == len(table):
        table += pool.allocate()
    memory[table[index], offset] = token


def written(shared_case):
    """A `write` whose copy-on-write is `shared_case(pool, memory, table, index)`."""

    def write(pool, memory, table, position, token):
        index, offset = divmod(position, 16)
        if index == len(table):
            table += pool.allocate()
        else:
            shared_case(pool, memory, table, index)
        memory[table[index], offset] = token

    return write


def copies_without_letting_go(pool, memory, table, index):
    if pool.references[table[index]] > 1:
        (own,) = pool.allocate()
        memory[own] = memory[table[index]]
        table[index] = own


def never_looks_at_the_count(pool, memory, table, index):
    (own,) = pool.allocate()
    memory[own] = memory[table[index]]
    pool.free([table[index]])
    table[index] = own


def moves_no_contents(pool, memory, table, index):
    if pool.references[table[index]] > 1:
        pool.free([table[index]])
        (table[index],) = pool.allocate()


def copies_into_nobodys_block(pool, memory, table, index):
    if pool.references[table[index]] > 1:
        (own,) = pool.allocate()
        memory[own] = memory[table[index]]


def copies_for_two_readers_only(pool, memory, table, index):
    if pool.references[table[index]] > 2:
        never_looks_at_the_count(pool, memory, table, index)


WRONG_WRITES = {
    "everybody writes into the same block": (never_copies, "s1 finds a token of s4 at position 1,000"),
    "the count never falls": (written(copies_without_letting_go), "block 62 has 4 references, but 0 tables name it"),
    "the last writer copies too": (written(never_looks_at_the_count), "copies: 4"),
    "an empty block instead of a copy": (written(moves_no_contents), "s1 finds nothing at position 992"),
    "the table still names the old block": (written(copies_into_nobodys_block), "s1 finds a token of s4"),
    "off by one in the count": (written(copies_for_two_readers_only), "s3 finds a token of s4 at position 1,000"),
}


@pytest.mark.parametrize(("wrong", "found"), WRONG_WRITES.values(), ids=WRONG_WRITES)
def test_a_wrong_write_is_named(wrong, found):
    said = shown(check_write(wrong))
    assert said["status"] == "not yet"
    assert found in said["found"]


def test_a_write_that_raises_shows_its_own_error():
    said = shown(check_write(written(lambda pool, memory, table, index: pool.free([999]))))
    assert said["status"] == "not yet"
    assert "InvalidInput" in said["found"]


def fork_all_then_release_all(pool, tables, parents):
    survivors = [list(tables[parent]) for parent in parents]
    for table in survivors:
        pool.touch(table)
    for table in tables:
        pool.free(table)
    return survivors


def first_child_keeps_the_table(pool, tables, parents):
    for beam, table in enumerate(tables):
        if beam not in parents:
            pool.free(table)
    seen = set()
    survivors = []
    for parent in parents:
        if parent in seen:
            pool.touch(tables[parent])
        seen.add(parent)
        survivors.append(tables[parent][:])
    return survivors


@pytest.mark.parametrize("right", [fork_all_then_release_all, first_child_keeps_the_table])
def test_right_pruning_passes(right):
    assert check_next_beams(right).passed


def releases_first(pool, tables, parents):
    for table in tables:
        pool.free(table)
    survivors = [list(tables[parent]) for parent in parents]
    for table in survivors:
        pool.touch(table)
    return survivors


def never_releases(pool, tables, parents):
    survivors = [list(tables[parent]) for parent in parents]
    for table in survivors:
        pool.touch(table)
    return survivors


def one_reference_for_all_children(pool, tables, parents):
    for parent in Counter(parents):
        pool.touch(tables[parent])
    for table in tables:
        pool.free(table)
    return [list(tables[parent]) for parent in parents]


def children_share_one_list(pool, tables, parents):
    for parent in parents:
        pool.touch(tables[parent])
    for table in tables:
        pool.free(table)
    return [tables[parent] for parent in parents]


def only_the_losers_are_released(pool, tables, parents):
    survivors = never_releases(pool, tables, parents)
    for beam, table in enumerate(tables):
        if beam not in parents:
            pool.free(table)
    return survivors


def keeps_the_old_beams(pool, tables, parents):
    return fork_all_then_release_all(pool, tables, sorted(parents))


WRONG_PRUNING = {
    "released before forked": (releases_first, "StaleHandle"),
    "losers never released": (never_releases, "block 0 has 5 references, but 4 tables name it"),
    "one reference for all children": (one_reference_for_all_children, "has 1 references, but 4 tables name it"),
    "children share one list": (children_share_one_list, "the same list twice"),
    "parents keep their references": (only_the_losers_are_released, "block 0 has 5 references"),
    "survivors in another order": (keeps_the_old_beams, "not its own"),
    "nothing returned": (lambda pool, tables, parents: None, "None"),
}


@pytest.mark.parametrize(("wrong", "found"), WRONG_PRUNING.values(), ids=WRONG_PRUNING)
def test_wrong_pruning_is_named(wrong, found):
    said = shown(check_next_beams(wrong))
    assert said["status"] == "not yet"
    assert found in said["found"]


def test_the_samples_log_replays_to_their_tables():
    run = Samples(copy_on_write)
    run.generate(1)
    run.generate(199)
    state = Replay(run.log).state(-1)
    assert [request.tables["full"] for request in state.running()] == run.tables
    assert [request.tokens for request in state.running()] == [1200] * 4
    assert state.copies == run.copies == 3
    assert len(player(run.log, sharing).frames) == 1 + 1 + 1 + 4 + 1


def test_a_shrinking_table_can_still_be_drawn():
    def drops(pool, memory, table, position, token):
        pool.free([table.pop()])

    run = Samples(drops)
    run.generate(1)
    run.generate(2)
    assert [request.tables["full"] for request in Replay(run.log).state(-1).running()] == run.tables


def test_the_audit_of_the_samples_names_the_block():
    run = Samples(written(copies_without_letting_go))
    run.generate(200)
    assert (run.copies, run.blocks) == (4, 115)
    assert run.misread() == ""
    with pytest.raises(InvariantViolation, match="block 62 has 4 references, but 0 tables name it"):
        run.audit()
    run.release()
    assert run.blocks == 1


@pytest.mark.parametrize("item", [PROMPT_KV, FULL_BLOCK], ids=lambda item: item.name)
def test_quizzes_explain_every_answer(item):
    states = [quiz(item, letter).state for letter, _ in item.lettered()]
    assert sorted(states) == ["right", "wrong", "wrong", "wrong"]
    assert all(option.why for option in item.options)
