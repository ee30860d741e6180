"""What sharing saves, held against counting by hand, the audit and the log."""

import pytest

from kvlab.errors import InvalidInput
from kvlab.events import EventLog, Replay
from kvlab.policies.paged import Paged
from kvlab.shapes import ModelShape
from kvlab.simulate import examples
from kvlab.simulate.sharing import Beams, Sharing, beam_search, parallel, saving
from kvlab.viz.captions import captions
from kvlab.workload import Request, Workload, uniform

LLAMA = ModelShape.preset("llama-3.1-8b")


def policy(blocks: int = 400, log: EventLog | None = None) -> Paged:
    return Paged(LLAMA.groups(), blocks * 16, log=log)


def held(each: Paged) -> int:
    return each.pool.blocks - each.pool.free_blocks


def test_samples_of_the_article_copy_three_times_eight_tokens():
    run = parallel(policy(), Request("r", 1000, 200, output_tokens=200), 4)
    assert run.copied_bytes == 3 * 8 * LLAMA.bytes_per_token
    assert (run.branches, run.branch_bytes) == (3, 3 * 1000 * LLAMA.bytes_per_token)


@pytest.mark.parametrize("prompt", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("output", [1, 16, 37])
def test_block_steps_are_those_of_decoding_token_by_token(prompt: int, output: int):
    shared = [held(examples.parallel_samples(3, prompt, step)) for step in range(1, output + 1)]
    alone = [held(examples.parallel_samples(3, prompt, step, share=False)) for step in range(1, output + 1)]
    run = parallel(policy(), Request("r", prompt, output, output_tokens=output), 3)
    assert (run.held_blocks, run.alone_blocks) == (sum(shared), sum(alone))


def test_samples_save_the_share_of_the_prompt_that_all_but_one_need_not_hold():
    # 64 full blocks of prompt, and at each of 16 steps one block of the answer's: 64 of 65.
    run = parallel(policy(), Request("r", 1024, 16, output_tokens=16), 4)
    assert run.saving == pytest.approx(64 / 65 * 3 / 4)


@pytest.mark.parametrize("width", [1, 2, 4, 6])
def test_beams_keep_the_books_and_give_everything_back(width: int):
    each = policy()
    beams = Beams(each, 40, 64, width, seed=3)
    alone = 0
    for step in range(64):
        before = len(beams.sequences)
        parents = beams.step()
        each.audit()
        assert len(parents) == len(beams.sequences) == width
        assert all(0 <= parent < before for parent in parents)
        assert {request.computed for request in beams.sequences} == {41 + step}
        alone += sum(len(each.layout(request.rid)[0].blocks) for request in beams.sequences)
    assert beams.so_far.alone_blocks == alone
    assert beams.so_far.copied_bytes < beams.so_far.branch_bytes or width == 1
    beams.finish()
    assert held(each) == 0


def test_a_beam_that_branches_has_its_parents_tokens_and_blocks():
    each = policy()
    beams = Beams(each, 40, 64, 4, seed=0)
    for _ in range(20):
        before = [list(each.layout(request.rid)[0].blocks) for request in beams.sequences]
        for parent, request in zip(beams.step(), beams.sequences, strict=True):
            full = (request.computed - 1) // 16
            assert list(each.layout(request.rid)[0].blocks)[:full] == before[parent][:full]


def test_the_seed_decides_who_branches():
    runs = [Beams(policy(), 40, 32, 4, seed=seed) for seed in (5, 5, 6)]
    first, again, other = ([run.step() for _ in range(32)] for run in runs)
    assert first == again != other


def test_the_log_of_a_beam_search_replays_to_its_tables_in_colours_of_their_own():
    log = EventLog()
    each = policy(64, log)
    beams = Beams(each, 40, 20, 4, seed=0, log=log)
    beams.run(20)
    state = Replay(log).state(-1)
    tables = {request.rid: request.tables["full"] for request in state.running()}
    assert tables == {request.rid: list(each.layout(request.rid)[0].blocks) for request in beams.sequences}
    assert sorted(request.order for request in state.running()) == [0, 1, 2, 3]


def test_captions_of_copies_in_one_frame_count_the_holders_that_are_left():
    log = EventLog()
    Beams(policy(64, log), 40, 4, 4, log=log).run(1)
    said = captions(Replay(log))[-1]
    for copied in ("which 4 requests hold, to block 3", "which 3 requests hold, to block 4", "which 2 requests hold"):
        assert copied in said


def test_captions_say_in_place_only_of_a_block_that_was_left_and_not_of_a_fresh_copy():
    log = EventLog()
    Beams(policy(64, log), 72, 12, 4, seed=0, log=log).run(12)
    fresh = [said for said in captions(Replay(log)) if "to block 4; it writes its 76th" in said]
    assert fresh == [
        "b1 copies block 6, which 2 requests hold, to block 4; it writes its 76th token into block 4; "
        "4 slots of block 4 stay empty. b2, b3 and b4 write one token each"
    ]


@pytest.mark.parametrize("run", [parallel, beam_search])
def test_more_sequences_save_more_and_one_saves_nothing(run):
    lengths = uniform(40, 100, 60, seed=1)
    saved = [saving(lengths, run, width, requests=10) for width in (1, 2, 4)]
    assert saved[0] == 0
    assert saved == sorted(saved)
    assert saved[2] > saved[1] > 0


def test_one_request_of_one_token_can_be_searched():
    assert beam_search(policy(), Request("r", 3, 1, output_tokens=1), 4).branches == 3


def test_more_requests_than_the_workload_has_are_refused():
    lengths: Workload = uniform(5, 10, 10)
    with pytest.raises(InvalidInput, match="has 5 requests, not 6"):
        saving(lengths, parallel, 2, requests=6)


@pytest.mark.parametrize("width", [0, -1])
def test_a_beam_has_a_width(width: int):
    with pytest.raises(InvalidInput, match="width"):
        Beams(policy(), 40, 4, width)


def test_sums_add_up():
    assert Sharing(1, 2, 3, 4, 5) + Sharing(10, 20, 30, 40, 50) == Sharing(11, 22, 33, 44, 55)
