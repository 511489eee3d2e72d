"""The MLP torso and its layers against NumPy."""

import mindspore as ms
import numpy as np
import pytest

from impala_ms.nets.mlp import MLP, dense
from impala_ms.nets.weights import FlatWeights
from tests.compiled import one_by_one


def numpy_mlp(net, observation, activation):
    """The torso's output in float64."""
    x = observation.reshape(len(observation), -1).astype(np.float64)
    parameters = [p.asnumpy().astype(np.float64) for p in net.get_parameters()]
    assert len(parameters) % 2 == 0
    for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
        x = activation(x @ weight.T + bias)
    return x


@pytest.mark.parametrize(
    ("name", "activation"), [("tanh", np.tanh), ("relu", lambda x: np.maximum(x, 0))]
)
def test_features_agree_with_numpy(name, activation):
    net = MLP((2, 3), [8, 5], name)
    rng = np.random.default_rng(0)
    for parameter in net.get_parameters():  # biases too, which begin at 0
        parameter.set_data(ms.Tensor(rng.normal(size=parameter.shape).astype(np.float32)))
    observation = rng.normal(size=(4, 2, 3)).astype(np.float32)
    # MindSpore's tanh is off by up to 6e-5
    wanted = numpy_mlp(net, observation, activation)
    assert wanted.shape == (4, 5)
    np.testing.assert_allclose(net(ms.Tensor(observation)).asnumpy(), wanted, atol=2e-4)
    with one_by_one():
        np.testing.assert_allclose(net(ms.Tensor(observation)).asnumpy(), wanted, atol=2e-4)


@pytest.mark.parametrize(("inputs", "outputs"), [(8, 3), (3, 8)])
def test_dense_is_orthogonal_with_the_gain_and_begins_without_bias(inputs, outputs):
    layer = dense(inputs, outputs, 2.0)
    weight = layer.weight.asnumpy()
    assert weight.shape == (outputs, inputs)
    product = weight @ weight.T if outputs < inputs else weight.T @ weight
    np.testing.assert_allclose(product, 4.0 * np.eye(min(inputs, outputs)), atol=1e-5)
    np.testing.assert_array_equal(layer.bias.asnumpy(), np.zeros(outputs))


def test_the_seed_gives_the_initial_weights():
    def weights(seed):
        ms.set_seed(seed)
        return FlatWeights(MLP((4,), [3, 3], "tanh").get_parameters()).read()

    np.testing.assert_array_equal(weights(1), weights(1))
    assert (weights(1) != weights(2)).any()
