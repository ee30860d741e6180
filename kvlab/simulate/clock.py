"""How long a step takes on a machine: bytes over bandwidth, FLOPs over peak, fixed costs."""

from __future__ import annotations

from dataclasses import dataclass

from kvlab.errors import InvalidInput
from kvlab.hardware import Constant, Hardware
from kvlab.shapes import ModelShape


@dataclass(frozen=True, slots=True)
class Clock:
    """Prices the parts of a step of one model on one machine, in seconds.

    A step is the weights (read once; hidden behind the FLOPs of its tokens where those take longer), then attention,
    then the fixed cost. `weight_bytes` are read in each step, `active_params` compute for each token (fewer than there
    are in a mixture of experts).
    """

    machine: Hardware
    weight_bytes: float
    active_params: float

    def attention_s(self, kv_bytes: float) -> float:
        """Attention over `kv_bytes` that lie contiguous, or that the machine reads block by block in place."""
        return kv_bytes / (self.machine.bandwidth.value * self.machine.attention_share.value)

    def gather_s(self, kv_bytes: float) -> float:
        """Copying `kv_bytes` of scattered KV into a workspace: each byte is read and written, nothing overlaps.

        Raises `InvalidInput` for a machine that gathers nothing.
        """
        share = self._gather_share()
        return self.machine.gather_s.value + 2 * kv_bytes / (self.machine.bandwidth.value * share.value)

    def gathered_attention_s(self, kv_bytes: float) -> float:
        """A gather, and attention after it: on Gaudi the matrix engines wait for the workspace."""
        return self.gather_s(kv_bytes) + self.attention_s(kv_bytes)

    def linear_s(self, tokens: int) -> float:
        """Everything but attention, for a step of `tokens` tokens."""
        machine = self.machine
        read = self.weight_bytes / (machine.bandwidth.value * machine.weights_share.value)
        return max(read, 2 * self.active_params * tokens / machine.matrix_flops.value)

    def move_s(self, moved_bytes: float) -> float:
        """Copies that a policy asked for, within the memory: read and written at the speed of the weights."""
        return 2 * moved_bytes / (self.machine.bandwidth.value * self.machine.weights_share.value)

    def step_s(self, tokens: int, kv_bytes: float, moved_bytes: float = 0.0) -> float:
        """A step of `tokens` tokens whose queries read `kv_bytes` of KV in place."""
        fixed = self.machine.step_s.value
        return self.linear_s(tokens) + self.attention_s(kv_bytes) + self.move_s(moved_bytes) + fixed

    def mbu(self, useful_bytes: float, time_s: float) -> float:
        """Model bandwidth utilisation: useful bytes over what the peak bandwidth could read in `time_s`."""
        return useful_bytes / (time_s * self.machine.bandwidth.value)

    def _gather_share(self) -> Constant:
        if self.machine.gather_share is None:
            raise InvalidInput(f"{self.machine.title} reads blocks in place; only Gaudi is priced with a gather")
        return self.machine.gather_share


def clock_for(
    shape: ModelShape, machine: Hardware, *, weight_dtype_bytes: int | None = None, active_params: float | None = None
) -> Clock:
    """The clock of `shape` on `machine`; weights are as wide as the KV unless said.

    Raises `InvalidInput` where the shape does not say how many parameters the model has.
    """
    if shape.params is None:
        raise InvalidInput(f"{shape.name} does not say how many parameters the model has; a clock needs them")
    width = shape.dtype_bytes if weight_dtype_bytes is None else weight_dtype_bytes
    return Clock(machine, float(shape.params * width), float(shape.params if active_params is None else active_params))
