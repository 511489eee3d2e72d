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
FLOAT32_MAX = float(np.finfo(np.float32).max)

Fields = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]  # shape and dtype by name
Batch = dict[str, NDArray[Any]]
Buffer = tuple[NDArray[np.uint8], Batch]  # bytes, and the fields in them


class Layout:
    """Shape, dtype and place of every field of a piece of work: one buffer, nothing pickled.

    Args:
        fields: ``{name: (shape, dtype)}``. The hub that takes the work reads ``env_steps``,
            ``behaviour_version``, ``episode_return``, ``episode_length`` and ``wait_fraction``.
    """

    def __init__(self, fields: Fields) -> None:
        """Lay out one field after the other."""
        self.fields = fields
        self.slices: dict[str, slice] = {}
        end = ALIGNMENT_BYTES  # the layout that the message says it has, see ``empty``
        for name, (shape, dtype) in self.fields.items():
            size = dtype.itemsize * math.prod(shape)
            self.slices[name] = slice(end, end + size)
            end += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.nbytes = end
        self._header = np.frombuffer(bytes.fromhex(self.digest()), np.uint8)

    def valid_rows(self, work: Mapping[str, NDArray[Any]]) -> int:
        """Decisions in one piece of work, or in a batch of them."""
        raise NotImplementedError

    def problem(self, work: Mapping[str, NDArray[Any]]) -> str | None:
        """A phrase that says what in one piece of work is not finite, or None."""
        raise NotImplementedError

    def describe(self) -> dict[str, list[Any]]:
        """Every field as ``{name: [shape, dtype]}`` of plain JSON values."""
        return {name: [list(shape), dtype.str] for name, (shape, dtype) in self.fields.items()}

    def digest(self) -> str:
        """Hexadecimal hash; two ranks whose digests agree read each other's unrolls rightly."""
        return hashlib.sha256(json.dumps(self.describe()).encode()).hexdigest()[:16]

    def views(self, buffer: NDArray[np.uint8] | bytes | bytearray | memoryview) -> Batch:
        """The fields of an unroll as arrays that share the buffer's memory.

        Args:
            buffer: ``nbytes`` bytes; anything with the buffer protocol.

        Returns:
            ``{name: array}``.

        Raises:
            ValueError: If the buffer has another size or says that it has another layout.
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
        """A new buffer and its views: ``(buffer, {name: array})``; all fields hold zeros."""
        buffer = np.zeros(self.nbytes, np.uint8)
        buffer[: self._header.size] = self._header
        return buffer, self.views(buffer)

    def batch(self, unrolls: int) -> Batch:
        """``{name: [S, ...]}`` for S unrolls, one contiguous array a field."""
        return {
            name: np.zeros((unrolls, *shape), dtype) for name, (shape, dtype) in self.fields.items()
        }


class TrajectorySpec(Layout):
    """Shape, dtype and place of every field of an unroll of T steps in E environments.

    Args:
        unroll_length: T, environment steps.
        num_envs: E, environments of one actor.
        observation: ``{path: (shape, dtype)}`` of ``leaves``; the dtype is kept on the wire. A
            single array has the path ``""`` and the field ``observation``, the parts of a
            structured one the fields ``observation/<path>``.
        action_shape: Shape of one action.
        action_dtype: Its dtype.
        policy_parameters: Numbers that describe the behaviour policy at a step (A logits).
        frame_stack: k, newest frames that the policy sees as one observation ``[k, ...]``. Frames
            travel once: the k - 1 before row 0, as the policy saw them, and one a row; see
            ``frame_rows``.
        mask_size: Entries of an action mask, or 0.
        inputs: What the policy reads beside observations: of ``last_action``, ``last_reward`` and
            ``core_state``, which travel as they were before row 0.
        state_size: Numbers of the core's state, of one environment.
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
            "behaviour_logits": ((steps, envs, policy_parameters), np.dtype(np.float32)),
            # raw return and length of the episode that ended at the row; length 0: none ended
            "episode_return": ((steps, envs), np.dtype(np.float32)),
            "episode_length": ((steps, envs), np.dtype(np.int32)),
            "behaviour_version": ((), np.dtype(np.int64)),  # updates
            "env_steps": ((), np.dtype(np.int64)),  # decisions of this actor so far
            "wait_fraction": ((), np.dtype(np.float32)),  # of the time since the last unroll
        }
        if mask_size:
            fields["action_mask"] = ((steps, envs, mask_size), np.dtype(np.bool_))
        before = {
            "last_action": ((envs, *action_shape), np.dtype(action_dtype)),
            "last_reward": ((envs,), np.dtype(np.float32)),
            "core_state": ((envs, state_size), np.dtype(np.float32)),
        }
        fields |= {name: before[name] for name in before if name in inputs}
        super().__init__(fields)

    def valid_rows(self, unrolls: Mapping[str, NDArray[Any]]) -> int:
        """Rows in which the environments took an action: those that are not reset rows."""
        return int((~unrolls["first"][..., 1:, :]).sum())

    def problem(self, unroll: Mapping[str, NDArray[Any]]) -> str | None:
        """What in an unroll is not finite."""
        return non_finite(unroll)


def non_finite(unroll: Mapping[str, NDArray[Any]]) -> str | None:
    """Say where an unroll holds a NaN or an infinity.

    Args:
        unroll: Views of one unroll.

    Returns:
        None, or a phrase that names field, step of the unroll, environment and value.
    """
    for name, values in unroll.items():
        if name.startswith(("episode", "wait")):
            continue
        # A sum is non-finite if any element is, and reads the array once; float64 so that it
        # does not overflow on finite values.
        with np.errstate(invalid="ignore", over="ignore"):
            if values.dtype.kind != "f":
                continue
            if values.dtype.itemsize > 4:  # the network reads float32
                values = np.where(np.abs(values) > FLOAT32_MAX, np.inf, values)
            if np.isfinite(values.sum(dtype=np.float64)):
                continue
        where = np.argwhere(~np.isfinite(values))
        if len(where):
            value = values[tuple(where[0])]
            if name in ("last_action", "last_reward", "core_state"):
                return f"{name} is {value} before an unroll, environment {int(where[0][0])}"
            step, env = (int(i) for i in where[0][:2])
            if name.startswith("observation"):
                step -= len(values) - len(unroll["first"])  # older frames of a stack
            if step < 0:
                return f"{name} is {value} {-step} steps before an unroll, environment {env}"
            return f"{name} is {value} at step {step} of an unroll, environment {env}"
    return None


class Batches:
    """Two batches: one is filled by the thread that receives while the other is learned from.

    Args:
        layout: ``TrajectorySpec`` of the unrolls, or another layout of work.
        unrolls: S, pieces of work in a batch.

    Attributes:
        completed: Batches filled so far; the one being filled is used after as many updates.
    """

    def __init__(self, layout: Layout, unrolls: int) -> None:
        """Make both batches, empty."""
        self.layout = layout
        self.unrolls = unrolls
        self.completed = 0
        self._free = deque(layout.batch(unrolls) for _ in range(2))
        self._full: deque[Batch] = deque()
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

    def take(self, timeout_s: float) -> Batch | None:
        """The oldest full batch, or None after ``timeout_s`` seconds without one."""
        with self._ready:
            self._ready.wait_for(lambda: bool(self._full), timeout_s)
            return self._full.popleft() if self._full else None

    def give_back(self, batch: Batch) -> None:
        """Return a batch that has been learned from, to be filled again."""
        self._free.append(batch)
