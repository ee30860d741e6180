"""What holds of every drawing."""

import json
import re
from xml.etree import ElementTree

from kvlab.viz import Picture, Player
from kvlab.viz.player_widget import STATE_MIME

SVG = "{http://www.w3.org/2000/svg}"


def sound(make, *arguments, **options):
    """A drawing that is the same twice, parses whole and in parts, has no negative size and says what it is."""
    one, other = (make(*arguments, **options) for _ in range(2))
    assert one == other
    assert one.title
    assert one.description
    assert len(one.table) >= 1
    assert not any(cell == "" or re.search(r"[\n\t]", cell) for row in one.table for cell in row)
    root = ElementTree.fromstring(Picture(one)._repr_mimebundle_()["image/svg+xml"])
    for box in root.iter(f"{SVG}rect"):
        assert float(box.get("width")) >= 0
        assert float(box.get("height")) >= 0
    for part in one.parts:
        ElementTree.fromstring(f"<g>{part}</g>")
        assert "nan" not in part
    return one


def texts(drawing):
    """Every line of text that the picture shows."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", "".join(drawing.parts))


def boxes(path):
    """(x, y, width, height) of each rectangle in the `d` of a path."""
    found = re.findall(r"M(-?[\d.]+) (-?[\d.]+)h(-?[\d.]+)v(-?[\d.]+)", path)
    return [tuple(map(float, each)) for each in found]


def reel_bytes(frames):
    """What a player of these frames stores in a notebook."""
    bundle = Player.from_drawings(frames)._repr_mimebundle_()[0]
    return len(json.dumps(bundle[STATE_MIME]["state"]))
