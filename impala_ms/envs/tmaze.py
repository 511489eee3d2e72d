"""A corridor that needs memory: the sign at its entrance says where to turn at its end.

Input: actions. Output: observations. The id is ``impala_ms.envs.tmaze:TMaze-v0``.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray


class TMaze(gymnasium.Env[NDArray[np.float32], Any]):
    """Walk down a corridor and turn to the side that the sign at its entrance showed.

    Observation: ``[sign, junction]`` float32; ``sign`` is -1 (left) or 1 (right) at the entrance
    and 0 afterwards, ``junction`` is 1 at the end of the corridor. Actions: 0 forward, 1 left,
    2 right. The right turn at the junction pays 1, the wrong one nothing; either ends the episode.
    Any other move that changes nothing (a turn in the corridor, forward at the junction) costs
    0.01. Without memory of the sign the mean return is at most 0.5.

    Args:
        length: Steps from the entrance to the junction.

    Source:
        Bakker 2002, Reinforcement Learning with Long Short-Term Memory, section 4.1.
    """

    def __init__(self, length: int = 10) -> None:
        """The sign is drawn at each reset."""
        if length < 1:
            raise ValueError(f"length = {length}: must be 1 or more")
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)
        self.length = length

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin at the entrance, where the sign is seen."""
        super().reset(seed=seed)
        self._right = bool(self.np_random.integers(2))
        self._position = 0
        return np.array([1.0 if self._right else -1.0, 0.0], np.float32), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move; see the class."""
        at_junction = self._position == self.length
        reward, over = -0.01, False
        if at_junction and action != 0:
            over, reward = True, float((action == 2) == self._right)
        elif not at_junction and action == 0:
            self._position += 1
            reward = 0.0
        sign = (1.0 if self._right else -1.0) if self._position == 0 else 0.0
        observation = np.array([sign, float(self._position == self.length)], np.float32)
        return observation, reward, over, False, {}


# The limit leaves time for detours, and ends an episode in which nothing moves.
gymnasium.register("TMaze-v0", f"{__name__}:TMaze", max_episode_steps=100)
