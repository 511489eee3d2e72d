"""A replay of trajectories: batches hold new unrolls and, beside them, earlier trajectories.

Input: unrolls, from the hub's thread. Output: full batches ``[S + R, ...]``: S new unrolls, and R
more that are put together of single trajectories, each of one environment, drawn on their own.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from impala_ms.memory import in_words
from impala_ms.trajectory import Batch, Batches, Fields, Layout

# Fields that the learner does not read of a replayed trajectory.
NOT_KEPT = ("episode_return", "episode_length", "env_steps", "behaviour_version", "wait_fraction")
OF_NEW_UNROLLS = ("behaviour_version", "wait_fraction")
BEFORE_ROW_0 = ("last_action", "last_reward", "core_state")  # [E, ...], all others [rows, E, ...]


class TrajectoryReplay(Batches):
    """Two batches, filled as those of ``Batches``, and a ring of the newest trajectories.

    Args:
        layout: ``TrajectorySpec`` of the unrolls.
        unrolls: S, new unrolls in a batch.
        replayed: R, replayed unrolls in a batch.
        kept: Trajectories of one environment that are kept, the newest ones; as many whole
            unrolls as fit.
        rng: Random generator that draws trajectories.

    Source:
        Espeholt et al. 2018, arXiv:1802.01561, section 5.2.2.
    """

    def __init__(
        self, layout: Layout, unrolls: int, *, replayed: int, kept: int, rng: np.random.Generator
    ) -> None:
        """Make both batches and the ring, empty."""
        self.replayed, self.rng = replayed, rng
        super().__init__(layout, unrolls)
        envs = layout.fields["reward"][0][1]
        self._envs, self.kept = envs, kept // envs
        self._ring = {
            name: np.empty((self.kept, *shape), dtype)
            for name, (shape, dtype) in kept_fields(layout).items()
        }
        self._versions = np.zeros(self.kept, np.int64)
        self._age = 0.0  # of what was drawn last
        self._added = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Memory of the full ring."""
        return sum(array.nbytes for array in self._ring.values())

    def example(self) -> Batch:
        """A batch of zeros, to compile with."""
        return self.layout.batch(self.unrolls + self.replayed)

    def add(self, unroll: Mapping[str, NDArray[Any]]) -> None:
        """Copy an unroll into the next free slot, and into the ring in place of the oldest."""
        with self._lock:
            place = self._added % self.kept
            for name, array in self._ring.items():
                array[place] = unroll[name]
            self._versions[place] = unroll["behaviour_version"]
            self._added += 1
        super().add(unroll)

    def take(self, timeout_s: float) -> Batch | None:
        """The oldest full batch with its replayed part, or None after ``timeout_s`` seconds."""
        batch = super().take(timeout_s)
        if batch is None:
            return None
        with self._lock:
            self._draw(batch)
        new = np.zeros(self.unrolls + self.replayed, np.float32)
        new[: self.unrolls] = 1.0
        return batch | {name: batch[name][: self.unrolls] for name in OF_NEW_UNROLLS} | {"new": new}

    def notes(self, resumed: bool) -> list[str]:
        """Lines for the start of a run."""
        lines = [f"the replay takes up to {in_words(self.nbytes)}"]
        if resumed:
            lines.append("the replay is not in checkpoints: it begins with new trajectories")
        return lines

    def columns(self) -> dict[str, float]:
        """Further columns of ``metrics.csv`` that describe the batch taken last."""
        kept = min(self._added, self.kept) * self._envs
        return {"replay_age_mean": self._age, "replay_trajectories": float(kept)}

    def rows(self, batch: Batch) -> tuple[int, int]:
        """``(rows that are new, rows that are learned from)``."""
        new = self.layout.valid_rows({"first": batch["first"][: self.unrolls]})
        return new, self.layout.valid_rows(batch)

    def _draw(self, batch: Batch) -> None:
        """Fill the replayed part of a batch, uniformly from the ring."""
        filled = min(self._added, self.kept)
        shape = self.replayed, self._envs
        unroll = self.rng.integers(filled, size=shape)
        env = self.rng.integers(self._envs, size=shape)
        self._age = float((self._versions.max() - self._versions[unroll]).mean())
        for name, array in self._ring.items():
            part = batch[name][self.unrolls :]
            for one in range(self.replayed):
                if name in BEFORE_ROW_0:
                    part[one] = array[unroll[one], env[one]]
                else:
                    part[one] = array[unroll[one], :, env[one]].swapaxes(0, 1)


def kept_fields(layout: Layout) -> Fields:
    """Shape and dtype of what the ring keeps of an unroll."""
    return {name: field for name, field in layout.fields.items() if name not in NOT_KEPT}


def ring_bytes(layout: Layout, kept: int) -> int:
    """Memory of a full ring of so many trajectories of one environment."""
    fields = kept_fields(layout)
    sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in fields.values()]
    return kept // fields["reward"][0][1] * sum(sizes)
