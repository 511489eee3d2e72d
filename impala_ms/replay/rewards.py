"""Rewards as a learner sees them, in NumPy: for replays, which sum them before they are kept.

Input: rewards of the environment. Output: clipped and scaled rewards.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Rewards(NamedTuple):
    """How rewards are changed; the returns that are reported are of the raw rewards.

    Attributes:
        clip: ``reward_clip`` of the settings; see ``agents/actor_critic.clip_rewards``.
        scale: ``reward_scale`` of the settings.
    """

    clip: str = "none"
    scale: float = 1.0

    def __call__(self, reward: NDArray[np.float32]) -> NDArray[np.float32]:
        """Clip and scale, ``[T, E]``."""
        if self.clip == "abs_one":
            reward = np.clip(reward, -1.0, 1.0)
        elif self.clip == "soft_asymmetric":
            squeezed = 5.0 * np.tanh(reward / 5.0)
            reward = np.where(reward < 0, 0.3 * squeezed, squeezed)
        return (self.scale * reward).astype(np.float32)
