"""What the gate found, as data and as text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

Case = Literal["cold", "again", "extended"]
DEEP_WINDOWS: Final = 9


@dataclass(frozen=True)
class Compared:
    """One prompt in one class, islands off beside on."""

    case: Case
    prompt: int
    tokens: int
    hit_off: int
    hit_on: int
    same_tokens: bool
    same_logits: bool

    @property
    def ok(self) -> bool:
        """Equal in every respect."""
        return self.same_tokens and self.same_logits and self.hit_off == self.hit_on


@dataclass(frozen=True)
class Drift:
    """A hit beside a cold serve of the same prompt by the same engine: no part of the gate."""

    prompt: int
    islands: bool
    same_tokens: bool
    largest_difference: float


@dataclass(frozen=True)
class Gate:
    """What the gate found. `deep_windows` is how many windows of generated text lie before the extension, at least."""

    dtype: str
    compared: list[Compared]
    drift: list[Drift]
    chunk_islands: int
    decode_islands: int
    accepted_drafts: int
    deep_windows: float

    @property
    def fired(self) -> bool:
        """Both kinds of island were made, drafts accepted, and the extensions were deep enough."""
        return bool(
            self.chunk_islands and self.decode_islands and self.accepted_drafts and self.deep_windows >= DEEP_WINDOWS
        )

    @property
    def ok(self) -> bool:
        """Whether islands are proven to change nothing."""
        return self.fired and all(each.ok for each in self.compared)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        compared = [asdict(each) | {"ok": each.ok} for each in self.compared]
        return asdict(self) | {"ok": self.ok, "compared": compared}


def text(found: Gate) -> str:
    """The gate as lines to read."""
    lines = [f"{'':9} {'prompt':>6} {'tokens':>6} {'hit off':>7} {'hit on':>6}  tokens     logits"]
    for each in found.compared:
        verdicts = ["equal" if same else "DIFFERENT" for same in (each.same_tokens, each.same_logits)]
        lines.append(
            f"{each.case:9} {each.prompt:6} {each.tokens:6} {each.hit_off:7} {each.hit_on:6}  "
            f"{verdicts[0]:9}  {verdicts[1]}"
        )
    lines.append(
        f"{found.chunk_islands} chunk islands, {found.decode_islands} decode islands, {found.accepted_drafts} drafts "
        f"accepted, extensions {found.deep_windows:.1f} windows deep in generated text"
    )
    for islands in (False, True):
        own = [each for each in found.drift if each.islands is islands]
        flipped = sum(not each.same_tokens for each in own)
        lines.append(
            f"no part of the gate, a hit against a cold serve with islands {'on' if islands else 'off'}: {flipped} of "
            f"{len(own)} prompts say something else, "
            f"logits differ by up to {max(each.largest_difference for each in own):.2g}"
        )
    lines.append(f"{'passed' if found.ok else 'FAILED'} ({found.dtype})")
    return "\n".join(lines)
