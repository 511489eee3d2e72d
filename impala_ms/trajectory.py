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


class TrajectorySpec:
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
            ``stack_places``.
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
        """Lay out one field after the other."""
        steps, envs = unroll_length, num_envs
        self.unroll_length, self.num_envs, self.frame_stack = steps, envs, frame_stack
        self.observations = {
            f"observation/{path}" if path else "observation": ((*shape,), np.dtype(dtype))
            for path, (shape, dtype) in observation.items()
        }
        self.fields: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
            name: ((steps + frame_stack, envs, *shape), dtype)
            for name, (shape, dtype) in self.observations.items()
        }
        self.fields |= {
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
            self.fields["action_mask"] = ((steps, envs, mask_size), np.dtype(np.bool_))
        before = {
            "last_action": ((envs, *action_shape), np.dtype(action_dtype)),
            "last_reward": ((envs,), np.dtype(np.float32)),
            "core_state": ((envs, state_size), np.dtype(np.float32)),
        }
        self.fields |= {name: before[name] for name in before if name in inputs}
        self.places: dict[str, slice] = {}
        end = ALIGNMENT_BYTES  # the layout that the message says it has, see ``empty``
        for name, (shape, dtype) in self.fields.items():
            size = dtype.itemsize * math.prod(shape)
            self.places[name] = slice(end, end + size)
            end += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.nbytes = end
        self._header = np.frombuffer(bytes.fromhex(self.digest()), np.uint8)

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
            name: data[self.places[name]].view(dtype).reshape(shape)
            for name, (shape, dtype) in self.fields.items()
        }

    def empty(self) -> tuple[NDArray[np.uint8], dict[str, NDArray[Any]]]:
        """A new buffer and its views: ``(buffer, {name: array})``; all fields hold zeros."""
        buffer = np.zeros(self.nbytes, np.uint8)
        buffer[: self._header.size] = self._header
        return buffer, self.views(buffer)

    def batch(self, unrolls: int) -> dict[str, NDArray[Any]]:
        """``{name: [S, ...]}`` for S unrolls, one contiguous array a field."""
        return {
            name: np.zeros((unrolls, *shape), dtype) for name, (shape, dtype) in self.fields.items()
        }


def leaves(space: Mapping[str, Any], path: str = "") -> dict[str, Mapping[str, Any]]:
    """The parts of an observation space as ``{path: description}``.

    Args:
        space: A description of ``VectorEnvironment.spaces()``.
        path: Keys and indices above it, joined by ``/``.
    """
    inner = space.get("spaces")
    if inner is None:
        return {path: space}
    pairs = inner.items() if isinstance(inner, Mapping) else enumerate(inner)
    found: dict[str, Mapping[str, Any]] = {}
    for key, part in pairs:
        found |= leaves(part, f"{path}/{key}" if path else str(key))
    return found


def leaf_array(leaf: Mapping[str, Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """``(shape, dtype)`` of the arrays that a part of an observation space describes."""
    if leaf["type"] == "Discrete":
        return (), np.dtype(np.int64)
    if leaf["type"] == "MultiDiscrete":
        return np.shape(leaf["nvec"]), np.dtype(np.int64)
    if leaf["type"] == "MultiBinary":
        return tuple(np.atleast_1d(leaf["n"]).tolist()), np.dtype(np.int8)
    return tuple(leaf["shape"]), np.dtype(leaf["dtype"])


def push_frame(
    stack: NDArray[Any], frame: NDArray[Any], first: NDArray[np.bool_], out: NDArray[Any]
) -> None:
    """The stack after one more frame; a new episode fills it with its first frame.

    Args:
        stack: ``[E, k, ...]``, oldest frame first; may be ``out``.
        frame: ``[E, ...]``.
        first: ``[E]``, whether an episode begins with the frame.
        out: ``[E, k, ...]``, overwritten.
    """
    out[:, :-1] = stack[:, 1:]
    out[:, -1] = frame
    if first.any():
        out[first] = frame[first, None]


def stack_places(first: NDArray[np.bool_], frame_stack: int) -> NDArray[np.int32]:
    """Which frames of a batch make the stacks that ``push_frame`` made for the policy.

    Args:
        first: ``[S, T+1, E]``, whether an episode begins at the row.
        frame_stack: k.

    Returns:
        ``[S, T+1, E, k]``: numbers of rows of the frames ``[S, T+k, E, ...]`` laid out as
        ``[S * (T+k) * E, ...]``, the oldest frame of each stack first.
    """
    unrolls, rows, envs = first.shape
    row = np.arange(rows)[:, None]
    # the row of frames before which a stack has nothing: its episode's first, if it began here
    begun = np.where(first, row + frame_stack - 1, 0)
    begun = np.maximum.accumulate(begun, 1)[..., None]
    frames = np.maximum(row[..., None] + np.arange(frame_stack), begun)
    unroll = np.arange(unrolls)[:, None, None, None] * (rows + frame_stack - 1)
    places: NDArray[Any] = (unroll + frames) * envs + np.arange(envs)[:, None]
    return places.astype(np.int32)


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


class Replay:
    """The newest batches that were learned from, to be learned from again.

    Args:
        kept: How many.
        rng: Chooses among them.

    Source:
        Espeholt et al. 2018, arXiv:1802.01561, section 5.2.2, there of single unrolls.
    """

    def __init__(self, kept: int, rng: np.random.Generator) -> None:
        """Begin without any."""
        self.kept, self.rng = kept, rng
        self._batches: deque[dict[str, NDArray[Any]]] = deque()

    def add(self, batch: Mapping[str, NDArray[Any]]) -> None:
        """Copy a batch, ``{name: array}``, into the place of the oldest."""
        full = len(self._batches) == self.kept
        copy = self._batches.popleft() if full else {k: np.empty_like(v) for k, v in batch.items()}
        for name, values in batch.items():
            copy[name][...] = values
        self._batches.append(copy)

    def draw(self) -> dict[str, NDArray[Any]]:
        """One of them, each as likely as the others."""
        return self._batches[self.rng.integers(len(self._batches))]
