"""Stand-ins whose every output is known in advance."""

import gymnasium
import numpy as np


class CountingEnv(gymnasium.Env):
    """The observation is the number of steps since the episode began; actions change nothing.

    Episode k of an environment seeded with s lasts ``lengths[(s + k) % len(lengths)]`` steps
    (s = 0 without a seed) and ends by ``ends``: "terminated", "truncated" or "never". Step i of
    an episode, counted from 0, pays ``rewards[i % len(rewards)]``. With ``fails_at_step`` n the
    n-th step since the environment was made raises; with ``one_array`` every observation is the
    same array, written over.
    """

    def __init__(
        self,
        lengths=(3,),
        ends="terminated",
        rewards=(1.0,),
        fails_at_step=None,
        fails_in_reset=False,
        one_array=False,
    ):
        self.observation_space = gymnasium.spaces.Box(0.0, np.inf, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._lengths, self._ends, self._rewards = lengths, ends, rewards
        self._fails_at_step, self._fails_in_reset = fails_at_step, fails_in_reset
        self._array = np.zeros(1, np.float32) if one_array else None
        self._episode = -1
        self._steps_made = 0

    def reset(self, *, seed=None, options=None):
        if self._fails_in_reset:
            raise RuntimeError("the reset of CountingEnv fails")
        self._episode = self._episode + 1 if seed is None else seed
        self._step = 0
        return self._observation(), {}

    def step(self, action):
        self._steps_made += 1
        if self._steps_made == self._fails_at_step:
            raise RuntimeError(f"step {self._steps_made} of CountingEnv fails")
        reward = self._rewards[self._step % len(self._rewards)]
        self._step += 1
        over = self._step == self._lengths[self._episode % len(self._lengths)]
        terminated, truncated = (
            over and self._ends == "terminated",
            over and self._ends == "truncated",
        )
        return self._observation(), reward, terminated, truncated, {}

    def _observation(self):
        if self._array is None:
            return np.array([self._step], np.float32)
        self._array[0] = self._step
        return self._array


gymnasium.register("Counting-v0", CountingEnv)
