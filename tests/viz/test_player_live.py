"""The player's JavaScript in a real browser, without a kernel: the page drives it and leaves what it saw."""

import html
import json
import re
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest
from support.chromium import QUIET_CHROMIUM

from kvlab.viz import pages, player
from kvlab.viz.player_widget import STATE_MIME

FLAGS = ["--headless", *QUIET_CHROMIUM, "--window-size=600,900", "--virtual-time-budget=20000", "--dump-dom"]


@pytest.fixture
def seen(two_requests, chromium, tmp_path):
    """What drive_player.js found, by name."""
    viz = files("kvlab.viz")
    state = player(two_requests, pages)._repr_mimebundle_()[0][STATE_MIME]["state"] | {"hovered": -1}
    data = json.dumps(state).replace("</", r"<\/")  # or a closing tag would end the script
    code = viz.joinpath("player.js").read_text().replace("export default", "const widget =")
    drive = (Path(__file__).parent / "drive_player.js").read_text()
    page = tmp_path / "page.html"
    page.write_text(
        f"<!doctype html><meta charset=utf-8><style>{viz.joinpath('player.css').read_text()}</style><body><script>"
        f"const state = {data};\n{code}\n{drive}</script>",
        encoding="utf-8",
    )
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    ran = subprocess.run(
        [chromium, *FLAGS, profile, page.as_uri()], capture_output=True, text=True, timeout=60, check=True
    )
    found = re.search(r'<pre id="seen">(.*)</pre>', ran.stdout)
    assert found, f"the page stopped before its end:\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}"
    return json.loads(html.unescape(found.group(1)))


def test_a_person_steps_hovers_and_walks_through_the_player(seen):
    assert seen["start"] == [
        "1 / 15",
        ["first", "back"],
        "All 16 blocks of 16 slots are free",
        "Empty: 16 blocks of 16 slots, all free",
    ]
    assert seen["roles"] == ["group", 0, "All 16 blocks of 16 slots are free", "polite", "First frame"]
    assert seen["shortcuts"]

    said = "A prefills 37 tokens into blocks 7, 1, 3; 11 slots of block 3 stay empty"
    assert seen["forward"] == [1, said, [], 1]
    assert seen["drawn"] == 6  # three blocks, three entries
    assert seen["table"] == [["request", "tokens", "block table", "empty slots"], ["A", "37", "7, 1, 3", "11"]]
    assert (seen["right"], seen["left"], seen["beyond"], seen["home"]) == (2, 1, 14, 0)
    assert seen["end"] == [14, ["forward", "last"]]
    assert seen["slider"][:2] == [2, "14"]
    assert seen["slider"][2].startswith("3 of 15: B prefills")
    assert seen["arrow_on_slider"] == 2

    assert seen["hover"] == [7, ["A:0", "7"], 1, "block 7: A, 16 of 16 slots filled", False]
    assert seen["request"] == [-1, [None, "B:0", "B:1", "0", "4"], 2]  # None: the name itself
    assert seen["left_alone"] == [-1, [], 0, True]

    assert seen["stops"][0] == 1
    assert seen["walked"] == ["A:0", "A: logical block 0 is physical block 7", 7, 1]
    assert seen["kept"] == [3, "A:0", 7, 1]
    assert seen["released"] == -1

    assert seen["focus_after_last"]
    assert seen["playing"] == [0, "Pause"]
    assert seen["played"] == 2
    assert seen["paused"] == "Play"
    assert seen["stays"]
    assert seen["wide"]
    assert seen["closed"] == "3 / 15"
