"""Compiled values and gradients of a network, as the learner asks for them."""

import mindspore as ms
import numpy as np

from tests import compiled  # noqa: F401  sets graph mode
from tests.compiled import FunctionCell
from tests.nets.reference import slope


def randomise(net, rng, scale=0.3):
    """Give all parameters random values; return float64 copies."""
    arrays = []
    for parameter in net.get_parameters():
        fan = max(1, parameter.size // len(parameter))
        size = scale if parameter.ndim == 1 else (2.0 / fan) ** 0.5
        array = (size * rng.normal(size=parameter.shape)).astype(np.float32)
        parameter.set_data(ms.Tensor(array))
        arrays.append(array.astype(np.float64))
    return arrays


def value_and_gradients(net, loss, inputs, positions=None):
    """Value and gradients of ``loss(net, *inputs)``, by parameters and by inputs at ``positions``.

    Returns:
        ``(value, gradients of inputs or (), gradients of parameters)``, float64 arrays.
    """

    def function(*tensors):
        return loss(net, *tensors)

    step = FunctionCell(
        ms.value_and_grad(function, positions, tuple(net.get_parameters()), has_aux=False)
    )
    value, gradients = step(*map(ms.Tensor, inputs))
    by_inputs, by_weights = gradients if positions is not None else ((), gradients)
    if positions is not None and not isinstance(by_inputs, tuple):
        by_inputs = (by_inputs,)
    to64 = [tuple(g.asnumpy().astype(np.float64) for g in gs) for gs in (by_inputs, by_weights)]
    return float(value.asnumpy()), *to64


def check_slopes(function, arrays, gradients, rng, directions=3, rtol=2e-4):
    """Gradients against differences of the float64 form along random directions."""
    assert len(arrays) == len(gradients)
    for index, (array, gradient) in enumerate(zip(arrays, gradients, strict=True)):
        assert gradient.shape == array.shape
        assert np.abs(gradient).max() > 0
        for _ in range(directions):
            direction = rng.normal(size=array.shape)
            wanted = slope(function, arrays, index, direction)
            scale = np.linalg.norm(gradient) + 1e-12
            error = abs((gradient * direction).sum() - wanted) / scale
            assert error < rtol, f"array {index} of shape {array.shape}: off by {error:.1e}"
