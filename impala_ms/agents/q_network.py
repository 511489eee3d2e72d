"""The network of action values, the same Cell in actor, learner, target and evaluation.

Input: observations. Output: a value for each action.
"""

import math

from mindspore import nn, ops

from impala_ms.agents.checks import check_width
from impala_ms.agents.torso import Torso
from impala_ms.errors import ConfigError
from impala_ms.nets.mlp import ACTIVATIONS, dense
from impala_ms.ops.distributions import Categorical, EpsilonGreedy


class QNetwork(nn.Cell):
    """A torso and a head with a value for each action of a Discrete space.

    Args:
        observation_space: Description of the space (``VectorEnvironment.spaces()``), with stacked
            frames as ``[k, ...]``.
        distribution: Distribution of the actions; it must be over a Discrete space.
        torso: See ``network.torso`` of the settings.
        hidden_sizes: Width of each hidden layer of an ``mlp``.
        activation: Activation of an ``mlp`` and of the heads' hidden layers.
        head_sizes: Hidden layers of each head.
        dueling: Whether the value of a state and the advantages of actions have heads of their own
            (Wang et al. 2016, arXiv:1511.06581, equation 9).
        options: Further arguments of the torso.

    Raises:
        ConfigError: If the actions are not Discrete.
    """

    inputs, state_size = (), 0

    def __init__(
        self,
        observation_space,
        distribution,
        *,
        torso,
        hidden_sizes=(256, 256),
        activation="relu",
        head_sizes=(),
        dueling=False,
        **options,
    ):
        """Draw the initial weights from MindSpore's random generator."""
        super().__init__()
        if type(distribution) is not Categorical:
            raise ConfigError(
                "this algorithm learns a value for each action, so the actions must be Discrete: "
                "--algorithm impala and a3c take other actions too"
            )
        check_width("the action space", distribution.num_parameters, "outputs")
        self.distribution = EpsilonGreedy(distribution.num_actions)
        self.torso = Torso(observation_space, torso, hidden_sizes, activation, options)
        self.dueling = dueling

        def head(outputs):
            width, layers = self.torso.outputs, []
            for size in head_sizes:
                layers += [dense(width, size, math.sqrt(2.0)), ACTIVATIONS[activation]()]
                width = size
            return nn.SequentialCell([*layers, dense(width, outputs, 1.0)])

        self.value_head = head(1) if dueling else None
        self.action_head = head(distribution.num_actions)

    def prepare(self, parts):
        """See ``ActorCriticPolicy.prepare``."""
        return self.torso.prepare(parts)

    def construct(self, observation):
        """``[N, ...]`` observations, as ``prepare`` returns them, to values ``[N, A]``."""
        features = self.torso(observation)
        values = self.action_head(features)
        if self.value_head is None:
            return values
        return dueling(self.value_head(features), values)


def dueling(value, advantages):
    """Action values of a state's value ``[N, 1]`` and the advantages ``[N, A]`` of its actions."""
    return value + advantages - ops.mean(advantages, -1, True)
