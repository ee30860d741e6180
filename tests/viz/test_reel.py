"""What a player sends is less than its frames, and is exactly its frames."""

from hypothesis import given
from hypothesis import strategies as st

from kvlab.viz.drawing import Drawing
from kvlab.viz.reel import folded, reel, unfolded

PARTS = st.lists(st.sampled_from([f"<g>{i}</g>" for i in range(8)]), max_size=12)
ROWS = st.lists(st.tuples(st.sampled_from("ABC"), st.sampled_from("123")), max_size=4)


@given(st.lists(st.integers(0, 300)))
def test_folded_indices_unfold_to_themselves(indices):
    assert unfolded(folded(indices)) == indices


def test_runs_are_folded():
    assert folded([0, 1, 2, 5, 4]) == "0-2 5 4"


@given(st.lists(st.tuples(PARTS, ROWS), min_size=1, max_size=8))
def test_every_frame_and_table_comes_back_from_the_fragments(frames):
    header = ("request", "tokens")
    drawings = [Drawing(10, 10, tuple(parts), "", "", (header, *rows)) for parts, rows in frames]
    cut = reel(drawings)
    for drawing, frame, table in zip(drawings, cut.frames, cut.tables, strict=True):
        assert "".join(cut.fragments[i] for i in unfolded(frame)) == "".join(drawing.parts)
        assert tuple(tuple(cut.rows[i].split("\t")) for i in unfolded(table)) == drawing.table


def test_parts_that_always_come_together_are_one_fragment():
    frames = [("<a/>", "<b/>", "<c/>"), ("<a/>", "<b/>"), ("<a/>", "<b/>", "<d/>")]
    cut = reel([Drawing(1, 1, parts, "", "", (("x",),)) for parts in frames])
    assert cut.fragments == ["<a/><b/>", "<c/>", "<d/>"]


def test_the_box_is_as_large_as_the_largest_frame():
    cut = reel([Drawing(w, h, (), "", "", (("x",),)) for w, h in ((10, 40), (30, 20))])
    assert (cut.width, cut.height) == (30, 40)
