"""An actor that takes the action of the highest value, and sometimes a random one.

Input: weights from the learner. Output: unrolls, with first errors of their rows if these are
asked for.
"""

import numpy as np

from impala_ms.agents.exploring import ExploringActor, least_explored
from impala_ms.ops.distributions import FORBIDDEN
from impala_ms.replay.n_step import n_step


class QActor(ExploringActor):
    """An epsilon-greedy actor.

    Attributes:
        first_errors: ``FirstErrors``, which computes errors of the rows of an unroll; or None.
    """

    first_errors = None

    def begin_record(self, unroll):
        """Prepare for the rows of an unroll."""
        super().begin_record(unroll)
        self._values = []

    def record(self, unroll, t, values):
        """Keep the values of row t."""
        if self.first_errors is not None:
            self._values.append(values)

    def end_record(self, unroll):
        """Compute the errors of the rows, with one more call for the last observation."""
        if "action_mask" in unroll:
            unroll["action_mask"][-1] = self.environment.action_mask
        if self.first_errors is None:
            return
        noise = np.zeros((self.environment.num_envs, self.distribution.num_actions), np.float32)
        self._values.append(self.decide(self._stream, noise)[1])
        unroll["error"][...] = self.first_errors(unroll, np.stack(self._values))


class FirstErrors:
    """Absolute TD errors of the rows of an unroll, by the weights that played it.

    Args:
        n: Steps of a return.
        gamma: Discount of one step.
        rewards: ``Rewards``.

    Source:
        Horgan et al. 2018, arXiv:1803.00933, section 3: actors compute the first priorities.
    """

    def __init__(self, n, gamma, rewards):
        self.n, self.gamma, self.rewards = n, gamma, rewards

    def __call__(self, unroll, values):
        """Errors ``[T, E]`` float32 of an unroll and its values ``[T + 1, E, A]``, masked."""
        reward = self.rewards(unroll["reward"])
        made = n_step(reward, unroll["terminated"], unroll["first"], self.n, self.gamma)
        rows = np.arange(len(made.steps))[:, None]
        best = values.max(-1)
        best = np.where(best > FORBIDDEN, best, 0.0)  # no action is allowed
        after = np.take_along_axis(best, rows + made.steps, 0)
        taken = np.take_along_axis(values[:-1], unroll["action"][..., None], -1)[..., 0]
        errors = np.abs(made.returns + made.discounts * after - taken)
        return np.where(made.steps > 0, errors, 0.0).astype(np.float32)


class LinearEpsilon:
    """Falls linearly over the steps of all actors, then stays (Mnih et al. 2015).

    Args:
        begin: Probability at the beginning.
        end: Probability from ``steps`` on.
        steps: Steps of all actors together; 0: ``end`` from the beginning.
    """

    def __init__(self, begin, end, steps):
        self.begin, self.end, self.steps = begin, end, steps

    def __call__(self, env_steps):
        """The probability of a random action after so many steps."""
        if env_steps >= self.steps:
            return self.end
        return self.begin + (self.end - self.begin) * env_steps / self.steps


class LadderOfEpsilons:
    """Each environment has a probability of its own, which does not change (Horgan et al. 2018).

    Args:
        base: Probability of the first environment.
        power: The last one has ``base ** (1 + power)``.
        number: Of the actor, counted from 1.
        actors: How many there are.
        envs: Environments of each.
    """

    def __init__(self, base, power, number, actors, envs):
        every = actors * envs
        all_of_them = base ** (1.0 + power * np.arange(every) / max(every - 1, 1))
        own = slice((number - 1) * envs, number * envs)
        self.probabilities = all_of_them[own]
        self.scored = least_explored(every)[own]

    def __call__(self, env_steps):
        """The probabilities, ``[E]``."""
        return self.probabilities
