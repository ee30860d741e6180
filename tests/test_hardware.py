"""Machines: what is known of them, where it comes from, and what an unknown name is answered."""

from dataclasses import replace

import pytest

from kvlab.errors import InvalidInput
from kvlab.hardware import Constant, machine, machines, this_cpu


def test_the_machines_of_the_articles_are_there() -> None:
    assert set(machines()) >= {"gaudi-2", "gaudi-3", "h100", "a100", "a100-80gb"}
    assert machine("gaudi-3").bandwidth.value == 3.7e12
    assert machine("gaudi-2").bandwidth.value == 2.46e12
    assert machine("h100").memory_bytes.value == 80e9


@pytest.mark.parametrize("name", machines())
def test_every_number_has_a_source_and_a_share_is_at_most_one(name: str) -> None:
    found = machine(name).constants()
    assert all(constant.source for constant in found.values())
    assert all(found[each].value <= 1 for each in found if each.endswith("_share"))


@pytest.mark.parametrize("name", machines())
def test_what_no_vendor_states_is_called_calibrated(name: str) -> None:
    found = machine(name).constants()
    assert all(found[each].calibrated for each in ("weights_share", "attention_share", "step_s"))
    assert not any(found[each].calibrated for each in ("memory_bytes", "bandwidth", "matrix_flops"))


def test_an_unknown_machine_is_refused_with_the_closest_names() -> None:
    with pytest.raises(InvalidInput, match=r"'gaudi3'; did you mean gaudi-3"):
        machine("gaudi3")
    with pytest.raises(InvalidInput, match=r"'tpu'; there are a100"):
        machine("tpu")


def test_this_cpu_has_what_was_measured() -> None:
    cpu = this_cpu(1.1e10, 9e10, memory_bytes=8e9, step_s=0.001)
    assert (cpu.bandwidth.value, cpu.matrix_flops.value, cpu.step_s.value) == (1.1e10, 9e10, 0.001)
    assert cpu.gather_share is None
    assert not any(constant.calibrated for constant in cpu.constants().values())


@pytest.mark.parametrize(
    ("field", "value"),
    [("bandwidth", 0.0), ("bandwidth", float("inf")), ("attention_share", 1.01), ("step_s", -1e-9)],
)
def test_a_number_that_cannot_be_is_refused(field: str, value: float) -> None:
    with pytest.raises(InvalidInput, match=field):
        replace(machine("h100"), **{field: Constant(value, "invented")})  # type: ignore[arg-type]
