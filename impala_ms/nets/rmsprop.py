"""RMSProp as the paper's TensorFlow computes it."""

from mindspore import nn, ops


class RMSProp(nn.Optimizer):
    """``w -= v`` with ``v = momentum * v + lr * g / sqrt(mean_square + epsilon)``.

    ``mean_square`` is the running mean of ``g^2`` and begins at 1. ``nn.RMSProp`` documents this
    formula, but its CPU kernel computes ``sqrt(mean_square) + epsilon`` for all weights except the
    last few of each parameter. With an epsilon as large as the paper's 0.1 that is a different
    optimiser.

    Args:
        parameters: Trainable parameters.
        learning_rate: First value of the parameter ``learning_rate``.
        decay: Decay of the running mean, in [0, 1).
        momentum: Momentum of the steps, in [0, 1).
        epsilon: Added to the mean square.
        start: Of the mean square.
    """

    def __init__(self, parameters, learning_rate, *, decay, momentum, epsilon, start=1.0):
        """Make the state of every parameter."""
        super().__init__(learning_rate, parameters)
        self.decay, self.momentum, self.epsilon = decay, momentum, epsilon
        self.mean_square = self.parameters.clone(prefix="mean_square", init=start)
        self.velocity = self.parameters.clone(prefix="velocity", init="zeros")

    def construct(self, gradients):
        """Take one step; ``gradients`` are in the order of ``parameters``."""
        for i in range(len(self.parameters)):
            mean_square = self.decay * self.mean_square[i] + (1.0 - self.decay) * ops.square(
                gradients[i]
            )
            step = self.learning_rate * gradients[i] / ops.sqrt(mean_square + self.epsilon)
            velocity = self.momentum * self.velocity[i] + step
            ops.assign(self.mean_square[i], mean_square)
            ops.assign(self.velocity[i], velocity)
            ops.assign_sub(self.parameters[i], velocity)
        return True
