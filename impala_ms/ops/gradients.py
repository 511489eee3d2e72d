"""The clip of a gradient by its global norm.

Input: a tuple of tensors. Output: the same, no longer than the limit; and the norm.
"""

import mindspore as ms
from mindspore import ops


def clipped(gradients, limit):
    """Gradients, shortened together to a global norm of ``limit``; and their norm before that."""
    squares = ms.Tensor(0.0, ms.float32)
    for gradient in gradients:
        squares = squares + sum_of_squares(gradient)
    norm = ops.sqrt(squares)
    scale = ops.minimum(limit / (norm + 1e-12), ms.Tensor(1.0, ms.float32))
    shortened = ()
    for gradient in gradients:
        shortened += (gradient * scale,)
    return shortened, norm


def sum_of_squares(tensor):
    """The sum of all squares, a scalar.

    It is taken row by row: on the CPU a sum of all elements at once takes several times as long.
    """
    rows = ops.square(tensor).reshape((tensor.shape[0], -1))
    return rows.sum(-1).sum()
