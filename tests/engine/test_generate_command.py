"""`kvlab generate`: text for people, one object for programs, one line for what cannot be done."""

import json

import pytest
from typer.testing import CliRunner

from kvlab.cli import app

ASKED = ["generate", "It is a truth universally acknowledged,", "--tokens", "6"]


def generate(*options: str):
    return CliRunner().invoke(app, [*ASKED, *options])


def test_one_answer_is_streamed_and_is_the_one_that_json_has() -> None:
    streamed, told = generate(), generate("--json")
    (result,) = json.loads(told.stdout)["results"]
    assert streamed.exit_code == told.exit_code == 0
    assert streamed.stdout == f"{ASKED[1]}{result['completions'][0]['text']}\n"
    assert len(result["completions"][0]["token_ids"]) == 6


@pytest.mark.parametrize("policy", ["prefix", "radix", "islands", "max", "pow2", "oracle"])
def test_every_policy_says_the_same(policy: str) -> None:
    assert generate("--policy", policy).stdout == generate().stdout


def test_samples_and_beams() -> None:
    (sampled,) = json.loads(generate("--json", "-n", "2").stdout)["results"]
    (searched,) = json.loads(generate("--json", "--beams", "3").stdout)["results"]
    assert len(sampled["completions"]) == 2
    scores = [each["score"] for each in searched["completions"]]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--memory", "16"], "the whole pool holds 1 blocks"),
        (["--policy", "none"], "no policy is called 'none'"),
        (["--model", "none"], "there is no model 'none'"),
        (["--temperature", "-1"], "temperature"),
        (["--beams", "9999"], "the vocabulary has 2048"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_code_2(options: list[str], words: str) -> None:
    result = generate(*options)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
