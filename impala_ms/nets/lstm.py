"""Long short-term memory core."""

import mindspore as ms
from mindspore import nn, ops

from impala_ms.nets.mlp import dense


class LSTM(nn.Cell):
    """Features of a sequence with memory; the memory is emptied where an episode begins.

    Args:
        inputs: Features at a step.
        size: Units, H.

    Attributes:
        outputs: Features that come out, H.
        state_size: Numbers of the state, 2 H: what was put out last, then the cells.
    """

    def __init__(self, inputs, size):
        """Orthogonal weights; the forget gates begin open."""
        super().__init__()
        self.outputs, self.state_size = size, 2 * size
        self.size = size
        self.input_gates = dense(inputs, 4 * size, 1.0)  # in, forget, cell, out
        self.state_gates = nn.Dense(size, 4 * size, weight_init="xavier_uniform", has_bias=False)

    def construct(self, features, first, state):
        """Run over a sequence.

        Args:
            features: ``[T, B, inputs]`` float32.
            first: ``[T, B]`` bool; the state is zeroed there, before the row is read.
            state: ``[B, 2 H]`` float32, before row 0.

        Returns:
            ``(outputs [T, B, H], state [B, 2 H])``.
        """
        size = self.size
        gates = ops.unstack(self.input_gates(features), 0)
        keep = ops.unstack(ops.expand_dims(1.0 - first.astype(ms.float32), -1), 0)
        hidden, cells = state[:, :size], state[:, size:]
        outputs = ()
        for t in range(len(gates)):
            hidden, cells = keep[t] * hidden, keep[t] * cells
            row = gates[t] + self.state_gates(hidden)
            cells = ops.sigmoid(row[:, size : 2 * size] + 1.0) * cells + ops.sigmoid(
                row[:, :size]
            ) * ops.tanh(row[:, 2 * size : 3 * size])
            hidden = ops.sigmoid(row[:, 3 * size :]) * ops.tanh(cells)
            outputs += (hidden,)
        return ops.stack(outputs, 0), ops.concat((hidden, cells), -1)
