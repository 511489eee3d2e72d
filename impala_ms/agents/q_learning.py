"""Q-learning: the loss of n-step transitions, and a target network.

Input: batches of ``replay/transitions``. Output: new weights, statistics, and the error of each
row, from which the replay makes priorities.
"""

import mindspore as ms
from mindspore import ops

from impala_ms.agents.transition_learner import TransitionLearner
from impala_ms.ops.vtrace import as_tensor


class QLearner(TransitionLearner):
    """DQN, with double Q-learning and importance weights where they are asked for.

    Args:
        policy: ``QNetwork``, or another Cell ``[N, ...] -> [N, A]``, whose weights are learned;
            its ``twin()`` is another one of the same kind.
        params: ``learner_params`` of the configuration.
        total_env_steps: Environment steps at which a linear schedule reaches 0.

    Source:
        Mnih et al. 2015, Nature 518, algorithm 1; van Hasselt et al. 2016, arXiv:1509.06461,
        equation 4 (double).
    """

    statistics = ("loss_total", "value_mean", "target_mean", "td_error_mean")

    def __init__(self, policy, params, total_env_steps):
        """Make the target network."""
        super().__init__(policy, params, total_env_steps)
        self.double = params["double"]

    def loss(
        self, observation, next_observation, action, returns, discounts, weights, next_mask=None
    ):
        """Loss of a batch.

        Args:
            observation: ``[B, ...]`` as the policy's ``prepare`` returns it; a tuple of these if
                it is structured.
            next_observation: The same, n steps later.
            action: ``[B]`` int32.
            returns: ``[B]`` float32, sums of up to n discounted rewards.
            discounts: ``[B]`` float32, factor of the value of ``next_observation``.
            weights: ``[B]`` float32, importance weights.
            next_mask: ``[B, M]`` bool, the allowed actions at ``next_observation``; or None.

        Returns:
            ``(loss, numbers)``: a scalar, and a tuple of the ``statistics`` and the TD errors
            ``[B]``.
        """
        taken = of_action(self.policy(observation), action)
        bootstrap = self.bootstrap(next_observation, next_mask)
        numbers = self.td_loss(taken, bootstrap, returns, discounts, weights)
        return numbers[0], numbers

    def bootstrap(self, observation, mask):
        """The value of an observation by the target network, ``[B]``."""
        values = self.target(observation)
        chosen = self.policy(observation) if self.double else values
        return best_value(values, chosen, mask, self.distribution)


def of_action(values, action):
    """The value of one action in each row: ``[B, A]``, ``[B]`` -> ``[B]``."""
    action = ops.expand_dims(as_tensor(action, ms.int32), -1)
    return ops.squeeze(ops.gather_elements(as_tensor(values), 1, action), -1)


def best_value(values, chosen, mask, distribution):
    """The value of the best allowed action.

    Args:
        values: ``[B, A]`` float32, of the target network.
        chosen: ``[B, A]`` float32, by which the best action is chosen.
        mask: ``[B, M]`` bool, the allowed actions; or None.
        distribution: Of the actions; it applies the mask.

    Returns:
        ``[B]`` float32; 0 where no action is allowed.
    """
    values, chosen = as_tensor(values), as_tensor(chosen)
    if mask is None:
        return of_action(values, ops.argmax(chosen, -1))
    mask = as_tensor(mask, ms.bool_)
    best = of_action(values, ops.argmax(distribution.mask(chosen, mask), -1))
    return ops.where(mask.any(-1), best, ops.zeros_like(best))
