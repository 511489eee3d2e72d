"""The learner compared with NumPy in float64: gradients, optimiser steps, statistics."""

import mindspore as ms
import numpy as np
import pytest

from impala_ms import checkpoint, config
from impala_ms.agents.actor_critic import VTraceLearner
from impala_ms.agents.learner import INPUTS
from impala_ms.agents.network import ActorCriticPolicy
from impala_ms.errors import ConfigError
from impala_ms.metrics.recorder import Recorder
from impala_ms.nets.weights import FlatWeights
from impala_ms.ops.distributions import Categorical
from tests.compiled import compiled, one_by_one
from tests.fakes import box, linear_net

T, D, A = 5, 3, 4  # steps, size of an observation, actions
TOTAL_ENV_STEPS = 1000

BASE = config.load("impala", [], 2).learner_params | {
    "lr": 2.0,
    "gamma": 0.9,
    "reward_scale": 1.0,
    "adam_beta1": 0.9,
    "entropy_cost": 0.3,
    "baseline_cost": 0.7,
    # so large that the size of the gradient counts, which both optimisers divide out else
    "optimizer_epsilon": 0.1,
    "max_grad_norm": None,
}


def make_learner(**changes):
    return VTraceLearner(linear_net((D,), A), BASE | changes, TOTAL_ENV_STEPS)


def random_batch(unrolls, envs, seed=0):
    """A batch with terminations, truncations and the reset rows after them."""
    rng = np.random.default_rng(seed)
    shape = unrolls, T, envs
    terminated = rng.random(shape) < 0.2
    ended = terminated | (rng.random(shape) < 0.2)
    first = np.zeros((unrolls, T + 1, envs), np.bool_)
    first[:, 0] = rng.random((unrolls, envs)) < 0.5
    first[:, 2:] = ended[:, :-1]
    terminated &= ~first[:, 1:]  # nothing ends at a reset row
    reward = 2.0 * rng.normal(size=shape)
    reward[first[:, 1:]] = 0.0
    assert 1 < first[:, 1:].sum() < first[:, 1:].size / 2
    return {
        "observation": rng.normal(size=(unrolls, T + 1, envs, D)).astype(np.float32),
        "action": rng.integers(0, A, shape, np.int32),
        "reward": reward.astype(np.float32),
        "terminated": terminated,
        "first": first,
        "behaviour_logits": rng.normal(size=(*shape, A)).astype(np.float32),
    }


def random_weights(seed=1):
    return (0.5 * np.random.default_rng(seed).normal(size=A * D + A + D)).astype(np.float32)


def log_softmax(logits):
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def by_hand(flat, batch, p):
    """Gradient of the linear network's loss as a flat array, and the statistics.

    Computed in float64 with loops over environments and steps.
    """
    flat = flat.astype(np.float64)
    policy_weight, policy_bias = flat[: A * D].reshape(A, D), flat[A * D : A * D + A]
    baseline_weight = flat[A * D + A :]
    d_policy_weight, d_policy_bias, d_baseline_weight = (
        np.zeros_like(w) for w in (policy_weight, policy_bias, baseline_weight)
    )
    valid_rows = (~batch["first"][:, 1:]).sum()
    scale = 1.0 / valid_rows if p["loss_reduction"] == "mean" else 1.0
    policy_loss = baseline_loss = entropy_sum = 0.0
    rhos, targets, errors = [], [], []

    def bounded(ratio, bar):
        return ratio if bar is None else min(bar, ratio)

    for s, e in np.ndindex(len(batch["first"]), batch["first"].shape[2]):
        x = batch["observation"][s, :, e].astype(np.float64)
        values = x @ baseline_weight
        following_target, carried = values[T], 0.0
        for t in reversed(range(T)):
            reset = batch["first"][s, t + 1, e]
            action = batch["action"][s, t, e]
            discount = p["gamma"] * (1.0 - batch["terminated"][s, t, e])
            reward = float(batch["reward"][s, t, e])
            if p["reward_clip"] == "abs_one":
                reward = min(1.0, max(-1.0, reward))
            elif p["reward_clip"] == "soft_asymmetric":
                reward = 5 * np.tanh(reward / 5) * (0.3 if reward < 0 else 1.0)
            reward *= p["reward_scale"]
            log_probs = log_softmax(policy_weight @ x[t] + policy_bias)
            behaviour = log_softmax(batch["behaviour_logits"][s, t, e].astype(np.float64))
            ratio = np.exp(log_probs[action] - behaviour[action])
            if p["correction"] == "vtrace":
                rho, c = bounded(ratio, p["rho_bar"]), bounded(ratio, p["c_bar"])
                pg_rho = bounded(ratio, p["pg_rho_bar"])
            else:
                rho = c = pg_rho = 1.0
                if p["correction"] == "one_step_is":
                    pg_rho = bounded(ratio, p["pg_rho_bar"])
            if reset:
                rho = c = pg_rho = 0.0

            delta = rho * (reward + discount * values[t + 1] - values[t])
            carried = delta + discount * p["lambda_"] * c * carried
            target = values[t] + carried
            advantage = pg_rho * (reward + discount * following_target - values[t])
            following_target = target
            if reset:
                continue

            probs = np.exp(log_probs)
            entropy = -(probs * log_probs).sum()
            log_prob, weight = log_probs[action], 1.0
            if p["correction"] == "epsilon":
                weight = probs[action] / (probs[action] + p["epsilon"])
                log_prob = np.log(probs[action] + p["epsilon"])
            policy_loss -= scale * advantage * log_prob
            baseline_loss += scale * p["baseline_cost"] * 0.5 * (target - values[t]) ** 2
            entropy_sum += entropy
            rhos.append(ratio)
            targets.append(target)
            errors.append(target - values[t])

            d_logits = -advantage * weight * (np.eye(A)[action] - probs)
            d_logits += p["entropy_cost"] * probs * (log_probs + entropy)
            d_value = p["baseline_cost"] * (values[t] - target)
            d_policy_weight += scale * np.outer(d_logits, x[t])
            d_policy_bias += scale * d_logits
            d_baseline_weight += scale * d_value * x[t]

    entropy_loss = -scale * p["entropy_cost"] * entropy_sum
    gradient = np.concatenate(
        [d_policy_weight.ravel(), d_policy_bias.ravel(), d_baseline_weight.ravel()]
    )
    clipped_at = np.inf if p["rho_bar"] is None else p["rho_bar"]
    return gradient, {
        "loss_total": policy_loss + baseline_loss + entropy_loss,
        "loss_policy_gradient": policy_loss,
        "loss_baseline": baseline_loss,
        "loss_entropy": entropy_loss,
        "entropy": entropy_sum / valid_rows,
        "rho_mean": np.mean(rhos),
        "rho_clipped_fraction": np.mean(np.array(rhos) > clipped_at),
        "gradient_norm": np.sqrt((gradient**2).sum()),
        "vs_mean": np.mean(targets),
        "explained_variance": 1.0 - np.var(errors) / np.var(targets),
    }


class OptimizerByHand:
    """RMSProp and Adam, from their formulas."""

    def __init__(self, p):
        self.p, self.steps = p, 0
        self.mean = self.velocity = 0.0
        self.mean_square = 1.0 if p["optimizer"] == "rmsprop" else 0.0  # as TensorFlow begins

    def step(self, flat, gradient, lr):
        """Return the new weights."""
        p, self.steps = self.p, self.steps + 1
        if p["max_grad_norm"] is not None:
            gradient = gradient * min(1.0, p["max_grad_norm"] / np.sqrt((gradient**2).sum()))
        if p["optimizer"] == "rmsprop":
            decay = p["rmsprop_decay"]
            self.mean_square = decay * self.mean_square + (1 - decay) * gradient**2
            scaled = lr * gradient / np.sqrt(self.mean_square + p["optimizer_epsilon"])
            self.velocity = p["rmsprop_momentum"] * self.velocity + scaled
            return flat - self.velocity
        b1, b2 = p["adam_beta1"], p["adam_beta2"]
        self.mean = b1 * self.mean + (1 - b1) * gradient
        self.mean_square = b2 * self.mean_square + (1 - b2) * gradient**2
        rate = lr * np.sqrt(1 - b2**self.steps) / (1 - b1**self.steps)
        return flat - rate * self.mean / (np.sqrt(self.mean_square) + p["optimizer_epsilon"])


def assert_steps_as_by_hand(learner, p, batches, env_steps=0):
    """Learn from each batch and compare weights and statistics with those by hand."""
    by_formula, flat = OptimizerByHand(p), random_weights()
    learner.weights.write(flat)
    flat = flat.astype(np.float64)
    for batch in batches:
        gradient, statistics = by_hand(flat, batch, p)
        lr = p["lr"] * (1.0 - env_steps / TOTAL_ENV_STEPS if p["lr_schedule"] == "linear" else 1.0)
        new = by_formula.step(flat, gradient, lr)
        got = learner.learn(batch, env_steps)
        assert set(got) == {*VTraceLearner.statistics, "gradient_norm", "applied", "learning_rate"}
        assert got.pop("learning_rate") == pytest.approx(lr)
        for name, value in statistics.items():
            assert got[name] == pytest.approx(value, rel=2e-4, abs=1e-5), name
        moved = np.abs(new - flat)
        assert np.median(moved) > 1e-3  # the weights have moved
        np.testing.assert_allclose(learner.weights.read(), new, atol=1e-3 * moved.max())
        flat = new


class TestOneStepByHand:
    @pytest.mark.parametrize(
        ("changes", "unrolls"),
        [
            ({"optimizer": "adam", "loss_reduction": "mean"}, 1),
            (
                {
                    "optimizer": "rmsprop",
                    "loss_reduction": "mean",
                    "rmsprop_momentum": 0.5,
                    "lr_schedule": "constant",
                },
                2,
            ),
            ({"optimizer": "rmsprop", "loss_reduction": "sum", "max_grad_norm": 1.5}, 1),
            (
                {
                    "loss_reduction": "sum",
                    "correction": "one_step_is",
                    "pg_rho_bar": 1.3,
                    "reward_clip": "abs_one",
                },
                2,
            ),
            ({"correction": "epsilon", "epsilon": 0.1, "reward_clip": "soft_asymmetric"}, 2),
            ({"reward_clip": "abs_one", "reward_scale": 0.25}, 2),
            ({"correction": "none", "lambda_": 0.7}, 2),
            ({"rho_bar": 1.4, "c_bar": 0.8, "pg_rho_bar": 0.6, "lambda_": 0.9}, 2),
            ({"rho_bar": None, "c_bar": None, "pg_rho_bar": None, "max_grad_norm": 0.2}, 2),
        ],
        ids=str,
    )
    def test_weights_move_by_the_amount_computed_by_hand(self, changes, unrolls):
        p = BASE | changes
        batches = [random_batch(unrolls, 6 // unrolls, seed) for seed in range(3)]
        assert_steps_as_by_hand(make_learner(**changes), p, batches, env_steps=250)


@pytest.fixture(scope="module")
def kept():
    """A learner and its first parameters; it is compiled for S = 2, E = 3."""
    learner = make_learner(max_grad_norm=40.0)
    learner.weights.write(random_weights())
    return learner, learner.named_parameters()


@pytest.fixture
def learner(kept):
    """The learner of ``kept``, with its first parameters."""
    learner, begun = kept
    put_back(learner, begun)
    return learner


def put_back(learner, values):
    """Write weights and optimiser state into the parameters."""
    for name, parameter in learner.parameters_dict().items():
        parameter.asnumpy()[...] = values[name]


def assert_same_parameters(got, wanted):
    assert got.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_array_equal(got[name], values, err_msg=name)


class TestBatches:
    def test_one_unroll_or_two_with_the_same_rows_give_the_same_step(self, learner):
        two = random_batch(2, 3)
        one = {
            name: np.ascontiguousarray(np.concatenate(list(values), axis=1)[None])
            for name, values in two.items()
        }
        assert one["observation"].shape == (1, T + 1, 6, D)
        other = make_learner(max_grad_norm=40.0)
        other.weights.write(random_weights())
        of_two, of_one = learner.learn(two), other.learn(one)
        assert of_one == pytest.approx(of_two, rel=1e-5)
        np.testing.assert_allclose(other.weights.read(), learner.weights.read(), rtol=1e-5)
        assert (learner.weights.read() != random_weights()).all()

    def test_values_in_reset_rows_do_not_count(self, learner, kept):
        batch = random_batch(2, 3)
        wanted, weights = learner.learn(batch), learner.weights.read()
        reset = batch["first"][:, 1:]
        batch["reward"][reset] = 99.0
        batch["action"][reset] = (batch["action"][reset] + 1) % A
        batch["behaviour_logits"][reset] = -7.0
        put_back(learner, kept[1])
        assert learner.learn(batch) == wanted
        np.testing.assert_array_equal(learner.weights.read(), weights)

    @pytest.mark.parametrize("changes", [{}, {"optimizer": "rmsprop", "correction": "epsilon"}])
    def test_step_is_repeatable_bit_for_bit(self, learner, changes):
        # In its first 15 or so calls, the runtime tries ways to divide the work among threads.
        if changes:
            learner = make_learner(**changes)
            learner.weights.write(random_weights())
        batch, begun = random_batch(2, 3), learner.named_parameters()
        wanted, after = learner.learn(batch), learner.named_parameters()
        for _ in range(20):
            put_back(learner, begun)
            assert learner.learn(batch) == wanted
            assert_same_parameters(learner.named_parameters(), after)


class TestWeights:
    def test_compiled_step_reads_and_updates_the_flat_weights(self, learner):
        p, batch = BASE | {"max_grad_norm": 40.0}, random_batch(2, 3)
        for seed in (5, 6):
            flat = random_weights(seed)
            learner.weights.write(flat)
            _, statistics = by_hand(flat, batch, p)
            assert learner.learn(batch)["loss_total"] == pytest.approx(
                statistics["loss_total"], rel=1e-4
            )
        # an actor with the learner's weights has the result of the learner's step
        actor_net = linear_net((D,), A)
        x = batch["observation"][0, 0]
        actor_net(ms.Tensor(x))  # compiles before the weights are written
        actor_weights = FlatWeights(actor_net.get_parameters())
        for _ in range(2):
            before = learner.weights.read()
            learner.learn(batch)
            flat = learner.weights.read()
            assert (flat != before).all()
            actor_weights.write(flat)
            logits, baseline = (y.asnumpy() for y in actor_net(ms.Tensor(x)))
            wanted = x @ flat[: A * D].reshape(A, D).T + flat[A * D : A * D + A]
            np.testing.assert_allclose(logits, wanted, atol=1e-5)
            np.testing.assert_allclose(baseline, x @ flat[A * D + A :], atol=1e-5)

    def test_learner_with_saved_parameters_makes_the_same_steps(self, learner):
        batches = [random_batch(2, 3, seed) for seed in range(4)]
        for batch in batches[:2]:
            learner.learn(batch)
        saved = learner.named_parameters()
        for batch in batches[2:]:
            wanted = learner.learn(batch, 300)
        resumed = make_learner(max_grad_norm=40.0)
        assert resumed.named_parameters().keys() == saved.keys()
        put_back(resumed, saved)
        resumed.warm_up(batches[0])
        assert_same_parameters(resumed.named_parameters(), saved)
        for batch in batches[2:]:
            got = resumed.learn(batch, 300)
        assert got == wanted
        assert_same_parameters(resumed.named_parameters(), learner.named_parameters())
        assert any(name.startswith("moment2.") for name in saved)

    @pytest.mark.parametrize("optimizer", ["adam", pytest.param("rmsprop", marks=pytest.mark.slow)])
    def test_resumed_learner_equals_an_uninterrupted_one_bit_for_bit(self, tmp_path, optimizer):
        """Weights, optimiser, counters and learning rate go through a checkpoint file."""
        changes = {"optimizer": optimizer, "lr": 0.01, "max_grad_norm": 40.0}
        batches = [random_batch(2, 3, seed) for seed in range(100)]

        def learn(learner, recorder, batches):
            for batch in batches:
                statistics = learner.learn(batch, recorder.env_steps)
                steps = int((~batch["first"][:, 1:]).sum())
                recorder.add_updates(1, statistics, np.zeros(2), np.zeros(2), steps)

        def make():
            return VTraceLearner(
                linear_net((D,), A), BASE | changes, 3000
            )  # the test makes about 2400 steps

        whole, totals = make(), Recorder(0.0)
        whole.weights.write(random_weights())
        learn(whole, totals, batches[:50])
        state = {"totals": totals.totals()}
        before = whole.weights.read()
        path = checkpoint.save(tmp_path, "update_50.ckpt", whole.named_parameters(), state)
        learn(whole, totals, batches[50:])

        resumed = make()
        found, saved, state = checkpoint.latest(tmp_path)
        assert found == path
        checkpoint.restore(resumed.parameters_dict(), saved, path)
        resumed.warm_up(batches[0])
        again = Recorder(0.0, state["totals"])
        learn(resumed, again, batches[50:])
        assert again.totals() == totals.totals()
        assert again.totals()["updates"] == 100
        assert not np.array_equal(whole.weights.read(), before)
        assert_same_parameters(resumed.named_parameters(), whole.named_parameters())

    def test_named_weights_are_parts_of_the_flat_array(self, learner):
        flat = np.arange(learner.weights.size, dtype=np.float32)
        learner.weights.write(flat)
        of_learner = learner.named_parameters()
        named = learner.named_weights(flat)
        assert len(named) == 3
        for name, values in named.items():
            np.testing.assert_array_equal(of_learner[name], values)


class TestLearningRate:
    def test_linear_schedule_reaches_the_optimiser(self, learner):
        begun, moved = learner.named_parameters(), {}
        for env_steps in (0, 500, 999, 1000, 2000):
            put_back(learner, begun)
            reported = learner.learn(random_batch(2, 3), env_steps)["learning_rate"]
            assert reported == pytest.approx(2.0 * max(0.0, 1 - env_steps / 1000), abs=1e-12)
            moved[env_steps] = learner.weights.read().astype(np.float64) - random_weights()
        assert (moved[0] != 0).all()
        np.testing.assert_allclose(moved[500], 0.5 * moved[0], rtol=1e-3, atol=1e-7)
        assert (moved[999] != 0).any()
        np.testing.assert_array_equal(moved[1000], 0.0)
        np.testing.assert_array_equal(moved[2000], 0.0)

    def test_constant_schedule_keeps_the_learning_rate(self):
        learner = make_learner(lr_schedule="constant")
        assert [learner.learning_rate(steps) for steps in (0, 999, 10**9)] == [2.0] * 3


class TestNonFinite:
    @pytest.mark.parametrize(
        ("name", "value"),
        [("reward", np.nan), ("reward", 1e30), ("observation", np.inf), ("observation", np.nan)],
    )
    def test_non_finite_batch_changes_neither_weights_nor_later_steps(self, learner, name, value):
        good, bad = random_batch(2, 3), random_batch(2, 3)
        learner.learn(good)
        before = learner.named_parameters()
        wanted = learner.learn(good)
        after = learner.named_parameters()

        put_back(learner, before)
        bad[name][1, 2, 0] = value
        bad["first"][1, 3, 0] = False  # a reset row would be masked
        statistics = learner.learn(bad, 400)
        assert not np.isfinite(statistics["loss_total"] + statistics["gradient_norm"])
        assert_same_parameters(learner.named_parameters(), before)
        assert learner.learn(good) == wanted
        assert_same_parameters(learner.named_parameters(), after)


class TestGradient:
    """The gradient of the whole loss, for a network with tanh layers."""

    @pytest.fixture(scope="class")
    @classmethod
    def deep(cls):
        ms.set_seed(2)
        policy = ActorCriticPolicy(box(D), Categorical(A), hidden_sizes=[6, 5], activation="tanh")
        learner = VTraceLearner(policy, BASE, TOTAL_ENV_STEPS)
        rng = np.random.default_rng(4)
        learner.weights.write(rng.normal(size=learner.weights.size).astype(np.float32))
        return learner

    def test_gradients_agree_compiled_and_eager(self, deep):
        tensors = [ms.Tensor(random_batch(2, 3)[name]) for name in ("observation", *INPUTS)]
        parameters = deep.weights.parameters
        gradient = ms.value_and_grad(deep.loss, None, parameters, has_aux=True)

        def run():
            (loss, statistics), gradients = gradient(*tensors)
            return (
                loss.asnumpy(),
                np.array([x.asnumpy() for x in statistics]),
                [g.asnumpy() for g in gradients],
            )

        compiled_run = run()
        with one_by_one():
            eager_run = run()
        np.testing.assert_allclose(compiled_run[0], eager_run[0], rtol=1e-5)
        np.testing.assert_allclose(compiled_run[1], eager_run[1], rtol=1e-4, atol=1e-6)
        assert len(compiled_run[2]) == len(eager_run[2]) == 8
        for parameter, a, b in zip(parameters, compiled_run[2], eager_run[2], strict=True):
            assert a.shape == b.shape == tuple(parameter.shape)
            assert np.abs(a).min() > 0, parameter.name
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5, err_msg=parameter.name)

    def test_gradient_by_values_is_by_hand_and_by_behaviour_logits_zero(self, learner):
        # Observation i is the i-th unit vector, so each row has its own weight as its value.
        rows = T + 1
        policy = linear_net((rows,), A)
        net = VTraceLearner(policy, BASE | {"loss_reduction": "sum"}, TOTAL_ENV_STEPS)
        values = np.random.default_rng(8).normal(size=rows).astype(np.float32)
        flat = np.zeros(net.weights.size, np.float32)
        flat[-rows:] = values
        net.weights.write(flat)
        batch = random_batch(1, 1, seed=3)
        batch["first"][...] = False
        batch["terminated"][...] = False
        batch["observation"] = np.eye(rows, dtype=np.float32)[None, :, None]
        batch["behaviour_logits"][...] = 0.0  # on-policy: the target is the discounted return
        following, targets = float(values[T]), np.empty(T)
        for t in reversed(range(T)):
            following = targets[t] = batch["reward"][0, t, 0] + BASE["gamma"] * following

        tensors = [batch[name] for name in ("observation", *INPUTS)]
        gradient = ms.grad(net.loss, 5, policy.baseline_weight, has_aux=True)

        def both(*inputs):
            return gradient(*inputs)[0]

        of_behaviour, of_values = compiled(both)(*tensors)
        wanted = np.append(BASE["baseline_cost"] * (values[:T] - targets), 0.0)
        assert np.abs(wanted[:T]).min() > 0.1
        np.testing.assert_allclose(of_values, wanted, rtol=1e-4)
        assert of_behaviour.shape == (1, T, 1, A)
        np.testing.assert_array_equal(of_behaviour, 0.0)


def test_learner_clips_rewards_without_changing_the_batch():
    # The reward is 7: the loss must see 1, and the batch must still hold 7.
    batch = random_batch(2, 3)
    batch["reward"][...] = 0.0
    batch["reward"][:, 2][~batch["first"][:, 3]] = 7.0
    raw = batch["reward"].copy()
    learner = make_learner(reward_clip="abs_one")
    learner.weights.write(random_weights())
    got = learner.learn(batch)
    np.testing.assert_array_equal(batch["reward"], raw)
    batch["reward"] /= 7.0
    _, statistics = by_hand(random_weights(), batch, BASE)
    for name, value in statistics.items():
        assert got[name] == pytest.approx(value, rel=2e-4, abs=1e-5), name


def test_observation_statistics_count_each_row_once():
    """The last row counts in the next unroll; replays and skipped updates do not count."""
    policy = ActorCriticPolicy(
        box(D), Categorical(A), hidden_sizes=[4], normalize_observations=True
    )
    learner = VTraceLearner(policy, BASE | {"lr": 0.1}, TOTAL_ENV_STEPS)
    batches = [random_batch(2, 3, seed) for seed in (0, 1)]
    learner.learn(batches[0])
    learner.learn(batches[0] | {"new": np.zeros(2, np.float32)})
    broken = {name: values.copy() for name, values in random_batch(2, 3, 2).items()}
    broken["reward"][0, 0, 0] = np.nan
    assert not np.isfinite(learner.learn(broken)["loss_total"])
    learner.learn(batches[1])
    rows = np.concatenate([b["observation"][:, :-1].reshape(-1, D) for b in batches]).astype(float)
    normalizer = policy.normalizer.all
    assert normalizer.count.asnumpy() == len(rows) == 2 * 2 * T * 3
    np.testing.assert_allclose(normalizer.mean.asnumpy(), rows.mean(0), atol=1e-6)
    np.testing.assert_allclose(normalizer.variance.asnumpy(), rows.var(0), rtol=1e-5)
    saved = learner.named_parameters()
    assert {name.rpartition(".")[2] for name in saved} >= {"count", "mean", "variance"}


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("loss_total", "entropy"), "the statistics loss_total, entropy, and its loss returns 9 n"),
        (("loss", *VTraceLearner.statistics[1:]), "give a name for each, loss_total first"),
    ],
)
def test_statistics_that_do_not_fit_their_names_are_refused(names, says):
    class Own(VTraceLearner):
        statistics = names

    learner = Own(linear_net((D,), A), BASE, TOTAL_ENV_STEPS)
    with one_by_one(), pytest.raises(ConfigError, match=says):
        learner.learn(random_batch(1, 2))
