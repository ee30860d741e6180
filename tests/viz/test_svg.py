"""SVG as strings: numbers, escaping, hatches."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.errors import InvalidInput
from kvlab.viz import svg


@pytest.mark.parametrize(
    ("value", "printed"), [(12.5, "12.5"), (3.0, "3"), (-0.001, "0"), (1 / 3, "0.33"), (1200.0, "1200")]
)
def test_a_number_has_at_most_two_decimals_and_no_trailing_zero(value, printed):
    assert svg.number(value) == printed


def test_names_become_attributes_and_what_a_user_named_is_escaped():
    made = svg.tag("g", svg.text(1, 2, "a<b & c"), class_="kv-x", data_request='say "hi"', rx=None)
    assert made == '<g class="kv-x" data-request="say &quot;hi&quot;"><text x="1" y="2">a&lt;b &amp; c</text></g>'


def test_what_xml_cannot_hold_is_replaced():
    made = svg.tag("g", svg.text(0, 0, "a\x00b\ud800"), data_request="c\x1bd")
    assert made == '<g data-request="c\ufffdd"><text x="0" y="0">a\ufffdb\ufffd</text></g>'


@given(
    x=st.integers(-50, 500),
    y=st.integers(-50, 500),
    width=st.integers(1, 200),
    height=st.integers(1, 80),
    kind=st.sampled_from(["/", "\\", "x"]),
)
def test_a_hatch_stays_in_its_rectangle_at_45_degrees(x, y, width, height, kind):
    lines = re.findall(r"M(-?[\d.]+) (-?[\d.]+)L(-?[\d.]+) (-?[\d.]+)", svg.hatch(x, y, width, height, kind))
    slopes = set()
    for line in lines:
        x0, y0, x1, y1 = map(float, line)
        assert x <= x0 < x1 <= x + width
        assert y <= min(y0, y1)
        assert max(y0, y1) <= y + height
        assert abs(y1 - y0) == pytest.approx(x1 - x0, abs=0.03)
        slopes.add("/" if y1 < y0 else "\\")
    assert slopes <= {"/": {"/"}, "\\": {"\\"}, "x": {"/", "\\"}}[kind]
    if width >= 20 and height >= 20:
        assert len(slopes) == (2 if kind == "x" else 1)


def test_an_unknown_hatch_is_refused():
    with pytest.raises(InvalidInput, match="hatch"):
        svg.hatch(0, 0, 10, 10, "o")
