"""Losses and corrections compared with numbers by hand; effect of resets."""

from functools import partial

import mindspore as ms
import numpy as np
import pytest

from impala_ms.agents import actor_critic as losses
from tests.compiled import compiled, eager, one_by_one, to_tensor

BARS = {"rho_bar": 1.0, "c_bar": 1.0, "pg_rho_bar": 1.0, "lambda_": 1.0}
HOW = pytest.mark.parametrize("how", [compiled, eager])


def column(*values):
    return np.array(values, np.float32)[:, None]


class TestTargets:
    """T = 2, gamma = .5, ratios [2, .5], r = [1, 2], V = [0, 1], V(x_T) = 4."""

    INPUTS = (
        np.log(column(2, 0.5)),
        np.zeros((2, 1), np.bool_),
        column(0.5, 0.5),
        column(1, 2),
        column(0, 1),
        np.float32([4]),
    )

    @HOW
    @pytest.mark.parametrize(
        ("correction", "changes", "vs", "advantages"),
        [
            ("vtrace", {}, [2.25, 2.5], [2.25, 1.5]),
            ("vtrace", {"pg_rho_bar": 2.0}, [2.25, 2.5], [4.5, 1.5]),
            ("vtrace", {"rho_bar": 2.0}, [3.75, 2.5], [2.25, 1.5]),
            ("one_step_is", {}, [3, 4], [3, 1.5]),
            ("one_step_is", {"pg_rho_bar": 2.0}, [3, 4], [6, 1.5]),
            ("one_step_is", {"pg_rho_bar": None}, [3, 4], [6, 1.5]),
            ("epsilon", {}, [3, 4], [3, 3]),
            ("none", {}, [3, 4], [3, 3]),
            # with correction none, thresholds have no effect
            ("none", {"rho_bar": 0.1, "c_bar": 0.1, "pg_rho_bar": 0.1}, [3, 4], [3, 3]),
            ("none", {"lambda_": 0.0}, [1.5, 4], [3, 3]),
        ],
    )
    def test_targets_by_hand(self, how, correction, changes, vs, advantages):
        run = how(partial(losses.corrected_targets, correction, **(BARS | changes)))
        got_vs, got_advantages = run(*self.INPUTS)
        np.testing.assert_allclose(got_vs, column(*vs), rtol=1e-6)
        np.testing.assert_allclose(got_advantages, column(*advantages), rtol=1e-6)

    @HOW
    @pytest.mark.parametrize("correction", losses.CORRECTIONS)
    def test_rows_after_a_reset_do_not_change_targets_before_it(self, how, correction):
        rng = np.random.default_rng(1)
        steps, envs, resets = 6, 3, [2, 4, 5]
        log_rhos, rewards, values = rng.normal(size=(3, steps, envs)).astype(np.float32)
        bootstrap = rng.normal(size=envs).astype(np.float32)
        discounts = np.full((steps, envs), 0.9, np.float32)
        reset = np.zeros((steps, envs), np.bool_)
        reset[resets, range(envs)] = True
        later = np.arange(steps)[:, None] >= resets
        run = how(partial(losses.corrected_targets, correction, **BARS))

        def before(log_rhos, rewards, values, bootstrap):
            vs, advantages = run(log_rhos, reset, discounts, rewards, values, bootstrap)
            assert np.isfinite(vs).all()
            assert (advantages[reset] == 0).all()
            np.testing.assert_array_equal(vs[reset], values[reset])
            return vs[~later], advantages[~later]

        # The value in the reset row does count: it is the value of the final observation.
        changed_values = np.where(later & ~reset, np.float32(77.0), values)
        changed = (
            np.where(later, np.float32(3.0), log_rhos),
            np.where(later, np.float32(-55.0), rewards),
            changed_values,
            bootstrap + 100,
        )
        expected = before(log_rhos, rewards, values, bootstrap)
        assert expected[0].shape == (2 + 4 + 5,)
        np.testing.assert_array_equal(before(*changed), expected)
        values_of_ends = np.where(reset, np.float32(9.0), values)
        got, _ = before(log_rhos, rewards, values_of_ends, bootstrap)
        assert (got != expected[0]).any()

    @pytest.mark.parametrize("correction", losses.CORRECTIONS)
    def test_truncated_episode_bootstraps_from_its_final_observation(self, correction):
        # row 0 ends the episode, x_1 is its final observation of value 10, row 1 only resets
        run = compiled(partial(losses.corrected_targets, correction, **BARS))
        reset = np.array([[False], [True], [False]])
        for discount, target in [(0.5, 6.0), (0.0, 1.0)]:
            vs, advantages = run(
                column(0, 9, 0),
                reset,
                column(discount, 0.5, 0.5),
                column(1, 0, 1),
                column(2, 10, 6),
                np.float32([8]),
            )
            np.testing.assert_allclose(vs, column(target, 10, 5), rtol=1e-6)
            np.testing.assert_allclose(advantages, column(target - 2, 0, -1), rtol=1e-6)

    @pytest.mark.parametrize("correction", losses.CORRECTIONS)
    def test_no_gradient_flows_through_targets(self, correction):
        def weighted(log_rhos, rewards, values, bootstrap):
            log, reset, discounts, *_ = map(to_tensor, self.INPUTS)
            vs, advantages = losses.corrected_targets(
                correction, log + log_rhos, reset, discounts, rewards, values, bootstrap, **BARS
            )
            # the inputs are added so that the gradient is 7, and not 0 by mistake
            return (3 * vs + 5 * advantages + 7 * (log_rhos + rewards + values)).sum()

        inputs = [column(0.1, 0.2), column(1, 2), column(0, 1), np.float32([4])]
        with one_by_one():
            gradients = ms.grad(weighted, (0, 1, 2, 3))(*map(to_tensor, inputs))
        got = [gradient.asnumpy() for gradient in gradients]
        for gradient in got[:3]:
            np.testing.assert_array_equal(gradient, column(7, 7))
        np.testing.assert_array_equal(got[3], [0.0])


class TestLosses:
    LOG_PROBS = np.log(column(0.5, 0.25, 0.8))
    ADVANTAGES = column(2.0, -3.0, 0.0)
    VALID = column(1, 1, 0)

    @HOW
    def test_policy_gradient_loss_by_hand(self, how):
        loss = how(losses.policy_gradient_loss)(self.LOG_PROBS, self.ADVANTAGES)
        np.testing.assert_allclose(loss, -2 * np.log(0.5) + 3 * np.log(0.25), rtol=1e-5)

    @HOW
    def test_policy_gradient_loss_with_epsilon_by_hand(self, how):
        run = how(partial(losses.policy_gradient_loss, epsilon=0.25))
        loss = run(self.LOG_PROBS, self.ADVANTAGES)
        np.testing.assert_allclose(loss, -2 * np.log(0.75) + 3 * np.log(0.5), rtol=1e-5)

    @HOW
    def test_epsilon_bounds_the_loss_of_an_action_that_became_impossible(self, how):
        run = how(partial(losses.policy_gradient_loss, epsilon=1e-6))
        loss = run(column(-1e30), column(1.0))
        np.testing.assert_allclose(loss, -np.log(1e-6), rtol=1e-5)

    @HOW
    def test_baseline_loss_leaves_reset_rows_out(self, how):
        loss = how(losses.baseline_loss)(column(1, 2, 50), column(2, -1, 0), self.VALID)
        assert loss == 0.5 * (1 + 9)

    @HOW
    def test_entropy_loss_leaves_reset_rows_out(self, how):
        assert how(losses.entropy_loss)(column(0.5, 0.25, 9), self.VALID) == -0.75


class TestClipRewards:
    @HOW
    @pytest.mark.parametrize(
        ("clip", "expected"),
        [
            ("none", [0, 0, 7, -7, 0.5, -0.25]),
            ("abs_one", [0, 0, 1, -1, 0.5, -0.25]),
            (
                "soft_asymmetric",
                [0, 0, 4.4267582, -1.3280275, 5 * np.tanh(0.1), -1.5 * np.tanh(0.05)],
            ),
        ],
    )
    def test_clipped_rewards_by_hand(self, how, clip, expected):
        rewards = column(0, 0, 7, -7, 0.5, -0.25)
        got = how(partial(losses.clip_rewards, how=clip))(rewards)
        np.testing.assert_allclose(got, column(*expected), rtol=1e-5)

    def test_these_tests_cover_every_clip_and_correction(self):
        assert losses.REWARD_CLIPS == ("none", "abs_one", "soft_asymmetric")
        assert losses.CORRECTIONS == ("vtrace", "one_step_is", "epsilon", "none")
