"""Each frame in a sentence."""

import pytest

from kvlab.events import EventLog, Replay, to_ranges
from kvlab.viz.captions import blocks_named, captions, listed


def test_the_two_requests_of_lesson_02(two_requests):
    said = captions(Replay(two_requests))
    assert said[0] == "Empty: 16 blocks of 16 slots, all free"
    assert said[1] == "A prefills 37 tokens into blocks 7, 1, 3; 11 slots of block 3 stay empty"
    assert said[3].startswith("A writes its 39th token into block 3; 9 slots of block 3 stay empty. B writes its 21st")
    assert said[12].startswith("A writes its 48th token into block 3; block 3 is full now")
    assert said[13].startswith("A takes block 5 for its 49th token; 15 slots of block 5 stay empty")
    assert said[14].startswith("A finishes: blocks 7, 1, 3, 5 are free again. B writes its 32nd token")


def test_the_four_samples_of_lesson_03(four_samples):
    said = captions(Replay(four_samples))
    assert said[1] == "A prefills 1,000 tokens into 63 blocks; 8 slots of block 62 stay empty"
    assert said[2] == "B, C and D share A's 63 blocks: nothing is copied"
    assert said[3].startswith("A copies block 62, which 4 requests hold, to block 63; it writes its 1,001st token")
    assert said[5].startswith("C copies block 62, which 2 requests hold, to block 65")
    assert "in place, because nobody else holds it any more" in said[6]
    assert sum("in place" in words for words in said) == 1
    assert said[7] == "A, B, C and D write one token each"


def test_contiguous_memory(four_reservations, two_holes):
    assert captions(Replay(four_reservations))[1] == "A reserves 4,096 slots from slot 0 on; it writes 300 tokens"
    assert captions(Replay(two_holes))[-1] == "B finishes: 512 slots from slot 1,024 on are free again"


def test_swap_and_preemption(swapped_and_preempted):
    said = captions(Replay(swapped_and_preempted))
    assert said[3].startswith("B is swapped out: 1 block moves to host memory")
    assert "B is swapped in: its blocks come back as block 4; it writes its 11th token into block 4" in said[4]
    assert "A is preempted: block 2 is free again" in said[4]
    assert "A comes back and computes 11 tokens into block 2" in said[5]


def test_blocks_that_others_hold_stay_with_them():
    log = EventLog([("header", "Paged", (("full", 64, 16, 1, ((0, 4),)),))])
    log.write("admit", "A", 20, 40, 0)
    log.write("grow", "A", "full", ((0, 2),))
    log.write("fork", "A", "B")
    log.step([("A", 16)])
    log.write("release", "A", "aborted")
    log.step()
    assert captions(Replay(log))[-1] == "A is aborted; 2 blocks stay with the others"


def test_rollback_window_and_an_idle_frame():
    log = EventLog([("header", "Paged", (("full", 64, 4, 1, ((0, 16),)),))])
    log.write("admit", "A", 8, 40, 0)
    log.write("grow", "A", "full", to_ranges([0, 1]))
    log.step([("A", 8)])
    log.write("drop", "A", "full", 0, 1)
    log.step()
    log.write("trim", "A", "full", 1)
    log.step([("A", -4)])
    log.step()
    said = captions(Replay(log))
    assert said[2:] == [
        "1 block behind A's window is freed",
        "A gives back 1 block; it rolls back 4 tokens",
        "Nothing changes",
    ]


def test_the_queue_a_refusal_and_what_stays_cached():
    log = EventLog([("header", "PagedPrefix", (("full", 64, 4, 1, ((0, 16),)),))])
    for rid in "ABCD":
        log.write("arrive", rid, 8)
    log.write("arrive", "Z", 900)
    log.step()
    log.write("refuse", "Z", "900 tokens\nnever fit")
    log.write("admit", "A", 8, 40, 0)
    log.write("grow", "A", "full", to_ranges([0, 1]))
    log.write("register", "full", 0, "aaaa", "root")
    log.step([("A", 8)])
    log.write("release", "A", "finished")
    log.step()
    log.write("evict", "full", 0)
    log.write("admit", "B", 8, 40, 0)
    log.write("grow", "B", "full", to_ranges([0, 2]))
    log.step([("B", 8)])
    assert captions(Replay(log))[1:] == [
        "A, B, C, D and Z join the queue",
        "Z is refused for good: 900 tokens↵never fit. A prefills 8 tokens into blocks 0, 1; block 1 is full now",
        "A finishes: block 1 is free again; block 0 stays cached",
        "B prefills 8 tokens into blocks 0, 2; block 2 is full now. Block 0 loses the prefix it had cached",
    ]


def test_one_more_thing_happens():
    log = EventLog([("header", "Paged", (("full", 64, 4, 1, ((0, 16),)),))])
    for number, rid in enumerate("ABCDE"):
        log.write("admit", rid, 2, 40, 0)
        log.write("grow", rid, "full", to_ranges([number]))
    log.step([(rid, 2) for rid in "ABCDE"])
    assert captions(Replay(log))[1].endswith("; and 1 more thing happens")


@pytest.mark.parametrize(
    ("names", "words"),
    [("A", "A"), ("AB", "A and B"), ("ABC", "A, B and C"), ("ABCDEFGH", "A, B, C, D, E and 3 others")],
)
def test_names_are_listed_and_long_lists_cut(names, words):
    assert listed(names) == words


def test_blocks_are_named_while_they_are_few():
    assert blocks_named([7]) == "block 7"
    assert blocks_named([7, 1, 3]) == "blocks 7, 1, 3"
    assert blocks_named(list(range(63))) == "63 blocks"
