"""Colours can be read and told apart."""

import pytest

from kvlab.viz.palette import COLOURS, WARNING, colour, contrast, name, text_on


@pytest.mark.parametrize("fill", COLOURS)
def test_a_name_is_readable_on_its_colour(fill):
    assert contrast(text_on(fill), fill) >= 4.5


def test_contrast_is_that_of_wcag():
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)


def test_the_first_two_requests_differ_in_lightness_too():
    assert contrast(COLOURS[0], COLOURS[1]) > 2


def test_colours_start_again_but_names_do_not():
    assert len(set(COLOURS)) == len(COLOURS)
    assert colour(0) == colour(len(COLOURS))
    assert WARNING in COLOURS
    assert (name("A"), name(7)) == ("A", "r7")
