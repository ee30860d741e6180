"""The report as Markdown, for an issue, and as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from typing import Any

import torch

from kvlab import __version__
from kvlab.device.base import Memory
from kvlab.device.hpu import HPU
from kvlab.device.pairing import bridge_version, pairing
from kvlab.doctor import Check, first_line
from kvlab.gaudi_report.examine import REMEDY, Findings

DATA_SHEET_BYTES_PER_S = {"GAUDI2": 2.46e12, "GAUDI3": 3.67e12}
"""Peak of the card's memory as the vendor prints it; not measured."""


def environment(device: HPU) -> dict[str, str]:
    """What the report was made on, without names of hosts or users. A card that fails to answer does not end it."""
    found = {
        "card": _answer(lambda: f"{device.describe()}; {device.bridge.hpu.device_count()} seen"),
        "memory": _answer(lambda: _free(device.memory())),
        "torch": str(torch.__version__),
        "bridge": bridge_version() or "not installed as a distribution",
        "kvlab": __version__,
        "python": platform.python_version(),
    }
    return found | {name: os.environ[name] for name in sorted(os.environ) if name.startswith(("PT_HPU", "HABANA_"))}


def _free(memory: Memory) -> str:
    return f"{memory.free / 1e9:.1f} of {memory.total / 1e9:.1f} GB free"


def _answer(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 (whatever the card's software raises is what it answers)
        return f"{type(error).__name__}: {first_line(error)}"


def check_pairing() -> Check:
    """Whether the bridge belongs to the torch that runs; a pair that the table does not know is a warning."""
    fits, sentence = pairing(bridge_version(), str(torch.__version__))
    return Check("pairing", fits is not False, sentence, None if fits else REMEDY)


def as_json(about: dict[str, str], found: Findings) -> dict[str, Any]:
    """The report as one object. `mbu` is of the measured read bandwidth, None where that is missing."""
    return {
        "ok": found.ok,
        "environment": about,
        "checks": [vars(check) for check in found.checks],
        "bandwidth": {name: measured._asdict() for name, measured in found.bandwidths.items()},
        "rows": [
            {
                "name": timing.route,
                "median_s": timing.seconds,
                "mbu": _mbu(found, timing.useful_bytes / timing.seconds),
                "bytes": {"useful": timing.useful_bytes},
            }
            for timing in found.timings
        ],
        "seconds": found.seconds,
    }


def _mbu(found: Findings, bytes_per_s: float) -> float | None:
    read = found.bandwidths.get("read")
    return None if read is None else bytes_per_s / read.bytes_per_s


def as_markdown(about: dict[str, str], found: Findings) -> str:
    """The report as text to paste."""
    failed = [check.name for check in found.checks if not check.ok]
    verdict = f"{len(failed)} of {len(found.checks)} checks failed" if failed else f"{len(found.checks)} checks passed"
    lines = ["## kvlab on a Gaudi", "", f"{verdict}, in {found.seconds:.0f} s.", ""]
    lines += _table(["what", "found"], [[name, text] for name, text in about.items()])
    lines += _table(["check", "", "seen"], [[check.name, check.word, check.detail] for check in found.checks])
    if found.timings:
        peak = next((value for name, value in DATA_SHEET_BYTES_PER_S.items() if name in about["card"]), None)
        rows = []
        for timing in found.timings:
            rate = timing.useful_bytes / timing.seconds
            mbu = _mbu(found, rate)
            rows.append([
                timing.route,
                f"{timing.seconds * 1e3:.3f} ms",
                f"{timing.useful_bytes / 1e9:.2f} GB",
                "-" if mbu is None else f"{mbu:.1%}",
                "-" if peak is None else f"{rate / peak:.1%}",
            ])  # fmt: skip
        head = ["route, one layer", "median", "useful KV", "MBU, of the measured read bandwidth", "of the data sheet's"]
        lines += _table(head, rows)
    return "\n".join(lines)


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    cells = [head, ["---"] * len(head), *([text.replace("|", "\\|") for text in row] for row in rows)]
    return [f"| {' | '.join(row)} |" for row in cells] + [""]
