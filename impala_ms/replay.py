"""What was learned from, kept to be learned from again.

Input: batches of ``trajectory``. Output: earlier batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Replay:
    """The newest batches that were learned from, to be learned from again.

    Args:
        kept: How many.
        rng: Chooses among them.

    Source:
        Espeholt et al. 2018, arXiv:1802.01561, section 5.2.2, there of single unrolls.
    """

    def __init__(self, kept: int, rng: np.random.Generator) -> None:
        """Begin without any."""
        self.kept, self.rng = kept, rng
        self._batches: deque[dict[str, NDArray[Any]]] = deque()

    def add(self, batch: Mapping[str, NDArray[Any]]) -> None:
        """Copy a batch, ``{name: array}``, into the place of the oldest."""
        full = len(self._batches) == self.kept
        copy = self._batches.popleft() if full else {k: np.empty_like(v) for k, v in batch.items()}
        for name, values in batch.items():
            copy[name][...] = values
        self._batches.append(copy)

    def draw(self) -> dict[str, NDArray[Any]]:
        """One of them, each as likely as the others."""
        return self._batches[self.rng.integers(len(self._batches))]
