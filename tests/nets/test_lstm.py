"""The LSTM against NumPy in float64, over resets and over the border between two unrolls."""

import mindspore as ms
import numpy as np
import pytest

from impala_ms.nets import lstm
from impala_ms.nets.lstm import LSTM
from tests.compiled import one_by_one
from tests.nets import reference
from tests.nets.gradients import check_slopes, randomise, value_and_gradients

ENVS, INPUTS, SIZE = 3, 5, 16


@pytest.fixture
def case(operators):
    """A net with its weights, and inputs with resets at the beginning, inside, twice in a row."""
    steps, rng = 8, np.random.default_rng(0)
    net = LSTM(INPUTS, SIZE)
    assert (net.recurrence.forward is lstm.forward) == (operators == "MindSpore")
    weights = randomise(net, rng)
    features = rng.normal(size=(steps, ENVS, INPUTS)).astype(np.float32)
    state = rng.normal(size=(ENVS, 2 * SIZE)).astype(np.float32)
    first = np.zeros((steps, ENVS), np.bool_)
    first[0, 0] = first[2, 1] = first[3, 1] = first[5, 0] = True  # none in environment 2
    return net, weights, features, first, state, rng


def run(net, *arrays):
    return [result.asnumpy() for result in net(*map(ms.Tensor, arrays))]


def test_outputs_and_state_agree_with_numpy(case, operators):
    net, weights, features, first, state, _ = case
    wanted = reference.lstm(features.astype(np.float64), first, state, weights)
    assert [array.shape for array in wanted] == [(len(first), ENVS, SIZE), (ENVS, 2 * SIZE)]
    tolerance = 2e-6 if operators == "kernels" else 5e-5  # MindSpore's tanh is less exact
    for result, array in zip(run(net, features, first, state), wanted, strict=True):
        np.testing.assert_allclose(result, array, atol=tolerance)
    with one_by_one():
        for result, array in zip(run(net, features, first, state), wanted, strict=True):
            np.testing.assert_allclose(result, array, atol=tolerance)


def weighted_sum(net, features, first, state, by_output, by_state):
    outputs, state = net(features, first, state)
    return (outputs * by_output).sum() + (state * by_state).sum()


def test_gradients_agree_with_numpy(case):
    net, weights, features, first, state, rng = case
    by_output = rng.normal(size=(len(first), ENVS, SIZE)).astype(np.float32)
    by_state = rng.normal(size=(ENVS, 2 * SIZE)).astype(np.float32)
    inputs = features, first, state, by_output, by_state
    value, by_inputs, by_weights = value_and_gradients(net, weighted_sum, inputs, (0, 2))

    def loss(arrays):
        outputs, after = reference.lstm(arrays[0], first, arrays[1], arrays[2:])
        return (outputs * by_output).sum() + (after * by_state).sum()

    arrays = [features.astype(np.float64), state.astype(np.float64), *weights]
    assert value == pytest.approx(loss(arrays), rel=1e-5)
    check_slopes(loss, arrays, [*by_inputs, *by_weights], rng)


def last_output(net, features, first, state):
    outputs, _ = net(features, first, state)
    return ms.ops.square(outputs[-1]).sum()


def test_no_gradient_flows_through_a_reset(case):
    net, _, features, first, state, _ = case
    inputs = features, first, state
    _, (by_features, by_state), _ = value_and_gradients(net, last_output, inputs, (0, 2))
    # the last output depends on the rows since the last reset; environment 2 has none
    for env, begins in ((0, 5), (1, 3), (2, 0)):
        assert not by_features[:begins, env].any()
        assert by_features[begins:, env].all(), env
    assert not by_state[:2].any()
    assert by_state[2].all()


def test_reset_forgets_any_state(case):
    net, _, features, first, state, _ = case
    outputs, _ = run(net, features, first, state)
    huge = state.copy()
    huge[0] = 1e6
    np.testing.assert_array_equal(run(net, features, first, huge)[0], outputs)
    alone, _ = run(net, features[3:], first[3:], np.zeros_like(state))
    np.testing.assert_allclose(alone[:, 1], outputs[3:, 1], atol=1e-6)


@pytest.mark.parametrize("cut", [1, 3])
def test_two_unrolls_equal_one_of_double_length(case, cut):
    net, _, features, first, state, _ = case
    outputs, after = run(net, features, first, state)
    before_cut, between = run(net, features[:cut], first[:cut], state)
    after_cut, last = run(net, features[cut:], first[cut:], between)
    np.testing.assert_allclose(np.concatenate([before_cut, after_cut]), outputs, atol=1e-6)
    np.testing.assert_allclose(last, after, atol=1e-6)


def test_sizes_and_count_of_parameters():
    net = LSTM(INPUTS, SIZE)
    assert (net.outputs, net.state_size) == (SIZE, 2 * SIZE)
    assert sum(p.size for p in net.get_parameters()) == 4 * SIZE * (INPUTS + SIZE + 1)


def test_forget_gates_begin_open():
    biases = [p.asnumpy() for p in LSTM(INPUTS, SIZE).get_parameters() if p.ndim == 1]
    np.testing.assert_array_equal(biases, [[0] * SIZE + [1] * SIZE + [0] * 2 * SIZE])
