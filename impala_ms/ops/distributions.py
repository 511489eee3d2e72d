"""Policy distributions: one implementation for actor, learner and evaluator.

Input: the outputs of a network's policy head (logits, or means and deviations). Output: actions,
log probabilities and entropies. ``noise`` draws the random numbers from a NumPy generator, outside
compiled code: so a seed gives the same actions everywhere.
"""

import math

import mindspore as ms
import numpy as np
from mindspore import ops

from impala_ms.ops.vtrace import as_tensor

FORBIDDEN = float(np.finfo(np.float32).min)  # the logit of a forbidden action
LOG_STD_RANGE = -5.0, 2.0  # bounds of a Gaussian policy's log standard deviation


def make_distribution(action_space):
    """The distribution over the actions of a space.

    Args:
        action_space: Description of the space, as of ``VectorEnvironment.spaces()``.

    Returns:
        ``Categorical``, ``MultiCategorical`` or ``DiagonalGaussian``.
    """
    kind = action_space["type"]
    if kind == "Discrete":
        return Categorical(action_space["n"])
    if kind == "MultiDiscrete":
        return MultiCategorical(action_space["nvec"])
    if kind == "MultiBinary":
        return MultiCategorical([2] * int(np.prod(action_space["n"])))
    if kind == "Box":
        return DiagonalGaussian(tuple(action_space["shape"]))
    raise ValueError(
        f"no distribution over a {kind} action space: allowed are Discrete, MultiDiscrete, "
        "MultiBinary and Box"
    )


class Categorical:
    """A distribution over ``num_actions`` discrete actions, given by logits.

    The logit of a forbidden action is the smallest finite float32: ``-inf`` would make entropy and
    gradients NaN.
    """

    action_dtype = np.dtype(np.int32)
    action_shape: tuple[int, ...] = ()

    def __init__(self, num_actions):
        """One parameter, a logit, for each action."""
        self.num_actions = num_actions
        self.num_parameters = num_actions
        self.encoded_size = num_actions

    def encode(self, action):
        """Make of actions ``[N]`` int32 inputs of a network: ``[N, A]`` float32, one-hot."""
        return one_hot(action, self.num_actions)

    def mask(self, logits, allowed):
        """Forbid actions: logits ``[..., A]``, changed where ``allowed`` (bool) is False."""
        return mask_logits(logits, allowed)

    def noise(self, rng, shape):
        """Draw the random numbers that ``sample`` needs.

        Args:
            rng: ``numpy.random.Generator``.
            shape: Leading shape, such as ``(T, E)``.

        Returns:
            ``[*shape, A]`` float32, distributed as a standard Gumbel.
        """
        exponential = rng.standard_exponential((*shape, self.num_actions), dtype=np.float32)
        # A draw is 0 with probability 2^-24; the bound keeps log finite.
        return -np.log(np.maximum(exponential, np.float32(1e-38)))

    def sample(self, logits, noise):
        """Sample by the Gumbel-max trick.

        Args:
            logits: ``[N, A]`` float32.
            noise: ``[N, A]`` float32 from ``noise``; zeros give the mode.

        Returns:
            ``[N]`` int32 actions.
        """
        return ops.argmax(as_tensor(logits) + as_tensor(noise), -1).astype(ms.int32)

    def log_prob(self, logits, action):
        """Log probability of actions.

        Args:
            logits: ``[..., A]`` float32.
            action: ``[...]`` int32.

        Returns:
            ``[...]`` float32.
        """
        # Not logsumexp: the bits of MindSpore's log depend on how the runtime shares work among
        # threads, which changes during a run, so that runs would not repeat bit for bit.
        log_probs, action = ops.log_softmax(as_tensor(logits), -1), as_tensor(action, ms.int32)
        return ops.squeeze(ops.gather_elements(log_probs, -1, ops.expand_dims(action, -1)), -1)

    def entropy(self, logits):
        """Entropy in nats.

        Args:
            logits: ``[..., A]`` float32.

        Returns:
            ``[...]`` float32.
        """
        # e^-100 is almost 0 in float32. Without this bound the gradient for a forbidden action (its
        # log probability times a cost) overflows if the cost is above 1.
        log_probs = ops.log_softmax(as_tensor(logits), -1)
        log_probs = ops.maximum(log_probs, ms.Tensor(-100.0, ms.float32))
        return -(ops.exp(log_probs) * log_probs).sum(-1)


class EpsilonGreedy(Categorical):
    """A choice among ``num_actions`` discrete actions by their values; sometimes at random.

    The noise says at random where, and for which action: so the choice is a part of compiled code.
    """

    def noise(self, rng, shape, epsilon=0.0):
        """Draw the random numbers that ``sample`` needs.

        Args:
            rng: ``numpy.random.Generator``.
            shape: Leading shape, such as ``(T, E)``.
            epsilon: Probability of a random action, a number or ``[E]``.

        Returns:
            ``[*shape, A]`` float32: zeros where the best action is taken, else numbers above 0.
        """
        random = rng.random(shape) < epsilon
        order = 1.0 - rng.random((*shape, self.num_actions), dtype=np.float32)  # (0, 1]
        return np.where(random[..., None], order, np.float32(0.0))

    def sample(self, values, noise):
        """The action of the highest value or, where there is noise, of the largest noise.

        Args:
            values: ``[N, A]`` float32, those of forbidden actions masked.
            noise: ``[N, A]`` float32 from ``noise``; zeros give the best action.

        Returns:
            ``[N]`` int32 actions.
        """
        values, noise = as_tensor(values), as_tensor(noise)
        random = noise.max(-1, keepdims=True) > 0.0
        order = ops.where(values > FORBIDDEN, noise, ops.full_like(noise, -1.0))
        return ops.argmax(ops.where(random, order, values), -1).astype(ms.int32)


class MultiCategorical:
    """Several discrete actions at once, independent given the observation.

    The parameters are the logits of all parts side by side.

    Args:
        sizes: Number of choices of each part.
    """

    action_dtype = np.dtype(np.int32)

    def __init__(self, sizes):
        """One ``Categorical`` for each part."""
        self.parts = [Categorical(int(size)) for size in sizes]
        self.action_shape = (len(self.parts),)
        self.num_parameters = self.encoded_size = sum(part.num_actions for part in self.parts)
        ends = np.cumsum([part.num_actions for part in self.parts]).tolist()
        self._slices = [
            (end - part.num_actions, end) for end, part in zip(ends, self.parts, strict=True)
        ]

    def encode(self, action):
        """``[N, parts]`` int32 to ``[N, sum of sizes]`` float32: one-hot vectors side by side."""
        columns = ()
        for i in range(len(self.parts)):
            columns += (one_hot(action[..., i], self.parts[i].num_actions),)
        return ops.concat(columns, -1)

    def mask(self, logits, allowed):
        """Like ``Categorical.mask``, for the logits of all parts side by side."""
        return mask_logits(logits, allowed)

    def noise(self, rng, shape):
        """Like ``Categorical.noise``: ``[*shape, sum of sizes]``."""
        return np.concatenate([part.noise(rng, shape) for part in self.parts], -1)

    def sample(self, logits, noise):
        """Sample every part: ``[N, parts]`` int32; noise of zeros gives the mode."""
        columns = ()
        for i in range(len(self.parts)):
            begin, end = self._slices[i]
            columns += (self.parts[i].sample(logits[..., begin:end], noise[..., begin:end]),)
        return ops.stack(columns, -1)

    def log_prob(self, logits, action):
        """Log probability of actions ``[..., parts]`` int32, summed over the parts: ``[...]``."""
        total = 0.0
        for i in range(len(self.parts)):
            begin, end = self._slices[i]
            total = total + self.parts[i].log_prob(logits[..., begin:end], action[..., i])
        return total

    def entropy(self, logits):
        """Entropy in nats, summed over the parts: ``[...]`` float32."""
        total = 0.0
        for i in range(len(self.parts)):
            begin, end = self._slices[i]
            total = total + self.parts[i].entropy(logits[..., begin:end])
        return total


class DiagonalGaussian:
    """A normal distribution of each number of a continuous action.

    The parameters are all means, then the logarithms of all standard deviations (clamped to
    ``LOG_STD_RANGE``). Actions are stored as sampled; the environment clips them to its bounds.

    Args:
        action_shape: Shape of one action.
    """

    action_dtype = np.dtype(np.float32)

    def __init__(self, action_shape):
        """Two parameters for each number of an action."""
        self.action_shape = tuple(action_shape)
        self.size = self.encoded_size = math.prod(self.action_shape)
        self.num_parameters = 2 * self.size

    def _split(self, parameters):
        low, high = LOG_STD_RANGE
        parameters = as_tensor(parameters)
        log_std = ops.clamp(parameters[..., self.size :], low, high)
        return parameters[..., : self.size], log_std

    def _split_for_return(self, parameters):
        """``_split`` with a gradient also where the deviation is clamped, so that it can return."""
        mean, log_std = self._split(parameters)
        raw = as_tensor(parameters)[..., self.size :]
        return mean, raw + ops.stop_gradient(log_std - raw)

    def encode(self, action):
        """``[N, *action_shape]`` to ``[N, size]``, clamped to -10 ... 10."""
        return ops.clamp(as_tensor(action).reshape((action.shape[0], self.size)), -10.0, 10.0)

    def noise(self, rng, shape):
        """``[*shape, size]`` float32, standard normal."""
        return rng.standard_normal((*shape, self.size), dtype=np.float32)

    def sample(self, parameters, noise):
        """``[N, *action_shape]`` float32; noise of zeros gives the mean."""
        mean, log_std = self._split(parameters)
        action = mean + ops.exp(log_std) * as_tensor(noise)
        return action.reshape((action.shape[0], *self.action_shape))

    def log_prob(self, parameters, action):
        """Logarithm of the density, summed over the numbers of an action: ``[...]`` float32.

        Its gradient can move a deviation outside ``LOG_STD_RANGE`` back. The gradient of
        ``entropy`` is 0 there, because it would move the deviation further out.
        """
        mean, log_std = self._split_for_return(parameters)
        distance = (as_tensor(action).reshape(mean.shape) - mean) * ops.exp(-log_std)
        each = -0.5 * ops.square(distance) - log_std - 0.5 * math.log(2.0 * math.pi)
        return each.sum(-1)

    def entropy(self, parameters):
        """Differential entropy in nats, summed over the numbers of an action: ``[...]`` float32."""
        _, log_std = self._split(parameters)
        return (log_std + 0.5 * math.log(2.0 * math.pi * math.e)).sum(-1)


class NoisyAction:
    """A continuous action between -1 and 1 that a network gives itself; noise is added to it.

    Args:
        action_shape: Shape of one action.
    """

    action_dtype = np.dtype(np.float32)

    def __init__(self, action_shape):
        """One parameter for each number of an action."""
        self.action_shape = tuple(action_shape)
        self.size = self.num_parameters = self.encoded_size = math.prod(self.action_shape)

    def noise(self, rng, shape, deviation=0.0):
        """Draw the random numbers that ``sample`` needs.

        Args:
            rng: ``numpy.random.Generator``.
            shape: Leading shape, such as ``(T, E)``.
            deviation: Standard deviation of the noise, a number or ``[E]``; None: the action is
                uniform between -1 and 1, whatever the network says.

        Returns:
            ``[*shape, 2 size]`` float32: what is added; then the action that is taken instead, plus
            2, or 0 for none.
        """
        added = np.zeros((*shape, self.size), np.float32)
        instead = np.zeros_like(added)
        if deviation is None:
            instead = 2.0 + rng.uniform(-1.0, 1.0, added.shape).astype(np.float32)
        elif np.any(deviation):
            added = rng.standard_normal(added.shape, dtype=np.float32)
            added *= np.asarray(deviation, np.float32)[..., None]
        return np.concatenate([added, instead], -1)

    def sample(self, action, noise):
        """``[N, *action_shape]`` float32; the sum of action and noise, clipped to -1 ... 1.

        Args:
            action: ``[N, size]`` float32, -1 ... 1.
            noise: ``[N, 2 size]`` float32 from ``noise``; zeros leave the action as it is.
        """
        noise = as_tensor(noise)
        added, instead = noise[..., : self.size], noise[..., self.size :]
        noisy = ops.clamp(as_tensor(action) + added, -1.0, 1.0)
        taken = ops.where(instead > 0.0, instead - 2.0, noisy)
        return taken.reshape((taken.shape[0], *self.action_shape))


def one_hot(index, size):
    """``[...]`` integers to ``[..., size]`` float32."""
    return (ops.expand_dims(as_tensor(index, ms.int32), -1) == ops.arange(size)).astype(ms.float32)


def mask_logits(logits, allowed):
    """Logits with which forbidden actions have probability 0; gradients stay finite."""
    logits = as_tensor(logits)
    return ops.where(as_tensor(allowed, ms.bool_), logits, ops.full_like(logits, FORBIDDEN))
