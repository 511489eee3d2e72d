"""Meters: they collect values between two rows of ``metrics.csv``.

Input: counts, values and times from the learner's loop. Output: the numbers of one row. Meters do
not read the clock: each time is an argument, in seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import ArrayLike


class EpisodeMeter:
    """Means over the last ``window`` finished episodes, and the number of all episodes.

    Attributes:
        count: Episodes added since the start. A resumed run sets it to the saved number.
    """

    def __init__(self, window: int = 20) -> None:
        """Begin without episodes."""
        self.count = 0
        self._window = window
        self._returns: deque[float] = deque(maxlen=window)
        self._lengths: deque[int] = deque(maxlen=window)
        self._all_returns: deque[float] = deque(maxlen=window)

    def add(self, episode_returns: ArrayLike, lengths: ArrayLike, scored: ArrayLike = True) -> None:
        """Add finished episodes, oldest first.

        Args:
            episode_returns: ``[n]``, sums of raw rewards.
            lengths: ``[n]``, steps.
            scored: ``[n]`` bool, whether they count for the window; all count for ``all_mean``.
        """
        returns, steps = np.atleast_1d(episode_returns), np.atleast_1d(lengths)
        if returns.shape != steps.shape:
            raise ValueError(f"{returns.size} returns, but {steps.size} lengths")
        self.count += returns.size
        self._all_returns.extend(returns[-self._window :].tolist())
        chosen = np.broadcast_to(np.asarray(scored, np.bool_), returns.shape)
        returns, steps = returns[chosen], steps[chosen]
        self._returns.extend(returns[-self._window :].tolist())
        self._lengths.extend(steps[-self._window :].tolist())

    @property
    def return_mean(self) -> float | None:
        """Mean return of the window; None until it is full."""
        return self._mean(self._returns)

    @property
    def all_return_mean(self) -> float | None:
        """Mean return of the last episodes of all environments, however much they explore."""
        return self._mean(self._all_returns)

    @property
    def length_mean(self) -> float | None:
        """Mean length of the window; None until it is full."""
        return self._mean(self._lengths)

    def _mean(self, values: deque[float] | deque[int]) -> float | None:
        return math.fsum(values) / self._window if len(values) == self._window else None


class MeanMax:
    """Weighted mean and maximum of the values added since the last ``reset``."""

    def __init__(self) -> None:
        """Begin without values."""
        self.reset()

    def reset(self) -> None:
        """Remove all values."""
        self._sum = 0.0
        self._weight = 0.0
        self._max = -math.inf

    def add(self, values: ArrayLike, weights: ArrayLike = 1.0) -> None:
        """Add a value or an array of values; a value of weight 0 does not count."""
        if type(values) is float and weights == 1.0:  # most calls, a thousand times a second
            self._sum += values
            self._weight += 1.0
            self._max = max(self._max, values)
            return
        array = np.asarray(values, np.float64)
        weight = np.broadcast_to(np.asarray(weights, np.float64), array.shape)
        counted = weight > 0
        if counted.any():
            self._sum += float((array[counted] * weight[counted]).sum())
            self._weight += float(weight[counted].sum())
            self._max = max(self._max, float(array[counted].max()))

    @property
    def mean(self) -> float | None:
        """The mean, or None if nothing was added."""
        return self._sum / self._weight if self._weight else None

    @property
    def max(self) -> float | None:
        """The largest value, or None if nothing was added."""
        return self._max if self._weight else None


class Rate:
    """Growth of a counter per second between two rows."""

    def __init__(self, now: float, count: float = 0) -> None:
        """Count from ``count`` at the time ``now``."""
        self._since = now
        self._count = count

    def take(self, now: float, count: float) -> float | None:
        """Return the growth per second since the last call; None if no time has passed."""
        seconds, grown = now - self._since, count - self._count
        self._since, self._count = now, count
        return grown / seconds if seconds > 0 else None


class WaitMeter:
    """Share of the time between two rows that was spent waiting.

    ::

        meter.begin(clock())
        ...  # wait
        meter.end(clock())
        row["learner_wait_fraction"] = meter.take(clock())
    """

    def __init__(self, now: float) -> None:
        """Measure from the time ``now``."""
        self._since = now
        self._waited = 0.0
        self._begun: float | None = None

    def begin(self, now: float) -> None:
        """Begin a wait."""
        self._begun = now

    def end(self, now: float) -> None:
        """End the wait, if there is one."""
        if self._begun is not None:
            self._waited += now - self._begun
            self._begun = None

    def take(self, now: float) -> float | None:
        """Return the share in [0, 1] since the last call; None if no time has passed.

        If a wait has not ended, its time after ``now`` counts in the next row.
        """
        if self._begun is not None:
            self.end(now)
            self.begin(now)
        seconds, waited = now - self._since, self._waited
        self._since, self._waited = now, 0.0
        return min(1.0, waited / seconds) if seconds > 0 else None
