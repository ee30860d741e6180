"""Charts: a plotly figure, a still picture and a table that say the same."""

import json
from xml.etree import ElementTree

import plotly.graph_objects as go
import pytest

from kvlab.errors import InvalidInput
from kvlab.viz import Chart, bars, lines, stacked_shares
from kvlab.viz.axes import Axis
from kvlab.viz.charts import PLOTLY_MIME, SHARES

FIGURE_2 = [
    ("Max", {"tokens": 20.4, "reserved": 13.3, "internal": 57.3, "external": 8.9}),
    ("Pow2", {"tokens": 26.8, "reserved": 17.9, "internal": 13.6, "external": 41.6}),
    ("Oracle", {"tokens": 38.2, "reserved": 25.2, "external": 36.6}),
    ("Paged", {"tokens": 96.3, "internal": 3.7}),
]
CHARTS = {
    "shares": lambda: stacked_shares(FIGURE_2, title="Published"),
    "bars": lambda: bars([("16", {"append": 1.0, "fork": 8}), ("32", {"append": 0.9})], title="T", axis="us", log=True),
    "lines": lambda: lines({"a": [(1, 2), (10, 40)], "b": [(1, 3)]}, title="T", x="x", y="y", log_x=True),
}


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_is_valid_still_told_and_the_same_twice(name):
    one, other = CHARTS[name]()._repr_mimebundle_(), CHARTS[name]()._repr_mimebundle_()
    assert json.dumps(one) == json.dumps(other)
    assert set(one) == {"text/plain", PLOTLY_MIME, "image/svg+xml"}
    go.Figure(one[PLOTLY_MIME])  # plotly's own validation
    ElementTree.fromstring(one["image/svg+xml"])
    assert "template" not in one[PLOTLY_MIME]["layout"]
    assert len(json.dumps(one[PLOTLY_MIME])) < 4_000


def test_the_shares_are_the_papers_and_a_missing_part_is_nothing():
    chart = CHARTS["shares"]()
    assert repr(chart).splitlines()[0] == "Published"
    assert chart.table[3] == ("Oracle", "38.2", "25.2", "0.0", "36.6")
    assert [trace["x"] for trace in chart.figure["data"]][2] == [57.3, 13.6, 0.0, 3.7]


def test_shares_differ_by_hatch_as_well_as_colour():
    held = [hatch for part, (_, hatch) in SHARES.items() if part != "free"]
    assert len(set(held)) == len(held)
    patterns = [trace["marker"].get("pattern", {}).get("shape") for trace in CHARTS["shares"]().figure["data"]]
    assert patterns == [None, "/", "\\", "x"]


def test_lines_differ_by_dash_and_marker():
    a, b = CHARTS["lines"]().figure["data"]
    assert a["line"]["dash"] != b["line"]["dash"]
    assert a["marker"]["symbol"] != b["marker"]["symbol"]
    assert CHARTS["lines"]().table == (("x", "a", "b"), ("1", "2", "3"), ("10", "40", "-"))


def test_the_card_is_light_so_that_a_dark_theme_can_read_it():
    layout = CHARTS["bars"]().figure["layout"]
    assert layout["paper_bgcolor"] == "#FFFFFF"
    assert layout["font"]["color"] == "#1F2328"


def test_a_figure_of_ones_own_comes_with_its_table():
    figure = go.Figure(go.Bar(x=["a"], y=[3]), layout={"yaxis": {"title": {"text": "us"}}})
    chart = Chart(figure, [("case", "us"), ("a", "3")], title="Mine")
    data = chart._repr_mimebundle_()
    assert set(data) == {"text/plain", PLOTLY_MIME}
    assert data["text/plain"].startswith("Mine\ncase  us")
    assert data[PLOTLY_MIME]["layout"]["yaxis"]["title"] == {"text": "us"}
    assert "uid" not in data[PLOTLY_MIME]["data"][0]
    with pytest.raises(InvalidInput, match="table"):
        Chart(figure, title="Mine")


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(InvalidInput, match="no place for 0"):
        lines({"a": [(0, 1), (2, 3)]}, title="T", x="x", y="y", log_x=True)
    with pytest.raises(InvalidInput, match="no place for -1"):
        bars([("a", {"b": -1})], title="T", axis="us", log=True)
    with pytest.raises(InvalidInput, match="at least one"):
        stacked_shares([], title="T")
    with pytest.raises(InvalidInput, match="at least one point"):
        lines({"a": []}, title="T", x="x", y="y")


@pytest.mark.parametrize(
    ("low", "high", "log", "words"),
    [
        (0, 96.3, False, ["0", "20", "40", "60", "80", "100"]),
        (0, 0.031, False, ["0", "0.01", "0.02", "0.03", "0.04"]),
        (3, 150, True, ["2", "5", "10", "20", "50", "100", "200"]),
        (1, 1_000_000, True, ["1", "10", "100", "1,000", "10,000", "100,000", "1,000,000"]),
        (7, 7, False, ["6", "8"]),
    ],
)
def test_axes_end_at_round_numbers(low, high, log, words):
    axis = Axis.fit(low, high, 0, 100, log=log)
    assert [word for word, _ in axis.ticks()] == words
    assert axis.at(axis.low) == pytest.approx(0)
    assert axis.at(axis.high) == pytest.approx(100)
