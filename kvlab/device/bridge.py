"""The Gaudi bridge, loaded with care.

Whatever kvlab asks of `torch.hpu` and `habana_frameworks` is reached through a `Bridge`, so that one small class says
what must exist. Its names and signatures are those of the public bridge sources; tests/device holds them to a table.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

import torch

from kvlab.device.pairing import bridge_version, pairing
from kvlab.errors import DeviceBroken, DeviceUnavailable

IMAGE = "Use the vendor's container image and its own torch: GAUDI.md says how."


@dataclass(frozen=True)
class Bridge:
    """`hpu` is the module torch.hpu, `core` has `mark_step`, `lazy` says which mode runs, `fused_sdpa` is the fused
    attention operator, `metric` gives a counter of the bridge by name."""

    hpu: Any
    core: Any
    lazy: bool
    fused_sdpa: Any
    metric: Any


def load_bridge() -> Bridge:
    """Import the bridge.

    Raises `DeviceUnavailable` where it is not installed or sees no Gaudi, `DeviceBroken` where its import fails. A
    package `habana_frameworks` without a real module `torch` in it, as other wheels of the vendor leave it, is no
    bridge.
    """
    if not _is_installed():
        raise DeviceUnavailable("no Gaudi: its torch bridge, habana_frameworks.torch, is not installed", IMAGE)
    try:
        importlib.import_module("habana_frameworks.torch")
        bridge = Bridge(
            hpu=vars(torch)["hpu"],
            core=importlib.import_module("habana_frameworks.torch.core"),
            lazy=bool(importlib.import_module("habana_frameworks.torch.utils.internal").is_lazy()),
            fused_sdpa=importlib.import_module("habana_frameworks.torch.hpex.kernels").FusedSDPA,
            metric=importlib.import_module("habana_frameworks.torch.hpu.metrics").metric_global,
        )
        seen = bridge.hpu.is_available()
    except Exception as error:
        fits, sentence = pairing(bridge_version(), str(torch.__version__))
        because = sentence if fits is False else f"{type(error).__name__}: {error}"
        raise DeviceBroken(f"the Gaudi bridge is installed but does not load: {because}", IMAGE) from error
    if not seen:
        raise DeviceUnavailable("no Gaudi: its torch bridge loads but sees no device", "Does hl-smi list one?")
    return bridge


def _is_installed() -> bool:
    try:
        spec = importlib.util.find_spec("habana_frameworks.torch")
    except ModuleNotFoundError:
        return False
    return spec is not None and spec.origin is not None
