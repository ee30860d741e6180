"""Choosing a device, and what the CPU and a CUDA GPU say about themselves."""

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from device.gaudi_standin import Gaudi

from kvlab.device import bandwidth
from kvlab.device.bandwidth import measured
from kvlab.device.base import Device, Memory
from kvlab.device.choose import get_device
from kvlab.device.cuda import CUDA
from kvlab.device.host import free_bytes, total_bytes
from kvlab.errors import DeviceUnavailable, InvalidInput, OutOfMemory

CUDA_HERE = torch.cuda.is_available()


@pytest.fixture
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose torch has CUDA and sees no GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bandwidth measured over 64 MB, freshly."""
    monkeypatch.setattr(bandwidth, "BYTES", bandwidth.LEAST_BYTES)
    measured.cache_clear()


def test_without_an_accelerator_auto_takes_the_cpu_and_says_why(without_cuda: None) -> None:
    device = get_device()
    assert device.name == "cpu"
    assert device.why.startswith("auto: no Gaudi: its torch bridge")
    assert "no CUDA device: torch" in device.why


def test_auto_prefers_a_gaudi(gaudi: Gaudi) -> None:
    device = get_device("auto")
    assert (device.name, device.why) == ("hpu", "auto: a Gaudi is there")
    assert device == get_device("hpu"), "the same place"


def test_auto_takes_cuda_where_there_is_no_gaudi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    device = get_device()
    assert device.torch_device == torch.device("cuda", 3)
    assert "a CUDA device is there; no Gaudi" in device.why


def test_a_missing_device_is_an_error_with_a_remedy(without_cuda: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceUnavailable, match=r"GAUDI\.md") as hpu:
        get_device("hpu")
    assert str(pickle.loads(pickle.dumps(hpu.value))) == f"{hpu.value.reason}. {hpu.value.remedy}"
    with pytest.raises(DeviceUnavailable, match="nvidia-smi"):
        get_device("cuda")
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(DeviceUnavailable, match=r"built without CUDA.*pytorch\.org"):
        get_device("cuda")


@pytest.mark.parametrize("name", ["gpu", "HPU", "", "cuda:0"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="auto, cpu, cuda and hpu"):
        get_device(name)


def test_the_cpu_tells_its_memory() -> None:
    memory = get_device("cpu").memory()
    assert isinstance(memory, Memory)
    assert 10_000_000 < memory.allocated <= memory.peak <= memory.total
    assert 0 < memory.free <= memory.total


def test_the_hosts_memory_can_be_had_without_torch() -> None:
    code = "import sys; from kvlab.device.host import free_bytes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_container_limits_memory(tmp_path: Path) -> None:
    assert total_bytes(tmp_path) > 0
    (tmp_path / "memory.max").write_text("2000000000\n")
    (tmp_path / "memory.current").write_text("700000000\n")
    (tmp_path / "memory.stat").write_text("inactive_file 200000000\n")
    assert (free_bytes(tmp_path), total_bytes(tmp_path)) == (1_500_000_000, 2_000_000_000)


def test_the_timer_times_the_block_and_nothing_else() -> None:
    device = get_device("cpu")
    with device.timer() as timer:
        with pytest.raises(InvalidInput, match="has not ended"):
            _ = timer.seconds
        time.sleep(0.02)
    first = timer.seconds
    assert 0.02 <= first < 5
    time.sleep(0.01)
    assert timer.seconds == first
    with timer:
        pass
    assert timer.seconds < first, "a timer can be used again"


def test_a_failing_block_is_not_hidden_by_its_timer() -> None:
    with pytest.raises(ZeroDivisionError), get_device("cpu").timer():
        _ = 1 / 0


def test_bandwidth_is_measured_once_a_process(small_buffers: None) -> None:
    read = get_device("cpu").read_bandwidth()
    assert read.bytes_per_s > 1e8
    assert f"64 MB of float32, {torch.get_num_threads()} threads" in read.how
    assert get_device("cpu").read_bandwidth() is read
    assert get_device().copy_bandwidth() is get_device("cpu").copy_bandwidth() or CUDA_HERE
    assert "read plus written" in get_device("cpu").copy_bandwidth().how


def test_another_number_of_threads_is_another_measurement(small_buffers: None) -> None:
    threads = torch.get_num_threads()
    read = get_device("cpu").read_bandwidth()
    torch.set_num_threads(1 if threads > 1 else 2)
    try:
        assert get_device("cpu").read_bandwidth() is not read
    finally:
        torch.set_num_threads(threads)


class Clocked:
    """A CPU whose memory and clock are ours."""

    name = "cpu"

    def __init__(self, free: int) -> None:
        self.free = free
        self.torch_device = torch.device("cpu")

    def memory(self) -> Memory:
        return Memory(0, 0, self.free, self.free)

    def timer(self) -> "Clocked":
        return self

    def __enter__(self) -> "Clocked":
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = 0.5


def test_bandwidth_is_bytes_over_seconds_and_uses_a_quarter_of_the_free_memory() -> None:
    for what in ("read", "copy"):
        found = measured(Clocked(400_000_000), what, 0)
        assert found.bytes_per_s == 100_000_000 / 0.5
        assert "100 MB" in found.how


def test_too_little_memory_to_measure_is_an_error() -> None:
    with pytest.raises(OutOfMemory, match="takes 64 MB"):
        measured(Clocked(200_000_000), "read", 0)


def test_the_cpu_runs_a_step_as_it_is() -> None:
    device = get_device("cpu")
    with device.warming():
        assert device.compile(len) is len
    device.synchronize()
    assert device.describe() == f"cpu: {os.uname().machine}, {torch.get_num_threads()} threads"


def plain_attention(queries, keys, values, mask, scale):
    group = queries.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    logits = queries @ keys.mT * scale
    return torch.softmax(logits if mask is None else logits + mask, -1) @ values


def check_sdpa(device: Device) -> None:
    """Grouped heads, with and without a mask, against softmax written out."""
    draw = torch.Generator().manual_seed(0)

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw).to(device.torch_device)

    queries, keys, values = make(2, 6, 3, 8), make(2, 2, 5, 8), make(2, 2, 5, 8)
    for mask in (None, make(2, 1, 3, 5), make(2, 6, 3, 5)):
        expected = plain_attention(queries, keys, values, mask, 0.3)
        torch.testing.assert_close(device.sdpa(queries, keys, values, mask, 0.3), expected, atol=1e-5, rtol=1e-5)


def test_the_cpus_fused_attention_is_attention() -> None:
    check_sdpa(get_device("cpu"))


@pytest.mark.skipif(not CUDA_HERE, reason="torch sees no CUDA GPU on this machine")
class TestOnAGPU:
    """CUDA where there is one."""

    def test_the_whole_device(self, small_buffers: None) -> None:
        device = get_device("cuda")
        assert isinstance(device, CUDA)
        check_sdpa(device)
        kept = torch.ones(1_000_000, device=device.torch_device)
        memory = device.memory()
        assert kept.nbytes <= memory.allocated <= memory.peak <= memory.total
        with device.timer() as timer:
            kept.sum()
        assert 0 < timer.seconds < 5
        device.synchronize()
        assert device.read_bandwidth().bytes_per_s > 1e9
        assert device.copy_bandwidth().bytes_per_s > 1e9

    def test_the_routes_answer_like_the_reference(self) -> None:
        from kvlab.attention.reference import Reference
        from kvlab.gaudi_report.cases import Geometry, decode_case, tolerance
        from kvlab.gaudi_report.static_routes import static_routes

        device = get_device("cuda")
        for dtype in (torch.bfloat16, torch.float32):
            case = decode_case((1, 16, 17, 60), Geometry(8, 2, 64, 16), dtype, window_tokens=20)
            expected = Reference()(case.step, case.store)[0]
            there = case.to(device.torch_device)
            for each in static_routes(device, 4, 4):
                output = each.route(there.step, there.store)[0].cpu()
                assert (output - expected).abs().max() <= tolerance(case), each.name
