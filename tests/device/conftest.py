"""A machine with a stand-in Gaudi, and a device whose tensors stay on the CPU."""

import logging
from collections.abc import Iterator

import pytest
import torch
from device.gaudi_standin import Gaudi

from kvlab.device.bandwidth import measured
from kvlab.device.hpu import HPU


class OnTheCPU(HPU):
    """The whole backend for Gaudi, but tensors are made on the CPU, so that they have values."""

    torch_device = torch.device("cpu")


@pytest.fixture(params=["eager", "lazy"])
def gaudi(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gaudi]:
    """A stand-in Gaudi in each mode."""
    yield from installed(Gaudi(lazy=request.param == "lazy"), monkeypatch)


@pytest.fixture
def eager_gaudi(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gaudi]:
    """A stand-in Gaudi in eager mode, where torch.compile makes the graphs."""
    yield from installed(Gaudi(), monkeypatch)


def installed(gaudi: Gaudi, patch: pytest.MonkeyPatch) -> Iterator[Gaudi]:
    """The stand-in in place; no graph and no measurement of it outlives the test. torch's trace of its own compiling,
    which pytest would collect, stays off: it takes longer than the compiling."""
    patch.setattr(logging.getLogger("torch.__trace"), "propagate", False)
    gaudi.install(patch)
    yield gaudi
    measured.cache_clear()
    torch._dynamo.reset()
