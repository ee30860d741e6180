"""The player: a log's frames, stepped in the browser without a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import Any, TypeAlias

import anywidget
import traitlets as t

from kvlab.errors import InvalidInput
from kvlab.events import Event, Replay, State
from kvlab.viz.arrange import arrange
from kvlab.viz.captions import captions
from kvlab.viz.drawing import Drawing, Table
from kvlab.viz.reel import reel, unfolded

Scene: TypeAlias = Callable[[State, Sequence[Event]], Drawing]
STATE_MIME = "application/vnd.kvlab.player.v1+json"
_STATE = ("captions", "fragments", "frames", "height", "rows", "step", "tables", "title", "titles", "width")


class Player(anywidget.AnyWidget):
    """Frames that Python drew and the browser swaps; made by `player(log, ...)` or `Player.from_drawings`.

    `step` is the frame shown (0 to n - 1) and `hovered` the block id under the pointer or the keyboard's focus
    (-1: none); both can be read and observed, `step` can be set. All other traits are fixed once it is made.
    """

    _esm = files("kvlab.viz").joinpath("player.js").read_text(encoding="utf-8")
    _css = files("kvlab.viz").joinpath("player.css").read_text(encoding="utf-8")

    title = t.Unicode().tag(sync=True)
    titles = t.List(t.Unicode()).tag(sync=True)
    fragments = t.List(t.Unicode()).tag(sync=True)
    frames = t.List(t.Unicode()).tag(sync=True)
    rows = t.List(t.Unicode()).tag(sync=True)
    tables = t.List(t.Unicode()).tag(sync=True)
    captions = t.List(t.Unicode()).tag(sync=True)
    width = t.Float().tag(sync=True)
    height = t.Float().tag(sync=True)
    step = t.Int(0).tag(sync=True)
    hovered = t.Int(-1).tag(sync=True)

    @classmethod
    def from_drawings(
        cls, frames: Iterable[tuple[Drawing, str]], *, title: str | None = None, start: int = 0
    ) -> Player:
        """A player of (drawing, caption) frames that come from anywhere; `title` stands before each drawing's own.

        Raises `InvalidInput` without frames or if `start` is not one of them (-1 is the last).
        """
        made = list(frames)
        if not made:
            raise InvalidInput("a player needs at least one frame")
        if not -len(made) <= start < len(made):
            raise InvalidInput(f"the player has frames 0 to {len(made) - 1}, not {start}")
        drawings = [drawing for drawing, _ in made]
        cut = reel(drawings)
        return cls(
            title=title or "",
            titles=[drawing.title for drawing in drawings],
            fragments=cut.fragments,
            frames=cut.frames,
            rows=cut.rows,
            tables=cut.tables,
            width=cut.width,
            height=cut.height,
            captions=[said for _, said in made],
            step=start % len(made),
        )

    @t.validate("step")
    def _within(self, proposal: dict[str, Any]) -> int:
        step = int(proposal["value"])
        if self.frames and not 0 <= step < len(self.frames):
            raise t.TraitError(f"the player has frames 0 to {len(self.frames) - 1}, not {step}")
        return step

    def heading(self, step: int) -> str:
        """What stands over a frame: the player's title, then the frame's own."""
        return ": ".join(filter(None, (self.title, self.titles[step])))

    def drawing(self, step: int | None = None) -> Drawing:
        """The drawing of one frame (the shown one by default), put together from the fragments."""
        step = self.step if step is None else step
        table: Table = tuple(tuple(self.rows[i].split("\t")) for i in unfolded(self.tables[step]))
        parts = tuple(self.fragments[i] for i in unfolded(self.frames[step]))
        return Drawing(self.width, self.height, parts, self.heading(step), self.captions[step], table)

    def __repr__(self) -> str:
        where = f"frame {self.step + 1} of {len(self.frames)}: {self.captions[self.step]}"
        return self.drawing().text(where)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle: Any = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        state = {key: getattr(self, key) for key in _STATE}
        said = f"{self.step + 1} of {len(self.frames)}: {self.captions[self.step]}"
        ours = {
            "text/plain": repr(self),
            "image/svg+xml": self.drawing().svg(said),
            STATE_MIME: {"esm": "player", "state": state},
        }
        return {**(data or {}), **ours}, metadata


def player(log: Iterable[Event], *scenes: Scene, start: int = 0, title: str | None = None, columns: int = 1) -> Player:
    """Every frame of an event log, drawn by one or more scenes; several lie below each other, or in `columns`.

    A scene is called with the state after the frame and the frame's events. `start` is the frame shown first (-1
    the last). Raises `InvalidInput` without a scene.
    """
    if not scenes:
        raise InvalidInput("say which scene to draw: player(log, pages)")
    replay = Replay(log)
    drawn = [[scene(state, replay.events(frame)) for scene in scenes] for frame, state in enumerate(replay.states())]
    sizes = [(max(d.width for d in one), max(d.height for d in one)) for one in zip(*drawn, strict=True)]
    frames = [(arrange(each, sizes, columns), words) for each, words in zip(drawn, captions(replay), strict=True)]
    return Player.from_drawings(frames, title=title, start=start)
