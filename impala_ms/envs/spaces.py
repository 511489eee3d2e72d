"""Observation and action spaces: which are supported, their description and their layout.

Input: gymnasium's spaces. Output: layouts. They turn what an environment returns into arrays of
known shape and dtype, and the actions that a policy samples into those that an environment takes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from impala_ms.envs.errors import MakeError
from impala_ms.errors import one_line

MASK = "action_mask"  # key of an observation or an info
_LISTED_BOUNDS = 64  # a Box with more elements is described by a hash of its bounds
_ENDLESS = 1e30  # a larger bound, such as the largest float32, counts as infinite
_PARTS = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these"


class Leaf(NamedTuple):
    """One array of an observation.

    Attributes:
        path: Keys and indices that lead to it, joined by ``/``; empty for a plain observation.
        keys: The same as a tuple: what the observation is indexed with.
        shape: Of one environment's array.
        dtype: Data type of that array.
        start: Smallest value of a Discrete or MultiDiscrete: a number or an array.
        size: How many values it has: a number or an array; None for a Box.
    """

    path: str
    keys: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: Any = 0
    size: Any = None

    def find(self, observation: Any) -> Any:
        """This part of an observation.

        Raises:
            ValueError: If the observation has no such part.
        """
        part = observation
        try:
            for key in self.keys:
                part = part[key]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(
                f"the observation has no part {self.path!r}, but its space has: "
                f"{one_line(repr(observation))}"
            ) from error
        return part

    def check(self, part: Any, leading: tuple[int, ...] = ()) -> NDArray[Any]:
        """The array of a part; an error if NumPy's assignment would change its values silently.

        An assignment broadcasts shapes, cuts fractions off and lets integers wrap around.

        Args:
            part: What the environment returned here.
            leading: Axes in front of those of one environment: ``(E,)`` for a batch.

        Raises:
            ValueError: If the shape or the type is not that of the space.
        """
        if (
            type(part) is np.ndarray
            and part.dtype == self.dtype
            and part.shape == leading + self.shape
        ):
            return part
        array = np.asarray(part)
        kinds = "biuf" if self.dtype.kind == "f" else "biu"
        if array.shape != leading + self.shape or array.dtype.kind not in kinds:
            given = f"shape {array.shape[len(leading) :]} and type {array.dtype}"
        elif self.dtype.kind != "f" and (array.astype(self.dtype) != array).any():
            given = f"type {array.dtype}, from {array.min()} to {array.max()}"
        else:
            return array
        raise ValueError(
            f"the environment returned {f'{self.path!r} of ' if self.path else ''}an observation "
            f"of {given}, but the observation space says {self.shape} and {self.dtype}"
        )

    def from_0(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values ``[E, …]`` of a Discrete, MultiDiscrete or MultiBinary, counted from 0.

        Raises:
            OutsideSpaceError: If the space does not have a value.
        """
        counted = values - self.start if np.any(self.start) else values
        # As an unsigned number, a negative one is larger than all others.
        outside = counted.view(f"u{counted.itemsize}") >= self.size
        if outside.any():
            index = tuple(np.argwhere(outside)[0].tolist())
            env, element = index[0], index[1:]
            least = int(np.broadcast_to(self.start, self.shape)[element])
            most = least + int(np.broadcast_to(self.size, self.shape)[element]) - 1
            field = f" for {self.path!r}" if self.path else ""
            where = f" at {list(element)}" if self.shape else ""
            raise OutsideSpaceError(
                f"the environment returned {values[index]}{field}{where} in an "
                f"observation, but the observation space allows {least} to {most}",
                env,
            )
        return counted


class OutsideSpaceError(ValueError):
    """An observation holds a number that its space does not have.

    Attributes:
        index: Number of the environment.
    """

    def __init__(self, text: str, index: int) -> None:
        super().__init__(text)
        self.index = index


class ObservationLayout:
    """How the observations of a space lie in arrays.

    Args:
        id: The environment, for messages.
        space: gymnasium's space. Texts in it are left out.
        mask_size: Entries of an action mask. If it is not 0, the part ``action_mask`` of a Dict is
            taken as the mask.

    Attributes:
        plain: Whether an observation is one array.
        leaves: ``{path: Leaf}``, in the order of the space.
        has_mask: Whether a part is an action mask; it is not among the leaves.
        description: The space as plain JSON values, without the parts that are left out.
        left_out: Paths of the texts.
        counted: Leaves whose values are counted: Discrete, MultiDiscrete and MultiBinary.
    """

    def __init__(self, id: str, space: Any, mask_size: int) -> None:
        """Walk through the space; a ``MakeError`` names a part that is not supported."""
        self.leaves: dict[str, Leaf] = {}
        self.has_mask = False
        self.left_out: list[str] = []
        self._id, self._space, self._mask_size = id, space, mask_size
        description = self._walk(space, (), "")
        if description is None or not self.leaves:
            raise MakeError(
                f"{id} has the observation space {one_line(space)}, in which there is nothing but "
                f"texts or an action mask; supported are {_PARTS}: wrap the environment"
            )
        self.description: dict[str, Any] = description
        self.plain = "" in self.leaves
        self.counted = [leaf for leaf in self.leaves.values() if leaf.size is not None]

    def write(self, arrays: Mapping[str, NDArray[Any]], index: int, observation: Any) -> None:
        """Copy one environment's observation into row ``index`` of ``{path: array [E, …]}``."""
        for path, leaf in self.leaves.items():
            arrays[path][index] = leaf.check(leaf.find(observation))

    def batch(self, observation: Any, envs: int) -> dict[str, NDArray[Any]]:
        """A vector environment's batched observation as ``{path: array [E, …]}``, contiguous."""
        return {
            path: np.ascontiguousarray(leaf.check(leaf.find(observation), (envs,)), leaf.dtype)
            for path, leaf in self.leaves.items()
        }

    def _walk(self, space: Any, keys: tuple[Any, ...], path: str) -> dict[str, Any] | None:
        """Describe a part and add its leaves; None if all of it is left out."""
        from gymnasium import spaces

        if not isinstance(space, spaces.Space):
            where = f"observation space's part {path!r}" if keys else "observation space"
            raise MakeError(f"the {where} of {self._id} is {one_line(repr(space))}, not a space")
        if space.dtype is not None and np.dtype(space.dtype).kind == "U":
            self.left_out.append(path)
            return None
        if isinstance(space, spaces.Dict):
            named = {}
            for key, inner in space.spaces.items():
                if not keys and key == MASK and self._mask_size:
                    self._check_mask(inner)
                    self.has_mask = True
                    continue
                described = self._walk(inner, (*keys, key), _join(path, key))
                if described is not None:
                    named[str(key)] = described
            return {"type": "Dict", "spaces": named} if named else None
        if isinstance(space, spaces.Tuple):
            listed: list[dict[str, Any]] = []
            for index, inner in enumerate(space.spaces):
                # Numbered as in the description, where parts that are left out do not count.
                described = self._walk(inner, (*keys, index), _join(path, len(listed)))
                if described is not None:
                    listed.append(described)
            return {"type": "Tuple", "spaces": listed} if listed else None
        found = _leaf_array(space)
        if found is None:
            whole = "" if not keys else f", whose part {path!r} is {one_line(space)}"
            raise MakeError(
                f"{self._id} has the observation space {one_line(self._space)}{whole}, but only "
                f"{_PARTS} are supported (Text is left out): wrap the environment, for instance "
                "with gymnasium.wrappers.TransformObservation"
            )
        if path in self.leaves:
            raise MakeError(
                f"{self._id} has two parts of its observation space that are both called "
                f"{path!r}: rename one of the keys"
            )
        if not math.prod(found[0]):
            raise MakeError(
                f"{self._id} has {f'a part {path!r} of its' if keys else 'an'} observation space "
                f"without any element, {one_line(space)}: leave it out or give it a shape"
            )
        self.leaves[path] = Leaf(path, keys, *found, *_leaf_range(space))
        return _describe(space)

    def _check_mask(self, space: Any) -> None:
        from gymnasium import spaces

        parts = space.spaces if isinstance(space, spaces.Tuple) else (space,)
        size = sum(math.prod(part.shape or ()) for part in parts)
        if size != self._mask_size:
            raise MakeError(
                f"{self._id} has an observation part {MASK!r} of {size} entries, but an action "
                f"mask of its action space has {self._mask_size}: give it one entry for each "
                "action, or another name if it is not a mask"
            )


class BoxActions:
    """Brings the numbers that a policy samples into the bounds of a Box.

    Args:
        space: The Box.
        scale: Whether [-1, 1] is mapped to the range between two finite bounds. A number with an
            infinite bound is not mapped. All numbers are clipped to their bounds.

    Attributes:
        scaled: Whether each number is mapped, an array of the shape of the Box.
    """

    def __init__(self, space: Any, scale: bool) -> None:
        """Work out the affine map."""
        self._low, self._high = np.asarray(space.low), np.asarray(space.high)
        # In float64, and halved before the sum: float32 rounds, and the sum could overflow.
        low, high = self._low.astype(np.float64), self._high.astype(np.float64)
        finite = (np.abs(low) < _ENDLESS) & (np.abs(high) < _ENDLESS)
        self.scaled: NDArray[np.bool_] = finite & scale
        self._least = np.where(self.scaled, -1.0, low)
        self._most = np.where(self.scaled, 1.0, high)
        low, high = np.where(self.scaled, low, -1.0), np.where(self.scaled, high, 1.0)
        self._middle, self._half = low / 2 + high / 2, high / 2 - low / 2

    @property
    def changes(self) -> bool:
        """Whether the map changes any number."""
        return bool(self._middle.any() or (self._half != 1.0).any())

    def encode(self, action: NDArray[Any]) -> NDArray[Any]:
        """Sampled actions ``[E, *shape]`` as a new array that the space contains."""
        clipped = np.clip(np.asarray(action, np.float64), self._least, self._most)
        encoded: NDArray[Any] = (self._middle + self._half * clipped).astype(self._low.dtype)
        encoded = np.clip(encoded, self._low, self._high)  # rounding may have left the bounds
        return encoded


@dataclass(frozen=True)
class ActionLayout:
    """What a policy samples, and how that becomes what the environment takes.

    Attributes:
        shape: Shape of one sampled action: ``()``, ``(parts,)``, or that of a Box.
        mask_size: Entries of an action mask: n, the sum of all parts, or 0 for a Box.
        num_actions: n of a Discrete space, else 0.
        description: The space as plain JSON values.
        box: How the numbers of a Box are scaled and clipped; None for other spaces.
    """

    shape: tuple[int, ...]
    mask_size: int
    num_actions: int
    description: dict[str, Any]
    box: BoxActions | None
    _start: NDArray[Any] | int
    _dtype: np.dtype[Any]
    _taken_shape: tuple[int, ...]

    def encode(self, action: NDArray[Any]) -> NDArray[Any]:
        """Sampled actions ``[E, *shape]`` as the environments take them, ``[E, …]``.

        The result is a new array: environments may keep it and write into it.

        Raises:
            ValueError: If the sampled actions have another shape.
        """
        action = np.asarray(action)
        if action.shape[1:] != self.shape:
            raise ValueError(f"actions have shape {action.shape}, not [E, *{self.shape}]")
        if self.box is not None:
            return self.box.encode(action)
        return (action + self._start).astype(self._dtype).reshape(-1, *self._taken_shape)


def action_layout(id: str, space: Any, scale: bool = True) -> ActionLayout:
    """The layout of an action space.

    Args:
        id: The environment, for messages.
        space: gymnasium's space.
        scale: Whether the numbers of a Box are scaled to its bounds: see ``BoxActions``.

    Raises:
        MakeError: If the space is not supported.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        n, dtype = int(space.n), np.dtype(space.dtype)
        return ActionLayout((), n, n, _describe(space), None, int(space.start), dtype, ())
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        shape, dtype = space.nvec.shape, np.dtype(space.dtype)
        entries, starts = int(space.nvec.sum()), np.asarray(space.start, np.int64)
        return ActionLayout(shape, entries, 0, _describe(space), None, starts, dtype, shape)
    if isinstance(space, spaces.MultiBinary):
        taken = tuple(space.shape)
        parts = math.prod(taken)
        dtype = np.dtype(space.dtype)
        return ActionLayout((parts,), 2 * parts, 0, _describe(space), None, 0, dtype, taken)
    elements = math.prod(getattr(space, "shape", None) or ())
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f" and elements:
        box, shape, dtype = BoxActions(space, scale), tuple(space.shape), np.dtype(space.dtype)
        return ActionLayout(shape, 0, 0, _describe(space), box, 0, dtype, shape)
    raise MakeError(
        f"{id} has the action space {one_line(space)}, but only Discrete, MultiDiscrete of one "
        "dimension, MultiBinary and Box of one float or more are supported: wrap the environment, "
        "for instance with gymnasium.wrappers.TransformAction"
    )


def joined_mask(mask: Any, size: int, leading: tuple[int, ...] = ()) -> NDArray[np.bool_]:
    """An action mask as one new array ``[*leading, size]``; a tuple is a mask for each part.

    Raises:
        ValueError: If it has another number of entries, or an entry that is not 0 or 1.
    """
    try:
        parts = mask if isinstance(mask, (tuple, list)) and np.ndim(mask[0]) else (mask,)
        joined = np.concatenate([np.asarray(part).reshape(*leading, -1) for part in parts], -1)
        allowed: NDArray[np.bool_] = joined.astype(np.bool_)
        if joined.dtype.kind not in "biuf" or (allowed != joined).any():
            raise ValueError
    except (ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"{MASK!r} is {one_line(repr(mask))}, but it takes 0 or 1 for each action, {size} in "
            "all"
        ) from error
    if joined.shape[-1] != size:
        raise ValueError(
            f"the action mask has {joined.shape[-1]} entries, but the action space has {size}: "
            "it takes one for each action"
        )
    return allowed


def _leaf_array(space: Any) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """``(shape, dtype)`` of the array of a part; None if the part is not supported."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind in "biuf":
        return tuple(space.shape), np.dtype(space.dtype)
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return tuple(space.shape or ()), np.dtype(np.int64)
    if isinstance(space, spaces.MultiBinary):
        return tuple(space.shape), np.dtype(np.int8)
    return None


def _leaf_range(space: Any) -> tuple[Any, Any]:
    """``(start, size)`` of the values of a part; the size of a Box is None."""
    if hasattr(space, "nvec"):
        return np.asarray(space.start, np.int64), np.asarray(space.nvec, np.uint64)
    if hasattr(space, "start"):
        return int(space.start), int(space.n)
    return 0, 2 if hasattr(space, "n") else None


def _describe(space: Any) -> dict[str, Any]:
    """A part as JSON values. Infinite bounds are strings: JSON has no number for them."""
    if hasattr(space, "nvec"):
        nvec, start = space.nvec.tolist(), np.asarray(space.start).tolist()
        return {"type": "MultiDiscrete", "nvec": nvec, "start": start}
    if hasattr(space, "start"):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if hasattr(space, "n"):
        return {"type": "MultiBinary", "n": np.asarray(space.n).tolist()}
    return {
        "type": "Box",
        "shape": list(space.shape),
        "dtype": str(space.dtype),
        "low": _describe_bound(space.low),
        "high": _describe_bound(space.high),
    }


def _describe_bound(bound: NDArray[Any]) -> Any:
    if bound.size and (bound == bound.flat[0]).all():
        return _number(bound.flat[0])
    if bound.size <= _LISTED_BOUNDS:
        return [_number(value) for value in bound.flat]
    return "sha256:" + hashlib.sha256(np.ascontiguousarray(bound).tobytes()).hexdigest()


def _number(value: Any) -> Any:
    if not np.isfinite(value):
        return str(value)
    return float(value) if np.asarray(value).dtype.kind == "f" else value.item()


def _join(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)
