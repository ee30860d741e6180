"""The toy's matrices at the width of a real model: enough weights that reading them takes time."""

import torch
from torch import Tensor
from torch.nn import functional

from kvlab.errors import positive


class LayerStack:
    """`layers` square float32 matrices of `width`, with a ReLU after each; no attention, no KV.

    Where torch has oneDNN the matrices are packed for it once, as a server's loader does; elsewhere they stay
    plain. Packed or not, a step reads each of them once. Raises `InvalidInput` for sizes below 1.
    """

    def __init__(self, layers: int = 6, width: int = 4096) -> None:
        self.layers, self.width = positive("layers", layers), positive("width", width)
        self._packed: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        self._weights = [self._laid_out(torch.randn(width, width).div_(width**0.5)) for _ in range(layers)]

    @property
    def weights(self) -> int:
        """Number of weights; a step multiplies each with one number of every request."""
        return self.layers * self.width * self.width

    @property
    def weight_bytes(self) -> int:
        """Bytes a step reads, whatever the batch."""
        return 4 * self.weights

    def step(self, batch: int) -> Tensor:
        """One decode step of `batch` requests: a row each, [batch, width], through every matrix."""
        rows = self._laid_out(torch.ones(positive("batch", batch), self.width))
        for weight in self._weights:
            rows = torch.relu(functional.linear(rows, weight))
        return rows.to_dense()

    def _laid_out(self, tensor: Tensor) -> Tensor:
        return tensor.to_mkldnn() if self._packed else tensor
