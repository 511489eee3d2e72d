"""Several environments of one kind, stepped together, with the statistics of their episodes.

Input: actions of the policy. Output: the rows from which the actor builds its unrolls.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from impala_ms.envs.errors import MakeError
from impala_ms.envs.spaces import (
    MASK,
    ObservationLayout,
    OutsideSpaceError,
    action_layout,
    joined_mask,
)
from impala_ms.errors import add_note, one_line

_log = logging.getLogger(__name__)

LIVES = "lives"  # key of an info

Observation = NDArray[Any] | dict[str, NDArray[Any]]
# observation, reward, terminated, truncated, info; an action mask is always in the info
Rows = tuple[
    Observation, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], Mapping[str, NDArray[Any]]
]


class VectorEnvironment:
    """``num_envs`` environments; each resets in the step after its episode has ended.

    ::

        step      1        2          3 (ends)    4 (reset row)      5
        returns   o1, r1   o2, r2     o3, r3      o0', 0             o1', r1'
        first     False    False      False       True               False

    The step in which an episode ends returns its final observation. The next step ignores the
    action for that environment, returns reward 0 and the first observation of a new episode, and
    ``first`` is True. So ``first`` belongs to the observation that is returned with it; after
    ``reset()`` it is True everywhere.

    A plain observation space gives one array ``[E, …]``. Dict and Tuple, nested or not, give
    ``{path: array [E, …]}``, where keys and indices are joined by ``/``; texts are left out.
    Discrete and MultiDiscrete observations are counted from 0, whatever their ``start`` is.

    Arrays that ``step`` and ``reset`` return are valid until the next call: copy what you keep.

    Attributes:
        id: The id from which the environments were made.
        num_envs: Number of environments, E.
        observation_shape: Shape of one observation; ``()`` for Dict and Tuple.
        observation_dtype: Data type of the observations; meaningless for Dict and Tuple.
        observation_leaves: ``{path: (shape, dtype)}``; for a plain observation ``{"": …}``.
        num_actions: Number of discrete actions; 0 for other action spaces.
        action_mask: ``[E, mask_size]`` bool, the actions allowed after the observations returned
            last; None if the environment always allows all of them. After a final observation a
            row may allow no action.
        frame_stack: Number of newest frames in one observation of the policy; the actor stacks
            them.
        frames_per_step: Simulator frames in one step (action repeat).
        step_limit: Steps after which an episode is truncated, or None.
        finished: The episodes that ended in the last step: indices of their environments, returns
            (float64, raw rewards) and lengths (steps without reset rows).
    """

    def __init__(
        self,
        id: str,
        *,
        observation_space: Any,
        action_space: Any,
        seeds: Sequence[int],
        step_limit: int | None = None,
        frames_per_step: int = 1,
        frame_stack: int = 1,
        episodic_life: bool = False,
        scale_actions: bool = True,
    ) -> None:
        """Check the spaces; subclasses hold the environments themselves.

        With ``episodic_life``, a lost life is ``terminated`` for the learner, while the episode
        goes on. Lives are read from the info ``lives``; the loss of the last life ends the episode
        anyway.
        """
        self._action = action_layout(id, action_space, scale_actions)
        if scale_actions:
            self._say_what_is_scaled(id)
        self._layout = ObservationLayout(id, observation_space, self._action.mask_size)
        if self._layout.left_out:
            _log.info("%s: observations without %s", id, ", ".join(self._layout.left_out))
        self.id = id
        self.num_envs = len(seeds)
        self.observation_leaves = {
            path: (leaf.shape, leaf.dtype) for path, leaf in self._layout.leaves.items()
        }
        self.observation_shape, self.observation_dtype = self.observation_leaves.get(
            "", ((), np.dtype(np.float32))
        )
        if frame_stack > 1 and len(self.observation_shape) < 2:
            raise MakeError(
                f"frame_stack {frame_stack} needs an observation that is one image, but {id} has "
                f"the observation space {one_line(observation_space)}: set frame_stack to 1"
            )
        self.num_actions = self._action.num_actions
        self.frame_stack = frame_stack
        self.frames_per_step = frames_per_step
        self.step_limit = step_limit
        self.action_mask: NDArray[np.bool_] | None = None
        # None: not known before the first reset
        self._mask_size = self._action.mask_size if self._layout.has_mask else None
        if not self._action.mask_size:
            self._mask_size = 0
        self._episodic_life = episodic_life
        self._lives: NDArray[Any] = np.zeros(self.num_envs, np.int64)
        self._seeds: Sequence[int] | None = [int(seed) for seed in seeds]
        self._unread: Observation | None = None
        self._over = np.zeros(self.num_envs, np.bool_)
        self._returns = np.zeros(self.num_envs, np.float64)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._steps = 0
        self._begun = False
        self._limit_reported = False
        self.finished = _no_episodes()

    @property
    def mask_size(self) -> int:
        """Entries of an action mask, M; 0 if all actions are always allowed.

        Only the first reset shows whether the info has a mask: it is done here if it has not been
        done. Later infos must agree with it.
        """
        if self._mask_size is None:
            self._unread = self._begin(self._seeds)
        return self._mask_size or 0

    def spaces(self) -> dict[str, Any]:
        """Spaces, size of the action mask and number of stacked frames as plain JSON values.

        Two descriptions are equal exactly if the spaces are; parts that are left out do not count.
        """
        return {
            "observation": self._layout.description,
            "action": self._action.description,
            "action_mask": self.mask_size,
            "frame_stack": self.frame_stack,
        }

    def reset(self, seeds: Sequence[int] | None = None) -> Observation:
        """Begin a new episode in every environment.

        The first reset seeds the generators with the seeds that the constructor got. Later resets
        continue with the generators as they are, unless ``seeds`` are given.

        Returns:
            The first observations, ``[E, …]`` or ``{path: [E, …]}``.
        """
        unread, self._unread = self._unread, None
        if seeds is None:
            seeds = self._seeds
        elif len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds for {self.num_envs} environments: give one each")
        else:
            seeds, unread = [int(seed) for seed in seeds], None
        observation = self._begin(seeds) if unread is None else unread
        self._begun = True
        return observation

    def step(
        self, action: NDArray[Any]
    ) -> tuple[
        Observation,
        NDArray[np.float32],
        NDArray[np.bool_],
        NDArray[np.bool_],
        NDArray[np.bool_],
    ]:
        """Take one step in every environment.

        Args:
            action: ``[E]`` integers in 0 … n - 1 for Discrete; ``[E, parts]`` for MultiDiscrete,
                counted from 0, and MultiBinary (0 or 1); ``[E, *shape]`` floats for a Box. If both
                bounds of a float x are finite, x is clipped to [-1, 1] and the environment takes
                ``low + (x + 1) / 2 * (high - low)``; with an infinite bound, or without
                ``scale_actions``, it takes x itself, clipped to the bounds. The action is ignored
                where the environment resets in this step.

        Returns:
            ``(observation, reward, terminated, truncated, first)``: ``[E, …]`` or
            ``{path: [E, …]}``, ``[E]`` float32, and three ``[E]`` bool. ``first`` marks the rows
            in which the environment was reset. With ``episodic_life`` a lost life is ``terminated``
            too; no reset row follows it, and it is not in ``finished``.

        Raises:
            ValueError: If the environment returns what its spaces do not allow.
        """
        if not self._begun:
            raise RuntimeError(f"{self.id}: reset() comes before the first step()")
        first = self._over
        self._steps += 1
        action = self._action.encode(action)
        observation, reward, terminated, truncated, info = self._step_all(action, first)
        observation = self._from_0(observation, first)

        self._lengths += ~first
        self._returns += reward
        self._over = terminated | truncated
        if self.step_limit is not None and not self._limit_reported:
            self._check_limit(self.step_limit, truncated)
        if self._over.any():
            ended = np.flatnonzero(self._over)
            self.finished = (ended, self._returns[ended], self._lengths[ended])
            self._returns[ended] = 0.0
            self._lengths[ended] = 0
        else:
            self.finished = _no_episodes()
        self._read_mask(info)
        if self._episodic_life:
            lives = np.array(info[LIVES])
            terminated = terminated | ((lives < self._lives) & (lives > 0) & ~first)
            self._lives = lives
        return observation, reward.astype(np.float32, copy=False), terminated, truncated, first

    def close(self) -> None:
        """Close the environments."""
        raise NotImplementedError

    def _reset_all(
        self, seeds: Sequence[int] | None
    ) -> tuple[Observation, Mapping[str, NDArray[Any]]]:
        """Reset every environment; return the first observations and the info."""
        raise NotImplementedError

    def _step_all(self, action: NDArray[Any], first: NDArray[np.bool_]) -> Rows:
        raise NotImplementedError

    def _say_what_is_scaled(self, id: str) -> None:
        box = self._action.box
        if box is None:
            return
        if box.changes:
            _log.info("%s: actions of -1 to 1 are scaled to the bounds of the action space", id)
        if unscaled := int((~box.scaled).sum()):
            _log.info(
                "%s: %d of the %d numbers of an action have an infinite bound and are not scaled",
                id,
                unscaled,
                box.scaled.size,
            )

    def _begin(self, seeds: Sequence[int] | None) -> Observation:
        self._seeds = None
        self._over = np.zeros(self.num_envs, np.bool_)
        self._returns[:] = 0.0
        self._lengths[:] = 0
        self.finished = _no_episodes()
        observation, info = self._reset_all(seeds)
        observation = self._from_0(observation, None)
        if self._mask_size is None:
            self._mask_size = 0 if info.get(MASK) is None else self._action.mask_size
        self._read_mask(info)
        if self._episodic_life:
            self._lives = np.array(info[LIVES])
        return observation

    def _from_0(self, observation: Observation, first: NDArray[np.bool_] | None) -> Observation:
        """Count Discrete and similar parts from 0; ``first`` None: all environments were reset."""
        try:
            for leaf in self._layout.counted:
                if isinstance(observation, dict):
                    observation = observation | {leaf.path: leaf.from_0(observation[leaf.path])}
                else:
                    observation = leaf.from_0(observation)
        except OutsideSpaceError as error:
            was_reset = first is None or first[error.index]
            taken = None if was_reset else int(self._lengths[error.index]) + 1
            add_location(error, self.id, error.index, self.num_envs, taken, self._steps)
            raise
        return observation

    def _read_mask(self, info: Mapping[str, Any]) -> None:
        size = self._action.mask_size
        mask = info.get(MASK) if size else None
        if mask is None and not self._mask_size:
            return
        if mask is None:
            allowed, given = np.ones((self.num_envs, size), np.bool_), self._over
        else:
            allowed = joined_mask(mask, size, (self.num_envs,))
            if not self._mask_size:
                raise ValueError(
                    f"{self.id}: the info of step {self._steps} has {MASK!r}, but that of the "
                    "first reset had none: return it from reset too"
                )
            # gymnasium marks the environments that gave a mask; none is needed after an episode.
            given = info.get(f"_{MASK}", True) | self._over
        if not np.all(given):
            raise ValueError(
                f"{self.id}: the info of step {self._steps} has no {MASK!r} of environment "
                f"{int(np.argmin(given))}: return it from every reset and every step but the last"
            )
        self.action_mask = allowed

    def _check_limit(self, limit: int, truncated: NDArray[np.bool_]) -> None:
        """Warn once if episodes do not agree with the step limit: the flags may be wrong."""
        early = truncated & (self._lengths < limit)
        contradicts = early | (self._lengths > limit)
        if contradicts.any():
            index = int(contradicts.argmax())
            self._limit_reported = True
            _log.warning(
                "%s: environment %d %s %d steps, but its step limit is %d. A truncated episode "
                "is continued by its value estimate, a terminated one is not: check the flags "
                "that the environment returns.",
                self.id,
                index,
                "was truncated after" if early[index] else "is still running after",
                self._lengths[index],
                limit,
            )


def add_location(
    error: BaseException, id: str, index: int, total: int, taken: int | None, steps: int
) -> None:
    """Add the environment and the step to an exception; ``taken`` None: it was in reset."""
    where = "reset" if taken is None else f"step {taken} of its episode"
    add_note(
        error, f"in {where}, environment {index} of {total} ({id}), step {steps} since the start"
    )


def _no_episodes() -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    return np.empty(0, np.int64), np.empty(0, np.float64), np.empty(0, np.int64)
