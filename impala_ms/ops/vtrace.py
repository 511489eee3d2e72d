"""V-trace: off-policy corrected value targets and advantages (Espeholt et al. 2018).

Input: log ratios, discounts, rewards and values of unrolls, from the learner's forward pass.
Output: value targets and policy-gradient advantages, to ``agents/actor_critic``.
"""

import math

import mindspore as ms
from mindspore import ops

# exp(20) is 4.9e8: the product of two unclipped ratios and a value fits into float32.
MAX_LOG_RHO = 20.0
# Bound of products of ratios above 1 and of their sums: the product of two fits into float32.
MAX_PRODUCT = 1e18


def as_tensor(x, dtype=ms.float32):
    """A tensor as it is; an array, a list or a number as a tensor of ``dtype``."""
    return x if isinstance(x, ms.Tensor) else ms.Tensor(x, dtype)


def clip_ratios(log_rhos, threshold):
    """Importance ratios ``min(threshold, exp(log_rhos))``.

    Args:
        log_rhos: ``[T, B]`` float32; ``-inf`` gives a ratio of exactly 0.
        threshold: Largest ratio; None only clips log ratios to 20.

    Returns:
        ``[T, B]`` float32.
    """
    log_rhos = as_tensor(log_rhos)
    # A power of e: MindSpore's exp on the CPU has a relative error of 5e-6, its pow of 2e-7. The
    # error of V-trace may be 1e-5 of max|vs|, and exp alone would use half of it.
    log_rhos = ops.minimum(log_rhos, ms.Tensor(MAX_LOG_RHO, ms.float32))
    ratios = ops.pow(ms.Tensor(math.e, ms.float32), log_rhos)
    return ratios if threshold is None else ops.minimum(ratios, ms.Tensor(threshold, ms.float32))


def reverse_linear_scan(decays, deltas, limit=None):
    """Solve ``x[t] = deltas[t] + decays[t] * x[t + 1]`` with ``x[T] = 0`` for every t.

    Each pass doubles the number of steps that a sum reaches. So the number of operators, and the
    time to compile, grow with log T and not with T.

    Args:
        decays: ``[T, B]`` float32.
        deltas: ``[T, B]`` float32.
        limit: Largest magnitude of sums and of products of decays. Without it they could overflow
            and become NaN where an episode ends (decay 0). None if every decay is <= 1.

    Returns:
        ``x``, ``[T, B]`` float32.

    Source:
        Hillis and Steele 1986, Data parallel algorithms, doi:10.1145/7902.7903.
    """
    decays, deltas = as_tensor(decays), as_tensor(deltas)
    length = deltas.shape[0]
    reach = 1
    while reach < length:
        nothing = ops.zeros_like(deltas[:reach])
        deltas = deltas + decays * ops.cat((deltas[reach:], nothing))
        if limit is not None:
            deltas = ops.maximum(ops.minimum(deltas, limit), -limit)
        if 2 * reach < length:
            decays = decays * ops.cat((decays[reach:], nothing))
            if limit is not None:
                decays = ops.minimum(decays, limit)
        reach *= 2
    return deltas


def vtrace(
    log_rhos,
    discounts,
    rewards,
    values,
    bootstrap_value,
    *,
    rho_bar=1.0,
    c_bar=1.0,
    pg_rho_bar=1.0,
    lambda_=1.0,
):
    """V-trace value targets and policy-gradient advantages for a batch of unrolls.

    All arrays may be tensors, NumPy arrays or lists.

    Args:
        log_rhos: ``[T, B]`` float32, log(target / behaviour) probability of the action taken at
            step t; ``-inf`` marks a reset row, whose weight is 0.
        discounts: ``[T, B]`` float32 in [0, 1]; 0 where the episode terminated.
        rewards: ``[T, B]`` float32, the reward that followed the action of step t.
        values: ``[T, B]`` float32, V(x_t) of the current baseline.
        bootstrap_value: ``[B]`` float32, V(x_T).
        rho_bar: Threshold of the ratio of a temporal difference; it sets the fixed point. None does
            not clip.
        c_bar: Threshold of the ratio of a trace; it sets the speed of convergence. None does not
            clip.
        pg_rho_bar: Threshold of the ratio of an advantage. None does not clip.
        lambda_: Factor in [0, 1] on the traces, as in TD(lambda).

    Returns:
        ``(vs, pg_advantages)``, both ``[T, B]`` float32; no gradient flows through them.
        A plain tuple: a NamedTuple inside compiled code cuts every gradient.

    Raises:
        ValueError: If ranks or ``[T, B]`` differ.

    Source:
        Espeholt et al. 2018, arXiv:1802.01561, eq. 1 and remark 1 (recursion), remark 2
        (lambda); advantage: section 4.2.
    """
    log_rhos, discounts, rewards = as_tensor(log_rhos), as_tensor(discounts), as_tensor(rewards)
    values, bootstrap_value = as_tensor(values), as_tensor(bootstrap_value)
    shape = log_rhos.shape
    if len(shape) != 2 or discounts.shape != shape or rewards.shape != shape:
        raise ValueError(
            "vtrace needs log_rhos, discounts and rewards of one shape [T, B], "
            f"got {shape}, {discounts.shape}, {rewards.shape}"
        )
    if values.shape != shape or bootstrap_value.shape != shape[1:]:
        raise ValueError(
            f"vtrace needs values [T, B] and bootstrap_value [B] for log_rhos {shape}, "
            f"got {values.shape} and {bootstrap_value.shape}"
        )
    values, bootstrap_value = ops.stop_gradient(values), ops.stop_gradient(bootstrap_value)
    log_rhos = ops.stop_gradient(log_rhos)

    rhos = clip_ratios(log_rhos, rho_bar)
    cs = rhos if c_bar == rho_bar else clip_ratios(log_rhos, c_bar)
    if lambda_ != 1.0:
        cs = lambda_ * cs
    pg_rhos = rhos if pg_rho_bar == rho_bar else clip_ratios(log_rhos, pg_rho_bar)

    bootstrap = ops.expand_dims(bootstrap_value, 0)
    next_values = ops.cat((values[1:], bootstrap))
    deltas = rhos * (rewards + discounts * next_values - values)
    grows = c_bar is None or c_bar * lambda_ > 1.0
    limit = ms.Tensor(MAX_PRODUCT, ms.float32) if grows else None
    vs_minus_values = reverse_linear_scan(discounts * cs, deltas, limit)
    vs = values + vs_minus_values

    next_vs = ops.cat((vs[1:], bootstrap))
    pg_advantages = pg_rhos * (rewards + discounts * next_vs - values)
    return ops.stop_gradient(vs), ops.stop_gradient(pg_advantages)
