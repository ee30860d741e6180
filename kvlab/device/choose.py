"""Choosing a device by name."""

from __future__ import annotations

from kvlab.device.base import Device
from kvlab.device.cpu import CPU
from kvlab.device.cuda import CUDA
from kvlab.device.hpu import HPU
from kvlab.errors import DeviceBroken, DeviceUnavailable, InvalidInput


def get_device(name: str = "auto") -> Device:
    """The device called `cpu`, `cuda` or `hpu`; `auto` takes a Gaudi, else a CUDA GPU, else the CPU. `why` says why.

    Raises `InvalidInput` for another name, `DeviceUnavailable` where the one asked for is not there, `DeviceBroken`
    (also from `auto`) where the software of a Gaudi is installed and does not load.
    """
    if name == "cpu":
        return CPU()
    if name == "cuda":
        return CUDA.open()
    if name == "hpu":
        return HPU.open()
    if name != "auto":
        raise InvalidInput(f"no device is called {name!r}; there are auto, cpu, cuda and hpu")
    try:
        return HPU.open("auto: a Gaudi is there")
    except DeviceBroken as error:
        raise DeviceBroken(error.reason, f"{error.remedy} To go on without the Gaudi, ask for 'cpu'.") from error
    except DeviceUnavailable as error:
        missing = error.reason
    try:
        return CUDA.open(f"auto: a CUDA device is there; {missing}")
    except DeviceUnavailable as error:
        return CPU(f"auto: {missing}; {error.reason}")
