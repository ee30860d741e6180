"""Which torch a release of the Gaudi bridge was built for. It refuses any other major.minor when it is imported."""

from __future__ import annotations

import importlib.metadata

from packaging.version import InvalidVersion, Version

DISTRIBUTION = "habana-torch-plugin"

TORCH_OF_BRIDGE = {
    "1.18": "2.4.0",
    "1.19": "2.5.1",
    "1.21": "2.6.0",
    "1.22": "2.7",
    "1.23": "2.9",
    "1.24.0": "2.10",
    "1.24.1": "2.11",
}
"""Release of the bridge -> torch, as the vendor publishes them; 1.20 is not among those that were seen."""


def bridge_version() -> str | None:
    """The version of the installed bridge, None where there is none."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_for(bridge: str) -> str | None:
    """The torch that a release of the bridge was built for; None where the table does not know it."""
    try:
        release = Version(bridge).release
    except InvalidVersion:
        return None
    for length in (3, 2):
        if known := TORCH_OF_BRIDGE.get(".".join(map(str, release[:length]))):
            return known
    return None


def pairing(bridge: str | None, torch: str) -> tuple[bool | None, str]:
    """Whether a bridge and a torch belong together, None where nobody can say, and a sentence about it."""
    if bridge is None:
        return None, f"no {DISTRIBUTION} is installed as a distribution; torch is {torch}"
    wanted = torch_for(bridge)
    if wanted is None:
        return None, f"bridge {bridge} is not in kvlab's table of pairs; it runs with torch {torch}"
    if Version(wanted).release[:2] == Version(torch).release[:2]:
        return True, f"bridge {bridge} belongs to torch {wanted}, and torch {torch} is installed"
    return False, f"bridge {bridge} belongs to torch {wanted}, but torch {torch} is installed"
