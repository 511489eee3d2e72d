"""DDPG: the critic's loss, and the slope of its values, which the policy follows.

Input: batches of ``replay/transitions``. Output: new weights, statistics, and the error of each
row, from which the replay makes priorities.
"""

import mindspore as ms
from mindspore import ops

from impala_ms.agents.optimizer import make_optimizer
from impala_ms.agents.transition_learner import TransitionLearner, target_of
from impala_ms.ops.gradients import clipped

AT_BOUND = 0.99  # the hyperbolic tangent has almost no slope beyond


class DDPGLearner(TransitionLearner):
    """A critic that learns the values of actions, and a policy that follows their slope.

    Args:
        policy: ``DeterministicPolicy``, or another Cell ``[N, ...] -> [N, A]`` with actions of
            -1 ... 1; its ``twin()`` is another one of the same kind, and its ``make_critic()`` a
            Cell ``([N, ...], [N, A]) -> [N]``.
        params: ``learner_params`` of the configuration.
        total_env_steps: Environment steps at which a linear schedule reaches 0.

    Source:
        Lillicrap et al. 2016, arXiv:1509.02971, algorithm 1; Horgan et al. 2018,
        arXiv:1803.00933, section 3.2 and appendix D.
    """

    statistics = (
        *("loss_total", "value_mean", "target_mean", "td_error_mean"),
        *("action_at_bound_fraction", "policy_gradient_norm"),
    )

    def __init__(self, policy, params, total_env_steps):
        """Make the critic, its target and its optimiser."""
        super().__init__(policy, params, total_env_steps)
        self.slope_clip, self.critic_lr = params["slope_clip"], params["critic_lr"]
        self.critic = policy.make_critic()
        for parameter in self.critic.get_parameters():
            parameter.name = f"critic.{parameter.name}"
        of_critic = target_of(policy.make_critic(), self.critic, "target.critic")
        self.target_critic, pairs = of_critic
        self.pairs += pairs
        self.critic_optimizer = make_optimizer(
            self.critic.trainable_params(), params | {"lr": self.critic_lr}
        )
        known = {parameter.name for parameter in self.critic.get_parameters()}
        for parameter in self.critic_optimizer.get_parameters():
            if parameter.name not in known:
                parameter.name = f"critic_optimizer.{parameter.name}"
        self.policy_parameters = len(self.optimizer.parameters)
        learned = [*self.optimizer.parameters, *self.critic_optimizer.parameters]
        self._gradient = ms.value_and_grad(
            self.loss, None, ms.ParameterTuple(learned), has_aux=True
        )
        self._slope = ms.grad(self.sum_of_values, 1)
        self.take_over()

    def loss(
        self, observation, next_observation, action, returns, discounts, weights, next_mask=None
    ):
        """Loss of a batch; its gradient for the policy's weights is that of the slope only.

        Args:
            observation: ``[B, ...]`` as the policy's ``prepare`` returns it; a tuple of these if
                it is structured.
            next_observation: The same, n steps later.
            action: ``[B, ...]`` float32, -1 ... 1.
            returns: ``[B]`` float32, sums of up to n discounted rewards.
            discounts: ``[B]`` float32, factor of the value of ``next_observation``.
            weights: ``[B]`` float32, importance weights of the critic's loss.
            next_mask: Not used.

        Returns:
            ``(loss, numbers)``: a scalar, and a tuple of the first ``statistics`` and the TD errors
            ``[B]``.
        """
        bootstrap = self.target_critic(next_observation, self.target(next_observation))
        taken = self.critic(observation, action.reshape((action.shape[0], -1)))
        loss, *means, errors = self.td_loss(taken, bootstrap, returns, discounts, weights)
        chosen = self.policy(observation)
        total = loss + self.policy_loss(observation, chosen)
        at_bound = (ops.abs(chosen) > AT_BOUND).astype(ms.float32).mean()
        return total, (loss, *means, at_bound, errors)

    def policy_loss(self, observation, chosen):
        """A scalar whose gradient for the chosen actions is minus their mean, clipped slope."""
        slope = self._slope(observation, ops.stop_gradient(chosen))
        if self.slope_clip is not None:
            slope = ops.clamp(slope, -self.slope_clip, self.slope_clip)
        return -(ops.stop_gradient(slope) * chosen).sum(-1).mean()

    def sum_of_values(self, observation, action):
        """The sum of the critic's values: its slope for each action is that of the own value."""
        return self.critic(observation, action).sum()

    def make_update(self, lr, tensors):
        """Make one update of both networks; if anything is not finite, no weight changes.

        Args:
            lr: Scalar float32, of the policy.
            tensors: Those of one part of a batch, with B rows.

        Returns:
            ``[K + 2 + B]`` float32: statistics, norm of the critic's gradient, whether it was
            applied, then absolute TD errors.
        """
        (_, numbers), gradients = self._gradient(*self.arguments(tensors))
        of_policy, policy_norm = clipped(gradients[: self.policy_parameters], self.max_grad_norm)
        of_critic, norm = clipped(gradients[self.policy_parameters :], self.max_grad_norm)
        finite = ops.isfinite(norm + policy_norm + numbers[0])
        if finite:
            ops.assign(self.optimizer.learning_rate, lr)
            ops.assign(self.critic_optimizer.learning_rate, lr * (self.critic_lr / self.lr))
            self.optimizer(of_policy)
            self.critic_optimizer(of_critic)
            self.follow()
        described = (*numbers[:-1], policy_norm, norm, finite.astype(ms.float32))
        return ops.concat((ops.stack(described), ops.abs(numbers[-1])))
