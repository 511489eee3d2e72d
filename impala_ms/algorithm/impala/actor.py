"""Act: play T steps in E environments with the newest weights and record an unroll.

Input: observations of the environments, weights from the learner. Output: unrolls in the layout
of ``trajectory``, which ``trainer`` sends.
"""

import time

import mindspore as ms
import numpy as np

from impala_ms import compat
from impala_ms.nets.weights import FlatWeights


class IMPALAActor(compat.Actor):
    """One compiled call a step for all environments of the rank.

    Args:
        policy: Network of this rank; its weights are overwritten by ``set_weights``.
        environment: ``VectorEnvironment`` of E environments, or None (evaluation only).
        unroll_length: T, environment steps.
        rng: ``numpy.random.Generator`` for the actions.
    """

    def __init__(self, policy, environment, unroll_length, rng):
        """Begin before the first reset of the environment, without weights (version -1)."""
        super().__init__()
        self.policy = policy
        self.distribution = policy.distribution
        self.environment = environment
        self.unroll_length = unroll_length
        self.rng = rng
        self.weights = FlatWeights(policy.get_parameters())
        self.version = -1
        self.env_steps = 0
        self.wait_s = 0.0
        self._last_unroll_s = time.perf_counter()
        self._observation = self._first = None

    def construct(self, observation, noise):
        """Sample actions: ``(action [E], logits [E, A])`` from ``[E, ...]`` and ``[E, A]``."""
        logits, _ = self.policy(observation)
        return self.distribution.sample(logits, noise), logits

    def get_action(self, phase, params):
        """Actions for observations.

        Args:
            phase: ``compat.COLLECT`` to sample, ``compat.EVAL`` for the mode.
            params: ``[N, ...]`` array of observations.

        Returns:
            ``(action [N], logits [N, A])`` arrays.
        """
        shape = params.shape[:1]
        if phase == compat.COLLECT:
            noise = self.distribution.noise(self.rng, shape)
        else:
            noise = np.zeros((*shape, self.distribution.num_parameters), np.float32)
        action, logits = self(ms.Tensor(params), ms.Tensor(noise))
        return action.asnumpy(), logits.asnumpy()

    def set_weights(self, version, flat):
        """Use new weights from the next unroll on; ``flat`` is copied."""
        self.weights.write(flat)
        self.version = version

    def warm_up(self):
        """Compile for the E environments; needs no weights, so it can be done while waiting."""
        envs, shape = self.environment.num_envs, self.environment.observation_shape
        observation = np.zeros((envs, *shape), self.environment.observation_dtype)
        noise = np.zeros((envs, self.distribution.num_parameters), np.float32)
        self(ms.Tensor(observation), ms.Tensor(noise))

    def act(self, phase, params):
        """Play one unroll of T steps into ``params``.

        Args:
            phase: ``compat.COLLECT``.
            params: Views of an unroll (``TrajectorySpec.views``), overwritten.

        Returns:
            ``params``.
        """
        unroll, environment = params, self.environment
        if self._observation is None:
            self._observation = environment.reset()
            self._first = np.ones(environment.num_envs, np.bool_)
        unroll["observation"][0] = self._observation
        unroll["first"][0] = self._first
        unroll["episode_length"][...] = 0
        unroll["behaviour_version"][...] = self.version
        noise = self.distribution.noise(self.rng, (self.unroll_length, environment.num_envs))

        for t in range(self.unroll_length):
            # from_numpy shares the rows' memory; the call has read them when it returns
            observation = ms.Tensor.from_numpy(unroll["observation"][t])
            action, logits = self(observation, ms.Tensor.from_numpy(noise[t]))
            unroll["action"][t] = action = action.asnumpy()
            unroll["behaviour_logits"][t] = logits.asnumpy()
            observation, reward, terminated, _, first = environment.step(action)
            unroll["observation"][t + 1] = observation
            unroll["reward"][t] = reward
            unroll["terminated"][t] = terminated
            unroll["first"][t + 1] = first
            ended, returns, lengths = environment.finished
            if len(ended):
                unroll["episode_return"][t, ended] = returns
                unroll["episode_length"][t, ended] = lengths

        self._observation = unroll["observation"][-1].copy()
        self._first = unroll["first"][-1].copy()
        self.env_steps += int((~unroll["first"][1:]).sum())
        unroll["env_steps"][...] = self.env_steps
        now = time.perf_counter()
        unroll["wait_fraction"][...] = self.wait_s / max(now - self._last_unroll_s, 1e-9)
        self.wait_s, self._last_unroll_s = 0.0, now
        return unroll


def evaluate(actor, environment, episodes, *, greedy, seed, stop=None):
    """Play whole episodes with the actor's current weights.

    Every environment plays its share of the episodes, so that long ones count as much as short
    ones. The environment must be fresh: equal seeds then give equal returns.

    Args:
        actor: ``IMPALAActor``.
        environment: ``VectorEnvironment`` that has not been stepped.
        episodes: Number of episodes.
        greedy: Whether to take the mode instead of a sample.
        seed: Of the actions' random numbers.
        stop: None, or a function that ends the evaluation early by returning True.

    Returns:
        ``[episodes]`` float64 raw returns, or None if stopped early.
    """
    envs = environment.num_envs
    quota = np.full(envs, episodes // envs)
    quota[: episodes % envs] += 1
    rng, actor.rng = actor.rng, np.random.default_rng(seed)
    phase = compat.EVAL if greedy else compat.COLLECT
    returns = [[] for _ in range(envs)]
    try:
        observation = environment.reset()
        while quota.any():
            if stop is not None and stop():
                return None
            action, _ = actor.get_action(phase, np.ascontiguousarray(observation))
            observation, *_ = environment.step(action)
            for env, value, _ in zip(*environment.finished, strict=True):
                if quota[env]:
                    quota[env] -= 1
                    returns[env].append(value)
    finally:
        actor.rng = rng
    return np.concatenate(returns)
