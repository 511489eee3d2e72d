"""DDPG: noise of actions, the critic's loss, the slope that the policy follows, the targets."""

import mindspore as ms
import numpy as np
import pytest
from gymnasium import spaces
from mindspore import nn, ops

from impala_ms import config
from impala_ms.agents.checks import check_policy
from impala_ms.agents.ddpg import DDPGLearner
from impala_ms.agents.ddpg_network import DeterministicPolicy
from impala_ms.agents.exploring import GaussianNoise
from impala_ms.envs.spaces import BoxActions
from impala_ms.errors import ConfigError
from impala_ms.ops.distributions import Categorical, DiagonalGaussian, NoisyAction
from tests.agents.test_q_learning import weights_of
from tests.compiled import eager

PLAIN = {"optimizer": "rmsprop", "rmsprop_decay": 1.0, "rmsprop_start": 1.0}
PLAIN |= {"optimizer_epsilon": 1e-12, "max_grad_norm": None, "updates_per_call": 1}
PARAMS = config.load("apex_ddpg", [], 2).learner_params | PLAIN


class Linear(nn.Cell):
    """Actions, or values, are a linear function of what it is given."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.distribution = NoisyAction((outputs,))
        self.sizes = inputs, outputs
        self.weight = ms.Parameter(np.zeros((inputs, outputs), np.float32), name="weight")

    def twin(self):
        return Linear(*self.sizes)

    def make_critic(self):
        return LinearCritic(sum(self.sizes))

    def construct(self, observation):
        return ops.matmul(observation, self.weight)


class LinearCritic(nn.Cell):
    def __init__(self, inputs):
        super().__init__()
        self.weight = ms.Parameter(np.zeros((inputs, 1), np.float32), name="weight")

    def construct(self, observation, action):
        return ops.matmul(ops.concat((observation, action), -1), self.weight)[:, 0]


class OneHotPolicy(Linear):
    """For two observations, one-hot; its critic has a slope for each of them."""

    def __init__(self):
        super().__init__(2, 2)

    def twin(self):
        return OneHotPolicy()

    def make_critic(self):
        return SlopesOfObservations()


class SlopesOfObservations(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = ms.Parameter(np.zeros((4, 1), np.float32), name="weight")

    def construct(self, observation, action):
        slopes = ops.matmul(observation, self.weight.reshape((2, 2)))
        return (slopes * action).sum(-1)


def make_learner(policy_weight, critic_weight, params=(), policy=None):
    policy = policy or Linear(*np.shape(policy_weight))
    check_policy(policy, "linear", "none")
    learner = DDPGLearner(policy, PARAMS | dict(params), 1000)
    policy.weight.set_data(ms.Tensor(np.array(policy_weight, np.float32)))
    weight = np.array(critic_weight, np.float32)[:, None]
    learner.critic.weight.set_data(ms.Tensor(weight))
    learner.take_over()
    return learner


def batch_of(observation, next_observation, action, returns, discounts, weights):
    return {
        "observation": np.array(observation, np.float32),
        "next_observation": np.array(next_observation, np.float32),
        "action": np.array(action, np.float32),
        "returns": np.array(returns, np.float32),
        "discounts": np.array(discounts, np.float32),
        "weights": np.array(weights, np.float32),
    }


def random_batch(rng, rows=6, size=3, actions=2):
    before, after = rng.normal(size=(2, rows, size))
    action = rng.uniform(-1, 1, size=(rows, actions))
    return batch_of(before, after, action, *rng.random((3, rows)))


class TestNoise:
    def actions(self, deviation, mean=0.0, shape=(20_000, 2)):
        distribution = NoisyAction((1,))
        noise = distribution.noise(np.random.default_rng(1), shape, deviation)
        flat = noise.reshape(-1, noise.shape[-1])
        actions = eager(distribution.sample)(np.full((len(flat), 1), mean), flat)
        return actions.reshape(shape)

    def test_is_added_and_the_sum_is_clipped_as_in_case_69(self):
        noise = np.float32([[0.3, -0.2, 0.0, 0.0]])
        found = eager(NoisyAction((2,)).sample)(np.float32([[0.9, -1.0]]), noise)
        assert found.tolist() == [[1.0, -1.0]]

    def test_has_the_deviation_of_each_environment(self):
        found = self.actions(np.array([0.1, 0.3]), mean=0.2, shape=(40_000, 2))
        np.testing.assert_allclose(found.std(0), [0.1, 0.3], rtol=0.03)
        np.testing.assert_allclose(found.mean(0), 0.2, atol=0.01)

    def test_without_a_deviation_actions_are_uniform_whatever_the_network_says(self):
        found = self.actions(None, mean=0.9)
        assert np.abs(found).max() <= 1.0
        counts, _ = np.histogram(found, bins=8, range=(-1.0, 1.0))
        np.testing.assert_allclose(counts / found.size, 0.125, atol=0.01)

    def test_of_zeros_gives_the_action_of_the_network(self):
        found = eager(NoisyAction((3,)).sample)(np.float32([[0.1, -1.0, 1.0]]), np.zeros((1, 6)))
        np.testing.assert_array_equal(found, np.float32([[0.1, -1.0, 1.0]]))

    def test_is_uniform_until_the_start_and_then_the_same_for_all(self):
        noise = GaussianNoise(0.3, 0.0, 1_000, 2, 2, 4)
        assert noise(999) is None
        np.testing.assert_allclose(noise(1_000), [0.3] * 4)
        assert noise.scored.tolist() == [True] * 4

    def test_falls_along_the_ladder_of_all_environments(self):
        actors = [GaussianNoise(0.4, 1.0, 0, number, 2, 2) for number in (1, 2)]
        deviations = np.concatenate([one(0) for one in actors])
        np.testing.assert_allclose(deviations, [0.4, 0.8 / 3, 0.4 / 3, 0.0], atol=1e-9)
        assert np.concatenate([one.scored for one in actors]).tolist() == [False] * 3 + [True]


class TestUpdate:
    def test_of_two_rows_follows_the_clipped_slope_as_in_case_70(self):
        """One row for each observation, so that its weights have the gradient of its action."""
        gradients = []
        for repeated in (1, 2):
            slopes = [3.0, -0.5, -2.0, 0.25]
            learner = make_learner(np.zeros((2, 2)), slopes, {"lr": 1.0}, OneHotPolicy())
            rows = np.tile(np.eye(2), (repeated, 1))
            zeros = np.zeros(2 * repeated)
            learner.learn(batch_of(rows, rows, np.zeros_like(rows), zeros, zeros, zeros))
            assert weights_of(learner.critic).tolist() == slopes
            gradients.append(-learner.weights.read().reshape(2, 2))
        for gradient in gradients:
            np.testing.assert_allclose(gradient, [[-0.5, 0.25], [0.5, -0.125]], atol=1e-6)

    @pytest.mark.parametrize("clip", [None, 0.2])
    def test_is_that_of_numpy_on_random_batches(self, clip):
        rng = np.random.default_rng(5)
        policy, critic = rng.normal(size=(3, 2)) / 3, rng.normal(size=5) / 3
        params = {"lr": 0.1, "critic_lr": 0.05, "slope_clip": clip, "target_period": 1_000}
        learner = make_learner(policy, critic, params)
        first_policy, first_critic = policy.copy(), critic.copy()
        for _ in range(3):
            batch = random_batch(rng)
            found = learner.learn(batch)
            before, after = batch["observation"], batch["next_observation"]
            inputs = np.hstack([before, batch["action"]])
            bootstrap = np.hstack([after, after @ first_policy]) @ first_critic
            errors = batch["returns"] + batch["discounts"] * bootstrap - inputs @ critic
            of_critic = -(batch["weights"] * errors) @ inputs / 6
            slope = critic[3:] if clip is None else np.clip(critic[3:], -clip, clip)
            of_policy = -np.outer(before.sum(0), slope) / 6
            np.testing.assert_allclose(found["errors"], np.abs(errors), atol=1e-5)
            assert found["gradient_norm"] == pytest.approx(np.linalg.norm(of_critic), abs=1e-5)
            wanted = np.linalg.norm(of_policy)
            assert found["policy_gradient_norm"] == pytest.approx(wanted, abs=1e-5)
            policy, critic = policy - 0.1 * of_policy, critic - 0.05 * of_critic
            np.testing.assert_allclose(learner.weights.read(), policy.ravel(), atol=1e-5)
            np.testing.assert_allclose(weights_of(learner.critic), critic, atol=1e-5)

    def test_that_is_not_finite_changes_nothing(self):
        learner = make_learner([[0.5]], [1.0, 1.0], {"target_period": 1})
        before = {name: values.tobytes() for name, values in learner.named_parameters().items()}
        batch = batch_of([[1.0]], [[1.0]], [[0.5]], [np.nan], [0.5], [1.0])
        assert learner.learn(batch)["applied"] == 0
        after = {name: values.tobytes() for name, values in learner.named_parameters().items()}
        assert before == after

    def test_several_in_a_call_are_single_ones_after_one_another(self):
        rng = np.random.default_rng(2)
        batches = [random_batch(rng) for _ in range(3)]
        weights = rng.normal(size=(3, 2)) / 3, rng.normal(size=5) / 3
        single = make_learner(*weights, {"target_period": 2})
        for batch in batches:
            single.learn(batch)
        several = make_learner(*weights, {"target_period": 2, "updates_per_call": 3})
        several.learn({name: np.concatenate([one[name] for one in batches]) for name in batches[0]})
        for name, values in single.named_parameters().items():
            np.testing.assert_allclose(
                several.named_parameters()[name], values, atol=1e-6, err_msg=name
            )


class TestTargets:
    def update(self, learner, number=1):
        for _ in range(number):
            learner.learn(batch_of([[1.0]], [[1.0]], [[0.5]], [1.0], [0.5], [1.0]))

    def test_become_copies_of_both_networks(self):
        learner = make_learner([[0.5]], [1.0, 1.0], {"target_period": 3})
        for number in range(1, 7):
            self.update(learner)
            for target, source in (
                (learner.target, learner.policy),
                (learner.target_critic, learner.critic),
            ):
                same = weights_of(target).tobytes() == weights_of(source).tobytes()
                assert same == (number % 3 == 0)

    def test_move_a_part_of_the_way(self):
        learner = make_learner([[0.5]], [1.0, 1.0], {"target_period": 1, "target_rate": 0.25})
        for _ in range(3):
            before = weights_of(learner.target_critic)
            self.update(learner)
            wanted = before + 0.25 * (weights_of(learner.critic) - before)
            np.testing.assert_allclose(weights_of(learner.target_critic), wanted, rtol=1e-6)

    def test_and_optimisers_are_restored_from_saved_parameters(self):
        adam = {"optimizer": "adam", "target_period": 7}
        learner = make_learner([[0.5]], [1.0, 1.0], adam)
        self.update(learner, 5)
        saved = learner.named_parameters()
        other = make_learner([[0.1]], [0.2, 0.3], adam)
        assert set(saved) == set(other.parameters_dict())
        for name, parameter in other.parameters_dict().items():
            parameter.set_data(ms.Tensor(saved[name]))
        for one in (learner, other):
            self.update(one, 4)
        for name, values in learner.named_parameters().items():
            assert values.tobytes() == other.named_parameters()[name].tobytes(), name

    def test_only_the_policy_travels(self):
        assert make_learner([[0.5]], [1.0, 1.0]).weights.size == 1


class TestNetwork:
    def network(self, **options):
        space = {"type": "Box", "shape": [3], "dtype": "float32", "low": "", "high": ""}
        return DeterministicPolicy(space, DiagonalGaussian((2,)), torso="mlp", **options)

    def test_gives_actions_between_minus_one_and_one_near_zero_at_first(self):
        policy = self.network()
        observation = np.random.default_rng(1).normal(size=(50, 3)) * 3.0
        actions = eager(policy)(observation)
        assert actions.shape == (50, 2)
        assert np.abs(actions).max() < 0.3
        policy.head[-1].weight.set_data(policy.head[-1].weight * 1e6)
        assert np.abs(eager(policy)(observation)).max() <= 1.0

    def test_critic_depends_on_observation_and_action(self):
        critic = self.network().make_critic()
        rng = np.random.default_rng(1)
        observation, action = rng.normal(size=(4, 3)), rng.normal(size=(4, 2))
        values = eager(critic)(observation, action)
        assert values.shape == (4,)
        assert (eager(critic)(observation, action + 0.5) != values).all()
        assert (eager(critic)(observation + 0.5, action) != values).all()

    def test_refuses_discrete_actions(self):
        space = {"type": "Box", "shape": [3], "dtype": "float32", "low": "", "high": ""}
        with pytest.raises(ConfigError, match="must be a Box: --algorithm dqn"):
            DeterministicPolicy(space, Categorical(4), torso="mlp")


def test_actions_that_are_only_clipped_to_their_bounds_are_refused():
    with pytest.raises(ConfigError) as caught:
        config.load("apex_ddpg", ["--scale_actions", "false"], 3)
    assert "collect_env.scale_actions = False (--scale_actions): must be true" in str(caught.value)


def test_target_networks_that_never_move_are_refused():
    with pytest.raises(ConfigError, match=r"target_rate = '0' .*: must be float in \(0, 1\]"):
        config.load("apex_ddpg", ["--target_rate", "0"], 3)
    assert config.load("apex_ddpg", ["--target_rate", "0.001"], 3)


def test_each_number_of_an_action_has_its_own_scale_as_in_case_69():
    box = BoxActions(spaces.Box(np.float32([0, -1]), np.float32([5, 3])), True)
    given = np.float32([[1.0, -1.0], [0.0, 0.0], [0.3, 0.0]])
    np.testing.assert_allclose(box.encode(given), [[5.0, -1.0], [2.5, 1.0], [3.25, 1.0]])
