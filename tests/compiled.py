"""Functions of tensors, run on NumPy arrays: compiled as a Cell, or operator by operator."""

import contextlib

import mindspore as ms
import numpy as np
from mindspore import nn

from impala_ms import device

device.use("CPU", 1)


class FunctionCell(nn.Cell):
    """Calls a function; graph mode compiles it whole."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def construct(self, *inputs):
        return self.function(*inputs)


def compiled(function):
    """``function`` on arrays, compiled."""
    cell = FunctionCell(function)
    return lambda *arrays: to_numpy(cell(*map(to_tensor, arrays)))


def eager(function):
    """``function`` on arrays, every operator on its own."""

    def call(*arrays):
        with one_by_one():
            return to_numpy(function(*map(to_tensor, arrays)))

    return call


@contextlib.contextmanager
def one_by_one():
    """Operators run one by one inside, also under ``ms.grad``."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        yield
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)


def to_tensor(value):
    """A tensor of the array's type; float64 becomes float32."""
    array = np.asarray(value)
    return ms.Tensor(array.astype(np.float32) if array.dtype == np.float64 else array)


def to_numpy(value):
    """Arrays for a tensor or a tuple of them."""
    if isinstance(value, (tuple, list)):
        return tuple(map(to_numpy, value))
    return value.asnumpy()
