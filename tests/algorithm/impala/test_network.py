"""The policy and baseline network."""

import mindspore as ms
import numpy as np
import pytest

from impala_ms.algorithm.impala.network import IMPALAPolicy
from impala_ms.nets.weights import FlatWeights
from tests import compiled  # noqa: F401  sets graph mode


@pytest.fixture(scope="module")
def policy():
    ms.set_seed(3)
    return IMPALAPolicy((2, 3), 4, hidden_sizes=[16, 8], activation="relu")


def numpy_outputs(policy, observation):
    flat = FlatWeights(policy.get_parameters()).read().astype(np.float64)
    sizes = [6 * 16, 16, 16 * 8, 8, 8 * 4, 4, 8, 1]
    w1, b1, w2, b2, wp, bp, wv, bv = np.split(flat, np.cumsum(sizes)[:-1])
    x = observation.reshape(len(observation), 6).astype(np.float64)
    x = np.maximum(x @ w1.reshape(16, 6).T + b1, 0)
    x = np.maximum(x @ w2.reshape(8, 16).T + b2, 0)
    return x @ wp.reshape(4, 8).T + bp, x @ wv + bv


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64"])
def test_logits_and_baseline(policy, dtype):
    observation = np.random.default_rng(0).integers(0, 200, (5, 2, 3)).astype(dtype)
    logits, baseline = (x.asnumpy() for x in policy(ms.Tensor(observation)))
    assert (logits.shape, baseline.shape) == ((5, 4), (5,))
    assert logits.dtype == baseline.dtype == np.float32
    wanted = numpy_outputs(policy, observation)
    np.testing.assert_allclose(logits, wanted[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(baseline, wanted[1], rtol=1e-4, atol=1e-3)


def test_the_policy_begins_near_uniform_and_the_baseline_does_not_begin_at_0(policy):
    observation = np.random.default_rng(1).normal(size=(50, 2, 3)).astype(np.float32)
    logits, baseline = (x.asnumpy() for x in policy(ms.Tensor(observation)))
    assert 0 < np.abs(logits).max() < 0.1
    assert np.abs(baseline).max() > 0.1


def test_the_distribution_is_that_of_the_actions(policy):
    assert policy.distribution.num_actions == policy.distribution.num_parameters == 4


def test_equal_seeds_give_equal_weights_on_every_rank():
    def flat(seed):
        ms.set_seed(seed)
        net = IMPALAPolicy((3,), 2, hidden_sizes=[4], activation="tanh")
        return FlatWeights(net.get_parameters()).read()

    np.testing.assert_array_equal(flat(1), flat(1))
    assert (flat(1) != flat(2)).any()
