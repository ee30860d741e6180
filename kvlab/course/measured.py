"""A stored run beside the live one. Prose never depends on a live number; this table does the comparing.

Seconds differ from machine to machine, so the mark is given to what should not: how many times as long as
the baseline an arm takes. Live numbers carry the marker `measured:`, which nbval masks together with the
mark; the stored ones are compared to the letter.
"""

from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from kvlab.bench.paired import Paired, Spread
from kvlab.course.card import PLAIN, card, heading, paragraph
from kvlab.course.stored_run import StoredRun
from kvlab.errors import InvalidInput

Mark = Literal["agrees", "differs", "too noisy"]

AGREES_WITHIN = 0.25
TOO_NOISY_ABOVE = 0.5


def mark(stored: Spread, live: Spread) -> Mark:
    """`too noisy` if the live quartiles span more than half the median; else `agrees` if the medians are
    within 25 % of the larger or the quartile ranges overlap; else `differs`."""
    if live.iqr > TOO_NOISY_ABOVE * live.median:
        return "too noisy"
    close = abs(live.median - stored.median) <= AGREES_WITHIN * max(live.median, stored.median)
    return "agrees" if close or (live.low <= stored.high and stored.low <= live.high) else "differs"


@dataclass(frozen=True)
class Beside:
    """The table of a stored and a live run of the same arms. Raises `InvalidInput` if the arms differ."""

    title: str
    stored: StoredRun
    live: Paired

    def __post_init__(self) -> None:
        have, want = list(self.live.samples_s), [arm.name for arm in self.stored.arms]
        if have != want:
            raise InvalidInput(f"stored run {self.stored.name!r} has the arms {want}, the live one {have}")

    def marks(self) -> dict[str, Mark]:
        """The mark of every arm but the baseline."""
        return {arm.name: mark(arm.ratio, self.live.ratio(arm.name)) for arm in self.stored.arms[1:]}

    def __repr__(self) -> str:
        lines = [
            f"  {name}: stored {stored}, {stored_ratio} times {self.live.baseline}; live {live}, {live_ratio}"
            for name, stored, live, stored_ratio, live_ratio in self._rows()[1:]
        ]
        return "\n".join([self.title, *lines, f"  {self._source()}", f"  {_legend()}"])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        names, *rows = self._rows()
        style = "text-align:right;padding:2px 8px"
        head = "".join(f'<th scope="col" style="{style}">{escape(name)}</th>' for name in names)
        body = "\n".join(
            f'<tr><th scope="row" style="text-align:left;padding:2px 8px;white-space:nowrap">{escape(row[0])}</th>'
            + "".join(f'<td style="{style};white-space:nowrap">{escape(cell)}</td>' for cell in row[1:])
            + "</tr>"
            for row in rows
        )
        table = f'<table style="margin:4px 0">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>'
        html = card(self.title, PLAIN, heading(self.title), table, paragraph(self._source()), paragraph(_legend()))
        return {"text/plain": repr(self), "text/html": html}

    def _rows(self) -> list[tuple[str, ...]]:
        baseline = self.live.baseline
        rows: list[tuple[str, ...]] = [
            ("arm", "stored", "live", f"stored, times {baseline}", f"live, times {baseline}")
        ]
        for arm in self.stored.arms:
            name = arm.name
            live_s = f"measured: {seconds_text(self.live.time_s(name).median)}"
            if name == baseline:
                rows.append((name, seconds_text(arm.time_s.median), live_s, "1", "1"))
                continue
            stored_ratio = f"{arm.ratio.median:.2f} ({arm.ratio.low:.2f} to {arm.ratio.high:.2f})"
            live_ratio = f"measured: {self.live.ratio(name).median:.2f} [{self.marks()[name]}]"
            rows.append((name, seconds_text(arm.time_s.median), live_s, stored_ratio, live_ratio))
        return rows

    def _source(self) -> str:
        known = ", ".join(f"{key} {value}" for key, value in sorted(self.stored.provenance.items()))
        return f"Stored run: {known}. Medians, with quartiles in brackets."


def seconds_text(seconds: float) -> str:
    """A time with three digits and a unit that fits."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def measured_text(seconds: float) -> str:
    """A clock reading as notebooks print it, with the marker that nbval masks: `measured: 12.3 ms`."""
    return f"measured: {seconds_text(seconds)}"


def _legend() -> str:
    return (
        f"The mark compares the ratios: they agree within {AGREES_WITHIN:.0%} or where quartiles overlap; "
        f"too noisy means that the live quartiles span more than {TOO_NOISY_ABOVE:.0%} of the median."
    )
