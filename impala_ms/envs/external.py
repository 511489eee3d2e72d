"""Vector environments of other packages: gymnasium's ``vector_entry_point`` and envpool.

Input: such a vector environment. Output: a ``VectorEnvironment``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from impala_ms.envs.errors import MakeError
from impala_ms.envs.packages import installed, pip_install
from impala_ms.envs.spaces import MASK
from impala_ms.envs.vector import Observation, Rows, VectorEnvironment
from impala_ms.errors import add_note, one_line

_log = logging.getLogger(__name__)


class GymnasiumVectorEnvironment(VectorEnvironment):
    """A gymnasium vector environment, such as an id's ``vector_entry_point`` makes.

    It has one random generator for all its environments, which takes the first seed.
    """

    def __init__(self, id: str, envs: Any, *, seeds: Sequence[int], **settings: Any) -> None:
        """Take ``envs``, a ``gymnasium.vector.VectorEnv`` with the autoreset mode NEXT_STEP."""
        settings.setdefault("observation_space", envs.single_observation_space)
        settings.setdefault("action_space", envs.single_action_space)
        super().__init__(id, seeds=seeds, **settings)
        self._envs = envs
        self._plain_shape = (self.num_envs, *self.observation_shape) if self._layout.plain else None

    def close(self) -> None:
        """Close the vector environment."""
        self._envs.close()

    def _reset_all(
        self, seeds: Sequence[int] | None
    ) -> tuple[Observation, Mapping[str, NDArray[Any]]]:
        try:
            observation, info = self._reset_program(seeds)
            return self._arrange(observation, info)
        except Exception as error:
            add_note(error, f"in reset of {self.num_envs} environments ({self.id})")
            raise

    def _step_all(self, action: NDArray[Any], first: NDArray[np.bool_]) -> Rows:
        try:
            observation, reward, terminated, truncated, info = self._envs.step(action)
            observation, info = self._arrange(observation, info)
        except Exception as error:
            add_note(error, f"in step {self._steps} of {self.num_envs} environments ({self.id})")
            raise
        return observation, np.where(first, 0.0, reward), terminated, truncated, info

    def _reset_program(self, seeds: Sequence[int] | None) -> tuple[Any, Any]:
        reset: tuple[Any, Any] = self._envs.reset(seed=None if seeds is None else seeds[0])
        return reset

    def _arrange(self, observation: Any, info: Any) -> tuple[Observation, Any]:
        """The observation as ``step`` returns it, and an info that holds the action mask."""
        info = info or {}
        if (
            type(observation) is np.ndarray
            and observation.shape == self._plain_shape
            and observation.dtype == self.observation_dtype
        ):
            return np.ascontiguousarray(observation), info  # the usual case, without further checks
        if self._layout.has_mask:
            info = {**info, MASK: observation[MASK]}
        arrays = self._layout.batch(observation, self.num_envs)
        return arrays[""] if self._layout.plain else arrays, info


class EnvpoolVectorEnvironment(GymnasiumVectorEnvironment):
    """Environments of envpool, which steps them in ``num_threads`` (1) threads.

    Args:
        id: The id as the user gave it.
        task: The name that envpool has for it.
        seeds: One per environment; envpool takes the lower 31 bits.
        options: Passed to envpool; None values are left out.
        observation_shape: Shape in place of envpool's, with as many elements; None keeps envpool's.
        settings: Arguments of ``VectorEnvironment``.

    Raises:
        MakeError: If envpool is not installed, does not know the task or refuses the options.
    """

    def __init__(
        self,
        id: str,
        task: str,
        *,
        seeds: Sequence[int],
        options: Mapping[str, Any],
        observation_shape: tuple[int, ...] | None = None,
        **settings: Any,
    ) -> None:
        """Make the pool."""
        if not knows(task):
            raise MakeError(
                f"{id} is not among the environments of envpool"
                if installed("envpool")
                else f"{id} needs envpool, which is not installed: {pip_install('envpool')}"
            )
        self._task = task
        self._options = {"num_threads": 1} | {
            key: value for key, value in options.items() if value is not None
        }
        self._seeded = [int(seed) for seed in seeds]
        pool = self._make_pool(id)
        space = pool.single_observation_space
        self._reshaped = observation_shape
        if observation_shape is not None:
            space = _reshaped_space(space, observation_shape)
        settings.setdefault("step_limit", pool.config["max_episode_steps"] or None)
        super().__init__(id, pool, seeds=seeds, observation_space=_without_text(space), **settings)
        _log.info("%s: played by envpool", id)

    def _make_pool(self, id: str) -> Any:
        import envpool

        seeds = [seed & 0x7FFFFFFF for seed in self._seeded]
        try:
            pool = envpool.make_gymnasium(
                self._task, num_envs=len(seeds), seed=seeds, **self._options
            )
        except Exception as error:  # any class: envpool checks options by assertions and in C++
            raise MakeError(
                f"{id} cannot be made by envpool with {self._options}: {one_line(error)}"
            ) from error
        self._fresh = True
        return pool

    def _reset_program(self, seeds: Sequence[int] | None) -> tuple[Any, Any]:
        # envpool seeds its environments only when it makes them.
        if seeds is not None and not (self._fresh and list(seeds) == self._seeded):
            self._seeded = list(seeds)
            self._envs.close()
            self._envs = self._make_pool(self.id)
        self._fresh = False
        reset: tuple[Any, Any] = self._envs.reset()
        return reset

    def _arrange(self, observation: Any, info: Any) -> tuple[Observation, Any]:
        if self._reshaped is not None:
            observation = observation.reshape(self.num_envs, *self._reshaped)
        return super()._arrange(observation, info)


def knows(task: str) -> bool:
    """Whether envpool is installed and has an environment of this name."""
    if not installed("envpool"):
        return False
    import envpool

    return task in envpool.list_all_envs()


def _reshaped_space(space: Any, shape: tuple[int, ...]) -> Any:
    from gymnasium import spaces

    return spaces.Box(space.low.reshape(shape), space.high.reshape(shape), shape, space.dtype)


def _without_text(space: Any) -> Any:
    """A Dict without MiniGrid's mission: bytes in envpool, a text in gymnasium."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict) and "mission" in space.spaces:
        return spaces.Dict([(k, v) for k, v in space.spaces.items() if k != "mission"])
    return space
