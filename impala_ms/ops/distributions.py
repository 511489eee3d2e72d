"""Policy distributions: one implementation for actor, learner and evaluator.

Input: the parameters that a network's policy head puts out. Output: actions, log probabilities
and entropies. Random numbers come from outside, drawn by ``noise`` from a NumPy generator, so
that compiled functions stay pure and a seed gives the same actions everywhere.
"""

import mindspore as ms
import numpy as np
from mindspore import ops


class Categorical:
    """A distribution over ``num_actions`` discrete actions, parametrised by logits.

    A forbidden action has the finite float32 minimum as its logit: ``-inf`` would make entropy
    and gradients NaN.
    """

    action_dtype = np.dtype(np.int32)
    action_shape: tuple[int, ...] = ()

    def __init__(self, num_actions):
        """One parameter, a logit, for each action."""
        self.num_actions = num_actions
        self.num_parameters = num_actions

    def noise(self, rng, shape):
        """Draw the random numbers that ``sample`` needs.

        Args:
            rng: ``numpy.random.Generator``.
            shape: Leading shape, such as ``(T, E)``.

        Returns:
            ``[*shape, A]`` float32, standard Gumbel distributed.
        """
        exponential = rng.standard_exponential((*shape, self.num_actions), dtype=np.float32)
        # The smallest float32 keeps log(0), which has probability 2^-24 a draw, out.
        return -np.log(np.maximum(exponential, np.float32(1e-38)))

    def sample(self, logits, noise):
        """Sample by the Gumbel-max trick.

        Args:
            logits: ``[N, A]`` float32.
            noise: ``[N, A]`` float32 from ``noise``; zeros give the mode.

        Returns:
            ``[N]`` int32 actions.
        """
        return ops.argmax(logits + noise, -1).astype(ms.int32)

    def log_prob(self, logits, action):
        """Log probability of actions.

        Args:
            logits: ``[..., A]`` float32.
            action: ``[...]`` int32.

        Returns:
            ``[...]`` float32.
        """
        # Not logsumexp: the bits of MindSpore's log depend on how the runtime shares the work among
        # threads, which it tries out while it runs; a run could not be repeated bit for bit.
        log_probs = ops.log_softmax(logits, -1)
        return ops.squeeze(ops.gather_elements(log_probs, -1, ops.expand_dims(action, -1)), -1)

    def entropy(self, logits):
        """Entropy in nats.

        Args:
            logits: ``[..., A]`` float32.

        Returns:
            ``[...]`` float32.
        """
        # e^-100 is next to nothing in float32. Without a bound the gradient of a forbidden action,
        # its log probability times a cost, overflows for a cost above 1.
        log_probs = ops.maximum(ops.log_softmax(logits, -1), ms.Tensor(-100.0, ms.float32))
        return -(ops.exp(log_probs) * log_probs).sum(-1)
