"""Many environments of one kind, stepped together, with the statistics of their episodes.

Input: actions of the policy. Output: the rows from which the actor builds its trajectories.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from impala_ms.envs import compat4

_log = logging.getLogger(__name__)

_LISTED_BOUNDS = 64  # a box with more elements is described by a digest of its bounds

Rows = tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_], NDArray[np.bool_]]


class MakeError(ValueError):
    """An environment cannot be made, or is of a kind that is not supported."""


class VectorEnvironment:
    """``num_envs`` environments that reset on the step after their last one.

    ::

        step      1        2          3 (ends)    4 (reset row)      5
        returns   o1, r1   o2, r2     o3, r3      o0', 0             o1', r1'
        first     False    False      False       True               False

    The step at which an episode ends returns its final observation. The next step ignores the
    action of that environment, pays 0 and returns the first observation of a new episode, and
    ``first`` is True. So the ``first`` that belongs to an observation is returned with it; after
    ``reset()`` it is True everywhere.

    Arrays that ``step`` and ``reset`` return are valid until the next call: copy what is to stay.

    Attributes:
        frame_stack: Newest frames that the policy sees as one observation; the actor stacks them.
        action_mask: ``[E, M]`` bool, the actions allowed after the observations returned last, or
            None where the environment allows all of them always.
        id: The id the environments were made from.
        num_envs: Number of environments, E.
        observation_shape: Shape of one observation.
        observation_dtype: Data type of the observations, the environment's own.
        num_actions: Number of discrete actions; ``step`` takes 0 … ``num_actions`` - 1.
        frames_per_step: Simulator frames of one step (action repeat).
        step_limit: Steps after which an episode is truncated, or None.
        finished: Of the episodes that ended at the last step: the indices of their environments,
            their returns (float64, raw rewards) and their lengths in steps without reset rows.
    """

    frame_stack = 1
    action_mask: NDArray[np.bool_] | None = None

    def __init__(
        self,
        id: str,
        *,
        observation_space: Any,
        action_space: Any,
        seeds: Sequence[int],
        step_limit: int | None = None,
        frames_per_step: int = 1,
    ) -> None:
        """Check the spaces; subclasses hold the environments themselves."""
        _check_spaces(id, observation_space, action_space)
        self.id = id
        self.num_envs = len(seeds)
        self.observation_shape: tuple[int, ...] = tuple(observation_space.shape)
        self.observation_dtype: np.dtype[Any] = np.dtype(observation_space.dtype)
        self.num_actions = int(action_space.n)
        self.frames_per_step = frames_per_step
        self.step_limit = step_limit
        self._first_action = int(action_space.start)
        self._spaces = (observation_space, action_space)
        self._seeds: Sequence[int] | None = [int(seed) for seed in seeds]
        self._over = np.zeros(self.num_envs, np.bool_)
        self._returns = np.zeros(self.num_envs, np.float64)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._steps = 0
        self._begun = False
        self._limit_reported = False
        self.finished = _no_episodes()

    def spaces(self) -> dict[str, dict[str, Any]]:
        """Both spaces as plain JSON values, equal exactly when the spaces are."""
        observation, action = self._spaces
        return {
            "observation": _describe(observation),
            "action": _describe(action),
            "action_mask": 0,
            "frame_stack": self.frame_stack,
        }

    def reset(self, seeds: Sequence[int] | None = None) -> NDArray[Any]:
        """Begin a new episode everywhere.

        The first reset seeds the generators with the seeds given when the environment was made.
        Later ones go on from the generators as they are, unless ``seeds`` are given.

        Returns:
            ``[E, …]``, the first observations.
        """
        if seeds is None:
            seeds = self._seeds
        elif len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds for {self.num_envs} environments: give one each")
        else:
            seeds = [int(seed) for seed in seeds]
        self._seeds = None
        self._begun = True
        self._over = np.zeros(self.num_envs, np.bool_)
        self._returns[:] = 0.0
        self._lengths[:] = 0
        self.finished = _no_episodes()
        return self._contiguous(self._reset_all(seeds))

    def step(
        self, action: NDArray[Any]
    ) -> tuple[
        NDArray[Any],
        NDArray[np.float32],
        NDArray[np.bool_],
        NDArray[np.bool_],
        NDArray[np.bool_],
    ]:
        """Take one step in every environment.

        Args:
            action: ``[E]`` integers in 0 … ``num_actions`` - 1; ignored where the environment
                resets in this step.

        Returns:
            ``(observation, reward, terminated, truncated, first)``: ``[E, …]``, ``[E]`` float32,
            and three ``[E]`` bool. ``first`` marks the rows in which the environment was reset.
        """
        if not self._begun:
            raise RuntimeError(f"{self.id}: reset() comes before the first step()")
        first = self._over
        self._steps += 1
        action = np.asarray(action, np.int64)
        if self._first_action:
            action = action + self._first_action
        observation, reward, terminated, truncated = self._step_all(action, first)

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
        return (
            self._contiguous(observation),
            reward.astype(np.float32, copy=False),
            terminated,
            truncated,
            first,
        )

    def close(self) -> None:
        """Free what the environments hold."""
        raise NotImplementedError

    def _reset_all(self, seeds: Sequence[int] | None) -> NDArray[Any]:
        raise NotImplementedError

    def _step_all(self, action: NDArray[np.int64], first: NDArray[np.bool_]) -> Rows:
        raise NotImplementedError

    def _contiguous(self, observation: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(observation, self.observation_dtype)

    def _check_limit(self, limit: int, truncated: NDArray[np.bool_]) -> None:
        """Say once that episodes do not keep to the step limit: their last rows are suspect."""
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


class SyncVectorEnvironment(VectorEnvironment):
    """Single environments stepped one after the other.

    Every observation is copied into its row at once, so that an environment may write all its
    observations into one array. The step limit is kept here, over the environment's own flags.
    """

    def __init__(
        self,
        id: str,
        make_one: Callable[[], Any],
        *,
        seeds: Sequence[int],
        step_limit: int | None = None,
        frames_per_step: int = 1,
    ) -> None:
        """Make one environment for each seed by calling ``make_one``."""
        self._envs = [make_one() for _ in seeds]
        super().__init__(
            id,
            observation_space=self._envs[0].observation_space,
            action_space=self._envs[0].action_space,
            seeds=seeds,
            step_limit=step_limit,
            frames_per_step=frames_per_step,
        )

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            env.close()

    def _reset_all(self, seeds: Sequence[int] | None) -> NDArray[Any]:
        observation = self._new_observation()
        for index in range(self.num_envs):
            self._reset_into(observation, index, None if seeds is None else seeds[index])
        return observation

    def _step_all(self, action: NDArray[np.int64], first: NDArray[np.bool_]) -> Rows:
        observation = self._new_observation()
        reward = np.zeros(self.num_envs, np.float64)
        terminated = np.zeros(self.num_envs, np.bool_)
        truncated = np.zeros(self.num_envs, np.bool_)
        resets = first.tolist()
        for index, choice in enumerate(action.tolist()):
            if resets[index]:
                self._reset_into(observation, index, None)
                continue
            try:
                row = self._envs[index].step(choice)
                if len(row) == 4:
                    row = compat4.five_values(*row)
                observation[index], paid, terminated[index], truncated[index], _ = row
                reward[index] = paid if not getattr(paid, "shape", ()) else np.reshape(paid, ())
            except Exception as error:
                self._explain(error, index, f"step {self._lengths[index] + 1} of its episode")
                raise
        if self.step_limit is not None:
            truncated |= ~first & (self._lengths + 1 >= self.step_limit)
        return observation, reward, terminated, truncated

    def _new_observation(self) -> NDArray[Any]:
        return np.empty((self.num_envs, *self.observation_shape), self.observation_dtype)

    def _reset_into(self, observation: NDArray[Any], index: int, seed: int | None) -> None:
        try:
            begun = compat4.reset(self._envs[index], seed)
            self._check_observation(np.asarray(begun))
            observation[index] = begun
        except Exception as error:
            self._explain(error, index, "reset")
            raise

    def _check_observation(self, observation: NDArray[Any]) -> None:
        """Refuse what an assignment would take silently: stretched shapes, fractions cut off."""
        cuts = observation.dtype.kind == "f" and self.observation_dtype.kind != "f"
        if observation.shape != self.observation_shape or cuts:
            raise ValueError(
                f"reset returned an observation of shape {observation.shape} and type "
                f"{observation.dtype}, but the observation space says {self.observation_shape} "
                f"and {self.observation_dtype}"
            )

    def _explain(self, error: Exception, index: int, where: str) -> None:
        add_note(
            error,
            f"in {where}, environment {index} of {self.num_envs} ({self.id}), "
            f"step {self._steps} since the start",
        )


class NativeVectorEnvironment(VectorEnvironment):
    """One gymnasium vector environment, such as an id's ``vector_entry_point`` gives.

    It has one generator for all its environments, seeded by the first seed.
    """

    def __init__(
        self,
        id: str,
        envs: Any,
        *,
        seeds: Sequence[int],
        step_limit: int | None = None,
        frames_per_step: int = 1,
    ) -> None:
        """Take over ``envs``, a ``gymnasium.vector.VectorEnv`` with autoreset NEXT_STEP."""
        super().__init__(
            id,
            observation_space=envs.single_observation_space,
            action_space=envs.single_action_space,
            seeds=seeds,
            step_limit=step_limit,
            frames_per_step=frames_per_step,
        )
        self._envs = envs

    def close(self) -> None:
        """Close the vector environment."""
        self._envs.close()

    def _reset_all(self, seeds: Sequence[int] | None) -> NDArray[Any]:
        try:
            observation, _ = self._envs.reset(seed=None if seeds is None else seeds[0])
        except Exception as error:
            add_note(error, f"in reset of {self.num_envs} environments ({self.id})")
            raise
        return observation  # type: ignore[no-any-return]

    def _step_all(self, action: NDArray[np.int64], first: NDArray[np.bool_]) -> Rows:
        try:
            observation, reward, terminated, truncated, _ = self._envs.step(action)
        except Exception as error:
            add_note(error, f"in step {self._steps} of {self.num_envs} environments ({self.id})")
            raise
        return observation, np.where(first, 0.0, reward), terminated, truncated


def add_note(error: Exception, note: str) -> None:
    """Say where ``error`` came from without changing what it is (Python 3.11; before: nothing)."""
    if hasattr(error, "add_note"):
        error.add_note(note)


def _no_episodes() -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    return np.empty(0, np.int64), np.empty(0, np.float64), np.empty(0, np.int64)


def _check_spaces(id: str, observation_space: Any, action_space: Any) -> None:
    from gymnasium import spaces

    if not isinstance(action_space, spaces.Discrete):
        raise MakeError(
            f"{id} has the action space {action_space}, but only Discrete action spaces are "
            "supported: wrap the environment so that its actions are numbered"
        )
    if not isinstance(observation_space, (spaces.Box, spaces.Discrete)):
        raise MakeError(
            f"{id} has the observation space {observation_space}, but only Box and Discrete "
            "observation spaces are supported: wrap the environment, for instance with "
            "gymnasium.wrappers.FlattenObservation"
        )


def _describe(space: Any) -> dict[str, Any]:
    """One space as JSON values. Infinite bounds are strings: JSON has no number for them."""
    if hasattr(space, "n"):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
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
    return value.item() if np.isfinite(value) else str(value)
