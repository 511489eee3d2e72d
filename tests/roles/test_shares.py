"""Several parameter servers give the weights of one; their state is one checkpoint."""

from types import SimpleNamespace

import numpy as np
import pytest

from impala_ms import config
from impala_ms.agents.checks import check_policy
from impala_ms.errors import ConfigError
from impala_ms.roles.bundles import Bundles
from impala_ms.roles.gradients import GradientServer
from impala_ms.roles.shares import FirstServer, ShareServer, pack, ranges, unpack
from tests.agents.test_q_learning import Table
from tests.fakes import linear_net

PARAMS = config.load("gorila", [], 3).learner_params | {"lr": 0.05}
REPORTED = SimpleNamespace(statistics=("loss_total",), columns={})


def batch_of(gradient):
    return {
        "gradient": np.asarray(gradient, np.float32)[None],
        "statistics": np.zeros((1, 2), np.float32),
        "rows": np.array([4], np.int64),
        "valid_rows": np.array([4], np.int64),
    }


class Collected:
    """In place of what travels between the servers."""

    def begin(self, states, env_steps):
        self.first, self.env_steps = states, env_steps

    def collect(self):
        return {server.number: pack(server.own_parameters()) for server in self.servers}


def divided(whole, servers, **changes):
    """The servers of the ranges, rank 0 first."""
    collected, arguments = Collected(), (PARAMS | changes, 1000, REPORTED)
    bounds = ranges(19, servers)
    first = FirstServer(whole, bounds, collected, 70, *arguments)
    others = []
    for number, state in collected.first.items():
        begin, end = bounds[number]
        other = ShareServer(end - begin, *arguments)
        other.number = number
        other.take_state(state)
        others.append(other)
    collected.servers = others
    return [first, *others]


class TestRanges:
    @pytest.mark.parametrize(("size", "servers"), [(10, 3), (7, 7), (19, 1), (1_686_180, 31)])
    def test_are_contiguous_and_differ_by_at_most_one(self, size, servers):
        found = ranges(size, servers)
        assert [begin for begin, _ in found] == [0, *[end for _, end in found[:-1]]]
        assert found[-1][1] == size
        sizes = [end - begin for begin, end in found]
        assert max(sizes) - min(sizes) <= 1

    def test_more_servers_than_weights_are_refused(self):
        with pytest.raises(ConfigError, match=r"servers = 20: the network has 19 weights only"):
            ranges(19, 20)


@pytest.mark.parametrize("optimizer", ["adagrad", "adam", "rmsprop"])
@pytest.mark.parametrize("servers", [1, 2, 3])
def test_servers_of_ranges_take_the_steps_of_one_server(optimizer, servers):
    rng = np.random.default_rng(3)
    changes = {"optimizer": optimizer, "max_grad_norm": None}
    whole = GradientServer(linear_net((3,), 4), PARAMS | changes, 1000, REPORTED)
    whole.weights.write(rng.normal(size=19).astype(np.float32))
    gradients = rng.normal(size=(12, 19)).astype(np.float32)
    for gradient in gradients[:4]:  # the state of the optimiser is divided, too
        whole.learn(batch_of(gradient))
    parts = divided(whole, servers, **changes)
    assert pack(parts[0].named_parameters()).tobytes() == pack(whole.named_parameters()).tobytes()
    for step, gradient in enumerate(gradients[4:]):
        whole.learn(batch_of(gradient), env_steps=10 * step)
        for part, (begin, end) in zip(parts, ranges(19, servers), strict=True):
            part.learn(batch_of(gradient[begin:end]), env_steps=10 * step)
    found, expected = parts[0].named_parameters(), whole.named_parameters()
    assert list(found) == list(expected)
    for name, values in expected.items():
        assert found[name].shape == values.shape
        np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=1e-7, err_msg=name)
    together = np.concatenate([part.weights.read() for part in parts])
    np.testing.assert_array_equal(parts[0].network_weights(), together)
    assert parts[0].network_names() == whole.network_names()
    flat = np.arange(19, dtype=np.float32)
    for name, values in whole.named_weights(flat).items():
        np.testing.assert_array_equal(parts[0].named_weights(flat)[name], values)


def test_a_network_with_weights_that_are_not_trained_has_one_server():
    arguments = PARAMS, 1000, REPORTED
    check_policy(table := Table(), "table", "none")
    whole = GradientServer(table, *arguments)
    work = Bundles(config.load("gorila", [], 3))
    assert work.divide(None, whole, None, 0) == (None, whole)
    work = Bundles(config.load("gorila", ["--servers", "2"], 3))
    with pytest.raises(ConfigError, match=r"servers: must be 1, the network has weights not trai"):
        work.divide(None, whole, None, 0)


def test_bytes_go_back_into_arrays_of_any_kind():
    named = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.array(7, np.int32),
        "c": np.array([1.5]),
    }
    copy = {name: np.zeros_like(values) for name, values in named.items()}
    unpack(pack(named), copy)
    for name, values in named.items():
        np.testing.assert_array_equal(copy[name], values)
