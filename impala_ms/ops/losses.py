"""The three losses of IMPALA and the off-policy corrections they are compared under.

Input: network outputs and recorded data as ``[T, B]``, from the learner; tensors, or what NumPy
could make arrays of. Output: scalars to differentiate. Losses are sums over valid rows; the
learner divides where the mean is wanted.
"""

import math

import mindspore as ms
from mindspore import ops

from impala_ms.ops.vtrace import as_tensor, clip_ratios, vtrace

CORRECTIONS = ("vtrace", "one_step_is", "epsilon", "none")
REWARD_CLIPS = ("none", "abs_one", "soft_asymmetric")


def targets(correction, log_rhos, reset, discounts, rewards, values, bootstrap_value, **thresholds):
    """Value targets and policy-gradient advantages under one of the paper's corrections.

    Args:
        correction: ``vtrace``; ``one_step_is``: uncorrected targets, the advantage weighted by
            ``min(pg_rho_bar, rho)``; ``epsilon`` and ``none``: uncorrected targets and
            advantages (``epsilon`` differs in ``policy_gradient_loss`` only).
        log_rhos: ``[T, B]`` float32, log(target / behaviour) probability of the action taken.
        reset: ``[T, B]`` bool, rows whose action the environment ignored; weight 0.
        discounts: ``[T, B]`` float32; 0 where the episode terminated.
        rewards: ``[T, B]`` float32.
        values: ``[T, B]`` float32.
        bootstrap_value: ``[B]`` float32.
        **thresholds: ``rho_bar, c_bar, pg_rho_bar, lambda_`` of ``vtrace``.

    Returns:
        ``(vs, pg_advantages)``, both ``[T, B]`` float32 without gradient.

    Source:
        Espeholt et al. 2018, arXiv:1802.01561, section 5.2.2.
    """
    log_rhos, reset = as_tensor(log_rhos), as_tensor(reset, ms.bool_)
    nothing = ops.full_like(log_rhos, float("-inf"))
    if correction == "vtrace":
        log_rhos = ops.where(reset, nothing, log_rhos)
        return vtrace(log_rhos, discounts, rewards, values, bootstrap_value, **thresholds)
    on_policy = ops.where(reset, nothing, ops.zeros_like(log_rhos))
    vs, advantages = vtrace(
        on_policy, discounts, rewards, values, bootstrap_value, lambda_=thresholds["lambda_"]
    )
    if correction == "one_step_is":
        weights = clip_ratios(ops.stop_gradient(log_rhos), thresholds["pg_rho_bar"])
        advantages = advantages * weights
    return vs, advantages


def policy_gradient_loss(log_probs, advantages, epsilon=None):
    """``-sum(log pi(a) * advantage)``; reset rows have advantage 0.

    Args:
        log_probs: ``[T, B]`` float32, of the current policy.
        advantages: ``[T, B]`` float32 without gradient.
        epsilon: None, or the number added to pi(a) inside the logarithm (correction
            ``epsilon``).

    Returns:
        Scalar float32.

    Source:
        Espeholt et al. 2018, section 4.2; epsilon: section 5.2.2.
    """
    log_probs, advantages = as_tensor(log_probs), as_tensor(advantages)
    if epsilon is not None:
        # log(pi + epsilon), without MindSpore's log for the reason in ops/distributions.py
        log_epsilon = math.log(epsilon)
        pair = ops.stack((log_probs, ops.full_like(log_probs, log_epsilon)), -1)
        log_probs = log_epsilon - ops.log_softmax(pair, -1)[..., 1]
    return -(log_probs * advantages).sum()


def baseline_loss(values, vs, valid):
    """``0.5 * sum((vs - V)^2)`` over valid rows, so that d(loss)/dV is ``V - vs``.

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
    """Rewards as the learner sees them; reported returns stay raw.

    Args:
        rewards: ``[T, B]`` float32.
        how: ``none``; ``abs_one``: to [-1, 1]; ``soft_asymmetric``: ``5 tanh(r / 5)``, times
            0.3 where r is negative.

    Returns:
        ``[T, B]`` float32.

    Source:
        Espeholt et al. 2018, appendix D: abs_one for Atari, soft asymmetric for DMLab-30.
    """
    rewards = as_tensor(rewards)
    if how == "abs_one":
        one = ms.Tensor(1.0, ms.float32)
        return ops.minimum(ops.maximum(rewards, -one), one)
    if how == "soft_asymmetric":
        squeezed = 5.0 * ops.tanh(rewards / 5.0)
        return ops.where(rewards < 0, 0.3 * squeezed, squeezed)
    return rewards
