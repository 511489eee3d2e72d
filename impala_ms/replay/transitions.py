"""A replay of transitions: a ring of whole unrolls, from which single rows are drawn.

Input: unrolls, from the hub's thread. Output: batches of n-step transitions, for the learner, which
gives their errors back. Each frame is kept once, as the bytes that were sent.

    slot    row t of environment e in unroll u of the ring: (u T + t) E + e
    draws   a batch is drawn and copied when the learner asks for it, under the same lock as
            additions: so no row changes while it is copied
    writes  the errors of slots that were overwritten meanwhile are dropped
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from impala_ms.frames import oldest_frames
from impala_ms.memory import in_words
from impala_ms.replay.limiter import RateLimiter
from impala_ms.replay.n_step import n_step
from impala_ms.replay.rewards import Rewards
from impala_ms.replay.sampling import Errors, Prioritized, Uniform
from impala_ms.store import Store
from impala_ms.trajectory import Batch, Fields, TrajectorySpec


class TransitionReplay(Store):
    """Keeps the newest unrolls; has the methods of ``trajectory.Batches``.

    Args:
        layout: ``TrajectorySpec`` of the unrolls.
        capacity: Decisions; as many whole unrolls are kept as fit.
        batch_size: Transitions in a batch.
        draws: A batch is drawn in so many equal parts, each as if it were a batch.
        n: A return has so many steps, where the episode and the unroll are long enough.
        gamma: Discount of one step.
        rewards: How rewards are clipped and scaled.
        sampler: ``Uniform`` or ``Prioritized`` of ``capacity`` slots.
        limiter: When unrolls are accepted, and batches given.

    Attributes:
        completed: Number of batches given so far.
    """

    unrolls = 1
    keeps = True

    def __init__(
        self,
        layout: TrajectorySpec,
        *,
        capacity: int,
        batch_size: int,
        draws: int = 1,
        n: int,
        gamma: float,
        rewards: Rewards,
        sampler: Uniform | Prioritized,
        limiter: RateLimiter,
    ) -> None:
        """Reserve the memory; it is used as the ring fills."""
        super().__init__()
        self.layout, self.batch_size, self.draws = layout, batch_size, draws
        self.sampler, self.limiter = sampler, limiter
        self.n, self.gamma, self.rewards = n, gamma, rewards
        self.kept = unrolls_kept(layout, capacity)
        self._unroll_rows = layout.unroll_length * layout.num_envs
        self.completed = 0
        self._ring = {
            name: np.empty((self.kept, *shape), dtype)
            for name, (shape, dtype) in kept_fields(layout).items()
        }
        self._generations = np.zeros(self.kept, np.int64)  # how often a place was filled
        self._versions = np.zeros(self.kept, np.int64)  # of the weights that played the unroll
        self._rows = np.zeros(self.kept, np.int64)  # that can be drawn
        self._next = 0
        self._new: list[tuple[int, int, float]] = []  # valid rows, version, wait fraction
        self._changed = threading.Condition()
        self._batch = self._empty_batch()
        nothing = np.zeros(0, np.int64)
        self._drawn = nothing, nothing  # slots of the batch, and generations of their unrolls

    @property
    def nbytes(self) -> int:
        """Memory of the full ring."""
        return sum(array.nbytes for array in self._ring.values())

    def has_room(self) -> bool:
        """Whether the rate limiter lets further rows in."""
        return self.limiter.may_accept()

    def add(self, unroll: Mapping[str, NDArray[Any]]) -> None:
        """Keep an unroll, ``{name: array}``, in place of the oldest one if the ring is full."""
        reward, first = self.rewards(unroll["reward"]), unroll["first"]
        made = n_step(reward, unroll["terminated"], first, self.n, self.gamma)
        can_be_drawn = made.steps > 0
        errors = unroll.get("error")
        computed = made._asdict() | {"oldest": oldest_frames(first, self.layout.frame_stack)}
        with self._changed:
            place = self._next
            for name, array in self._ring.items():
                array[place] = computed[name] if name in computed else unroll[name]
            self._generations[place] += 1
            self._versions[place] = unroll["behaviour_version"]
            self._rows[place] = rows = int(can_be_drawn.sum())
            self._next = (place + 1) % self.kept
            flat = None if errors is None else errors.ravel()
            self.sampler.put(place * self._unroll_rows, can_be_drawn.ravel(), flat)
            self.limiter.accepted += rows
            self._new.append((rows, int(self._versions[place]), float(unroll["wait_fraction"])))
            self._changed.notify()

    def is_due(self) -> bool:
        """Whether a batch may be taken now."""
        return self.limiter.may_learn(self.batch_size)

    def take(self, timeout_s: float) -> Batch | None:
        """A batch of transitions, or None after ``timeout_s`` seconds in which none was due.

        Returns:
            ``{name: [B, ...]}``, which is overwritten by the next call:

            - ``observation…``, ``next_observation…``: with stacked frames ``[B, k, ...]``
            - ``action``, ``returns``, ``discounts``, and ``weights`` of the loss
            - ``next_action_mask``: ``[B, M]`` bool, if there are masks
            - ``new_rows`` and, of the unrolls that came since the last batch, ``behaviour_version``
              and ``wait_fraction``
        """
        with self._changed:
            if not self._changed.wait_for(self.is_due, timeout_s):
                return None
            slots = self._draw()
            self._copy(slots)
            self._drawn = slots, self._generations[slots // self._unroll_rows]
            self.limiter.learned += self.batch_size
            self.completed += 1
            new, self._new = self._new, []
        rows, versions, waits = zip(*new, strict=True) if new else ((), (), ())
        return self._batch | {
            "new_rows": np.array(sum(rows)),
            "behaviour_version": np.array(versions, np.int64),
            "wait_fraction": np.array(waits, np.float32),
        }

    def give_back(self, batch: Batch, errors: Errors | None = None) -> None:
        """End the use of a batch.

        Args:
            batch: The batch that was taken last.
            errors: ``[B]``, absolute TD errors of its rows; None if it was not learned from.
        """
        if errors is None:
            return
        slots, generations = self._drawn
        with self._changed:
            same = self._generations[slots // self._unroll_rows] == generations
            self.sampler.update(slots[same], errors[same])

    def newly_kept(self) -> int:
        """Rows that have come since the last batch or call: they are counted without a batch."""
        with self._changed:
            rows = sum(new[0] for new in self._new)
            self._new = [(0, *new[1:]) for new in self._new]
        return rows

    def waits_for(self) -> str:
        """What is missing for a batch, beside what usually is."""
        accepted, start = self.limiter.accepted, self.limiter.start
        filling = f"the replay, {accepted:,} of {start:,} decisions"
        return filling if accepted < start else ""

    def notes(self, resumed: bool) -> list[str]:
        """Lines for the start of a run."""
        lines = [f"the replay takes up to {in_words(self.nbytes)}"]
        if resumed:
            lines.append(
                "the replay is not in checkpoints: it is filled with "
                f"{self.limiter.start:,} decisions again before learning goes on"
            )
        return lines

    def columns(self) -> dict[str, float]:
        """Further columns of ``metrics.csv`` that describe the batch taken last."""
        slots, _ = self._drawn
        ages = self._versions.max() - self._versions[slots // self._unroll_rows]
        return {"replay_age_mean": float(ages.mean()), "replay_rows": float(self._rows.sum())}

    def rows(self, batch: Batch) -> tuple[int, int]:
        """``(rows that are new since the last batch, rows that are learned from)``."""
        return int(batch["new_rows"]), self.batch_size

    def example(self) -> Batch:
        """A batch of zeros, to compile with."""
        return self._empty_batch()

    def _draw(self) -> NDArray[np.int64]:
        """Draw the slots of a batch, and set its weights."""
        slots, weights = self.sampler.draw(self.batch_size // self.draws, self.draws)
        self._batch["weights"][...] = weights
        return slots

    def _copy(self, slots: NDArray[np.int64]) -> None:
        """Copy these slots into the batch."""
        ring, batch = self._ring, self._batch
        envs = self.layout.num_envs
        unroll, rest = np.divmod(slots, self._unroll_rows)
        row, env = np.divmod(rest, envs)
        for name in ("action", "returns", "discounts"):
            batch[name][...] = ring[name][unroll, row, env]
        after = row + ring["steps"][unroll, row, env]
        if "action_mask" in ring:
            batch["next_action_mask"][...] = ring["action_mask"][unroll, after, env]
        for at, prefix in ((row, ""), (after, "next_")):
            frames = self._frames(unroll, at, env)
            for name in self.layout.observations:
                array = ring[name]
                flat = array.reshape((-1, *array.shape[3:]))
                np.take(flat, frames, 0, out=batch[prefix + name], mode="clip")

    def _frames(
        self, unroll: NDArray[np.int64], row: NDArray[np.int64], env: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Numbers of the frames of observations, ``[B]`` or, with stacks, ``[B, k]``."""
        stack, envs = self.layout.frame_stack, self.layout.num_envs
        rows = self.layout.unroll_length + stack
        if stack == 1:
            return (unroll * rows + row) * envs + env
        oldest = self._ring["oldest"][unroll, row, env]
        wanted = np.maximum(row[:, None] + np.arange(stack), oldest[:, None])
        found: NDArray[np.int64] = (unroll[:, None] * rows + wanted) * envs + env[:, None]
        return found

    def _empty_batch(self) -> Batch:
        size, stack = self.batch_size, self.layout.frame_stack
        batch: Batch = {}
        for prefix in ("", "next_"):
            for name, (shape, dtype) in self.layout.observations.items():
                lead = (size,) if stack == 1 else (size, stack)
                batch[prefix + name] = np.zeros((*lead, *shape), dtype)
        shape, dtype = self.layout.fields["action"]
        batch["action"] = np.zeros((size, *shape[2:]), dtype)
        for name in ("returns", "discounts", "weights"):
            batch[name] = np.zeros(size, np.float32)
        if "action_mask" in self.layout.fields:
            masks = self.layout.fields["action_mask"][0][2:]
            batch["next_action_mask"] = np.zeros((size, *masks), np.bool_)
        return batch


def unrolls_kept(layout: TrajectorySpec, capacity: int) -> int:
    """How many whole unrolls a ring for so many decisions keeps."""
    return capacity // (layout.unroll_length * layout.num_envs)


def kept_fields(layout: TrajectorySpec) -> Fields:
    """Shape and dtype of what a ring keeps of an unroll."""
    rows = layout.unroll_length, layout.num_envs
    fields = {
        name: layout.fields[name]
        for name in (*layout.observations, "action", "action_mask")
        if name in layout.fields
    }
    fields |= {name: (rows, np.dtype(np.float32)) for name in ("returns", "discounts")}
    fields["steps"] = rows, np.dtype(np.int16)
    if layout.frame_stack > 1:
        fields["oldest"] = (rows[0] + 1, rows[1]), np.dtype(np.int16)
    return fields


def ring_bytes(layout: TrajectorySpec, capacity: int) -> int:
    """Memory of a full ring for so many decisions."""
    sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in kept_fields(layout).values()]
    return unrolls_kept(layout, capacity) * sum(sizes)
