"""One request served several times, token by token: where logits are the same bits, and where a token flips."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from kvlab.errors import InvalidInput
from kvlab.viz import svg
from kvlab.viz.drawing import Drawing, Table
from kvlab.viz.palette import COLOURS, WARNING, text_on
from kvlab.viz.scenes.legend import legend
from kvlab.viz.words import shown

WIDTH = 760.0
_LEFT = 126.0
_TOKENS = 12
_CELL, _BETWEEN, _GAP = 30.0, 24.0, 22.0
_MOST = 120
SAME: Final = COLOURS[2]
Compared = tuple[str, ...]


@dataclass(frozen=True)
class Serve:
    """An answer: its tokens as text, and for each anything that is equal only if its logits are, bit for bit."""

    label: str
    tokens: tuple[str, ...]
    logits: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.logits):
            raise InvalidInput(f"{self.label!r} has {len(self.tokens)} tokens and {len(self.logits)} logits")


def compared(one: Serve, other: Serve) -> Compared:
    """For each token of the shorter: same (bits), rounding (another logit, the token stays), flip (the first other
    token), after (what follows the flip answers another text)."""
    found: list[str] = []
    for a, b, x, y in zip(one.tokens, other.tokens, one.logits, other.logits, strict=False):
        if "flip" in found:
            found.append("after")
        else:
            found.append("flip" if a != b else "same" if x == y else "rounding")
    return tuple(found)


def serves(each: Sequence[Serve], *, title: str | None = None) -> Drawing:
    """A row a serve, twelve tokens a line; between neighbours = for equal bits, ≈ for rounding, ≠ for a flip.

    Raises `InvalidInput` for fewer than two or more than four serves, none or more than 120 tokens.
    """
    most = max((len(serve.tokens) for serve in each), default=0)
    if not 2 <= len(each) <= 4 or not 1 <= most <= _MOST:
        raise InvalidInput(f"two to four serves of 1 to {_MOST} tokens can be compared, not {len(each)} of {most}")
    pairs = [compared(a, b) for a, b in pairwise(each)]
    parts: list[str] = []
    high = len(each) * _CELL + len(pairs) * _BETWEEN
    lines = range(0, most, _TOKENS)
    for line, start in enumerate(lines):
        y = 16 + line * (high + _GAP)
        parts.append(svg.text(_LEFT, y - 5, f"token {start + 1}", class_="kv-quiet"))
        for row, serve in enumerate(each):
            top = y + row * (_CELL + _BETWEEN)
            flipped = [pair.index("flip") for pair in pairs[max(0, row - 1) : row + 1] if "flip" in pair]
            parts += _row(serve, start, top, set(flipped))
            if row < len(pairs):
                parts += _links(pairs[row], start, top + _CELL)
                words = _pair_words(each[row], each[row + 1])
                parts.append(svg.text(_LEFT - 10, top + _CELL + 16, words, class_="kv-quiet kv-end"))
    bottom = 16 + len(lines) * (high + _GAP) - _GAP
    kinds = {kind for pair in pairs for kind in pair}
    key, key_height = legend(0, bottom + 12, WIDTH, _swatches(kinds))
    return Drawing(
        WIDTH, bottom + 12 + key_height, (*parts, *key), title or _title(each, pairs),
        "One request served several times, aligned by token, with signs between the rows where they agree.",
        _table(each, pairs),
    )  # fmt: skip


def _x(place: int) -> float:
    return _LEFT + place * (WIDTH - _LEFT) / _TOKENS


def _row(serve: Serve, start: int, y: float, flipped: set[int]) -> Iterator[str]:
    yield svg.text(0, y + 20, shown(serve.label, 16), class_="kv-strong")
    for place, token in enumerate(serve.tokens[start : start + _TOKENS]):
        x, wide = _x(place), (WIDTH - _LEFT) / _TOKENS - 4
        word = svg.text(x + wide / 2, y + 19.5, shown(token, 7), class_="kv-ink kv-middle")
        inner = [svg.rect(x, y, wide, _CELL, rx=4, class_="kv-cell"), word]
        if start + place in flipped:
            inner.insert(1, svg.rect(x, y, wide, _CELL, rx=4, class_="kv-torn"))
        yield svg.tag("g", *inner, data_tip=f"{serve.label}, token {start + place + 1}: {shown(token, 24)!r}")


def _links(pair: Compared, start: int, y: float) -> Iterator[str]:
    """The signs between two rows."""
    for place, kind in enumerate(pair[start : start + _TOKENS]):
        yield _sign(kind, _x(place) + ((WIDTH - _LEFT) / _TOKENS - 4) / 2, y + _BETWEEN / 2)


def _sign(kind: str, x: float, y: float, half: float = 13) -> str:
    if kind == "same":
        fill, sign = SAME, "="
    elif kind == "flip":
        fill, sign = WARNING, "≠"
    else:
        look = "kv-quiet kv-middle" if kind == "after" else "kv-head kv-middle"
        return svg.text(x, y + 4.5, "·" if kind == "after" else "≈", class_=look)
    plate = svg.rect(x - half, y - 8, 2 * half, 16, rx=min(8, half), fill=fill)
    return plate + svg.text(x, y + 4.5, sign, class_="kv-chip kv-middle", fill=text_on(fill))


def _swatches(kinds: set[str]) -> Iterator[tuple[str, str]]:
    words = {
        "same": "logits equal, bit for bit",
        "rounding": "logits differ, the token is the same",
        "flip": "the token flips",
        "after": "after the flip: another text",
    }
    for kind, said in words.items():
        if kind in kinds:
            yield svg.tag("g", _sign(kind, 8, 6, 8)), said


def _pair_words(one: Serve, other: Serve) -> str:
    return shown(f"{one.label} | {other.label}", 18)


def _title(each: Sequence[Serve], pairs: Sequence[Compared]) -> str:
    said = []
    for (one, other), pair in zip(pairwise(each), pairs, strict=True):
        same = sum(kind == "same" for kind in pair)
        words = f"{other.label} against {one.label}: {same:,} of {len(pair):,} tokens equal bit for bit"
        said.append(words + (f", flips at token {pair.index('flip') + 1:,}" if "flip" in pair else ""))
    return "; ".join(said)


def _table(each: Sequence[Serve], pairs: Sequence[Compared]) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            "token",
            *(serve.label for serve in each),
            *(f"{a.label} | {b.label}" for a, b in pairwise(each)),
        )
    ]
    for place in range(max(len(serve.tokens) for serve in each)):
        tokens = [shown(serve.tokens[place], 16) if place < len(serve.tokens) else "-" for serve in each]
        rows.append((f"{place + 1}", *tokens, *(pair[place] if place < len(pair) else "-" for pair in pairs)))
    return tuple(rows)
