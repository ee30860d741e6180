"""The triangle of recomputed tokens."""

import pytest

from kvlab.errors import InvalidInput
from kvlab.viz import Picture, computed_tokens, recompute_triangle, triangle_frames
from kvlab.viz.palette import WARNING


def squares(picture, look):
    return sum(part.count("M") for part in picture.parts if part.startswith("<path") and look in part)


def test_a_cache_computes_each_token_once():
    assert computed_tokens(4, 5) == ([4, 5, 6, 7, 8], [4, 1, 1, 1, 1])


def test_the_picture_counts_both_sides():
    picture = recompute_triangle(*computed_tokens(4, 12))
    assert picture.title == "114 tokens computed without a KV cache, 15 with one"
    assert picture.table[-1] == ("all", "114", "15")
    kept = sum(part.count("z") for part in picture.parts if "kv-kept" in part and part.startswith("<path"))
    assert kept == 114 - 15


def test_what_is_computed_again_is_marked_by_more_than_colour():
    rows = [part for part in recompute_triangle(*computed_tokens(4, 6)).parts if f'fill="{WARNING}"' in part]
    assert len(rows) == 5 + 1  # a row each after the prefill, and the legend
    assert all("kv-slots" in row for row in rows)


def test_it_grows_a_row_a_frame_in_a_box_that_stays():
    frames = triangle_frames(*computed_tokens(3, 4))
    assert len({(drawing.width, drawing.height) for drawing, _ in frames}) == 1
    assert frames[0][1] == "Prefill: both compute the 3 tokens of the prompt"
    assert frames[3][1] == "Decode step 3: without a cache 6 tokens are computed, 5 of them again; with one, 1"
    assert [drawing.table[-1] for drawing, _ in frames][-1] == ("all", "18", "6")


def test_hundreds_of_tokens_still_fit():
    picture = recompute_triangle(*computed_tokens(100, 300))
    assert picture.height < 500
    assert len(Picture(picture)._repr_mimebundle_()["image/svg+xml"]) < 200_000


@pytest.mark.parametrize(("without", "with_cache"), [([], []), ([4, 5], [4]), ([4, 5], [4, 6]), ([4, 5], [4, 0])])
def test_records_that_cannot_be_are_refused(without, with_cache):
    with pytest.raises(InvalidInput):
        recompute_triangle(without, with_cache)
