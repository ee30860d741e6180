"""What the articles state, what kvlab computes, and whether the two agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias

import yaml

from kvlab.errors import InvalidInput

Number: TypeAlias = int | float
Recompute: TypeAlias = Callable[[], Number]
Verdict: TypeAlias = Literal["exact", "within rounding", "consistent", "does not reconcile", "published"]


@dataclass(frozen=True)
class Claim:
    """One figure as an article states it. `value` is None where the article implies it without printing it.

    `kind` is exact (arithmetic), model (follows from a formula) or published (measured elsewhere, not repeatable
    here). `tolerance` is half a unit of the last printed place unless a note says otherwise; `expect` is the verdict
    that a test holds.
    """

    id: str
    claim: str
    value: Any
    unit: str
    kind: Literal["exact", "model", "published"]
    tolerance: float | None
    expect: Verdict


@dataclass(frozen=True)
class Figure:
    """A claim beside what kvlab's code gives for it (None where nothing can be recomputed)."""

    claim: Claim
    ours: Number | None
    verdict: Verdict
    note: str

    def row(self) -> dict[str, Any]:
        """The row of `kvlab figures --json`."""
        return {
            "id": self.claim.id,
            "claim": self.claim.claim,
            "theirs": self.claim.value,
            "ours": self.ours,
            "unit": self.claim.unit,
            "verdict": self.verdict,
            "note": self.note,
        }


@cache
def claims(article: str = "003") -> tuple[Claim, ...]:
    """The claims of one article, in the order of its text."""
    path = files("kvlab").joinpath(f"data/figures_{article}.yaml")
    if not path.is_file():
        raise InvalidInput(f"no ledger for article {article!r}; there are 000, 002 and 003")
    return tuple(
        Claim(
            id=raw["id"],
            claim=raw["claim"],
            value=raw["value"],
            unit=raw["unit"],
            kind=raw["kind"],
            tolerance=raw.get("tolerance"),
            expect=raw.get("expect", "published"),
        )
        for raw in yaml.safe_load(path.read_text())
    )


def judge(claim: Claim, ours: Number | None) -> Verdict:
    """Compare: exact (to 1e-9), within rounding (to the tolerance), consistent (nothing printed), or neither."""
    if ours is None:
        return "published"
    if claim.value is None:
        return "consistent"
    off = abs(ours - claim.value)
    if off <= 1e-9 * max(1.0, abs(claim.value)):
        return "exact"
    if claim.tolerance is not None and off <= claim.tolerance * (1 + 1e-9):
        return "consistent" if claim.expect == "consistent" else "within rounding"
    return "does not reconcile"


def recompute(
    article: str,
    recomputed: Mapping[str, Recompute],
    notes: Mapping[str, str],
    report: Callable[[int, int], None] | None = None,
) -> list[Figure]:
    """Every claim of the article with ours beside it. Raises `InvalidInput` if an exact or model claim has no code."""
    known = claims(article)
    missing = [c.id for c in known if c.kind != "published" and c.id not in recomputed]
    unknown = set(recomputed) - {c.id for c in known}
    if missing or unknown:
        raise InvalidInput(f"ledger {article}: no code for {missing}; code without a claim {sorted(unknown)}")
    found = []
    for done, claim in enumerate(known, start=1):
        ours = recomputed[claim.id]() if claim.id in recomputed else None
        found.append(Figure(claim, ours, judge(claim, ours), notes.get(claim.id, "")))
        if report is not None:
            report(done, len(known))
    return found
