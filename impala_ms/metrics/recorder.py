"""Make the rows of ``metrics.csv`` from single updates.

Input: the numbers of each update and of its unrolls. Output: a row for each log interval.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from impala_ms.metrics.meters import EpisodeMeter, MeanMax, Rate, WaitMeter


def rss_mb() -> float:
    """Resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Recorder:
    """Counters since the start of the run, and means since the last row.

    Attributes:
        updates, updates_skipped, env_steps, env_steps_dropped, rows_learned: Totals since the start
            of the run, those before a resume included.
        episodes: ``EpisodeMeter`` of all ranks.
        evaluation: ``(return mean, version)`` of the newest evaluation, or None.
    """

    TOTALS = ("updates", "updates_skipped", "env_steps", "env_steps_dropped", "rows_learned")

    def __init__(self, now: float, totals: Mapping[str, int] | None = None) -> None:
        """Begin at the time ``now``, with the totals of a resumed run or with zeros."""
        totals = totals or {}
        self.updates = totals.get("updates", 0)
        self.updates_skipped = totals.get("updates_skipped", 0)
        self.env_steps = totals.get("env_steps", 0)
        # Unrolls that had arrived but were not used when the run was saved are lost.
        waited = totals.get("env_steps_waiting", 0)
        self.env_steps_dropped = totals.get("env_steps_dropped", 0) + waited
        self.rows_learned = totals.get("rows_learned", self.env_steps)
        self.episodes = EpisodeMeter()
        self.episodes.count = totals.get("episodes", 0)
        self.evaluation: tuple[float, int] | None = None
        self.waiting = WaitMeter(now)
        self._steps_rate = Rate(now, self.env_steps)
        self._updates_rate = Rate(now, self.updates)
        self._lag = MeanMax()
        self._actor_wait = MeanMax()
        self._learning_rate: float | None = None
        self._means: dict[str, MeanMax] = {}

    def totals(self) -> dict[str, int]:
        """The totals, for a checkpoint."""
        return {name: getattr(self, name) for name in self.TOTALS} | {
            "episodes": self.episodes.count
        }

    def add_updates(
        self,
        made: int,
        statistics: Mapping[str, float],
        lags: NDArray[np.int64],
        actor_waits: NDArray[np.float32],
        new: int,
        learned: int | None = None,
        keeps: bool = False,
    ) -> None:
        """Count the updates of one call of the learner.

        Args:
            made: How many it made.
            statistics: Means over those that were applied, by column name; and ``applied``, how
                many of them changed the weights.
            lags: ``[S]`` policy lag of each new unroll, in updates.
            actor_waits: ``[S]`` share of time that the actor of each of them waited.
            new: Valid rows that have come since the last call.
            learned: Rows that were learned from; None: the new ones.
            keeps: Whether new rows are kept, to be learned from later, if no update was applied.
        """
        applied = int(statistics["applied"])
        self.updates += applied
        self.updates_skipped += made - applied
        if applied:
            self.rows_learned += new if learned is None else learned
            for name, value in statistics.items():
                if name != "applied":
                    self._means.setdefault(name, MeanMax()).add(value)
        if applied or keeps:
            self.env_steps += new
        else:
            self.env_steps_dropped += new
        self._learning_rate = statistics["learning_rate"]
        self._lag.add(lags)
        self._actor_wait.add(actor_waits)

    def row(self, now: float) -> dict[str, Any]:
        """The row of the interval that ends at ``now``; then a new interval begins."""
        row: dict[str, Any] = {name: meter.mean for name, meter in self._means.items()}
        row |= {
            "updates": self.updates,
            "env_steps": self.env_steps,
            "env_steps_per_s": self._steps_rate.take(now, self.env_steps),
            "updates_per_s": self._updates_rate.take(now, self.updates),
            "episodes": self.episodes.count,
            "episode_return_mean": self.episodes.return_mean,
            "episode_length_mean": self.episodes.length_mean,
            "policy_lag_mean": self._lag.mean,
            "policy_lag_max": self._lag.max,
            "learner_wait_fraction": self.waiting.take(now),
            "actor_wait_fraction": self._actor_wait.mean,
            "learning_rate": self._learning_rate,
            "rss_mb": rss_mb(),
            "env_steps_dropped": self.env_steps_dropped,
            "updates_skipped": self.updates_skipped,
            "rows_learned": self.rows_learned,
        }
        if self.evaluation is not None:
            row["eval_return_mean"], row["eval_version"] = self.evaluation
        for meter in (*self._means.values(), self._lag, self._actor_wait):
            meter.reset()
        return row
