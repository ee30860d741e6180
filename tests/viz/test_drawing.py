"""A drawing as a still picture and as text."""

import re
from xml.etree import ElementTree

import pytest

from kvlab.errors import InvalidInput
from kvlab.viz import Picture, svg
from kvlab.viz.drawing import Drawing, looks, text_table, written_out

NS = "{http://www.w3.org/2000/svg}"
TABLE = (("request", "tokens"), ("A", "1,000"), ("B & C", "7"))


def drawing(**changes):
    given = {"title": "Two < three", "description": "A test.", "parts": (svg.rect(0, 0, 10, 10, class_="kv-cell"),)}
    return Drawing(200, 50, **{**given, "table": TABLE, **changes})


def test_the_still_picture_is_a_whole_svg_on_a_card_with_title_and_description():
    root = ElementTree.fromstring(drawing().svg("What happened."))
    assert root.tag == f"{NS}svg"
    assert root.get("role") == "img"
    assert root.find(f"{NS}title").text == "Two < three"
    assert root.find(f"{NS}desc").text == "What happened."
    card = root.find(f"{NS}rect")
    assert card.get("fill") == "#ffffff"
    assert float(card.get("width")) == float(root.get("width")) - 1


def test_the_still_picture_needs_no_style_sheet_no_script_and_no_id():
    drawn = drawing().svg("What happened.")
    for forbidden in ("class=", "<style", "<script", " id=", "url(", "var("):
        assert forbidden not in drawn


def test_a_caption_is_wrapped_and_makes_the_card_taller():
    one, long = (ElementTree.fromstring(drawing().svg(words)) for words in ("Short.", "many words " * 12))
    assert float(long.get("height")) > float(one.get("height"))
    assert len(long.findall(f"{NS}text")) > len(one.findall(f"{NS}text"))


def test_an_untitled_drawing_is_named_by_its_description():
    root = ElementTree.fromstring(drawing(title="").svg())
    assert root.find(f"{NS}title").text == "A test."
    assert drawing(title="").text().startswith("request")


def test_each_rule_has_a_light_value_for_each_property():
    assert looks()["kv-cell"]["fill"] == "#ffffff"
    assert looks()["kv-slots"]["pointer-events"] == "none"
    for name, rule in looks().items():
        assert rule, name
        assert not any("var(" in value for value in rule.values()), name


def test_a_class_that_the_style_sheet_lacks_is_an_error():
    with pytest.raises(KeyError, match="kv-nowhere"):
        written_out('<g class="kv-nowhere"/>')


def test_of_two_classes_the_later_wins():
    assert written_out('<text class="kv-quiet kv-end"/>').count("text-anchor") == 1
    assert re.search(r'font-size="15px"', written_out('<text class="kv-ink kv-large"/>'))


def test_text_aligns_numbers_to_the_right():
    assert text_table(TABLE).splitlines() == [
        "request  tokens",
        "-------  ------",
        "A         1,000",
        "B & C         7",
    ]


@pytest.mark.parametrize("table", [(), (("a", "b"), ("1",))])
def test_a_table_without_header_or_with_ragged_rows_is_refused(table):
    with pytest.raises(InvalidInput, match="header"):
        drawing(table=table)


def test_a_picture_shows_text_and_svg_that_say_the_same():
    data = Picture(drawing(), "What happened.")._repr_mimebundle_()
    assert set(data) == {"text/plain", "image/svg+xml"}
    assert data["text/plain"] == "Two < three\nWhat happened.\n" + text_table(TABLE)
    assert data["image/svg+xml"] == drawing().svg("What happened.")
