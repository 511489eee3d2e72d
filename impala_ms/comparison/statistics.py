"""What several seeds of one setting say together: pure functions on numbers.

Input: rows of ``metrics.csv``. Output: means, spreads and common curves. The number of samples is
always the number of seeds, never of episodes: episodes of one run share its policy.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Row = Mapping[str, float | None]
Array = NDArray[np.float64]

POINTS = 400  # of a curve that is drawn: more cannot be seen
BANDS = {"se": "standard error", "minmax": "lowest and highest"}


class HasReturn(Protocol):
    """Weights that have played."""

    @property
    def return_mean(self) -> float:
        """Mean return of their episodes."""


Scored = TypeVar("Scored", bound=HasReturn)


class Curve(NamedTuple):
    """One metric of one run: ``y[k]`` at ``x[k]``, ``x`` rises."""

    x: Array
    y: Array


class Summary(NamedTuple):
    """Numbers of several seeds; None where there are too few."""

    mean: float | None
    median: float | None
    standard_error: float | None


class Reached(NamedTuple):
    """Times to a score over seeds, and which seeds never had it."""

    mean: float | None
    median: float | None
    never: tuple[int, ...]  # positions in the list that was given


def summary(values: Sequence[float | None]) -> Summary:
    """Mean, median and standard error over seeds; seeds without a value are left out."""
    there = [value for value in values if value is not None]
    if not there:
        return Summary(None, None, None)
    return Summary(statistics.fmean(there), statistics.median(there), standard_error(there))


def standard_error(values: Sequence[float]) -> float | None:
    """Standard deviation of the sample / sqrt(number of values); None for fewer than two."""
    if len(values) < 2:
        return None
    return float(statistics.stdev(values) / math.sqrt(len(values)))


def reached(times: Sequence[float | None], limits: Sequence[float | None]) -> Reached:
    """Mean and median of the times to a score.

    Args:
        times: Of each seed; None: it never had the score.
        limits: What such a seed counts as; None: it does not count.
    """
    counted = [limit if time is None else time for time, limit in zip(times, limits, strict=True)]
    never = tuple(number for number, time in enumerate(times) if time is None)
    together = summary(counted)
    return Reached(together.mean, together.median, never)


def first_at(rows: Sequence[Row], score: float) -> Row | None:
    """The first row whose mean training return is at the score; None if no row is."""
    for row in rows:
        returned = row.get("episode_return_mean")
        if returned is not None and returned >= score:
            return row
    return None


def first_held(rows: Sequence[Scored], score: float) -> Scored | None:
    """The first row at the score whose next row is at it too; None if there is none.

    The last row has no next one: alone at the score it may be luck.
    """
    for row, after in itertools.pairwise(rows):
        if min(row.return_mean, after.return_mean) >= score:
            return row
    return None


def last(rows: Sequence[Row], name: str) -> float | None:
    """The newest value of a column; None where it was never written."""
    values = (row.get(name) for row in reversed(rows))
    return next((value for value in values if value is not None), None)


def curve(rows: Sequence[Row], x: str, y: str) -> Curve:
    """A metric against another; of rows with equal ``x`` the last one counts."""
    points = {row[x]: row[y] for row in rows if row.get(x) is not None and row.get(y) is not None}
    ordered = sorted((float(at or 0), float(value or 0)) for at, value in points.items())
    pairs = np.array(ordered, dtype=np.float64).reshape(-1, 2)
    return Curve(pairs[:, 0], pairs[:, 1])


def common_axis(curves: Sequence[Curve], points: int = POINTS) -> Array:
    """Where all curves have a value: from the latest beginning to the earliest end.

    A mean beyond the end of one run would jump, as fewer runs are in it.

    Returns:
        The ``x`` of all curves in this range, or as many even steps; empty without a range.
    """
    if not curves or any(len(one.x) == 0 for one in curves):
        return np.empty(0)
    low, high = max(one.x[0] for one in curves), min(one.x[-1] for one in curves)
    if low > high:
        return np.empty(0)
    every = np.unique(np.concatenate([one.x for one in curves]))
    within = every[(every >= low) & (every <= high)]
    even: Array = np.linspace(low, high, points)
    return within if len(within) <= points else even


def mean_curve(curves: Sequence[Curve], axis: Array) -> Array:
    """``[len(axis)]`` mean over the curves, each interpolated between its rows."""
    mean: Array = np.mean(_on(curves, axis), axis=0)
    return mean


def band(curves: Sequence[Curve], axis: Array, kind: str) -> tuple[Array, Array] | None:
    """The lower and upper edge of the spread over curves; None for fewer than two.

    Args:
        curves: One a seed.
        axis: Where, as `common_axis` gives it.
        kind: ``"se"`` (mean - and + standard error) or ``"minmax"``.
    """
    if len(curves) < 2:
        return None
    values = _on(curves, axis)
    if kind == "minmax":
        return values.min(axis=0), values.max(axis=0)
    mean, error = values.mean(axis=0), values.std(axis=0, ddof=1) / len(curves) ** 0.5
    return mean - error, mean + error


def _on(curves: Sequence[Curve], axis: Array) -> Array:
    return np.array([np.interp(axis, one.x, one.y) for one in curves])


def speed(rows: Sequence[Row]) -> tuple[float | None, float | None]:
    """Env steps per second without start-up (from the first row on) and with it."""
    points = curve(rows, "wall_time_s", "env_steps")
    if len(points.x) == 0 or points.x[-1] <= 0:
        return None, None
    seconds, steps = points.x[-1] - points.x[0], points.y[-1] - points.y[0]
    without = float(steps / seconds) if seconds > 0 else None
    return without, float(points.y[-1] / points.x[-1])


def mean_by_update(rows: Sequence[Row], name: str) -> float | None:
    """Mean of a column whose rows are means since the row before, each weighted by its updates."""
    total = weights = before = 0.0
    for row in rows:
        updates = row.get("updates") or before
        value, weight = row.get(name), max(updates - before, 0.0)
        before = updates
        if value is not None:
            total, weights = total + value * weight, weights + weight
    return total / weights if weights else None
