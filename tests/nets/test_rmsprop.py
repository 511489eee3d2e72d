"""RMSProp: the same formula for every weight, however many there are."""

import mindspore as ms
import numpy as np
import pytest

from impala_ms.nets.rmsprop import RMSProp
from tests import compiled  # noqa: F401  sets graph mode


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_three_steps_agree_with_numpy(momentum):
    # 35 numbers: kernels that take 8 or 16 at a time have a rest
    shapes = {"matrix": (5, 7), "vector": (3,), "scalar": ()}
    rng = np.random.default_rng(0)
    values = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    parameters = [ms.Parameter(ms.Tensor(v), name=name) for name, v in values.items()]
    optimizer = RMSProp(parameters, 0.1, decay=0.9, momentum=momentum, epsilon=0.5)
    mean_square = {name: np.ones(shape) for name, shape in shapes.items()}
    velocity = {name: np.zeros(shape) for name, shape in shapes.items()}
    for _ in range(3):
        gradients = {name: 3 * rng.normal(size=shape) for name, shape in shapes.items()}
        optimizer(tuple(ms.Tensor(g, ms.float32) for g in gradients.values()))
        for parameter, (name, g) in zip(parameters, gradients.items(), strict=True):
            mean_square[name] = 0.9 * mean_square[name] + 0.1 * g**2
            velocity[name] = momentum * velocity[name] + 0.1 * g / np.sqrt(mean_square[name] + 0.5)
            values[name] = values[name] - velocity[name]
            np.testing.assert_allclose(parameter.asnumpy(), values[name], atol=1e-6, err_msg=name)


def test_state_is_saved_under_names_of_its_own():
    parameter = ms.Parameter(ms.Tensor(np.zeros(2, np.float32)), name="w")
    optimizer = RMSProp([parameter], 0.1, decay=0.9, momentum=0.0, epsilon=0.5)
    assert {"w", "mean_square.w", "velocity.w", "learning_rate"} <= set(optimizer.parameters_dict())
