"""A replay of whole batches, so that the learner can learn from them again.

Input: batches of ``trajectory``. Output: earlier batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class BatchReplay:
    """The newest batches that were learned from.

    Args:
        kept: How many batches are kept.
        rng: Random generator that draws a batch.

    Source:
        Espeholt et al. 2018, arXiv:1802.01561, section 5.2.2; there single unrolls are replayed.
    """

    def __init__(self, kept: int, rng: np.random.Generator) -> None:
        """Begin without batches."""
        self.kept, self.rng = kept, rng
        self._batches: deque[dict[str, NDArray[Any]]] = deque()

    def add(self, batch: Mapping[str, NDArray[Any]]) -> None:
        """Keep a copy of a batch, ``{name: array}``, in place of the oldest batch."""
        full = len(self._batches) == self.kept
        copy = self._batches.popleft() if full else {k: np.empty_like(v) for k, v in batch.items()}
        for name, values in batch.items():
            copy[name][...] = values
        self._batches.append(copy)

    def draw(self) -> dict[str, NDArray[Any]]:
        """Draw a batch, uniformly."""
        return self._batches[self.rng.integers(len(self._batches))]
