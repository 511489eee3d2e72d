"""The data contract: what one unroll holds and how it lies in memory.

Input: rows written by ``actor``. Output: one byte buffer a message carries, and batches of
contiguous arrays that the learner reads. The table in ``TrajectorySpec`` is the definition.

    row t:   observation[t] --action[t]--> reward[t], terminated[t] --> observation[t+1]
    rows     0 ... T-1 are learned from; observation[T] is there for the bootstrap value only
    overlap  observation[T] of an unroll is observation[0] of the environment's next unroll
    reset    row t is a reset row exactly when first[t+1]: its action was ignored
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

ALIGNMENT_BYTES = 64


class TrajectorySpec:
    """Shape, dtype and place of every field of an unroll of T steps in E environments.

    Args:
        unroll_length: T, environment steps.
        num_envs: E, environments of one actor.
        observation_shape: Shape of one observation.
        observation_dtype: Its dtype, kept on the wire.
        action_shape: Shape of one action.
        action_dtype: Its dtype.
        policy_parameters: Numbers that describe the behaviour policy at a step (A logits).
    """

    def __init__(
        self,
        *,
        unroll_length: int,
        num_envs: int,
        observation_shape: Sequence[int],
        observation_dtype: DTypeLike,
        action_shape: Sequence[int],
        action_dtype: DTypeLike,
        policy_parameters: int,
    ) -> None:
        """Lay out one field after the other."""
        steps, envs = unroll_length, num_envs
        self.unroll_length, self.num_envs = steps, envs
        self.fields: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
            "observation": ((steps + 1, envs, *observation_shape), np.dtype(observation_dtype)),
            "action": ((steps, envs, *action_shape), np.dtype(action_dtype)),
            "reward": ((steps, envs), np.dtype(np.float32)),  # raw
            "terminated": ((steps, envs), np.dtype(np.bool_)),
            "first": ((steps + 1, envs), np.dtype(np.bool_)),
            "behaviour_logits": ((steps, envs, policy_parameters), np.dtype(np.float32)),
            # raw return and length of the episode that ended at the row; length 0: none ended
            "episode_return": ((steps, envs), np.dtype(np.float32)),
            "episode_length": ((steps, envs), np.dtype(np.int32)),
            "behaviour_version": ((), np.dtype(np.int64)),  # updates
            "env_steps": ((), np.dtype(np.int64)),  # decisions of this actor so far
            "wait_fraction": ((), np.dtype(np.float32)),  # of the time since the last unroll
        }
        self.places: dict[str, slice] = {}
        end = 0
        for name, (shape, dtype) in self.fields.items():
            size = dtype.itemsize * math.prod(shape)
            self.places[name] = slice(end, end + size)
            end += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.nbytes = end

    def describe(self) -> dict[str, list[Any]]:
        """Every field as ``{name: [shape, dtype]}`` of plain JSON values."""
        return {name: [list(shape), dtype.str] for name, (shape, dtype) in self.fields.items()}

    def digest(self) -> str:
        """Hexadecimal hash; two ranks whose digests agree read each other's unrolls rightly."""
        return hashlib.sha256(json.dumps(self.describe()).encode()).hexdigest()[:16]

    def views(
        self, buffer: NDArray[np.uint8] | bytes | bytearray | memoryview
    ) -> dict[str, NDArray[Any]]:
        """The fields of an unroll as arrays that share the buffer's memory.

        Args:
            buffer: ``nbytes`` bytes; anything with the buffer protocol.

        Returns:
            ``{name: array}``.

        Raises:
            ValueError: If the buffer has another size.
        """
        data = np.frombuffer(buffer, np.uint8)
        if data.size != self.nbytes:
            raise ValueError(f"an unroll of this run has {self.nbytes} bytes, got {data.size}")
        return {
            name: data[self.places[name]].view(dtype).reshape(shape)
            for name, (shape, dtype) in self.fields.items()
        }

    def empty(self) -> tuple[NDArray[np.uint8], dict[str, NDArray[Any]]]:
        """A new buffer and its views: ``(buffer, {name: array})``; the memory holds zeros."""
        buffer = np.zeros(self.nbytes, np.uint8)
        return buffer, self.views(buffer)

    def batch(self, unrolls: int) -> dict[str, NDArray[Any]]:
        """``{name: [S, ...]}`` for S unrolls, one contiguous array a field."""
        return {name: np.zeros((unrolls, *s), dtype) for name, (s, dtype) in self.fields.items()}


def non_finite(unroll: Mapping[str, NDArray[Any]]) -> str | None:
    """Say where an unroll holds a NaN or an infinity.

    Args:
        unroll: Views of one unroll.

    Returns:
        None, or a phrase that names field, step of the unroll, environment and value.
    """
    for name in ("reward", "observation", "behaviour_logits"):
        values = unroll[name]
        # A sum is non-finite if any element is, and reads the array once; float64 so that it
        # does not overflow on finite values.
        with np.errstate(invalid="ignore", over="ignore"):
            if values.dtype.kind != "f" or np.isfinite(values.sum(dtype=np.float64)):
                continue
        where = np.argwhere(~np.isfinite(values))
        if len(where):
            step, env = (int(i) for i in where[0][:2])
            value = values[tuple(where[0])]
            return f"{name} is {value} at step {step} of an unroll, environment {env}"
    return None


class Batches:
    """Two batches: one is filled by the thread that receives while the other is learned from.

    Args:
        spec: ``TrajectorySpec`` of the unrolls.
        unrolls: S, unrolls in a batch.

    Attributes:
        completed: Batches filled so far; the one being filled is used after as many updates.
    """

    def __init__(self, spec: TrajectorySpec, unrolls: int) -> None:
        """Make both batches, empty."""
        self.spec = spec
        self.unrolls = unrolls
        self.completed = 0
        self._free = deque(spec.batch(unrolls) for _ in range(2))
        self._full: deque[dict[str, NDArray[Any]]] = deque()
        self._filled = 0
        self._ready = threading.Condition()

    def has_room(self) -> bool:
        """Whether there is a free slot."""
        return bool(self._free)

    def add(self, unroll: Mapping[str, NDArray[Any]]) -> None:
        """Copy an unroll, ``{name: array}``, into the next free slot.

        Raises:
            IndexError: If there is none: see ``has_room``.
        """
        batch = self._free[0]
        for name, values in unroll.items():
            batch[name][self._filled] = values
        self._filled += 1
        if self._filled == self.unrolls:
            with self._ready:
                self._full.append(self._free.popleft())
                self._filled = 0
                self.completed += 1
                self._ready.notify()

    def take(self, timeout_s: float) -> dict[str, NDArray[Any]] | None:
        """The oldest full batch, or None after ``timeout_s`` seconds without one."""
        with self._ready:
            self._ready.wait_for(lambda: bool(self._full), timeout_s)
            return self._full.popleft() if self._full else None

    def give_back(self, batch: dict[str, NDArray[Any]]) -> None:
        """Return a batch that has been learned from, to be filled again."""
        self._free.append(batch)
