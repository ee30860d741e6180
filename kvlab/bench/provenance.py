"""Where a measurement was made."""

import datetime
import os
import platform
import sys
from pathlib import Path


def provenance() -> dict[str, str | int]:
    """Where and when a measurement is made: processor, cores, software, date. No host name."""
    torch = sys.modules.get("torch")
    known: dict[str, str | int] = {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "processor": _processor(),
        "python": platform.python_version(),
        "system": platform.system(),
    }
    if torch is not None:
        known |= {"torch": str(torch.__version__), "threads": int(torch.get_num_threads())}
    return known


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
