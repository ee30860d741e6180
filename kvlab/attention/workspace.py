"""Memory that a route gathers blocks into, kept from call to call."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from kvlab.attention.store import bits


class Workspace:
    """Buffers by name that grow to the next power of two and are reused.

    Fresh memory of hundreds of megabytes costs more in page faults than the gather itself; a route that keeps its
    workspace pays once. The price is that the memory stays taken until `release`.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor of this shape over the buffer, contents undefined, valid until the name is taken again."""
        size, key = prod(shape), (name, dtype, device)
        if key not in self._buffers or self._buffers[key].numel() < size:
            self._buffers.pop(key, None)
            self._buffers[key] = torch.empty(1 << max(0, size - 1).bit_length(), dtype=dtype, device=device)
        return self._buffers[key].narrow(0, 0, size).view(shape)

    def release(self) -> None:
        """Give the memory back."""
        self._buffers.clear()


def fetch(name: str, stored: Tensor, rows: Tensor, dtype: torch.dtype, workspace: Workspace | None) -> Tensor:
    """`stored[rows]` along the first dimension in `dtype`, in the workspace; in fresh memory without one, and on an
    accelerator, whose allocator keeps memory anyway.

    What is stored in another dtype (fp8, say) is gathered as it is and converted after that.
    """
    source = bits(stored)
    if workspace is None or stored.device.type != "cpu":
        return source.index_select(0, rows).view(stored.dtype).to(dtype)
    shape = (len(rows), *stored.shape[1:])
    gathered = workspace.take(name, shape, source.dtype, stored.device)
    torch.index_select(source, 0, rows, out=gathered)
    if stored.dtype == dtype:
        return gathered
    return workspace.take(f"{name} converted", shape, dtype, stored.device).copy_(gathered.view(stored.dtype))


def clear_edges(copy: Tensor, edges: Tensor, filled: Tensor) -> Tensor:
    """Zero, in place, the slots of partly filled blocks that hold no token of the request; gives `copy` back.

    `copy` is `[rows, block_size, head_dim]`, `edges` the rows concerned `[edges]`, `filled` bool `[edges, block_size,
    1]`. A slot that nobody wrote may hold NaN, and a weight of 0 does not silence NaN.
    """
    zero = torch.zeros((), dtype=copy.dtype, device=copy.device)
    return copy.index_copy_(0, edges, torch.where(filled, copy.index_select(0, edges), zero))
