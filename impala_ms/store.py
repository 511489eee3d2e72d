"""What a store between hub and learner may do beside taking work and giving batches.

Input: nothing. Output: what the simplest store says, ``trajectory.Batches``; a replay says more.
"""

from __future__ import annotations

from collections import deque


class Store:
    """A store that gives each piece of work once.

    Attributes:
        keeps: Whether work stays after it was learned from.
    """

    keeps = False

    def __init__(self) -> None:
        """Begin with nothing to be counted."""
        self._kept: deque[int] = deque()

    def keep(self, rows: int) -> None:
        """Count rows that stay with their sender, though the work that reported them is dropped."""
        self._kept.append(rows)

    def newly_kept(self) -> int:
        """Rows that have come since the last batch and stay, to be counted without a batch."""
        return sum(self._kept.popleft() for _ in range(len(self._kept)))

    def waits_for(self) -> str:
        """What is missing for a batch, beside what usually is."""
        return ""

    def notes(self, resumed: bool) -> list[str]:
        """Lines for the start of a run."""
        return []

    def columns(self) -> dict[str, float]:
        """Further columns of ``metrics.csv`` that describe the batch taken last."""
        return {}
