"""The networks of DDPG: one gives the action, and travels; one gives its value, and stays.

Input: observations, and actions. Output: actions between -1 and 1; values of actions.
"""

import math
from functools import partial

from mindspore import nn, ops

from impala_ms.agents.checks import check_width
from impala_ms.agents.torso import Torso
from impala_ms.errors import ConfigError
from impala_ms.nets.mlp import ACTIVATIONS, dense
from impala_ms.ops.distributions import DiagonalGaussian, NoisyAction

SMALL = 0.01  # gain of the last layers: the first actions are near 0, and so are the first values


class DeterministicPolicy(nn.Cell):
    """A torso and a head that gives an action of a Box space, scaled to -1 ... 1.

    Args:
        observation_space: Description of the space (``VectorEnvironment.spaces()``), with stacked
            frames as ``[k, ...]``.
        distribution: Distribution of the actions; it must be over a Box space.
        torso: See ``network.torso`` of the settings.
        hidden_sizes: Width of each hidden layer of an ``mlp``.
        activation: Activation of an ``mlp`` and of the heads' hidden layers.
        head_sizes: Hidden layers of each head; the critic's head also gets the action.
        options: Further arguments of the torso.

    Raises:
        ConfigError: If the actions are not a Box.

    Source:
        Lillicrap et al. 2016, arXiv:1509.02971, section 7.
    """

    inputs, state_size = (), 0

    def __init__(
        self,
        observation_space,
        distribution,
        *,
        torso,
        hidden_sizes=(256,),
        activation="relu",
        head_sizes=(256,),
        **options,
    ):
        """Draw the initial weights from MindSpore's random generator."""
        super().__init__()
        if type(distribution) is not DiagonalGaussian:
            raise ConfigError(
                "this algorithm learns a continuous action, so the actions must be a Box: "
                "--algorithm dqn, apex_dqn, impala and a3c take Discrete ones"
            )
        check_width("the action space", distribution.size, "outputs")
        self.distribution = NoisyAction(distribution.action_shape)
        self.make_torso = partial(
            Torso, observation_space, torso, hidden_sizes, activation, options
        )
        self.make_head = partial(head, sizes=head_sizes, activation=activation)
        self.torso = self.make_torso()
        self.head = self.make_head(self.torso.outputs, self.distribution.size)

    def prepare(self, parts):
        """See ``ActorCriticPolicy.prepare``."""
        return self.torso.prepare(parts)

    def construct(self, observation):
        """``[N, ...]`` observations, as ``prepare`` returns them, to actions ``[N, A]``."""
        return ops.tanh(self.head(self.torso(observation)))

    def make_critic(self):
        """A network of the same kind for the values of actions."""
        return Critic(self.make_torso(), self.make_head, self.distribution.size)


class Critic(nn.Cell):
    """The value of an action.

    Args:
        torso: Of the observations.
        make_head: Makes a head for so many inputs and outputs.
        action_size: Numbers of an action.
    """

    def __init__(self, torso, make_head, action_size):
        """Draw the initial weights from MindSpore's random generator."""
        super().__init__()
        self.torso = torso
        self.head = make_head(torso.outputs + action_size, 1)

    def construct(self, observation, action):
        """``[N, ...]`` prepared observations and ``[N, A]`` actions of -1 ... 1: values ``[N]``."""
        inputs = ops.concat((self.torso(observation), action), -1)
        return self.head(inputs).reshape((-1,))


def head(inputs, outputs, sizes, activation):
    """Hidden layers of these sizes, and a last layer with small weights."""
    layers = []
    for size in sizes:
        layers += [dense(inputs, size, math.sqrt(2.0)), ACTIVATIONS[activation]()]
        inputs = size
    return nn.SequentialCell([*layers, dense(inputs, outputs, SMALL)])
