"""The backend for Gaudi uses what the vendor's sources define, as they define it, and nothing else."""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import pytest
import torch
from device.conftest import OnTheCPU
from device.dry_run import fake_hpu
from device.gaudi_standin import FUSED_SDPA, TABLE, ContractViolation, FusedSDPA, Gaudi, Strict

from kvlab.device import bridge, hpu
from kvlab.device.hpu import HPU
from kvlab.doctor import check_device
from kvlab.errors import DeviceUnavailable
from kvlab.installation import Installation


def exercise(gaudi: Gaudi) -> None:
    """Everything the backend can do, on fake tensors where a tensor must be on the card."""
    gaudi.available = False
    with pytest.raises(DeviceUnavailable):
        HPU.open()
    gaudi.available = True
    device = HPU.open()
    assert device.describe().startswith("hpu: GAUDI3, ")
    assert device.torch_device == torch.device("hpu", 0)
    assert device.memory() == (20e9, 30e9, gaudi.free_bytes, 128e9)
    with fake_hpu():
        with device.timer() as timer:
            torch.ones(4, device=device.torch_device).sum()
        assert timer.seconds == 0.0025
        assert "hpu events" in device.read_bandwidth().how
        assert device.copy_bandwidth().bytes_per_s == 1e9 / 0.0025
        queries, keys = torch.ones(2, 4, 1, 8, device="hpu:0"), torch.ones(2, 2, 5, 8, device="hpu:0")
        mask = torch.zeros(2, 1, 1, 5, device="hpu:0")
        assert device.sdpa(queries, keys, keys, mask, 0.5).device == device.torch_device
    device.synchronize()
    step = device.compile(lambda tensor: tensor + 1)
    with device.warming():
        assert step(torch.zeros(2)).tolist() == [1, 1]
    assert device.counters() == {
        "graph_compilation": [("TotalNumber", gaudi.compiled)],
        "cpu_fallback": [("TotalNumber", 0)],
    }


def test_the_whole_backend_keeps_the_contract(gaudi: Gaudi) -> None:
    exercise(gaudi)
    assert gaudi.compiled == (0 if gaudi.lazy else 1)
    assert ("habana_frameworks.torch.core.mark_step" in gaudi.paths()) == gaudi.lazy
    assert check_device(Installation()).detail == "hpu: GAUDI3", "the plain doctor keeps it too"


def test_no_line_of_the_backend_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    run: dict[str, set[int]] = {str(module.__file__): set() for module in (hpu, bridge)}
    for lazy in (False, True):
        with pytest.MonkeyPatch.context() as patch, noting(run):
            gaudi = Gaudi(lazy=lazy)
            gaudi.install(patch)
            exercise(gaudi)
            gaudi.broken = RuntimeError("no device")
            with pytest.raises(DeviceUnavailable):
                HPU.open()
    with noting(run), pytest.raises(DeviceUnavailable):
        HPU.open()
    torch._dynamo.reset()
    for path, lines in run.items():
        assert sorted(lines_of(path) - lines) == [], f"lines of {Path(path).name} that no exercise ran"


class noting:
    """Notes which lines of the files in `run` are executed."""

    def __init__(self, run: dict[str, set[int]]) -> None:
        self.run = run

    def __enter__(self) -> None:
        self.before = sys.gettrace()
        sys.settrace(self.trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)

    def trace(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        lines = self.run.get(frame.f_code.co_filename)
        if lines is None:
            return None
        lines.add(frame.f_lineno)
        return self.trace


def lines_of(path: str) -> set[int]:
    """Lines with code inside the functions of a file."""
    return set(_lines(compile(Path(path).read_text(), path, "exec")))


def _lines(code: CodeType) -> Iterator[int]:
    if code.co_flags & inspect.CO_OPTIMIZED:
        yield from (line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _lines(constant)


def test_nothing_else_in_kvlab_talks_to_the_bridge(root: Path) -> None:
    talking = {
        path.relative_to(root / "kvlab").as_posix()
        for path in (root / "kvlab").rglob("*.py")
        if re.search(r"habana_frameworks|torch\.hpu\b|get_device_module", path.read_text())
    }
    assert talking == {"device/bridge.py", "doctor.py"}


def test_a_step_is_compiled_by_the_vendors_backend_whole_and_static(
    eager_gaudi: Gaudi, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: asked.append(options) or function)
    assert HPU.open().compile(len) is len
    assert asked == [{"backend": "hpu_backend", "dynamic": False, "fullgraph": True}]


def test_lazy_mode_hands_over_after_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    gaudi = Gaudi(lazy=True)
    gaudi.install(monkeypatch)
    step = HPU.open().compile(lambda tensor, *, by: tensor * by)
    before = len(gaudi.calls)
    assert step(torch.ones(1), by=3).item() == 3
    assert gaudi.paths()[before:] == ["habana_frameworks.torch.core.mark_step"]


def test_the_fused_operator_gets_positions_and_answers_like_attention(eager_gaudi: Gaudi) -> None:
    from device.test_devices import check_sdpa

    check_sdpa(OnTheCPU.open())
    parameters = list(inspect.signature(FusedSDPA.forward).parameters.values())[1:]
    assert str(inspect.Signature(parameters)) == FUSED_SDPA


VIOLATIONS: dict[str, Callable[[ModuleType], object]] = {
    "a name that is not there": lambda hpu: hpu.empty_cache(),
    "an argument that is not there": lambda hpu: hpu.synchronize(0),
    "a wrong keyword": lambda hpu: hpu.get_device_name(index=0),
    "a missing argument": lambda hpu: hpu.set_device(),
    "a graph of lazy mode": lambda hpu: hpu.HPUGraph(),
    "a method that is not there": lambda hpu: hpu.Event().elapsed(),
    "a name of torch's own": lambda hpu: hpu.is_initialized(),
    "an answer nobody gives": lambda hpu: hpu.set_device(0),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_the_stand_in_is_strict(eager_gaudi: Gaudi, name: str) -> None:
    with pytest.raises(ContractViolation):
        VIOLATIONS[name](vars(torch)["hpu"])


def timed(gaudi: Gaudi) -> tuple[Strict, Strict]:
    """Two recorded events."""
    hpu = vars(torch)["hpu"]
    events = hpu.Event(enable_timing=True), hpu.Event(enable_timing=True)
    for event in events:
        event.record()
    return events


def test_the_stand_in_knows_the_order_of_calls(eager_gaudi: Gaudi) -> None:
    start, end = timed(eager_gaudi)
    with pytest.raises(ContractViolation, match="nobody waited"):
        start.elapsed_time(end)
    end.synchronize()
    assert start.elapsed_time(end) == 2.5
    with pytest.raises(ContractViolation, match="before the start"):
        end.elapsed_time(start)
    eager_gaudi.lazy = True
    with pytest.raises(ContractViolation, match="mark_step comes before"):
        timed(eager_gaudi)


@pytest.mark.parametrize(
    "call",
    [
        lambda q, k: FusedSDPA.apply(q, k, k, attn_mask=None),
        lambda q, k: FusedSDPA.apply(q, k, k, None, 0.0, False, 1.0, "None", None, None, "left", False, False),
        lambda q, k: FusedSDPA.apply(q[0], k[0], k[0]),
        lambda q, k: FusedSDPA.apply(q, k, k, torch.ones(2, 1, 5, dtype=torch.bool)),
        lambda q, k: FusedSDPA.apply(q, k, k, torch.ones(2, 1, 1, 5, dtype=torch.bool)),
        lambda q, k: FusedSDPA.apply(q, k, k, torch.ones(2, 2, 1, 5)),
        lambda q, k: FusedSDPA.apply(q[:, :3], k, k),
        lambda q, k: FusedSDPA.apply(q, k.bfloat16(), k.bfloat16()),
        lambda q, k: FusedSDPA.apply(q, k, k, None, 0.0, False, 1.0, "None", None, torch.ones(2)),
    ],
)
def test_the_stand_ins_operator_is_strict(call: Callable[..., object]) -> None:
    with pytest.raises((ContractViolation, TypeError)):
        call(torch.ones(2, 4, 1, 8), torch.ones(2, 2, 5, 8))


def test_the_table_has_no_name_that_the_stand_in_answers_beyond_it() -> None:
    from device.gaudi_standin import ANSWERS

    assert set(ANSWERS) <= set(TABLE)
