"""Environments that cost nothing and differ in the length of their episodes alone.

``--env tests.benchmarks.length_envs:Endless-v0`` or ``…:Short-v0`` (mean length 10).
"""

from types import MappingProxyType

import gymnasium
import numpy as np


class Lengths(gymnasium.vector.VectorEnv):
    """Observations of noise; an episode ends with a fixed probability at each step."""

    metadata = MappingProxyType({"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP})

    def __init__(self, num_envs, ends=0.0, **_):
        self.num_envs, self.ends = num_envs, ends
        self.single_observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.observation_space = gymnasium.vector.utils.batch_space(
            self.single_observation_space, num_envs
        )
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.over = np.zeros(self.num_envs, bool)
        return self.observe(), {}

    def observe(self):
        return self.rng.random((self.num_envs, 4), np.float32)

    def step(self, actions):
        reset = self.over
        self.over = ~reset & (self.rng.random(self.num_envs) < self.ends)
        reward = np.where(reset, 0.0, 1.0)
        return self.observe(), reward, self.over, np.zeros(self.num_envs, bool), {}


for name, ends in (("Endless-v0", 0.0), ("Short-v0", 0.1)):
    gymnasium.register(
        name,
        vector_entry_point=f"{__name__}:Lengths",
        kwargs={"ends": ends},
    )
