"""An actor whose network gives actions, or values of actions, and that explores by noise.

Input: weights from the learner. Output: unrolls, as ``agents/actor``.
"""

import numpy as np

from impala_ms.agents.actor import PolicyActor


class ExploringActor(PolicyActor):
    """``explore`` tells it how; without that it does what its network thinks is best."""

    samples = False

    def __init__(self, policy, environment, unroll_length, rng):
        """Start without weights, as ``PolicyActor``."""
        super().__init__(policy, environment, unroll_length, rng)
        self.exploration, self.scored = no_exploration, True

    def explore(self, exploration, scored):
        """Set how it explores.

        Args:
            exploration: Function of the steps of all actors: what ``distribution.noise`` takes,
                such as the probability of a random action in each environment, ``[E]``.
            scored: ``[E]`` bool, whether an environment's episodes count for the mean return.
        """
        self.exploration, self.scored = exploration, scored

    def construct(self, noise, *tensors):
        """Choose actions in E environments.

        Args:
            noise: ``[E, ...]`` of ``distribution.noise``; zeros give the best action.
            *tensors: Observation ``[E, ...]`` (its parts if it is structured), and a mask
                ``[E, M]`` of the allowed actions if there is one.

        Returns:
            ``(action [E, ...], outputs of the network [E, A])``.
        """
        begin = self.parts or 1
        observation = tensors[:begin] if self.parts else tensors[0]
        outputs = self.policy(observation)
        if len(tensors) > begin:
            outputs = self.distribution.mask(outputs, tensors[-1])
        return self.distribution.sample(outputs, noise), outputs

    def noise(self, rows):
        """Random numbers for so many steps in all environments."""
        shape = rows, self.environment.num_envs
        return self.distribution.noise(self.rng, shape, self.exploration(self.steps_of_all))

    def begin_record(self, unroll):
        """Prepare for the rows of an unroll."""
        unroll["scored"][...] = self.scored

    def record(self, unroll, t, outputs):
        """Nothing: the learner makes the outputs anew."""


def no_exploration(env_steps):
    """Never a random action, no noise."""
    return 0.0


def least_explored(every):
    """``[every]`` bool: the last tenth of all environments, at least one.

    They explore least, so their returns show what was learned.
    """
    return np.arange(every) >= every - max(every // 10, 1)


class GaussianNoise:
    """Noise of an environment's actions; at first they are uniform.

    Args:
        deviation: Standard deviation of the first environment.
        ladder: The last environment has this part less of it; the others lie between.
        start: Actions are uniform until so many steps of all actors.
        number: Of the actor, counted from 1.
        actors: How many there are.
        envs: Environments of each.
    """

    def __init__(self, deviation, ladder, start, number, actors, envs):
        every = actors * envs
        own = slice((number - 1) * envs, number * envs)
        steps = np.arange(every) / max(every - 1, 1)
        self.deviations = (deviation * (1.0 - ladder * steps))[own]
        self.scored = (least_explored(every) | (ladder == 0.0))[own]
        self.start = start

    def __call__(self, env_steps):
        """The deviations ``[E]``; None while actions are uniform."""
        return None if env_steps < self.start else self.deviations
