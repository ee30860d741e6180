"""What a cell fills is what its block holds."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvlab.viz.scenes.cells import CellShape


def area(d):
    boxes = re.findall(r"M(-?[\d.]+) (-?[\d.]+)h([\d.]+)v([\d.]+)h", d)
    return sum(float(width) * float(height) for _, _, width, height in boxes)


@given(width=st.integers(18, 96), block_size=st.integers(1, 64), bands=st.integers(1, 6), data=st.data())
def test_the_filled_area_is_the_filled_slots_whatever_the_stripes(width, block_size, bands, data):
    shape = CellShape.fit(width, block_size)
    count = data.draw(st.integers(0, block_size))
    slot = shape.slot_width * shape.slot_height
    whole = sum(area(shape.filled(10, 20, count, band, bands)) for band in range(bands))
    assert whole == pytest.approx(count * slot, abs=0.02 * width * bands * shape.slot_rows)
    assert shape.slot_columns * shape.slot_rows >= block_size
    assert shape.width <= width + 1e-9


@pytest.mark.parametrize(("block_size", "columns", "rows"), [(1, 1, 1), (4, 4, 1), (16, 8, 2), (32, 8, 4), (64, 16, 4)])
def test_slots_run_left_to_right_then_down(block_size, columns, rows):
    shape = CellShape.fit(90, block_size)
    assert (shape.slot_columns, shape.slot_rows) == (columns, rows)
    assert shape.slot_width == int(shape.slot_width)
