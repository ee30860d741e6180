"""Each lesson in JupyterLab: opened, run top to bottom, its players stepped, looked at in both themes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

PLAYER_MIME = "application/vnd.kvlab.player.v1+json"
STARTERS = sorted((Path(__file__).parent.parent.parent / "notebooks").glob("*.ipynb"))


class Opened:
    """A lesson that is open in JupyterLab and has been run."""

    def __init__(self, learner, path: Path) -> None:
        self.learner, self.page, self.name = learner, learner.page, path.stem
        self.outputs = [output for cell in json.loads(path.read_text())["cells"] for output in cell.get("outputs", [])]
        learner.open(path.name)
        self.ran = learner.run_all()

    def players(self) -> list[tuple[Locator, dict]]:
        """Every player on the page, with the state that is stored for it in the notebook."""
        states = [data[PLAYER_MIME]["state"] for o in self.outputs if PLAYER_MIME in (data := o.get("data", {}))]
        players = self.page.locator(".kvlab-player")
        expect(players).to_have_count(len(states))
        return list(zip(players.all(), states, strict=True))


@pytest.fixture(scope="module", params=STARTERS, ids=lambda path: path.stem)
def lesson(request: pytest.FixtureRequest, learner) -> Iterator[Opened]:
    opened = Opened(learner, request.param)
    yield opened
    learner.theme("Light")


def picture(player: Locator) -> str:
    return player.locator(".kvlab-stage svg").inner_html()


def shows(player: Locator, state: dict, step: int) -> None:
    """The player shows frame `step` of the log: its caption, its counter, its slider."""
    expect(player.locator(".kvlab-caption")).to_have_text(state["captions"][step])
    expect(player.locator(".kvlab-counter")).to_have_text(f"{step + 1} / {len(state['frames'])}")
    expect(player.locator("input[type=range]")).to_have_value(str(step))


def test_all_cells_run_and_only_expected_errors_are_shown(lesson: Opened):
    assert lesson.ran or any(output["output_type"] == "error" for output in lesson.outputs)
    stored = [f"{o['ename']}: {o['evalue']}" for o in lesson.outputs if o["output_type"] == "error"]
    shown = lesson.learner.outputs("application/vnd.jupyter.stderr")  # JupyterLab's mime type for tracebacks too
    assert len(shown) == len(stored)
    for error, text in zip(stored, shown, strict=True):
        assert error in text


def test_nothing_complains_and_nothing_leaves_this_machine(lesson: Opened):
    assert lesson.learner.complaints() == []


def test_players_step_forward_and_back_by_button_as_the_log_says(lesson: Opened):
    for player, state in lesson.players():
        player.scroll_into_view_if_needed()
        last = len(state["frames"]) - 1
        assert last >= 1, "a player has frames to step through"
        to_first = player.locator("[data-act=first]")
        if to_first.is_enabled():
            to_first.click()
        shows(player, state, 0)
        first = picture(player)
        for step in range(1, min(last, 4) + 1):
            player.locator("[data-act=forward]").click()
            shows(player, state, step)
        assert picture(player) != first
        for step in range(min(last, 4) - 1, -1, -1):
            player.locator("[data-act=back]").click()
            shows(player, state, step)
        assert picture(player) == first
        player.locator("[data-act=last]").click()
        shows(player, state, last)


def test_players_step_by_key_and_play_and_pause(lesson: Opened):
    for player, state in lesson.players():
        last = len(state["frames"]) - 1
        player.focus()
        for key, step in (("Home", 0), ("ArrowRight", 1), ("ArrowLeft", 0), ("End", last), ("Home", 0)):
            lesson.page.keyboard.press(key)
            shows(player, state, step)
        lesson.page.keyboard.press("Space")
        expect(player.locator("[data-act=play]")).to_have_attribute("aria-label", "Pause")
        expect(player.locator("input[type=range]")).not_to_have_value("0")
        if last > 1:
            lesson.page.keyboard.press("Space")
        expect(player.locator("[data-act=play]")).to_have_attribute("aria-label", "Play")


def test_pictures_stay_readable_in_the_dark_theme(lesson: Opened):
    lesson.learner.theme("Dark")
    for number, (player, _) in enumerate(lesson.players()):
        player.scroll_into_view_if_needed()
        lesson.learner.shoot(f"{lesson.name}_dark_{number}")
        assert contrast(player.locator(".kvlab-caption")) >= 4.5
    for card in lesson.page.locator(".jp-RenderedHTML section[aria-label] strong").all():
        assert contrast(card) >= 4.5
    lesson.learner.theme("Light")
    for number, (player, _) in enumerate(lesson.players()):
        player.scroll_into_view_if_needed()
        lesson.learner.shoot(f"{lesson.name}_light_{number}")
        assert contrast(player.locator(".kvlab-caption")) >= 4.5


def test_players_fit_a_narrow_window(lesson: Opened):
    lesson.page.set_viewport_size({"width": 600, "height": 900})
    try:
        for player, _ in lesson.players():
            player.scroll_into_view_if_needed()
            too_wide = player.evaluate("node => node.scrollWidth - node.clientWidth")
            assert too_wide <= 0
            box = player.bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= 600
    finally:
        lesson.page.set_viewport_size({"width": 1280, "height": 1000})


def contrast(text: Locator) -> float:
    """The contrast of a text with the background behind it, as WCAG 2 defines it (4.5 is readable)."""
    ink, paper = text.evaluate(
        """node => { const ink = getComputedStyle(node).color;
          for (; node; node = node.parentElement) {
            const paper = getComputedStyle(node).backgroundColor;
            if (!/^rgba.*, 0\\)$/.test(paper)) return [ink, paper]; }
          return [ink, 'rgb(255, 255, 255)']; }"""
    )
    bright, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [float(value) / 255 for value in re.findall(r"[\d.]+", colour)[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
