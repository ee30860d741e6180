"""Which tokens a step sees: every epoch all of them once, in another order."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class Batches:
    """Windows over the documents laid end to end; the order of documents and of windows is drawn anew each epoch.

    `documents` are token ids, <bos> first and <eos> last. The place in the data is (epoch, at), counted in windows,
    so a run goes on where it stopped.
    """

    def __init__(self, documents: list[np.ndarray], seed: int) -> None:
        self._documents = documents
        self._seed = seed
        self.epoch, self.at, self._length = 0, 0, 0
        self._windows = np.empty((0, 0), np.int64)

    def state(self) -> dict[str, int]:
        """The place in the data."""
        return {"epoch": self.epoch, "at": self.at, "length": self._length}

    def restore(self, state: dict[str, int]) -> None:
        """Go to that place."""
        self.epoch, self.at = state["epoch"], state["at"]
        self._lay(state["length"])

    def next(self, length: int, batch: int) -> Tensor:
        """The next `[batch, length + 1]` token ids; another length than before begins a new epoch."""
        if length != self._length or self.at + batch > len(self._windows):
            if self._length:
                self.epoch += 1
            self.at = 0
            self._lay(length)
        self.at += batch
        return torch.from_numpy(self._windows[self.at - batch : self.at])

    def _lay(self, length: int) -> None:
        draw = np.random.default_rng([self._seed, self.epoch])
        stream = np.concatenate([self._documents[each] for each in draw.permutation(len(self._documents))])
        first = int(draw.integers(length))
        count = (len(stream) - first - 1) // length
        rows = first + length * draw.permutation(count)[:, None] + np.arange(length + 1)
        self._windows = stream.astype(np.int64)[rows]
        self._length = length
