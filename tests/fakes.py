"""Stand-ins whose every output is known in advance."""

import math
from collections import Counter
from typing import ClassVar

import gymnasium
import numpy as np


class CountingEnv(gymnasium.Env):
    """The observation is the number of steps since the episode began; actions change nothing.

    Episode k of an environment seeded with s lasts ``lengths[(s + k) % len(lengths)]`` steps
    (s = 0 without a seed) and ends by ``ends``: "terminated", "truncated" or "never". Step i of
    an episode, counted from 0, pays ``rewards[i % len(rewards)]``. With ``fails_at_step`` n the
    n-th step since the environment was made raises; with ``nan_at_step`` n the n-th step of an
    episode pays NaN; with ``one_array`` every observation is the same array, written over. With a
    ``name``, ``steps_of[name]`` counts the steps of all environments of this process; with
    ``continuous`` actions are a Box.
    """

    steps_of: ClassVar = Counter()

    def __init__(
        self,
        lengths=(3,),
        ends="terminated",
        rewards=(1.0,),
        fails_at_step=None,
        fails_in_reset=False,
        one_array=False,
        nan_at_step=None,
        name=None,
        continuous=False,
    ):
        self.observation_space = gymnasium.spaces.Box(0.0, np.inf, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        if continuous:
            self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._lengths, self._ends, self._rewards = lengths, ends, rewards
        self._fails_at_step, self._fails_in_reset = fails_at_step, fails_in_reset
        self._nan_at_step, self._name = nan_at_step, name
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
        self.steps_of[self._name] += 1
        if self._steps_made == self._fails_at_step:
            raise RuntimeError(f"step {self._steps_made} of CountingEnv fails")
        reward = self._rewards[self._step % len(self._rewards)]
        self._step += 1
        if self._step == self._nan_at_step:
            reward = math.nan
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
gymnasium.register("CountingBox-v0", CountingEnv, kwargs={"continuous": True})


def box(*shape, dtype="float32"):
    """The description of a Box space of that shape, as ``VectorEnvironment.spaces()`` gives it."""
    return {"type": "Box", "shape": list(shape), "dtype": dtype, "low": "-inf", "high": "inf"}


def linear_net(observation_shape, num_actions):
    """A network whose outputs can be worked out by hand; all its weights begin at 0.

    ``logits = policy_weight @ x + policy_bias`` and ``baseline = baseline_weight @ x``, where x is
    the observation as a vector. On ``CountingEnv`` x is the number of steps.
    """
    # here, because processes that only step environments do not load MindSpore
    import mindspore as ms
    from mindspore import nn, ops

    from impala_ms.agents.checks import check_policy
    from impala_ms.ops.distributions import Categorical

    class LinearNet(nn.Cell):
        def __init__(self):
            super().__init__()
            self.distribution = Categorical(num_actions)
            self.size = math.prod(observation_shape)
            shapes = {
                "policy_weight": (num_actions, self.size),
                "policy_bias": (num_actions,),
                "baseline_weight": (self.size,),
            }
            for name, shape in shapes.items():
                setattr(self, name, ms.Parameter(np.zeros(shape, np.float32), name=name))

        def construct(self, observation):
            x = observation.astype(ms.float32).reshape((-1, self.size))
            logits = ops.matmul(x, self.policy_weight.T) + self.policy_bias
            return logits, ops.matmul(x, self.baseline_weight)

    net = LinearNet()
    check_policy(net, "linear", "none")
    return net
