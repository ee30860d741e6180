"""The clock: bytes over bandwidth, FLOPs over peak, fixed costs."""

import pytest

from kvlab.errors import InvalidInput
from kvlab.hardware import machine, this_cpu
from kvlab.shapes import ModelShape
from kvlab.simulate.clock import Clock, clock_for

CPU = this_cpu(1e10, 1e11, memory_bytes=8e9, step_s=0.5)


def test_a_step_is_weights_attention_moves_and_the_fixed_cost() -> None:
    clock = Clock(CPU, 2e10, 1e9)
    assert clock.step_s(1, 0) == pytest.approx(2 + 0.5)
    assert clock.step_s(1, 3e10) == pytest.approx(2 + 3 + 0.5)
    assert clock.step_s(1, 3e10, 1e10) == pytest.approx(2 + 3 + 2 + 0.5)


def test_weights_hide_behind_the_flops_of_many_tokens() -> None:
    clock = Clock(CPU, 2e10, 1e9)
    assert clock.linear_s(100) == pytest.approx(2)
    assert clock.linear_s(200) == pytest.approx(2 * 1e9 * 200 / 1e11)


def test_a_gather_reads_and_writes_and_stands_in_series_with_attention() -> None:
    clock = clock_for(ModelShape.preset("gemma-4-31b"), machine("gaudi-3"))
    fixed = clock.gather_s(0)
    assert fixed == clock.machine.gather_s.value > 0
    assert clock.gather_s(2e9) - fixed == pytest.approx(2 * (clock.gather_s(1e9) - fixed))
    assert clock.gathered_attention_s(1e9) == pytest.approx(clock.gather_s(1e9) + clock.attention_s(1e9))


def test_a_machine_that_reads_in_place_prices_no_gather() -> None:
    with pytest.raises(InvalidInput, match="H100"):
        Clock(machine("h100"), 1.0, 1.0).gather_s(1.0)


def test_mbu_is_of_the_peak() -> None:
    assert Clock(CPU, 0, 0).mbu(5e9, 1.0) == 0.5


def test_weights_are_as_wide_as_the_kv_unless_said() -> None:
    shape = ModelShape.preset("gemma-4-26b-a4b")
    assert clock_for(shape, CPU).weight_bytes == shape.params
    assert clock_for(shape, CPU, weight_dtype_bytes=2, active_params=4e9) == Clock(CPU, 2.0 * (shape.params or 0), 4e9)


def test_a_shape_without_its_parameters_has_no_clock() -> None:
    with pytest.raises(InvalidInput, match="parameters"):
        clock_for(ModelShape.preset("gemma-4-26b-a4b-dflash-draft"), CPU)
