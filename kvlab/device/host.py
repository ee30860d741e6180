"""The host's memory. Nothing here needs torch."""

import resource
import sys
from pathlib import Path

import psutil


def free_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that can still be taken: the machine's, or less where a container (Binder) sets a limit."""
    free = int(psutil.virtual_memory().available)
    limit = cgroup / "memory.max"
    if not limit.is_file() or (text := limit.read_text().strip()) == "max":
        return free
    counters = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    used = int((cgroup / "memory.current").read_text()) - int(counters["inactive_file"])
    return min(free, int(text) - used)


def total_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory of the machine, or the limit that a container sets."""
    total = int(psutil.virtual_memory().total)
    limit = cgroup / "memory.max"
    if not limit.is_file() or (text := limit.read_text().strip()) == "max":
        return total
    return min(total, int(text))


def resident_bytes() -> tuple[int, int]:
    """Memory of this process: now, and at its highest."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    now = int(psutil.Process().memory_info().rss)
    return now, max(now, peak if sys.platform == "darwin" else peak * 1024)
