"""Q-learning: the loss, the target network, masks; beside NumPy and numbers by hand."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

from impala_ms import config
from impala_ms.agents.checks import check_policy
from impala_ms.agents.q_actor import FirstErrors
from impala_ms.agents.q_learning import QLearner, best_value
from impala_ms.agents.q_network import QNetwork, dueling
from impala_ms.agents.transition_learner import clipped_square
from impala_ms.errors import ConfigError
from impala_ms.nets.weights import FlatWeights
from impala_ms.ops.distributions import DiagonalGaussian, EpsilonGreedy, make_distribution
from impala_ms.replay.rewards import Rewards
from tests.compiled import eager
from tests.fakes import box

PARAMS = config.load("dqn", [], 2).learner_params | {"updates_per_call": 1}


class Table(nn.Cell):
    """Values are a linear function of an observation; ``untrained`` is a weight without a use."""

    def __init__(self, inputs=2, actions=3):
        super().__init__()
        self.distribution = EpsilonGreedy(actions)
        self.weight = ms.Parameter(np.zeros((inputs, actions), np.float32), name="weight")
        self.untrained = ms.Parameter(
            np.zeros(2, np.float32), name="untrained", requires_grad=False
        )

    def twin(self):
        return Table(*self.weight.shape)

    def construct(self, observation):
        return ops.matmul(observation, self.weight)


def weights_of(cell):
    return FlatWeights(cell.get_parameters()).read()


def make_learner(weight, params=(), policy=None):
    policy = policy or Table(*np.shape(weight))
    check_policy(policy, "table", "none")
    learner = QLearner(policy, PARAMS | dict(params), 1000)
    policy.weight.set_data(ms.Tensor(np.array(weight, np.float32)))
    learner.take_over()
    return learner


def batch_of(observation, next_observation, action, returns, discounts, weights=1.0, mask=None):
    rows = len(observation)

    def numbers(values):
        return np.broadcast_to(np.array(values, np.float32), rows).copy()

    batch = {
        "observation": np.array(observation, np.float32),
        "next_observation": np.array(next_observation, np.float32),
        "action": np.array(action, np.int32),
        "returns": numbers(returns),
        "discounts": numbers(discounts),
        "weights": numbers(weights),
    }
    return batch if mask is None else batch | {"next_action_mask": np.array(mask, np.bool_)}


class TestLoss:
    def test_of_one_row_is_that_of_case_58(self):
        plain = {"optimizer": "rmsprop", "rmsprop_decay": 1.0, "rmsprop_start": 1.0, "lr": 1.0}
        plain |= {"optimizer_epsilon": 1e-12, "max_grad_norm": None}
        learner = make_learner([[2.0, 0.0]], plain)
        found = learner.learn(batch_of([[1.0]], [[0.0]], [0], 7.0, 0.5, weights=0.5))
        assert found["loss_total"] == pytest.approx(2.25)
        assert found["errors"].tolist() == [5.0]
        weight = learner.weights.read()[:2]
        np.testing.assert_allclose(weight, [2.5, 0.0], atol=1e-6)  # the derivative is -0.5

    @pytest.mark.parametrize("limit", [None, 1.0, 0.3])
    def test_of_an_error_has_the_derivative_clipped_to_the_limit(self, limit):
        errors = np.array([-4.0, -1.0, -0.2, 0.0, 0.1, 1.0, 3.0], np.float32)

        def total(x):
            return clipped_square(x, limit).sum()

        slopes = eager(ms.grad(total))(errors)
        bound = np.inf if limit is None else limit
        np.testing.assert_allclose(slopes, np.clip(errors, -bound, bound), atol=1e-6)
        inside = errors[np.abs(errors) <= bound]
        np.testing.assert_allclose(
            eager(lambda x: clipped_square(x, limit))(inside), 0.5 * inside**2, rtol=1e-6
        )

    def test_update_is_that_of_numpy_on_random_batches(self):
        rng = np.random.default_rng(4)
        weight = rng.normal(size=(3, 4))
        plain = {"optimizer": "rmsprop", "rmsprop_decay": 1.0, "rmsprop_start": 1.0, "lr": 0.1}
        plain |= {"optimizer_epsilon": 1e-12, "max_grad_norm": None, "target_period": 1000}
        learner = make_learner(weight, plain)
        online = weight.copy()
        for _ in range(3):
            before, after = rng.normal(size=(2, 6, 3))
            action, mask = rng.integers(4, size=6), rng.random((6, 4)) < 0.6
            returns, discounts, weights = rng.normal(size=6), rng.random(6), rng.random(6)
            found = learner.learn(
                batch_of(before, after, action, returns, discounts, weights, mask)
            )
            best = np.where(mask, after @ online, -np.inf).argmax(-1)
            bootstrap = np.where(mask.any(-1), (after @ weight)[np.arange(6), best], 0.0)
            errors = returns + discounts * bootstrap - (before @ online)[np.arange(6), action]
            slope = np.zeros((3, 4))
            for row in range(6):
                clipped = np.clip(errors[row], -1.0, 1.0) * weights[row] / 6
                slope[:, action[row]] -= clipped * before[row]
            np.testing.assert_allclose(found["errors"], np.abs(errors), atol=1e-5)
            assert found["gradient_norm"] == pytest.approx(np.sqrt((slope**2).sum()), abs=1e-5)
            online -= 0.1 * slope
            np.testing.assert_allclose(learner.weights.read()[:12], online.ravel(), atol=1e-5)

    def test_an_update_that_is_not_finite_changes_nothing(self):
        learner = make_learner([[1.0, 2.0]], {"target_period": 1})
        learner.learn(batch_of([[1.0]], [[1.0]], [0], 1.0, 0.5))
        before = {name: values.tobytes() for name, values in learner.named_parameters().items()}
        found = learner.learn(batch_of([[1.0]], [[1.0]], [0], np.nan, 0.5))
        assert not found["applied"]
        after = {name: values.tobytes() for name, values in learner.named_parameters().items()}
        assert after == before


def parts_of(number, rng, rows=5):
    """So many random batches of the same size."""
    return [
        batch_of(
            *rng.normal(size=(2, rows, 3)),
            rng.integers(4, size=rows),
            rng.normal(size=rows),
            rng.random(rows),
            rng.random(rows),
            rng.random((rows, 4)) < 0.6,
        )
        for _ in range(number)
    ]


def in_one(batches):
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


class TestUpdatesPerCall:
    def test_several_updates_in_a_call_are_those_of_single_calls(self):
        rng = np.random.default_rng(6)
        weight, parts = rng.normal(size=(3, 4)), parts_of(6, rng)
        one, three = (
            make_learner(weight, {"updates_per_call": number, "target_period": 4})
            for number in (1, 3)
        )
        single = [one.learn(part) for part in parts]
        for call in range(2):
            these = slice(3 * call, 3 * call + 3)
            found = three.learn(in_one(parts[these]))
            assert found["applied"] == 3
            for name in ("loss_total", "td_error_mean", "gradient_norm"):
                assert found[name] == pytest.approx(np.mean([s[name] for s in single[these]]))
            errors = np.concatenate([s["errors"] for s in single[these]])
            np.testing.assert_allclose(found["errors"], errors, atol=1e-6)
        expected, got = one.named_parameters(), three.named_parameters()
        assert list(expected) == list(got)
        for name in expected:
            np.testing.assert_allclose(got[name], expected[name], atol=1e-6, err_msg=name)

    def test_only_the_update_that_is_not_finite_is_skipped(self):
        rng = np.random.default_rng(7)
        weight, (first, second, third) = rng.normal(size=(3, 4)), parts_of(3, rng)
        expected = make_learner(weight, {"target_period": 2})
        single = [expected.learn(part) for part in (first, third)]
        learner = make_learner(weight, {"updates_per_call": 3, "target_period": 2})
        bad = second | {"returns": np.full(5, np.inf, np.float32)}
        found = learner.learn(in_one([first, bad, third]))
        assert found["applied"] == 2
        assert found["loss_total"] == pytest.approx(np.mean([s["loss_total"] for s in single]))
        assert np.isinf(found["errors"][5:10]).any()
        np.testing.assert_allclose(learner.weights.read(), expected.weights.read(), atol=1e-6)


class TestBootstrap:
    """Case 65: the learned network gives [1, 3, 2], the target network [10, 5, 7]."""

    ONLINE, TARGET = np.float32([[1.0, 3.0, 2.0]]), np.float32([[10.0, 5.0, 7.0]])

    @pytest.mark.parametrize(
        ("double", "mask", "wanted"),
        [
            (False, None, 10.0),
            (True, None, 5.5),
            (False, [1, 0, 1], 10.0),
            (True, [1, 0, 1], 7.3),
            (True, [0, 0, 0], 1.0),  # no action is allowed: the bootstrap is 0
        ],
    )
    def test_is_the_target_network_s_value_of_the_chosen_action(self, double, mask, wanted):
        chosen = self.ONLINE if double else self.TARGET
        mask = None if mask is None else np.array([mask], np.bool_)
        distribution = EpsilonGreedy(3)

        def of(values, chosen):
            return best_value(
                values, chosen, None if mask is None else ms.Tensor(mask), distribution
            )

        value = eager(of)(self.TARGET, chosen)[0]
        assert 1.0 + 0.9 * value == pytest.approx(wanted)


class TestDueling:
    def test_each_row_is_centred_on_its_own_value(self):
        """Case 66."""
        value, advantages = np.float32([[1.0], [2.0]]), np.float32([[1, 2, 3], [4, 4, 10]])
        assert eager(dueling)(value, advantages).tolist() == [[0.0, 1.0, 2.0], [0.0, 0.0, 6.0]]
        assert eager(dueling)(value[1:], advantages[1:]).tolist() == [[0.0, 0.0, 6.0]]

    def test_network_adds_the_head_s_output_to_centred_advantages(self):
        network = QNetwork(
            box(3), make_distribution({"type": "Discrete", "n": 4}), torso="mlp", dueling=True
        )
        x = ms.Tensor(np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32))
        features = network.torso(x)
        wanted = dueling(network.value_head(features), network.action_head(features))
        np.testing.assert_allclose(network(x).asnumpy(), wanted.asnumpy(), atol=1e-6)

    def test_other_actions_than_discrete_ones_are_refused(self):
        with pytest.raises(ConfigError, match="the actions must be Discrete: --algorithm impala"):
            QNetwork(box(3), DiagonalGaussian((2,)), torso="mlp")


class TestTarget:
    def learner(self, period=7):
        learner = make_learner([[1.0, 2.0]], {"target_period": period})
        learner.policy.untrained.set_data(ms.Tensor(np.float32([3.0, 4.0])))
        return learner

    def update(self, learner, number=1):
        for _ in range(number):
            learner.learn(batch_of([[1.0]], [[1.0]], [0], 1.0, 0.5))

    def test_is_copied_every_so_many_updates_bit_for_bit(self):
        """Case 67."""
        learner, copies = self.learner(), 0
        assert weights_of(learner.target).tolist()[:2] == learner.weights.read().tolist()[:2]
        for number in range(1, 101):
            before = weights_of(learner.target)
            self.update(learner)
            target, source = weights_of(learner.target), learner.weights.read()
            if number % 7 == 0:
                assert target.tobytes() == source.tobytes()
                assert target[2:].tolist() == [3.0, 4.0]  # weights that are not trained, too
                copies += 1
            else:
                assert target.tobytes() == before.tobytes() != source.tobytes()
        assert copies == 14

    def test_a_learner_with_saved_parameters_keeps_the_old_target(self):
        learner = self.learner()
        self.update(learner, 10)
        saved = learner.named_parameters()
        other = self.learner()
        for name, parameter in other.parameters_dict().items():
            parameter.set_data(ms.Tensor(saved[name]))
        assert set(saved) == set(other.parameters_dict())
        for one in (learner, other):
            self.update(one, 4)  # the next copy is after update 14
        assert weights_of(other.target).tobytes() == weights_of(learner.target).tobytes()
        assert weights_of(other.target).tobytes() == other.weights.read().tobytes()

    def test_does_not_travel_to_the_actors(self):
        learner = self.learner()
        assert learner.weights.size == 4
        assert sum(p.size for p in learner.optimizer.parameters) == 2


class TestFirstErrors:
    def unroll(self, rewards):
        rows = len(rewards)
        return {
            "reward": np.float32(rewards)[:, None],
            "terminated": np.zeros((rows, 1), np.bool_),
            "first": np.zeros((rows + 1, 1), np.bool_),
            "action": np.zeros((rows, 1), np.int32),
        }

    def test_are_those_of_case_64_and_the_learner_s(self):
        values = np.float32([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 16.0]])
        found = FirstErrors(3, 0.5, Rewards())(self.unroll([1.0, 2.0, 4.0]), values[:, None])
        np.testing.assert_allclose(found[:, 0], [4.0, 6.0, 9.0], atol=1e-6)
        np.testing.assert_allclose(found[:, 0] ** 0.6, [2.297, 2.930, 3.737], atol=5e-4)
        learner = make_learner(values)  # the observation says which row of the weights counts
        rows = np.eye(4)
        batch = batch_of(rows[:3], rows[[3, 3, 3]], [0, 0, 0], [3.0, 4.0, 4.0], [0.125, 0.25, 0.5])
        np.testing.assert_allclose(learner.learn(batch)["errors"], found[:, 0], atol=1e-5)
