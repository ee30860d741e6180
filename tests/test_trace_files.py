"""Traces from files: good ones in full, bad ones refused with the file and the line."""

import re
from pathlib import Path

import pytest

from kvlab.errors import InvalidInput
from kvlab.trace_files import read_trace

HEAD = "prompt_tokens,output_tokens,conversation_id,arrival_s,note\n"


def written(folder: Path, text: str | bytes, suffix: str = ".csv") -> Path:
    path = folder / f"trace{suffix}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(path: Path, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as raised:
        read_trace(path)
    assert str(path) in str(raised.value)


def test_a_csv_trace_is_read_with_its_line_numbers(tmp_path: Path) -> None:
    text = HEAD + '5,7,chat-b,0.5,"two\nlines"\n\n9,1,chat-a,0.5,\n3,2,chat-b,4,x\n'
    for encoded in (text.encode(), text.encode("utf-8-sig"), text.replace("\n", "\r\n").encode()):
        trace = read_trace(written(tmp_path, encoded))
        assert trace.prompt_tokens.tolist() == [5, 9, 3]
        assert trace.output_tokens.tolist() == [7, 1, 2]
        assert trace.conversation.tolist() == [0, 1, 0]
        assert trace.arrival_s is not None
        assert trace.arrival_s.tolist() == [0.5, 0.5, 4.0]
        assert trace.lines is not None
        assert trace.lines.tolist() == [3, 5, 6]
    assert (trace.name, trace.provenance) == ("trace", "trace.csv")


def test_a_json_lines_trace_is_read_and_blank_lines_count(tmp_path: Path) -> None:
    text = '{"prompt_tokens": 5, "output_tokens": "7", "extra": []}\n\n{"output_tokens": 1, "prompt_tokens": 9}\n'
    trace = read_trace(written(tmp_path, text, ".jsonl"))
    assert trace.prompt_tokens.tolist() == [5, 9]
    assert trace.arrival_s is None
    assert trace.lines is not None
    assert trace.lines.tolist() == [1, 3]
    assert trace.conversation.tolist() == [0, 1]


@pytest.mark.parametrize("empty", ["", '"conversation_id": null, ', '"conversation_id": "", '])
def test_requests_without_a_conversation_are_their_own(tmp_path: Path, empty: str) -> None:
    line = "{" + empty + '"prompt_tokens": 5, "output_tokens": 7}\n'
    trace = read_trace(
        written(tmp_path, line * 3 + '{"conversation_id": "line 2", "prompt_tokens": 1, "output_tokens": 1}', ".jsonl")
    )
    assert trace.conversation.tolist() == [0, 1, 2, 3]


BAD_VALUES = ["", "x", "1.5", "1e3", "1_000", "nan", "0x10", "-", "5 6"]


@pytest.mark.parametrize("value", BAD_VALUES)
@pytest.mark.parametrize("column", [0, 1])
def test_a_csv_value_that_is_no_whole_number_is_named(tmp_path: Path, value: str, column: int) -> None:
    cells = ["3", "4", "c", "0", ""]
    cells[column] = value
    name = HEAD.split(",")[column]
    path = written(tmp_path, f"{HEAD}5,7,c,0,\n{','.join(cells)}\n")
    refused(path, f"line 3, {name}: {re.escape(repr(value))} is not a whole number of tokens")


@pytest.mark.parametrize("value", ["0", "-4", "9" * 30, str(2**62)])
def test_a_count_out_of_range_is_named(tmp_path: Path, value: str) -> None:
    refused(
        written(tmp_path, f"{HEAD}5,7,c,0,\n5,{value},c,0,\n"), f"line 3, output_tokens: {value} must be at least 1"
    )


@pytest.mark.parametrize("value", ["null", "true", "1.0", "[1]", '{"a": 1}', '"x"', "1e400", "NaN"])
def test_a_json_value_that_is_no_whole_number_is_named(tmp_path: Path, value: str) -> None:
    text = '{"prompt_tokens": 5, "output_tokens": 7}\n{"prompt_tokens": 5, "output_tokens": ' + value + "}\n"
    refused(written(tmp_path, text, ".jsonl"), "line 2, output_tokens: .* is not a whole number of tokens")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt_tokens": 5}\n', "line 1, output_tokens: None is not"),
        ('{"prompt_tokens": 5, "output_tokens": 7}\n{broken\n', "line 2: not JSON"),
        ('{"prompt_tokens": 5, "output_tokens": 7}\n\n[1, 2]\n', "line 3: expected an object, found list"),
        ("", "has no requests"),
        ("\n\n", "has no requests"),
    ],
)
def test_a_bad_json_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    refused(written(tmp_path, text, ".jsonl"), message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no column prompt_tokens or output_tokens"),
        ("5,7\n", "line 1: no column prompt_tokens or output_tokens"),
        ("prompt_tokens\n5\n", "line 1: no column output_tokens in"),
        (HEAD, "has no requests"),
        (HEAD + "5,7,c,0,\n5,7\n", "line 3: expected 5 fields"),
        (HEAD + "5,7,c,0,,,\n", "line 2: expected 5 fields"),
        (HEAD + "5,7,c,later,\n", "line 2, arrival_s: 'later' is not a time in seconds"),
        (HEAD + "5,7,c,,\n", "line 2, arrival_s: '' is not a time in seconds"),
        (HEAD + "5,7,c,2,\n5,7,c,1.5,\n", "line 3, arrival_s: 1.5 comes after 2.0; sort the trace"),
        (HEAD + "5,7,c,-1,\n", "line 2, arrival_s: -1.0"),
        (HEAD + "5,7,c,nan,\n", "line 2, arrival_s: nan"),
        (HEAD + "5,7,c,inf,\n", "line 2, arrival_s: inf"),
        (HEAD + '5,7,c,0,"' + "open " * 40_000, "not CSV: .* quote left open"),
    ],
)
def test_a_bad_csv_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    refused(written(tmp_path, text), message)


def test_an_arrival_beyond_every_float_is_named(tmp_path: Path) -> None:
    text = '{"prompt_tokens": 5, "output_tokens": 7, "arrival_s": ' + "9" * 400 + "}\n"
    refused(written(tmp_path, text, ".jsonl"), "line 1, arrival_s")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_file_that_is_no_text_or_is_not_there_is_refused(tmp_path: Path, suffix: str) -> None:
    refused(written(tmp_path, b"prompt_tokens,output_tokens\n\xff\xfe", suffix), "not UTF-8")
    refused(tmp_path / f"missing{suffix}", "cannot read the trace")
    folder = tmp_path / f"folder{suffix}"
    folder.mkdir()
    refused(folder, "cannot read the trace")


@pytest.mark.parametrize("name", ["trace.txt", "trace", "trace.parquet"])
def test_another_kind_of_file_is_refused(tmp_path: Path, name: str) -> None:
    refused(tmp_path / name, "a trace is a .csv or a .jsonl file")
