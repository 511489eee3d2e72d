"""A sum tree: draws slots with a probability proportional to their values.

Input: a value for each slot. Output: slots; the time grows with the logarithm of their number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Slots = NDArray[np.int64]


class SumTree:
    """A binary tree whose nodes hold the sum of the values below them.

    Args:
        capacity: Number of slots; all values begin with 0.

    Source:
        Schaul et al. 2016, arXiv:1511.05952, appendix B.2.1.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._depth = (capacity - 1).bit_length()
        self._leaves = 1 << self._depth
        self._sums = np.zeros(2 * self._leaves)  # node i has the children 2 i and 2 i + 1

    @property
    def total(self) -> float:
        """The sum of all values."""
        return float(self._sums[1])

    def values(self, slots: ArrayLike) -> NDArray[np.float64]:
        """The values of these slots."""
        found: NDArray[np.float64] = self._sums[self._leaves + np.asarray(slots, np.int64)]
        return found

    def set(self, slots: ArrayLike, values: ArrayLike) -> None:
        """Give slots new values; of a slot that is named twice, the last one counts.

        Args:
            slots: ``[n]``, 0 to capacity - 1.
            values: ``[n]`` or a single one.

        Raises:
            ValueError: If a value is negative or not finite.
        """
        slots, values = np.asarray(slots, np.int64), np.asarray(values, np.float64)
        if not (np.isfinite(values) & (values >= 0.0)).all():
            raise ValueError(f"values of a sum tree must be finite and at least 0, got {values}")
        nodes = self._leaves + slots
        self._sums[nodes] = values
        for _ in range(self._depth):
            nodes = nodes >> 1
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def find(self, masses: ArrayLike) -> Slots:
        """The slots in which these masses lie, when all values stand side by side.

        Args:
            masses: ``[n]``, from 0 to below ``total``.

        Returns:
            ``[n]``. A slot whose value is 0 is never among them, also if rounding makes a mass as
            large as the total.

        Raises:
            ValueError: If all values are 0.
        """
        if self.total <= 0.0:
            raise ValueError("all values are 0: there is nothing to find")
        left_over = np.array(masses, np.float64)
        nodes = np.ones(left_over.shape, np.int64)
        for _ in range(self._depth):
            left = 2 * nodes
            below = self._sums[left]
            goes_right = (left_over >= below) & (self._sums[left + 1] > 0.0)
            left_over -= np.where(goes_right, below, 0.0)
            nodes = left + goes_right
        found: Slots = nodes - self._leaves
        return found
