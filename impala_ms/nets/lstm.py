"""Long short-term memory core."""

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from impala_ms.nets import native
from impala_ms.nets.mlp import dense

PART = 11  # steps, at least, that are compiled as one: an unroll of 20 is not cut
times, times_transposed = ops.MatMul(), ops.MatMul(transpose_b=True)
split_row = ops.Split(1, 3)


class LSTM(nn.Cell):
    """Features of a sequence with memory; the memory is emptied where an episode begins.

    Args:
        inputs: Features at a step.
        size: Units, H.

    Attributes:
        outputs: Features that come out, H.
        state_size: Numbers of the state, 2 H: what was put out last, then the cells.

    Source:
        Gers et al. 2000, doi:10.1162/089976600300015015: Hochreiter and Schmidhuber's memory with
        forget gates, which begin open (bias 1).
    """

    def __init__(self, inputs, size):
        """Orthogonal weights of the inputs; the forget gates begin open."""
        super().__init__()
        self.outputs, self.state_size = size, 2 * size
        self.size = size
        self.input_gates = dense(inputs, 4 * size, 1.0)  # in, forget, out, cell
        self.state_gates = nn.Dense(size, 4 * size, weight_init="xavier_uniform", has_bias=False)
        bias = np.zeros(4 * size, np.float32)
        bias[size : 2 * size] = 1.0
        self.input_gates.bias.set_data(ms.Tensor(bias))
        self.recurrence = Recurrence(size)

    def construct(self, features, first, state):
        """Run over a sequence.

        Args:
            features: ``[T, B, inputs]`` float32.
            first: ``[T, B]`` bool; the state is zeroed there, before the row is read.
            state: ``[B, 2 H]`` float32, before row 0.

        Returns:
            ``(outputs [T, B, H], state [B, 2 H])``.
        """
        hidden, cells = state[:, : self.size], state[:, self.size :]
        keep = ops.expand_dims(1.0 - first.astype(ms.float32), -1)
        gates = self.input_gates(features)
        results = self.recurrence(gates, keep, hidden, cells, self.state_gates.weight)
        return results[0], ops.concat((results[0][-1], results[1][-1]), -1)


class Recurrence(nn.Cell):
    """The part of an LSTM that goes from step to step, with its gradient written out.

    Unrolled by automatic differentiation the gradient has four times as many operators as it
    needs, and one small product of matrices a step for the weights instead of a large one.

    A long sequence is cut into parts of one length, and a short rest, which are compiled once and
    called: a step of 80 compiles in 10 s instead of 31, little more than one of 20. The kernels of
    ``native.c``, where there are any, need none of that.
    """

    def __init__(self, size):
        super().__init__()
        self.size = size
        path = native.kernels([(size, 1, 1)])
        self.native = path is not None
        if path:
            self.kernel, self.kernel_gradient = native.recurrence(path)
        self.transposed_times = ops.MatMul(transpose_a=True)
        self.split_sequence = ops.Split(2, 3)

    def construct(self, gates, keep, hidden, cells, weight):
        """Run over a sequence.

        Args:
            gates: ``[T, B, 4 H]``, what the inputs add to the gates: in, forget, out, cell.
            keep: ``[T, B, 1]``, 0 where the state is emptied before the row, else 1.
            hidden: ``[B, H]``, put out before row 0.
            cells: ``[B, H]``, before row 0.
            weight: ``[4 H, H]``, from what was put out to the gates.

        Returns:
            ``(outputs [T, B, H], cells [T, B, H])``, then what only the gradient needs: the open
            gates ``[T, B, 3 H]``, the new contents ``[T, B, H]``, the squashed cells
            ``[T, B, H]``.
        """
        if self.native:
            return self.kernel(gates, keep, hidden, cells, weight)
        steps = len(gates)
        length = part_length(steps)
        if length == steps:
            return forward(gates, keep, hidden, cells, weight)
        outputs, memory, opened, contents, squashed = (), (), (), (), ()
        for begin in range(0, steps, length):
            end = begin + length
            part = forward_part(gates[begin:end], keep[begin:end], hidden, cells, weight)
            hidden, cells = part[0][-1], part[1][-1]
            outputs += (part[0],)
            memory += (part[1],)
            opened += (part[2],)
            contents += (part[3],)
            squashed += (part[4],)
        return (
            ops.concat(outputs, 0),
            ops.concat(memory, 0),
            ops.concat(opened, 0),
            ops.concat(contents, 0),
            ops.concat(squashed, 0),
        )

    def bprop(self, gates, keep, hidden, cells, weight, results, gradients):
        """Gradients of the arguments, except ``keep``."""
        before = keep * ops.concat((ops.expand_dims(hidden, 0), results[0][:-1]), 0)
        if self.native:
            by_gates = self.kernel_gradient(*gradients[:2], keep, cells, weight, *results[1:])
        else:
            by_gates = self.gradients(keep, cells, weight, results, gradients)
        d_gates, d_hidden, d_cells = by_gates
        d_weight = self.transposed_times(
            d_gates.reshape((-1, 4 * self.size)), before.reshape((-1, self.size))
        )
        return d_gates, ops.zeros_like(keep), d_hidden, d_cells, d_weight

    def gradients(self, keep, cells, weight, results, gradients):
        """Gradients of ``gates``, ``hidden`` and ``cells``.

        All that does not depend on the step before is computed for the whole sequence at once.
        """
        size = self.size
        memory, opened, contents, squashed = results[1:]
        steps, envs = keep.shape[:2]
        cells_before = keep * ops.concat((ops.expand_dims(cells, 0), memory[:-1]), 0)
        in_gate, forget_gate, out_gate = self.split_sequence(opened)
        # derivatives: of the gates by the cells, of the out gate and of the cells by the output
        by_cells = ops.concat(
            (
                contents * in_gate * (1.0 - in_gate),
                cells_before * forget_gate * (1.0 - forget_gate),
                in_gate * (1.0 - contents * contents),
            ),
            2,
        ).reshape((steps, envs, 3, size))
        rows = (
            gradients[0],
            gradients[1],
            by_cells,
            squashed * out_gate * (1.0 - out_gate),
            out_gate * (1.0 - squashed * squashed),
            keep,
            keep * forget_gate,
        )
        d_hidden, d_cells = ops.zeros_like(cells), ops.zeros_like(cells)
        length = part_length(steps)
        if length == steps:
            d_gates, d_hidden, d_cells = backward(rows, d_hidden, d_cells, weight)
        else:
            d_parts = ()
            for begin in range((steps - 1) // length * length, -1, -length):
                end = begin + length
                cut = ()
                for row in rows:
                    cut += (row[begin:end],)
                part, d_hidden, d_cells = backward_part(cut, d_hidden, d_cells, weight)
                d_parts = (part, *d_parts)
            d_gates = ops.concat(d_parts, 0)
        return d_gates, d_hidden, d_cells


def part_length(steps):
    """Steps of each part of a sequence; fewer than there are parts may be left over at its end."""
    parts = steps // PART
    return steps // parts if parts > 1 else steps


def forward(gates, keep, hidden, cells, weight):
    """A part of ``Recurrence.construct``, or all of a short sequence."""
    size = hidden.shape[1]
    gates, keep = ops.unstack(gates, 0), ops.unstack(keep, 0)
    outputs, memory, opened, contents, squashed = (), (), (), (), ()
    for t in range(len(gates)):
        row = gates[t] + times_transposed(keep[t] * hidden, weight)
        open_gates = ops.sigmoid(row[:, : 3 * size])
        content = ops.tanh(row[:, 3 * size :])
        in_gate, forget_gate, out_gate = split_row(open_gates)
        cells = forget_gate * (keep[t] * cells) + in_gate * content
        squashed_cells = ops.tanh(cells)
        hidden = out_gate * squashed_cells
        outputs += (hidden,)
        memory += (cells,)
        opened += (open_gates,)
        contents += (content,)
        squashed += (squashed_cells,)
    return (
        ops.stack(outputs, 0),
        ops.stack(memory, 0),
        ops.stack(opened, 0),
        ops.stack(contents, 0),
        ops.stack(squashed, 0),
    )


def backward(rows, d_hidden, d_cells, weight):
    """A part of ``Recurrence.bprop``, or all of a short sequence, from its end to its beginning.

    Args:
        rows: Of ``[T, B, ...]`` each: gradient of the outputs, gradient of the cells, derivatives
            of the gates in, forget, cell by the cells ``[T, B, 3, H]``, of the out gate and of
            the cells by the output, ``keep``, and what is kept of the cells.
        d_hidden: ``[B, H]``, gradient of what was put out last, by the steps that follow.
        d_cells: ``[B, H]``, gradient of the cells behind the last row, by the steps that follow.
        weight: ``[4 H, H]``.

    Returns:
        ``(gradient of the gates [T, B, 4 H], d_hidden, d_cells)``, the latter two before row 0.
    """
    envs, size = d_hidden.shape
    d_outputs, d_memory = ops.unstack(rows[0], 0), ops.unstack(rows[1], 0)
    by_cells = ops.unstack(rows[2], 0)
    out_by_output, cells_by_output = ops.unstack(rows[3], 0), ops.unstack(rows[4], 0)
    keep, forget = ops.unstack(rows[5], 0), ops.unstack(rows[6], 0)
    d_gates = ()
    for i in range(len(keep)):
        t = len(keep) - 1 - i
        d_hidden = d_outputs[t] + d_hidden
        d_cells = d_memory[t] + d_cells + d_hidden * cells_by_output[t]
        d_in_forget_cell = (ops.expand_dims(d_cells, 1) * by_cells[t]).reshape((envs, -1))
        d_row = ops.concat(
            (
                d_in_forget_cell[:, : 2 * size],
                d_hidden * out_by_output[t],
                d_in_forget_cell[:, 2 * size :],
            ),
            1,
        )
        d_gates = (d_row, *d_gates)
        d_hidden = keep[t] * times(d_row, weight)
        d_cells = d_cells * forget[t]
    return ops.stack(d_gates, 0), d_hidden, d_cells


@ms.no_inline
def forward_part(gates, keep, hidden, cells, weight):
    """``forward``, compiled once."""
    return forward(gates, keep, hidden, cells, weight)


@ms.no_inline
def backward_part(rows, d_hidden, d_cells, weight):
    """``backward``, compiled once."""
    return backward(rows, d_hidden, d_cells, weight)
