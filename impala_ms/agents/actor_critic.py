"""The losses of actor-critic agents: targets, policy gradient, baseline, entropy.

Input: network outputs and recorded data ``[T, B]``, as tensors, arrays or lists.
Output: scalars that ``agents/learner`` differentiates. Losses are sums over valid rows; the
learner divides them if it needs means. A subclass can replace any method.
"""

import math

import mindspore as ms
from mindspore import ops

from impala_ms.agents.checks import check_outputs
from impala_ms.agents.learner import GradientLearner, rows_of
from impala_ms.agents.network import time_major
from impala_ms.ops.vtrace import as_tensor, clip_ratios, vtrace

CORRECTIONS = ("vtrace", "one_step_is", "epsilon", "none")
REWARD_CLIPS = ("none", "abs_one", "soft_asymmetric")


class ActorCriticLearner(GradientLearner):
    """Advantage actor-critic without correction: n-step returns (Mnih et al. 2016).

    Args:
        policy: Network whose weights are learned.
        params: ``learner_params`` of the configuration.
        total_env_steps: Environment steps at which a linear schedule reaches 0.
    """

    statistics = (
        "loss_total",
        "loss_policy_gradient",
        "loss_baseline",
        "loss_entropy",
        "entropy",
        "vs_mean",
        "explained_variance",
    )

    def __init__(self, policy, params, total_env_steps):
        """Read the settings that the losses need."""
        super().__init__(policy, params, total_env_steps)
        self.gamma, self.lambda_ = params["gamma"], params["lambda_"]
        self.baseline_cost, self.entropy_cost = params["baseline_cost"], params["entropy_cost"]
        self.mean = params["loss_reduction"] == "mean"
        self.reward_clip, self.reward_scale = params["reward_clip"], params["reward_scale"]
        self.state_size = int(policy.state_size)

    def loss(
        self, observation, action, reward, terminated, first, behaviour_logits, before=(), mask=None
    ):
        """See ``GradientLearner.loss``."""
        logits, values = self.forward(observation, action, reward, first, before)
        action, reward = time_major(action), time_major(reward)
        terminated, first = time_major(terminated), time_major(first)
        behaviour_logits = time_major(behaviour_logits)

        logits, bootstrap_value, values = logits[:-1], values[-1], values[:-1]
        if mask is not None:
            logits = self.distribution.mask(logits, time_major(mask))
        reset = first[1:]
        valid = 1.0 - reset.astype(ms.float32)
        log_probs = self.distribution.log_prob(logits, action)
        log_rhos = log_probs - self.distribution.log_prob(behaviour_logits, action)
        log_rhos = ops.stop_gradient(log_rhos)
        discounts = self.gamma * (1.0 - terminated.astype(ms.float32))
        rewards = self.reward_scale * clip_rewards(reward, self.reward_clip)
        vs, advantages = self.targets(log_rhos, reset, discounts, rewards, values, bootstrap_value)

        rows = ops.maximum(valid.sum(), ms.Tensor(1.0, ms.float32))
        scale = 1.0 / rows if self.mean else ms.Tensor(1.0, ms.float32)
        entropies = self.distribution.entropy(logits)
        policy_gradient = scale * self.policy_gradient_term(log_probs, advantages)
        baseline = scale * self.baseline_cost * self.baseline_term(values, vs, valid)
        entropy = scale * self.entropy_cost * self.entropy_term(entropies, valid)
        total = policy_gradient + baseline + entropy
        described = self.describe(log_rhos, values, vs, advantages, entropies, valid)
        return total, (total, policy_gradient, baseline, entropy, *described)

    def targets(self, log_rhos, reset, discounts, rewards, values, bootstrap_value):
        """Value targets and policy-gradient advantages.

        Args:
            log_rhos: ``[T, B]`` float32, log(target / behaviour) probability of the action taken.
            reset: ``[T, B]`` bool, rows whose action the environment ignored; their weight is 0.
            discounts: ``[T, B]`` float32; 0 where the episode terminated.
            rewards: ``[T, B]`` float32, clipped and scaled.
            values: ``[T, B]`` float32.
            bootstrap_value: ``[B]`` float32.

        Returns:
            ``(vs, advantages)``, both ``[T, B]`` float32 without gradient; advantage 0 on reset
            rows.
        """
        return corrected_targets(
            "none", log_rhos, reset, discounts, rewards, values, bootstrap_value, self.lambda_
        )

    def policy_gradient_term(self, log_probs, advantages):
        """Scalar; see ``policy_gradient_loss``."""
        return policy_gradient_loss(log_probs, advantages)

    def baseline_term(self, values, vs, valid):
        """Scalar; see ``baseline_loss``."""
        return baseline_loss(values, vs, valid)

    def entropy_term(self, entropies, valid):
        """Scalar; see ``entropy_loss``."""
        return entropy_loss(entropies, valid)

    def describe(self, log_rhos, values, vs, advantages, entropies, valid):
        """Numbers that describe the batch, in the order of ``statistics``, without the losses.

        Args: ``[T, B]`` float32 each; ``valid`` is 0 on reset rows.

        Returns:
            A tuple of scalars.
        """
        rows = ops.maximum(valid.sum(), ms.Tensor(1.0, ms.float32))
        vs_mean = (vs * valid).sum() / rows
        variance = (ops.square(vs - vs_mean) * valid).sum()
        errors = vs - values
        errors_mean = (errors * valid).sum() / rows
        unexplained = (ops.square(errors - errors_mean) * valid).sum()
        return (entropies * valid).sum() / rows, vs_mean, 1.0 - unexplained / (variance + 1e-8)

    def forward(self, observation, action, reward, first, before):
        """The policy at all T + 1 rows: ``(logits [T+1, B, A], values [T+1, B])``, B = S E."""
        flat = rows_of(observation)
        if self.policy_inputs:
            outputs = self.policy(flat, self.inputs_of_rows(action, reward, first, before))
        else:
            outputs = self.policy(flat)
        unrolls, rows, envs = first.shape
        state_shape = (unrolls, envs, self.state_size)
        width = self.distribution.num_parameters
        check_outputs(outputs, unrolls * rows * envs, width, state_shape)
        logits, values = outputs[0], outputs[1]
        logits = logits.reshape((*first.shape, logits.shape[-1]))
        return time_major(logits), time_major(values.reshape(first.shape))

    def inputs_of_rows(self, action, reward, first, before):
        """The policy's inputs beside the observations at all T + 1 rows, in its own order."""
        inputs = ()
        for name in self.policy_inputs:
            if name == "first":
                inputs += (first,)
            elif name == "core_state":
                inputs += (before[self.before.index(name)],)
            else:
                values = action if name == "last_action" else reward
                start = ops.expand_dims(before[self.before.index(name)], 1)
                values = ops.concat((start, values), 1)
                begun = first.reshape((*first.shape, *[1] * (values.ndim - 3)))
                values = ops.where(begun, ops.zeros_like(values), values)
                inputs += (values.reshape((-1, *values.shape[3:])),)
        return inputs


class VTraceLearner(ActorCriticLearner):
    """The update of section 4 of Espeholt et al. 2018, and the corrections of section 5.2.2."""

    statistics = (*ActorCriticLearner.statistics, "rho_mean", "rho_clipped_fraction")

    def __init__(self, policy, params, total_env_steps):
        """Read the correction and its thresholds, too."""
        super().__init__(policy, params, total_env_steps)
        self.correction = params["correction"]
        self.epsilon = params["epsilon"] if self.correction == "epsilon" else None
        self.rho_bar, self.c_bar = params["rho_bar"], params["c_bar"]
        self.pg_rho_bar = params["pg_rho_bar"]

    def targets(self, log_rhos, reset, discounts, rewards, values, bootstrap_value):
        """See ``ActorCriticLearner.targets``."""
        arguments = (log_rhos, reset, discounts, rewards, values, bootstrap_value, self.lambda_)
        thresholds = (self.rho_bar, self.c_bar, self.pg_rho_bar)
        return corrected_targets(self.correction, *arguments, *thresholds)

    def policy_gradient_term(self, log_probs, advantages):
        """Scalar; see ``policy_gradient_loss``."""
        return policy_gradient_loss(log_probs, advantages, self.epsilon)

    def describe(self, log_rhos, values, vs, advantages, entropies, valid):
        """See ``ActorCriticLearner.describe``."""
        rows = ops.maximum(valid.sum(), ms.Tensor(1.0, ms.float32))
        rhos = clip_ratios(log_rhos, None) * valid
        clip_at = math.inf if self.rho_bar is None else self.rho_bar
        clipped = (rhos > clip_at).astype(ms.float32).sum() / rows
        # Not super(): when compiled, that is the base of the object's class, perhaps this class.
        described = ActorCriticLearner.describe(
            self, log_rhos, values, vs, advantages, entropies, valid
        )
        return (*described, rhos.sum() / rows, clipped)


def corrected_targets(
    correction,
    log_rhos,
    reset,
    discounts,
    rewards,
    values,
    bootstrap_value,
    lambda_=1.0,
    rho_bar=1.0,
    c_bar=1.0,
    pg_rho_bar=1.0,
):
    """Value targets and policy-gradient advantages under one of the paper's corrections.

    Args:
        correction: ``vtrace`` corrects targets and advantages. ``one_step_is`` does not change the
            targets and multiplies advantages by ``min(pg_rho_bar, rho)``. ``epsilon`` and ``none``
            change neither; ``epsilon`` changes only ``policy_gradient_loss``.
        log_rhos: ``[T, B]`` float32, log(target / behaviour) probability of the action taken.
        reset: ``[T, B]`` bool, rows whose action the environment ignored; their weight is 0.
        discounts: ``[T, B]`` float32; 0 where the episode terminated.
        rewards: ``[T, B]`` float32.
        values: ``[T, B]`` float32.
        bootstrap_value: ``[B]`` float32.
        lambda_: Discount of traces, as in ``vtrace``.
        rho_bar: Threshold for the ratio of the temporal difference; None: not clipped.
        c_bar: Threshold for the ratio of the trace; None: not clipped.
        pg_rho_bar: Threshold for the ratio of the advantage; None: not clipped.

    Returns:
        ``(vs, pg_advantages)``, both ``[T, B]`` float32 without gradient.

    Source:
        Espeholt et al. 2018, arXiv:1802.01561, section 5.2.2.
    """
    log_rhos, reset = as_tensor(log_rhos), as_tensor(reset, ms.bool_)
    weight_0 = ops.full_like(log_rhos, float("-inf"))
    if correction == "vtrace":
        log_rhos = ops.where(reset, weight_0, log_rhos)
        return vtrace(
            log_rhos,
            discounts,
            rewards,
            values,
            bootstrap_value,
            rho_bar=rho_bar,
            c_bar=c_bar,
            pg_rho_bar=pg_rho_bar,
            lambda_=lambda_,
        )
    on_policy = ops.where(reset, weight_0, ops.zeros_like(log_rhos))
    vs, advantages = vtrace(on_policy, discounts, rewards, values, bootstrap_value, lambda_=lambda_)
    if correction == "one_step_is":
        weights = clip_ratios(ops.stop_gradient(log_rhos), pg_rho_bar)
        advantages = advantages * weights
    return vs, advantages


def policy_gradient_loss(log_probs, advantages, epsilon=None):
    """``-sum(log pi(a) * advantage)``; reset rows have advantage 0.

    Args:
        log_probs: ``[T, B]`` float32, log-probabilities under the current policy.
        advantages: ``[T, B]`` float32 without gradient.
        epsilon: Number that is added to pi(a) inside the logarithm, for the correction
            ``epsilon``; None adds nothing.

    Returns:
        Scalar float32.

    Source:
        Espeholt et al. 2018, section 4.2; epsilon: section 5.2.2.
    """
    log_probs, advantages = as_tensor(log_probs), as_tensor(advantages)
    if epsilon is not None:
        # log(pi + epsilon) without MindSpore's log, for the reason in Categorical.log_prob
        log_epsilon = math.log(epsilon)
        pair = ops.stack((log_probs, ops.full_like(log_probs, log_epsilon)), -1)
        log_probs = log_epsilon - ops.log_softmax(pair, -1)[..., 1]
    return -(log_probs * advantages).sum()


def baseline_loss(values, vs, valid):
    """``0.5 * sum((vs - V)^2)`` over valid rows; its derivative by V is ``V - vs``.

    Args:
        values: ``[T, B]`` float32.
        vs: ``[T, B]`` float32 without gradient.
        valid: ``[T, B]`` float32, 0 on reset rows, else 1.

    Returns:
        Scalar float32.
    """
    values, vs, valid = as_tensor(values), as_tensor(vs), as_tensor(valid)
    return 0.5 * (ops.square(vs - values) * valid).sum()


def entropy_loss(entropies, valid):
    """``-sum(entropy)`` over valid rows.

    Args:
        entropies: ``[T, B]`` float32, nats.
        valid: ``[T, B]`` float32, 0 on reset rows, else 1.

    Returns:
        Scalar float32.
    """
    return -(as_tensor(entropies) * as_tensor(valid)).sum()


def clip_rewards(rewards, how):
    """Rewards for the learner; the returns that are reported are not clipped.

    Args:
        rewards: ``[T, B]`` float32.
        how: ``none`` changes nothing. ``abs_one`` clips to [-1, 1]. ``soft_asymmetric`` gives
            ``5 tanh(r / 5)``, multiplied by 0.3 if r is negative.

    Returns:
        ``[T, B]`` float32.

    Source:
        Espeholt et al. 2018, appendix D: abs_one for Atari, soft_asymmetric for DMLab-30.
    """
    rewards = as_tensor(rewards)
    if how == "abs_one":
        one = ms.Tensor(1.0, ms.float32)
        return ops.minimum(ops.maximum(rewards, -one), one)
    if how == "soft_asymmetric":
        squeezed = 5.0 * ops.tanh(rewards / 5.0)
        return ops.where(rewards < 0, 0.3 * squeezed, squeezed)
    return rewards
