"""Write constraints.txt: every distribution of this environment, pinned, for Linux and macOS alike."""

import importlib.metadata
from pathlib import Path

HEADER = """\
# The exact versions that `make lab` and `make test` install.
# Made by `make pins` from what .venv holds, kvlab and pip left out.
# No local part ("+cpu") is kept, so that each machine finds its own build of the same version;
# what only another system needs (appnope on macOS) is not listed and stays free.
# To move on: .venv/bin/pip install --upgrade --upgrade-strategy eager -e '.[dev]', make test, make pins.
"""
NOT_PINNED = {"kvlab", "pip"}


def pinned() -> list[str]:
    """The pins of this environment, sorted by name."""
    versions = {
        dist.name.lower().replace("_", "-"): dist.version.split("+")[0]
        for dist in importlib.metadata.distributions()
        if dist.name not in NOT_PINNED
    }
    return [f"{name}=={version}" for name, version in sorted(versions.items())]


def main() -> None:
    """Rewrite constraints.txt beside the folder of this script."""
    pins = pinned()
    target = Path(__file__).parent.parent / "constraints.txt"
    target.write_text(HEADER + "\n".join(pins) + "\n", encoding="utf-8")
    print(f"{target.name}: {len(pins)} pins")


if __name__ == "__main__":
    main()
