"""The policy and baseline network, the same Cell in actor, learner and evaluation.

Input: observations, and the other inputs that it names. Output: parameters of the action
distribution, and the baseline's value.
"""

import math

from mindspore import nn, ops

from impala_ms.agents.checks import check_width
from impala_ms.agents.choices import automatic_torso
from impala_ms.agents.torso import Torso
from impala_ms.classes import resolve
from impala_ms.errors import ConfigError
from impala_ms.nets.mlp import dense
from impala_ms.nets.normalizer import ObservationNormalizer
from impala_ms.spaces import leaf_array, leaves

CORES = {"lstm": "impala_ms.nets.lstm:LSTM"}


class ActorCriticPolicy(nn.Cell):
    """A torso, a core if one is asked for, a policy head and a baseline head.

    A network of your own is any Cell with this constructor, this ``construct`` and the attribute
    ``distribution``; name it in ``algorithm_config["policy_and_network"]["type"]``. A torso of
    your own is a Cell with the constructor ``(observation_shape, **options)``, the attribute
    ``outputs`` and ``construct(x [N, ...]) -> [N, outputs]``; name it in ``network.torso``. It may
    have a method ``prepare``, see below.

    Args:
        observation_space: Description of the space (``VectorEnvironment.spaces()``), with stacked
            frames as ``[k, ...]``.
        distribution: Distribution of the actions (``ops.distributions``).
        torso: ``mlp``, ``shallow``, ``nature``, ``resnet`` or a class of your own; None:
            ``automatic_torso``. Parts of a structured observation that are not images are
            concatenated with the torso's features.
        hidden_sizes: Width of each hidden layer of an ``mlp``.
        activation: Activation of an ``mlp``: ``tanh`` or ``relu``.
        core: ``none`` or ``lstm``.
        core_size: Units of the core.
        last_action_reward: Whether the last action and reward are inputs, beside the features.
        separate_baseline: Whether the baseline has a torso of its own. Then its errors, which are
            far larger than the policy's gradient, do not change the features of the policy. Not
            possible with a core: such a baseline would have no memory.
        normalize_observations: Whether the numbers of an observation are scaled by their running
            mean and variance (``nets/normalizer.py``). Images and Discrete parts are not scaled.
        options: Further arguments of the torso.

    Attributes:
        inputs: Names of the inputs that ``construct`` takes after the observation.
        state_size: Size of the core's state; 0 without a core.
        parts: Number of parts of a structured observation, or 0.
        frame_stack: Number of frames in one observation; ``make_policy`` sets it.
    """

    def __init__(
        self,
        observation_space,
        distribution,
        *,
        torso=None,
        hidden_sizes=(64, 64),
        activation="tanh",
        core="none",
        core_size=256,
        last_action_reward=False,
        separate_baseline=False,
        normalize_observations=False,
        **options,
    ):
        """Draw the initial weights from MindSpore's random generator."""
        super().__init__()
        check_width("the action space", distribution.num_parameters, "outputs")
        self.distribution = distribution
        parts = leaves(observation_space)
        self.parts, self.frame_stack = (0 if "" in parts else len(parts)), 1
        torso = torso or automatic_torso(observation_space)[0]
        arguments = (observation_space, torso, hidden_sizes, activation, options)
        self.torso = Torso(*arguments)
        self.baseline_torso = Torso(*arguments) if separate_baseline else None
        self.normalizer = None
        if normalize_observations:
            self.normalizer = ObservationNormalizer(numbers_to_normalize(observation_space, torso))
        width = self.torso.outputs
        self.inputs = ("last_action", "last_reward") if last_action_reward else ()
        if last_action_reward:
            width += distribution.encoded_size + 1
        self.core, self.state_size = None, 0
        if core != "none":
            self.core = resolve(CORES[core])(width, core_size)
            self.state_size, width = self.core.state_size, self.core.outputs
            self.inputs += ("first", "core_state")
        self.last_action_reward = last_action_reward
        self.policy_head = dense(width, distribution.num_parameters, 0.01)
        self.baseline_head = dense(width, 1, 1.0)

    def prepare(self, parts):
        """Prepare observations for ``construct``, with NumPy and once for each frame.

        Frames are stacked afterwards: the stack is an axis before those of one frame.

        Args:
            parts: ``[N, ...]`` of the environment's dtype, one for each part of an observation.

        Returns:
            As many arrays ``[N, ...]`` of numbers.
        """
        return self.torso.prepare(parts)

    def construct(self, observation, inputs=()):
        """Evaluate a batch of N = S T E rows, S unrolls of T steps in E environments.

        Args:
            observation: ``[N, ...]`` as ``prepare`` returns it, or a tuple of these, one for each
                part of a structured observation.
            inputs: The inputs named in ``inputs``: ``last_action [N, ...]``, ``last_reward [N]``
                float32; ``first [S, T, E]`` bool, ``core_state [S, E, state_size]`` float32.

        Returns:
            ``(parameters [N, A], baseline [N])``, float32; with a core also ``core_state
            [S, E, state_size]`` after the last row.
        """
        if self.normalizer is not None:
            observation = self.normalizer(observation)
        features = self.with_last(self.torso(observation), inputs)
        if self.core is None:
            seen = features
            if self.baseline_torso is not None:
                seen = self.with_last(self.baseline_torso(observation), inputs)
            return self.policy_head(features), self.baseline_head(seen).squeeze(-1)
        first, state = inputs[-2:]
        unrolls, steps, envs = first.shape
        features, state = self.core(
            time_major(features.reshape((unrolls, steps, envs, -1))),
            time_major(first),
            state.reshape((unrolls * envs, -1)),
        )
        features = features.reshape((steps, unrolls, envs, -1))
        if unrolls > 1:
            features = ops.transpose(features, (1, 0, 2, 3))
        features = features.reshape((unrolls * steps * envs, -1))
        state = state.reshape((unrolls, envs, -1))
        return self.policy_head(features), self.baseline_head(features).squeeze(-1), state

    def count_observations(self, observation, weight):
        """Add rows to the running statistics of ``normalize_observations``.

        Args:
            observation: As in ``construct``.
            weight: ``[N]`` float32: 1 for a new row, 0 for a row that does not count.
        """
        if self.normalizer is not None:
            self.normalizer.update(observation, weight)

    def with_last(self, features, inputs):
        """Concatenate features with the last action and reward, if these are inputs."""
        if not self.last_action_reward:
            return features
        last_reward = ops.expand_dims(ops.clamp(inputs[1], -1.0, 1.0), -1)
        last_action = self.distribution.encode(inputs[0])
        return ops.concat((features, last_action, last_reward), -1)


def numbers_to_normalize(observation_space, torso):
    """How many numbers of each part of an observation have a running mean and variance.

    Args:
        observation_space: Description of the space.
        torso: Name of the torso; with ``mlp``, no part counts as an image.

    Returns:
        A list with the number of elements of each part; 0 for an image or a choice.

    Raises:
        ConfigError: If the observation has only images and choices.
    """
    sizes = []
    for leaf in leaves(observation_space).values():
        shape = leaf_array(leaf)[0]
        image = len(shape) > 1 and torso != "mlp"
        sizes.append(0 if image or leaf["type"] != "Box" else math.prod(shape))
    if not any(sizes):
        raise ConfigError(
            "network.normalize_observations is true, but the observation has only images or "
            "choices, which are not normalized: set it to false"
        )
    return sizes


def time_major(batch):
    """Turn ``[S, T, E, ...]`` into ``[T, S * E, ...]``; for small arrays, since it copies."""
    unrolls, rows, envs = batch.shape[:3]
    if unrolls > 1:
        batch = ops.transpose(batch, (1, 0, *range(2, batch.ndim)))
    return batch.reshape((rows, unrolls * envs, *batch.shape[3:]))
