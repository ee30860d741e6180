"""What people and models write, in pictures."""

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.viz import svg
from kvlab.viz.words import shown


@pytest.mark.parametrize(
    ("written", "most", "words"),
    [
        ("a\nb\r\nc\td", 9, "a↵b↵c⇥d"),
        ("nul\x00 bell\x07", 20, "nul· bell·"),
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abcde…"),
        ("", 3, ""),
        ("ab", 0, "…"),
    ],
)
def test_new_lines_tabs_and_what_cannot_be_printed_have_signs(written, most, words):
    assert shown(written, most) == words


@given(st.text(), st.integers(1, 40))
def test_any_text_fits_parses_and_keeps_table_cells_apart(written, most):
    words = shown(written, most)
    assert len(words) <= most
    assert "\t" not in words
    assert ElementTree.fromstring(svg.text(0, 0, words)).text == (words or None)
