"""Tables of notebooks: the same in text and in HTML."""

import re

import pytest

from kvlab.course.measured import measured_text
from kvlab.course.normalise import MEASURED
from kvlab.course.table import Table
from kvlab.errors import InvalidInput

SIZES = Table("What <it> costs", ("model", "bytes"), [("a & b", "1,024"), ("c", "2")], note="Counted in `bytes`.")


def test_as_text_numbers_stand_to_the_right():
    assert repr(SIZES).splitlines() == [
        "What <it> costs",
        "model  bytes",
        "-----  -----",
        "a & b  1,024",
        "c          2",
        "Counted in `bytes`.",
    ]


def test_as_html_it_says_the_same_with_headers_for_rows_and_columns():
    bundle = SIZES._repr_mimebundle_()
    assert bundle["text/plain"] == repr(SIZES)
    html = bundle["text/html"]
    assert html.count('scope="col"') == 2
    assert html.count('scope="row"') == 2
    assert "a &amp; b" in html
    assert "&lt;it&gt;" in html
    assert html.index("2</td>") < html.index("Counted in")


def test_without_a_note_nothing_stands_below():
    assert repr(Table("T", ("a",), [("1",)])).splitlines()[-1] == "1"


@pytest.mark.parametrize("rows", [[], [("1",)], [("1", "2"), ("1", "2", "3")]])
def test_no_rows_or_rows_of_another_length_are_refused(rows: list[tuple[str, ...]]):
    with pytest.raises(InvalidInput, match="rows of 2 cells"):
        Table("T", ("a", "b"), rows)


def test_the_width_of_a_clock_reading_leaves_no_trace_in_the_text():
    texts = []
    for seconds in (0.0123, 1.5, 0.000004567):
        table = Table("Two", ("arm", "time"), [("native", measured_text(seconds)), ("gather", measured_text(0.2))])
        texts.append(re.sub(MEASURED, "measured: TIME", repr(table)))
    assert texts == ["Two\n  arm | time\n  native | measured: TIME\n  gather | measured: TIME"] * 3
