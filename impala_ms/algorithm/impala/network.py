"""The policy and baseline network, the same Cell in actor, learner and evaluator.

Input: observations. Output: parameters of the policy's distribution and the baseline's value.
"""

import mindspore as ms
from mindspore import nn

from impala_ms.nets.mlp import MLP, dense
from impala_ms.ops.distributions import Categorical


class IMPALAPolicy(nn.Cell):
    """A torso with a policy head and a baseline head.

    A network of your own is any Cell with this constructor, this ``construct`` and the attribute
    ``distribution``; name it in ``algorithm_config["policy_and_network"]["type"]``.

    Args:
        observation_shape: Shape of one observation.
        num_actions: A, number of discrete actions.
        hidden_sizes: Width of each hidden layer.
        activation: ``tanh`` or ``relu``.
    """

    def __init__(self, observation_shape, num_actions, *, hidden_sizes, activation):
        """Draw the initial weights from MindSpore's generator."""
        super().__init__()
        self.distribution = Categorical(num_actions)
        self.torso = MLP(observation_shape, hidden_sizes, activation)
        self.policy_head = dense(self.torso.outputs, num_actions, 0.01)
        self.baseline_head = dense(self.torso.outputs, 1, 1.0)

    def construct(self, observation):
        """Evaluate a batch.

        Args:
            observation: ``[N, ...]`` of the environment's dtype.

        Returns:
            ``(logits [N, A], baseline [N])``, float32.
        """
        features = self.torso(observation.astype(ms.float32))
        return self.policy_head(features), self.baseline_head(features).squeeze(-1)
