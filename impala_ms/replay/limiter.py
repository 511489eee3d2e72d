"""The rate limiter: how often rows are learned from, for each row that arrives.

Input: rows that were accepted and rows that were learned from. Output: whether the replay takes
more of the one, or gives more of the other.
"""

from __future__ import annotations


class RateLimiter:
    """Keeps learner and actors at a given ratio, from a given number of rows on.

    Args:
        ratio: Rows learned from for each row accepted; None: both run freely.
        start: So many rows are accepted before the first is learned from.
        slack: Actors wait when so many rows are due to be learned from.
    """

    def __init__(self, ratio: float | None, start: int, slack: float) -> None:
        self.ratio, self.start, self.slack = ratio, start, slack
        self.accepted = self.learned = 0

    def due(self) -> float:
        """Rows that may be learned from now."""
        if self.ratio is None:
            return float("inf") if self.accepted >= max(self.start, 1) else 0.0
        return max(0, self.accepted - self.start) * self.ratio - self.learned

    def may_accept(self) -> bool:
        """Whether rows are accepted now."""
        return self.ratio is None or self.due() < self.slack

    def may_learn(self, rows: int) -> bool:
        """Whether so many rows may be learned from now."""
        return self.due() >= rows
