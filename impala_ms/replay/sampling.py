"""Which slots of a replay are drawn: each as often as the other, or by their priorities.

Input: the slots that can be drawn, and the errors of what was learned from them. Output: slots and
the weights of their losses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from impala_ms.replay.sum_tree import Slots, SumTree

SMALLEST_ERROR = 1e-6  # so that a row without an error can still be drawn

Errors = NDArray[np.floating[Any]]


class Uniform:
    """Every slot that can be drawn is drawn as often as the other ones.

    Args:
        capacity: Number of slots.
        rng: Random generator of the draws.
    """

    def __init__(self, capacity: int, rng: np.random.Generator) -> None:
        self.rng = rng
        self._can_be_drawn = np.zeros(capacity, np.bool_)
        self._filled = 0  # slots from here on were never put

    def put(self, begin: int, can_be_drawn: NDArray[np.bool_], errors: Errors | None) -> None:
        """Fill the slots from ``begin`` on.

        Args:
            begin: The first slot.
            can_be_drawn: ``[n]``, False for a slot that is never drawn.
            errors: Not used.
        """
        end = begin + len(can_be_drawn)
        self._can_be_drawn[begin:end] = can_be_drawn
        self._filled = max(self._filled, end)

    def draw(self, number: int, batches: int = 1) -> tuple[Slots, NDArray[np.float32]]:
        """As ``Prioritized.draw``, but all weights are 1."""
        number *= batches
        slots = self.rng.integers(self._filled, size=number)
        while not (fit := self._can_be_drawn[slots]).all():
            slots[~fit] = self.rng.integers(self._filled, size=int((~fit).sum()))
        return slots, np.ones(number, np.float32)

    def update(self, slots: Slots, errors: Errors) -> None:
        """Do nothing: errors do not matter here."""


class Prioritized:
    """A slot is drawn in proportion to its error to the power of ``alpha``.

    Args:
        capacity: Number of slots.
        rng: Random generator of the draws.
        alpha: Priority exponent; 0 draws all alike.
        beta: Exponent of the importance weights; 0 does not correct.

    Source:
        Schaul et al. 2016, arXiv:1511.05952, section 3.3 (proportional variant) and 3.4.
    """

    def __init__(
        self, capacity: int, rng: np.random.Generator, *, alpha: float, beta: float
    ) -> None:
        self.rng, self.alpha, self.beta = rng, alpha, beta
        self._tree = SumTree(capacity)
        self._largest = 1.0  # priority of rows whose error is not known yet

    def put(self, begin: int, can_be_drawn: NDArray[np.bool_], errors: Errors | None) -> None:
        """Fill the slots from ``begin`` on.

        Args:
            begin: The first slot.
            can_be_drawn: ``[n]``, False for a slot that is never drawn.
            errors: ``[n]``, absolute TD errors; None: they get the largest priority so far. So
                does a slot whose error is not finite.
        """
        slots = np.arange(begin, begin + len(can_be_drawn))
        priorities = np.full(len(slots), self._largest)
        if errors is not None:
            known = np.isfinite(errors)
            priorities[known] = self._priorities(errors[known])
        self._set(slots, np.where(can_be_drawn, priorities, 0.0))

    def draw(self, number: int, batches: int = 1) -> tuple[Slots, NDArray[np.float32]]:
        """Draw slots, one from each of as many equal parts of the sum of all priorities.

        Args:
            number: Of the slots of a batch.
            batches: How many batches are drawn, each like the first.

        Returns:
            ``(slots, weights)``, each ``[batches * number]``, one batch after the other; the
            importance weights are divided by the largest of their batch. A slot may be drawn twice.
        """
        total = self._tree.total
        masses = (np.arange(number) + self.rng.random((batches, number))) * (total / number)
        slots = self._tree.find(masses.ravel())
        weights = self._tree.values(slots) ** -self.beta  # the size of the memory cancels out
        largest = weights.reshape(masses.shape).max(axis=1)
        return slots, (weights / np.repeat(largest, number)).astype(np.float32)

    def update(self, slots: Slots, errors: Errors) -> None:
        """Give slots the priorities of their new absolute TD errors; what is not finite is left."""
        known = np.isfinite(errors)
        self._set(slots[known], self._priorities(errors[known]))

    def _priorities(self, errors: Errors) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.maximum(errors.astype(np.float64), SMALLEST_ERROR)
        return found**self.alpha

    def _set(self, slots: Slots, priorities: NDArray[np.float64]) -> None:
        self._tree.set(slots, priorities)
        self._largest = max(self._largest, float(priorities.max(initial=0.0)))
