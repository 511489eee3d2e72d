"""Long short-term memory core.

Input: features of an unroll from a torso, where episodes begin, and the state before the unroll.
Output: features for the heads, and the state after it.
"""

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from impala_ms.nets.kernels import build, operators
from impala_ms.nets.mlp import dense

times, times_transposed = ops.MatMul(), ops.MatMul(transpose_b=True)
transposed_times = ops.MatMul(transpose_a=True)
split_gates = ops.Split(1, 3)


class LSTM(nn.Cell):
    """Features of a sequence with memory; the memory is emptied where an episode begins.

    Args:
        inputs: Number of input features.
        size: Number of units, H.

    Attributes:
        outputs: Number of output features, H.
        state_size: Numbers of the state, 2 H: the last output, then the cells.

    Source:
        Gers et al. 2000, doi:10.1162/089976600300015015: Hochreiter and Schmidhuber's memory with
        forget gates, which begin open (bias 1).
    """

    def __init__(self, inputs, size):
        """Orthogonal weights of the inputs; the forget gates begin open."""
        super().__init__()
        self.outputs, self.state_size = size, 2 * size
        self.size = size
        self.input_gates = dense(inputs, 4 * size, 1.0)  # input, forget, output, candidate
        self.state_gates = nn.Dense(size, 4 * size, weight_init="xavier_uniform", has_bias=False)
        bias = np.zeros(4 * size, np.float32)
        bias[size : 2 * size] = 1.0
        self.input_gates.bias.set_data(ms.Tensor(bias))
        self.recurrence = Recurrence(size)

    def construct(self, features, first, state):
        """Run over a sequence.

        Args:
            features: ``[T, B, inputs]`` float32.
            first: ``[T, B]`` bool; True empties the state before the row is read.
            state: ``[B, 2 H]`` float32, before row 0.

        Returns:
            ``(outputs [T, B, H], state [B, 2 H])``.
        """
        hidden, cells = state[:, : self.size], state[:, self.size :]
        keep = ops.expand_dims(1.0 - first.astype(ms.float32), -1)
        gate_inputs = self.input_gates(features)
        results = self.recurrence(gate_inputs, keep, hidden, cells, self.state_gates.weight)
        return results[0], ops.concat((results[0][-1], results[1][-1]), -1)


class Recurrence(nn.Cell):
    """The part of an LSTM that goes from step to step, with its gradient written out.

    Automatic differentiation would make four times as many operators as the gradient needs, and a
    small matrix product for the weights in each step instead of a large one for all steps.

    Args:
        size: Number of units, H.
    """

    def __init__(self, size):
        super().__init__()
        self.size = size
        path = build.library_for([(size, 1, 1)])
        self.forward, self.backward = operators.lstm_steps(path) if path else (forward, backward)

    def construct(self, gate_inputs, keep, hidden, cells, weight):
        """``forward`` over a sequence."""
        return self.forward(gate_inputs, keep, hidden, cells, weight)

    def bprop(self, gate_inputs, keep, hidden, cells, weight, results, gradients):
        """Gradients of all arguments; that of ``keep`` is 0."""
        d_gates, d_hidden, d_cells = self.backward(
            gradients[0], gradients[1], keep, cells, weight, *results[1:]
        )
        hidden_before = keep * ops.concat((ops.expand_dims(hidden, 0), results[0][:-1]), 0)
        d_weight = transposed_times(
            d_gates.reshape((-1, 4 * self.size)), hidden_before.reshape((-1, self.size))
        )
        return d_gates, ops.zeros_like(keep), d_hidden, d_cells, d_weight


def forward(gate_inputs, keep, hidden, cells, weight):
    """The steps of an LSTM by MindSpore's operators, where the C kernels do not serve.

    Args:
        gate_inputs: ``[T, B, 4 H]`` float32, what the features add to the input, forget and output
            gates and to the candidate, in this order.
        keep: ``[T, B, 1]`` float32, 0 where the state is emptied before the row, else 1.
        hidden: ``[B, H]`` float32, the output before row 0.
        cells: ``[B, H]`` float32, before row 0.
        weight: ``[4 H, H]`` float32, from the output before to gates and candidate.

    Returns:
        ``(outputs [T, B, H], cells [T, B, H])``, then what only the gradient needs: the gates
        ``[T, B, 3 H]``, the candidates ``[T, B, H]`` and tanh(cells) ``[T, B, H]``.
    """
    size = cells.shape[1]
    gate_inputs, keep = ops.unstack(gate_inputs, 0), ops.unstack(keep, 0)
    row, rows = ops.concat((hidden, cells), 1), ()
    for t in range(len(keep)):
        row = forward_step(gate_inputs[t], keep[t], row, weight)
        rows += (row,)
    rows = ops.stack(rows, 0)
    gates, others = rows[:, :, 2 * size : 5 * size], rows[:, :, 5 * size :]
    outputs, all_cells = rows[:, :, :size], rows[:, :, size : 2 * size]
    return outputs, all_cells, gates, others[:, :, :size], others[:, :, size:]


# A step is compiled once and called T times, and its results are one tensor: the time to compile a
# learner's step grows with the number of operators and of elements of tuples.
@ms.no_inline
def forward_step(gate_inputs, keep, row, weight):
    """All results of a step side by side, ``[B, 7 H]``, from those of the step before."""
    size = weight.shape[1]
    hidden, cells = row[:, :size], row[:, size : 2 * size]
    gate_inputs = gate_inputs + times_transposed(keep * hidden, weight)
    gates = ops.sigmoid(gate_inputs[:, : 3 * size])
    candidate = ops.tanh(gate_inputs[:, 3 * size :])
    input_gate, forget_gate, output_gate = split_gates(gates)
    cells = forget_gate * (keep * cells) + input_gate * candidate
    tanh_cells = ops.tanh(cells)
    return ops.concat((output_gate * tanh_cells, cells, gates, candidate, tanh_cells), 1)


def backward(d_outputs, d_all_cells, keep, cells, weight, all_cells, gates, candidates, tanh_cells):
    """The gradient of ``forward``, by backpropagation through time.

    Args:
        d_outputs: ``[T, B, H]`` float32, gradient of the outputs.
        d_all_cells: ``[T, B, H]`` float32, gradient of the cells after each row.
        keep: As of ``forward``, like ``cells`` and ``weight``.
        cells: ``[B, H]`` float32.
        weight: ``[4 H, H]`` float32.
        all_cells: The second result of ``forward``, ``[T, B, H]``.
        gates: The third, ``[T, B, 3 H]``.
        candidates: The fourth, ``[T, B, H]``.
        tanh_cells: The fifth, ``[T, B, H]``.

    Returns:
        ``(gradient of gate_inputs [T, B, 4 H], of hidden [B, H], of cells [B, H])``.
    """
    size = cells.shape[1]
    cells_before = keep * ops.concat((ops.expand_dims(cells, 0), all_cells[:-1]), 0)
    saved = ops.unstack(ops.concat((cells_before, gates, candidates, tanh_cells, keep), 2), 0)
    d_results = ops.unstack(ops.concat((d_outputs, d_all_cells), 2), 0)
    row, rows = ops.zeros_like(saved[0][:, : 6 * size]), ()
    for i in range(len(saved)):
        t = len(saved) - 1 - i
        row = backward_step(d_results[t], saved[t], row, weight)
        rows = (row, *rows)
    d_gates = ops.stack(rows, 0)[:, :, : 4 * size]
    return d_gates, row[:, 4 * size : 5 * size], row[:, 5 * size :]


@ms.no_inline
def backward_step(d_results, saved, row, weight):
    """Gradients of gate inputs, output before and cells before, ``[B, 6 H]``, from those after."""
    size = weight.shape[1]
    cells_before, gates = saved[:, :size], saved[:, size : 4 * size]
    candidate, tanh_cells = saved[:, 4 * size : 5 * size], saved[:, 5 * size : 6 * size]
    keep = saved[:, 6 * size :]
    input_gate, forget_gate, output_gate = split_gates(gates)
    d_hidden = d_results[:, :size] + row[:, 4 * size : 5 * size]
    d_cells = d_results[:, size:] + row[:, 5 * size :]
    d_cells = d_cells + d_hidden * output_gate * (1.0 - tanh_cells * tanh_cells)
    d_gates = ops.concat(
        (
            d_cells * candidate * input_gate * (1.0 - input_gate),
            d_cells * cells_before * forget_gate * (1.0 - forget_gate),
            d_hidden * tanh_cells * output_gate * (1.0 - output_gate),
            d_cells * input_gate * (1.0 - candidate * candidate),
        ),
        1,
    )
    return ops.concat((d_gates, keep * times(d_gates, weight), d_cells * keep * forget_gate), 1)
