"""The data contract: the fields of an unroll and their layout in memory.

Input: rows written by ``agents/actor``. Output: a buffer of bytes for a message, and batches of
contiguous arrays for the learner. The table in ``TrajectorySpec`` is the definition.

    row t:   observation[t] --action[t]--> reward[t], terminated[t] --> observation[t+1]
    rows     0 ... T-1 are learned from; observation[T] gives only the bootstrap value
    overlap  observation[T] of an unroll is observation[0] of the next unroll
    reset    row t is a reset row exactly if first[t+1]: its action was ignored
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

from impala_ms.finite import non_finite
from impala_ms.store import Store

ALIGNMENT_BYTES = 64

Fields = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]  # shape and dtype by name
Batch = dict[str, NDArray[Any]]
Buffer = tuple[NDArray[np.uint8], Batch]  # bytes, and views of the fields in them


class Layout:
    """Shape, dtype and position of each field of a piece of work: one buffer, without pickle.

    Attributes:
        kept_by_sender: Whether decisions of work that is dropped stay where they were made.

    Args:
        fields: ``{name: (shape, dtype)}``. The hub that takes the work reads ``env_steps``,
            ``behaviour_version``, ``episode_return``, ``episode_length`` and ``wait_fraction``.
    """

    kept_by_sender = False

    def __init__(self, fields: Fields) -> None:
        """Lay out one field after the other."""
        self.fields = fields
        self.slices: dict[str, slice] = {}
        end = ALIGNMENT_BYTES  # the header holds the digest of the layout, see ``empty``
        for name, (shape, dtype) in self.fields.items():
            size = dtype.itemsize * math.prod(shape)
            self.slices[name] = slice(end, end + size)
            end += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.nbytes = end
        self._header = np.frombuffer(bytes.fromhex(self.digest()), np.uint8)

    def valid_rows(self, work: Mapping[str, NDArray[Any]]) -> int:
        """Number of decisions in a piece of work, or in a batch."""
        raise NotImplementedError

    def problem(self, work: Mapping[str, NDArray[Any]]) -> str | None:
        """A phrase that names a value that is not finite in a piece of work, or None."""
        raise NotImplementedError

    def describe(self) -> dict[str, list[Any]]:
        """Every field as ``{name: [shape, dtype]}`` of plain JSON values."""
        return {name: [list(shape), dtype.str] for name, (shape, dtype) in self.fields.items()}

    def digest(self) -> str:
        """Hexadecimal hash: ranks with equal digests have the same layout."""
        return hashlib.sha256(json.dumps(self.describe()).encode()).hexdigest()[:16]

    def views(self, buffer: NDArray[np.uint8] | bytes | bytearray | memoryview) -> Batch:
        """The fields of an unroll as arrays that share the buffer's memory.

        Args:
            buffer: ``nbytes`` bytes, any object with the buffer protocol.

        Returns:
            ``{name: array}``.

        Raises:
            ValueError: If the buffer has another size, or the digest of another layout.
        """
        data = np.frombuffer(buffer, np.uint8)
        if data.size != self.nbytes:
            raise ValueError(f"an unroll of this run has {self.nbytes} bytes, got {data.size}")
        header = data[: self._header.size]
        if not np.array_equal(header, self._header):
            raise ValueError(
                f"an unroll of this run has the layout {self.digest()}, got "
                f"{header.tobytes().hex()}: do all ranks run the same version and settings?"
            )
        return {
            name: data[self.slices[name]].view(dtype).reshape(shape)
            for name, (shape, dtype) in self.fields.items()
        }

    def empty(self) -> Buffer:
        """A new buffer and its fields, ``(buffer, {name: array})``, filled with zeros."""
        buffer = np.zeros(self.nbytes, np.uint8)
        buffer[: self._header.size] = self._header
        return buffer, self.views(buffer)

    def batch(self, unrolls: int) -> Batch:
        """``{name: [S, ...]}`` for S unrolls, a contiguous array for each field."""
        return {
            name: np.zeros((unrolls, *shape), dtype) for name, (shape, dtype) in self.fields.items()
        }


class TrajectorySpec(Layout):
    """Shape, dtype and position of each field of an unroll of T steps in E environments.

    Args:
        unroll_length: T, environment steps.
        num_envs: E, environments of one actor.
        observation: ``{path: (shape, dtype)}`` of ``leaves``; the dtype is kept in messages. A
            single array has the path ``""`` and the field ``observation``; parts of a structured
            observation have the fields ``observation/<path>``.
        action_shape: Shape of one action.
        action_dtype: Its dtype.
        policy_parameters: Number of parameters of the behaviour policy at a step (A logits); with 0
            they are not recorded.
        frame_stack: k, number of newest frames in one observation ``[k, ...]`` of the policy. Each
            frame is sent once: k - 1 frames before row 0, then one for each row; see
            ``frame_rows``.
        mask_size: Entries of an action mask, or 0.
        inputs: The policy's inputs beside observations. ``last_action``, ``last_reward`` and
            ``core_state`` are sent with their values before row 0.
        state_size: Size of the core's state in one environment.
        recorded: Further fields, of agents of another kind.
        next_mask: Whether there is an action mask also for the observation after the last row.
    """

    def __init__(
        self,
        *,
        unroll_length: int,
        num_envs: int,
        observation: Mapping[str, tuple[Sequence[int], DTypeLike]],
        action_shape: Sequence[int],
        action_dtype: DTypeLike,
        policy_parameters: int,
        frame_stack: int = 1,
        mask_size: int = 0,
        inputs: Sequence[str] = (),
        state_size: int = 0,
        recorded: Fields | None = None,
        next_mask: bool = False,
    ) -> None:
        """Name one field after the other."""
        steps, envs = unroll_length, num_envs
        self.unroll_length, self.num_envs, self.frame_stack = steps, envs, frame_stack
        self.observations = {
            f"observation/{path}" if path else "observation": ((*shape,), np.dtype(dtype))
            for path, (shape, dtype) in observation.items()
        }
        fields: Fields = {
            name: ((steps + frame_stack, envs, *shape), dtype)
            for name, (shape, dtype) in self.observations.items()
        }
        fields |= {
            "action": ((steps, envs, *action_shape), np.dtype(action_dtype)),
            "reward": ((steps, envs), np.dtype(np.float32)),  # raw
            "terminated": ((steps, envs), np.dtype(np.bool_)),
            "first": ((steps + 1, envs), np.dtype(np.bool_)),
            # raw return and length of the episode that ended at the row; length 0: no end
            "episode_return": ((steps, envs), np.dtype(np.float32)),
            "episode_length": ((steps, envs), np.dtype(np.int32)),
            "behaviour_version": ((), np.dtype(np.int64)),  # updates
            "env_steps": ((), np.dtype(np.int64)),  # decisions of this actor so far
            "wait_fraction": ((), np.dtype(np.float32)),  # of the time since the last unroll
        }
        if policy_parameters:
            shape = steps, envs, policy_parameters
            fields["behaviour_logits"] = shape, np.dtype(np.float32)
        if mask_size:
            fields["action_mask"] = ((steps + next_mask, envs, mask_size), np.dtype(np.bool_))
        fields |= recorded or {}
        before = {
            "last_action": ((envs, *action_shape), np.dtype(action_dtype)),
            "last_reward": ((envs,), np.dtype(np.float32)),
            "core_state": ((envs, state_size), np.dtype(np.float32)),
        }
        fields |= {name: before[name] for name in before if name in inputs}
        super().__init__(fields)

    def valid_rows(self, unrolls: Mapping[str, NDArray[Any]]) -> int:
        """Number of rows in which an environment took an action: all but reset rows."""
        return int((~unrolls["first"][..., 1:, :]).sum())

    def problem(self, unroll: Mapping[str, NDArray[Any]]) -> str | None:
        """A phrase that names a value that is not finite in an unroll, or None."""
        return non_finite(unroll)


class Batches(Store):
    """Two batches: the receiving thread fills one while the learner learns from the other.

    Args:
        layout: ``TrajectorySpec`` of the unrolls, or another layout of work.
        unrolls: S, number of pieces of work in a batch.

    Attributes:
        completed: Number of batches filled so far. The next batch is used after so many updates.
    """

    def __init__(self, layout: Layout, unrolls: int) -> None:
        """Make both batches, empty."""
        super().__init__()
        self.layout = layout
        self.unrolls = unrolls
        self.completed = 0
        self.keeps = layout.kept_by_sender
        self._free = deque(self.example() for _ in range(2))
        self._full: deque[Batch] = deque()
        self._filled = 0
        self._ready = threading.Condition()

    def example(self) -> Batch:
        """A batch of zeros, to compile with."""
        return self.layout.batch(self.unrolls)

    def has_room(self) -> bool:
        """Whether there is a free slot."""
        return bool(self._free)

    def add(self, unroll: Mapping[str, NDArray[Any]]) -> None:
        """Copy an unroll, ``{name: array}``, into the next free slot.

        Raises:
            IndexError: If there is no free slot: see ``has_room``.
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

    def is_due(self) -> bool:
        """Whether there is a full batch."""
        return bool(self._full)

    def take(self, timeout_s: float) -> Batch | None:
        """The oldest full batch, or None after ``timeout_s`` seconds without one."""
        with self._ready:
            self._ready.wait_for(lambda: bool(self._full), timeout_s)
            return self._full.popleft() if self._full else None

    def give_back(self, batch: Batch, errors: NDArray[Any] | None = None) -> None:
        """Return a batch after learning, so that it can be filled again."""
        self._free.append(batch)

    def rows(self, batch: Batch) -> tuple[int, int]:
        """``(rows that are new, rows that are learned from)``."""
        new = self.layout.valid_rows(batch)
        learned = int(batch["rows"].sum()) if "rows" in batch else new  # of gradients
        return new + self.newly_kept(), learned
