"""Beam search beside transformers' `generate` on a tiny random Llama in float32, and the group's own rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from kvlab.engine.beams import BeamGroup, Hypothesis, best_tokens
from kvlab.errors import InvalidInput

VOCAB = 14
PROMPT = (5, 9, 2)

NextLogits = Callable[[tuple[int, ...]], torch.Tensor]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads only wait for each other on matrices this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.3,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def next_logits(llama: LlamaForCausalLM) -> NextLogits:
    known: dict[tuple[int, ...], torch.Tensor] = {}

    def of(token_ids: tuple[int, ...]) -> torch.Tensor:
        if token_ids not in known:
            with torch.inference_mode():
                known[token_ids] = llama(torch.tensor([PROMPT + token_ids])).logits[0, -1]
        return known[token_ids]

    return of


def searched(group: BeamGroup, next_logits: NextLogits) -> list[Hypothesis]:
    """Runs the group to its end and holds each decision against what the beams before and after it show."""
    while not group.done:
        before = group.live
        log_probs, ids = best_tokens(torch.stack([next_logits(beam.token_ids) for beam in before]), group.candidates)
        decision = group.step(log_probs, ids)
        assert Counter({i: n for i, n in enumerate(decision.children) if n}) == Counter(
            each.parent for each in decision.survivors
        )
        assert [beam.token_ids for beam in group.live] == [
            (*before[each.parent].token_ids, each.token_id) for each in decision.survivors
        ]
        assert len(decision.children) == len(before)
        assert decision.done == group.done == (not group.live)
        assert len(group.live) in ((0,) if group.done else (group.width,))
    return list(group.hypotheses)


def generated(
    llama: LlamaForCausalLM, width: int, eos: tuple[int, ...], **options: Any
) -> list[tuple[tuple[int, ...], float]]:
    result = llama.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
        num_beams=width,
        num_return_sequences=width,
        do_sample=False,
        eos_token_id=list(eos) or None,
        pad_token_id=VOCAB - 1 if VOCAB - 1 not in eos else 0,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    sequences = []
    for row in result.sequences[:, len(PROMPT) :].tolist():
        end = next((place + 1 for place, token_id in enumerate(row) if token_id in eos), len(row))
        sequences.append(tuple(row[:end]))
    return list(zip(sequences, result.sequences_scores.tolist(), strict=True))


COMPARED = [
    (eos, width, length_penalty, early_stopping)
    for eos, widths, length_penalties in (
        ((6,), (2, 3, 4, 5), (0.0, 1.0, 2.0, -1.0)),
        ((3,), (4,), (0.0, 1.0, 2.0, -1.0)),
        ((1, 3), (3,), (1.0, -1.0)),
        ((), (5,), (1.0,)),
    )
    for width in widths
    for length_penalty in length_penalties
    for early_stopping in (False, True, "never")
]


@pytest.mark.parametrize(("eos", "width", "length_penalty", "early_stopping"), COMPARED)
def test_hypotheses_and_scores_are_those_of_transformers(
    llama: LlamaForCausalLM,
    next_logits: NextLogits,
    eos: tuple[int, ...],
    width: int,
    length_penalty: float,
    early_stopping: Any,
) -> None:
    options: dict[str, Any] = {"length_penalty": length_penalty, "early_stopping": early_stopping}
    ours = searched(BeamGroup(width, max_tokens=9, eos_token_ids=eos, **options), next_logits)
    theirs = generated(llama, width, eos, max_new_tokens=9, **options)
    assert [each.token_ids for each in ours] == [token_ids for token_ids, _ in theirs]
    assert [each.score for each in ours] == pytest.approx([score for _, score in theirs], abs=2e-5)
    assert all(each.reason == ("stop" if each.token_ids[-1] in eos else "length") for each in ours)


def test_a_width_of_one_is_greedy_as_in_transformers(llama: LlamaForCausalLM, next_logits: NextLogits) -> None:
    for eos in ((), (3,), (6,), (11,)):
        result = llama.generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
            max_new_tokens=9,
            do_sample=False,
            eos_token_id=list(eos) or None,
            pad_token_id=0,
        )
        (only,) = searched(BeamGroup(1, max_tokens=9, eos_token_ids=eos), next_logits)
        assert list(only.token_ids) == result[0, len(PROMPT) :].tolist()
        assert only.reason == ("stop" if only.token_ids[-1] in eos else "length")


def test_the_compared_searches_end_in_every_way(next_logits: NextLogits) -> None:
    """Else the comparison above would prove little: the three rules stop at three moments."""
    steps = []
    for early_stopping in (True, False, "never"):
        group = BeamGroup(2, max_tokens=9, eos_token_ids=(3,), early_stopping=early_stopping)
        steps.append(0)
        while not group.done:
            rows = torch.stack([next_logits(beam.token_ids) for beam in group.live])
            group.step(*best_tokens(rows, group.candidates))
            steps[-1] += 1
    assert steps[0] < 9
    assert steps[1] == 9
    reasons = [each.reason for each in searched(BeamGroup(4, max_tokens=9, eos_token_ids=(3,)), next_logits)]
    assert set(reasons) == {"stop", "length"}


def given_rows(*rows: dict[int, float]) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities and ids, best first, from probabilities by id."""
    ids = [sorted(row, key=lambda token_id, row=row: -row[token_id]) for row in rows]
    probs = [[row[token_id] for token_id in order] for row, order in zip(rows, ids, strict=True)]
    with np.errstate(divide="ignore"):
        return np.log(np.array(probs, np.float32)), np.array(ids)


def test_a_step_says_which_beams_fork_which_go_on_and_which_die() -> None:
    group = BeamGroup(3, max_tokens=8)
    first = group.step(*given_rows({1: 0.5, 2: 0.3, 3: 0.2}))
    assert [(each.parent, each.token_id) for each in first.survivors] == [(0, 1), (0, 2), (0, 3)]
    assert first.children == (3,)
    second = group.step(*given_rows({1: 0.6, 2: 0.4, 3: 0}, {1: 1.0, 2: 0, 3: 0}, {1: 0.5, 2: 0.5, 3: 0}))
    assert [(each.parent, each.token_id) for each in second.survivors] == [(0, 1), (1, 1), (0, 2)]
    assert second.children == (2, 1, 0)
    assert [beam.token_ids for beam in group.live] == [(1, 1), (2, 1), (1, 2)]
    assert group.live[0].score == pytest.approx(np.log(0.3))


def test_an_end_below_the_best_of_the_step_neither_finishes_nor_goes_on() -> None:
    group = BeamGroup(2, max_tokens=8, eos_token_ids=(0,))
    step = group.step(*given_rows({1: 0.5, 2: 0.3, 0: 0.2}))
    assert step.finished == ()
    assert [each.token_id for each in step.survivors] == [1, 2]
    step = group.step(*given_rows({0: 0.9, 1: 0.06, 2: 0.04}, {1: 0.7, 2: 0.2, 0: 0.1}))
    assert step.finished == group.hypotheses == (Hypothesis((1, 0), pytest.approx(np.log(0.45) / 2), "stop"),)
    assert [(each.parent, each.token_id) for each in step.survivors] == [(1, 1), (1, 2)]
    assert step.children == (0, 2)


def test_equal_scores_go_to_the_better_parent_and_the_lower_id() -> None:
    group = BeamGroup(2, max_tokens=8)
    log_probs = np.log(np.full((1, 4), 0.25, np.float32))
    assert [each.token_id for each in group.step(log_probs, np.array([[3, 1, 2, 0]])).survivors] == [0, 1]
    step = group.step(np.repeat(log_probs, 2, 0), np.array([[3, 1, 2, 0]] * 2))
    assert [(each.parent, each.token_id) for each in step.survivors] == [(0, 0), (0, 1)]


@pytest.mark.parametrize("vocab", [1, 2, 3, 4])
def test_a_tiny_vocabulary_leaves_fewer_beams_and_still_ends(vocab: int) -> None:
    group = BeamGroup(4, max_tokens=3, eos_token_ids=(0,))
    while not group.done:
        logits = torch.randn(len(group.live), vocab, generator=torch.Generator().manual_seed(vocab))
        group.step(*best_tokens(logits, group.candidates))
    assert 1 <= len(group.hypotheses) <= 4
    assert len({each.token_ids for each in group.hypotheses}) == len(group.hypotheses)
    assert not group.live


@given(st.data())
def test_survivors_are_the_best_continuations_that_do_not_end(data: st.DataObject) -> None:
    width, vocab = data.draw(st.integers(1, 4)), data.draw(st.integers(8, 20))
    eos = data.draw(st.sets(st.integers(0, vocab - 1), max_size=2))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    group = BeamGroup(width, max_tokens=4, eos_token_ids=eos)
    while not group.done:
        before = group.live
        logits = torch.randn(len(before), vocab, generator=generator) * 2
        totals = {
            (*beam.token_ids, token_id): beam.score + value
            for beam, row in zip(before, logits.log_softmax(-1).tolist(), strict=True)
            for token_id, value in enumerate(row)
        }
        ranked = sorted(totals, key=lambda sequence: -totals[sequence])
        step = group.step(*best_tokens(logits, group.candidates))
        if not step.done:
            going = [sequence for sequence in ranked if sequence[-1] not in eos][:width]
            assert [beam.token_ids for beam in group.live] == going
            ended = [sequence for sequence in ranked[:width] if sequence[-1] in eos]
            assert [each.token_ids for each in step.finished] == ended


def test_a_refused_step_changes_nothing() -> None:
    group = BeamGroup(2, max_tokens=2)
    log_probs, ids = given_rows({1: 0.5, 2: 0.3, 3: 0.2})
    for wrong, message in (
        ((np.vstack([log_probs] * 2), np.vstack([ids] * 2)), "1 live beams need a row"),
        ((log_probs, ids[:, :2]), "1 live beams need a row"),
        ((np.full_like(log_probs, np.nan), ids), "NaN"),
        ((np.full_like(log_probs, -np.inf), ids), "nothing finite"),
    ):
        with pytest.raises(InvalidInput, match=message):
            group.step(*wrong)
        assert (len(group.live), group.done, group.hypotheses) == (1, False, ())
    group.step(log_probs, ids)
    assert group.step(np.vstack([log_probs] * 2), np.vstack([ids] * 2)).done
    assert [each.reason for each in group.hypotheses] == ["length"] * 2
    with pytest.raises(InvalidInput, match="done"):
        group.step(log_probs, ids)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"width": 0}, "beams"), ({"max_tokens": 0}, "max_tokens"), ({"length_penalty": 60.0}, "no float32")],
)
def test_groups_that_cannot_be_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        BeamGroup(**{"width": 2, "max_tokens": 9, **wrong})


def test_best_tokens_are_log_probabilities_in_float32_cut_to_the_vocabulary() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0]], dtype=torch.bfloat16)
    log_probs, ids = best_tokens(logits, 10)
    assert ids.tolist() == [[1, 2, 0]]
    assert log_probs.dtype == np.float32
    assert np.exp(log_probs).sum() == pytest.approx(1)
    assert best_tokens(logits, 2)[1].tolist() == [[1, 2]]
