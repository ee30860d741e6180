"""Memory for KV in huge pages: it is zeros like any other, and a system without them is none the worse."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from kvlab.device import pages

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("blocks", [3, 2000])
def test_zeros_of_every_dtype_that_can_be_written_and_outlive_their_maker(dtype, blocks):
    found = pages.zeros((blocks, 2, 16, 64), dtype=dtype)
    assert found.shape == (blocks, 2, 16, 64)
    assert found.dtype == dtype
    assert found.is_contiguous()
    assert not found.view(torch.uint8).any()
    found.view(torch.uint8).fill_(1)
    assert found.view(torch.uint8).min() == 1


def test_another_device_gets_its_own_memory():
    assert pages.zeros((1 << 22,), dtype=torch.float32, device="meta").device.type == "meta"


@pytest.mark.parametrize("ask", [None, 10_000])
def test_without_huge_pages_there_is_ordinary_memory(ask, monkeypatch):
    """None: a system that knows no such request. 10,000: a kernel that refuses it."""
    monkeypatch.setattr(pages, "ASK", ask)
    assert not pages.zeros((1 << 20,), dtype=torch.float32).any()


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="only Linux can be asked")
def test_the_kernel_is_asked():
    found = pages.zeros((4 * pages.HUGE_PAGE,), dtype=torch.uint8)
    address = found.data_ptr()
    flags, inside = "", False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            low, high = (int(each, 16) for each in first.split("-"))
            inside = low <= address < high
        elif inside and line.startswith("VmFlags"):
            flags = line
    assert " hg" in flags
