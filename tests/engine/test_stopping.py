"""When a sequence ends; no part of a stop string ever leaves, beside the plainest reading of the whole text."""

from __future__ import annotations

import codecs
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvlab.engine.sampling import SamplingParams
from kvlab.engine.stopping import StopChecker, output_limit
from kvlab.errors import InvalidInput

LETTERS = "abé한🙂"  # one to four bytes


def checker(params: SamplingParams, limit: int = 1000, eos: tuple[int, ...] = (0,)) -> StopChecker:
    return StopChecker(params, eos_token_ids=eos, output_limit=limit)


def cut_by_reading(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Character by character: the text before the first stop string that becomes complete, the longest of several."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    """What a detokenizer yields for byte tokens that end at `cuts`: a character comes with its last byte."""
    encoded = text.encode()
    bounds = [0, *sorted({cut % len(encoded) for cut in cuts} - {0}), len(encoded)] if encoded else [0]
    decode = codecs.getincrementaldecoder("utf-8")().decode
    return [decode(encoded[start:stop]) for start, stop in pairwise(bounds)]


@given(
    st.text(LETTERS, max_size=30),
    st.lists(st.integers(0, 1000), max_size=60),
    st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=1, max_size=4),
)
@example("abab한", [1, 2, 3, 4, 5], ["bab한"])
@example("aab", [1, 2], ["ab", "b"])
@example("aabé", [2], ["aabb", "bé"])
def test_any_split_into_tokens_gives_the_text_before_the_first_stop_string(
    text: str, cuts: list[int], stops: list[str]
) -> None:
    watched = checker(SamplingParams(stop=tuple(stops)))
    expected, matched = cut_by_reading(text, stops)
    left = ""
    for piece in pieces_of(text, cuts):
        progress = watched.push(1, piece)
        left += progress.text
        assert expected.startswith(left)
        if progress.reason:
            break
    else:
        assert text.removeprefix(left) == "" or any(stop.startswith(text.removeprefix(left)) for stop in stops)
        left += watched.end("aborted").text
        assert matched is None
    assert left == expected
    assert watched.matched == matched
    assert watched.reason == ("aborted" if matched is None else "stop")


def test_only_what_could_become_a_stop_string_is_held_back() -> None:
    watched = checker(SamplingParams(stop=("END", "NEVER")))
    assert [watched.push(1, piece).text for piece in ("some E", "N", "d N", "E", "W EN")] == [
        "some ",
        "",
        "ENd ",
        "",
        "NEW ",
    ]
    assert watched.push(1, "D and more") == ("", "stop")
    assert watched.matched == "END"


def test_without_stop_strings_text_leaves_at_once() -> None:
    watched = checker(SamplingParams())
    assert watched.push(1, "abc") == ("abc", None)


def test_an_end_token_adds_no_text_and_what_was_held_leaves() -> None:
    watched = checker(SamplingParams(stop=("xyz",), stop_token_ids=(7,)))
    assert watched.push(1, "ax") == ("a", None)
    assert watched.push(7, "yz") == ("x", "stop")
    assert (watched.matched, watched.output_tokens) == (7, 2)


def test_eos_ends_unless_ignored_and_stop_tokens_end_all_the_same() -> None:
    assert checker(SamplingParams()).push(0, "").reason == "stop"
    patient = checker(SamplingParams(ignore_eos=True, stop_token_ids=(7,)))
    assert patient.push(0, "") == ("", None)
    assert patient.push(7, "") == ("", "stop")


def test_the_length_ends_it_with_the_held_text_and_a_stop_goes_before_length() -> None:
    watched = checker(SamplingParams(stop=("bc",)), limit=2)
    assert watched.push(1, "a") == ("a", None)
    assert watched.push(1, "b") == ("b", "length")
    assert watched.matched is None
    for token_id, text, matched in ((1, "bc", "bc"), (0, "bc", 0)):
        watched = checker(SamplingParams(stop=("bc",)), limit=1)
        assert watched.push(token_id, text) == ("", "stop")
        assert watched.matched == matched


@pytest.mark.parametrize("reason", ["aborted", "refused"])
def test_what_has_ended_takes_nothing_more(reason: str) -> None:
    watched = checker(SamplingParams(stop=("bc",)))
    watched.push(1, "ab")
    assert watched.end(reason) == ("b", reason)
    with pytest.raises(InvalidInput, match=f"{reason}, after 1 tokens"):
        watched.push(1, "c")
    with pytest.raises(InvalidInput, match="ended already"):
        watched.end("aborted")
    assert (watched.reason, watched.output_tokens) == (reason, 1)


def test_the_model_limits_the_answer_and_a_prompt_that_fills_it_is_refused() -> None:
    params = SamplingParams(max_tokens=50)
    assert [output_limit(params, prompt, 100) for prompt in (1, 50, 51, 99)] == [50, 50, 49, 1]
    with pytest.raises(InvalidInput, match="at most 99"):
        output_limit(params, 100, 100)
