"""Multi-layer perceptron torso."""

import math

import mindspore as ms
from mindspore import nn
from mindspore.common.initializer import Orthogonal

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}


def dense(inputs, outputs, gain):
    """A fully connected layer with orthogonal weights of the given gain and zero bias.

    Args:
        inputs: Number of input features.
        outputs: Number of output features.
        gain: Factor on the orthogonal matrix; a policy head with 0.01 starts almost uniform.

    Returns:
        ``nn.Dense``.
    """
    return nn.Dense(inputs, outputs, weight_init=Orthogonal(gain), bias_init="zeros")


class MLP(nn.Cell):
    """``[N, ...]`` numbers -> ``[N, hidden_sizes[-1]]`` float32; observations are flattened.

    Args:
        observation_shape: Shape of one observation.
        hidden_sizes: Width of each layer; if empty, the features are the numbers themselves.
        activation: ``tanh`` or ``relu``.
    """

    def __init__(self, observation_shape, hidden_sizes, activation):
        """Draw the initial weights from MindSpore's generator."""
        super().__init__()
        self.inputs = math.prod(observation_shape)
        self.outputs = hidden_sizes[-1] if hidden_sizes else self.inputs
        layers = []
        width = self.inputs
        for size in hidden_sizes:
            layers += [dense(width, size, math.sqrt(2.0)), ACTIVATIONS[activation]()]
            width = size
        self.layers = nn.SequentialCell(layers)

    def construct(self, observation):
        """Features of a batch of observations."""
        return self.layers(observation.astype(ms.float32).reshape(-1, self.inputs))
