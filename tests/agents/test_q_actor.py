"""How a Q actor explores, and what it records."""

import numpy as np
import pytest

from impala_ms.agents.checks import check_policy
from impala_ms.agents.q_actor import FirstErrors, LadderOfEpsilons, LinearEpsilon, QActor
from impala_ms.envs.make import make_vec
from impala_ms.ops.distributions import EpsilonGreedy
from impala_ms.replay.n_step import n_step
from impala_ms.replay.rewards import Rewards
from impala_ms.trajectory import TrajectorySpec
from tests.agents.test_q_learning import Table
from tests.compiled import eager

T, E = 6, 2


class TestEpsilonGreedy:
    def actions(self, epsilon, mask=None, values=(2.0, 1.5, 1.0), number=20_000):
        distribution = EpsilonGreedy(3)
        noise = distribution.noise(np.random.default_rng(1), (number,), epsilon)
        values = np.tile(np.float32(values), (number, 1))
        if mask is not None:
            masked = np.tile(np.array(mask, np.bool_), (number, 1))
            values = eager(distribution.mask)(values, masked)
        return np.bincount(eager(distribution.sample)(values, noise), minlength=3) / number

    def test_takes_only_allowed_actions_with_the_probabilities_of_case_65(self):
        found = self.actions(0.1, mask=[0, 1, 1])
        np.testing.assert_allclose(found, [0.0, 0.95, 0.05], atol=0.005)
        assert found[0] == 0.0

    @pytest.mark.parametrize(("epsilon", "wanted"), [(0.0, [1, 0, 0]), (1.0, [1 / 3] * 3)])
    def test_takes_the_best_action_or_any(self, epsilon, wanted):
        np.testing.assert_allclose(self.actions(epsilon), wanted, atol=0.01)

    def test_each_environment_has_its_own_probability(self):
        distribution = EpsilonGreedy(4)
        noise = distribution.noise(np.random.default_rng(1), (9_000, 3), np.array([0.0, 0.5, 1.0]))
        random = (noise > 0.0).any(-1).mean(0)
        np.testing.assert_allclose(random, [0.0, 0.5, 1.0], atol=0.02)
        assert noise.dtype == np.float32


class TestLinearEpsilon:
    """Case 68: 1 to .1 over 1 M frames, which are 250,000 decisions."""

    @pytest.mark.parametrize(
        ("steps", "wanted"), [(0, 1.0), (125_000, 0.55), (250_000, 0.1), (10_000_000, 0.1)]
    )
    def test_falls_linearly_and_stays(self, steps, wanted):
        assert LinearEpsilon(1.0, 0.1, 250_000)(steps) == pytest.approx(wanted)

    def test_without_a_length_it_is_the_last_value(self):
        assert LinearEpsilon(1.0, 0.1, 0)(0) == 0.1


class TestLadderOfEpsilons:
    def test_every_environment_of_every_actor_has_another_probability(self):
        """Case 68: two actors with four environments each."""
        ladders = [LadderOfEpsilons(0.4, 7.0, number, 2, 4) for number in (1, 2)]
        every = np.concatenate([ladder(0) for ladder in ladders])
        np.testing.assert_allclose(every, 0.4 ** (1 + np.arange(8)), rtol=1e-9)
        assert every[[0, 1, -1]] == pytest.approx([0.4, 0.16, 0.00065536])
        scored = np.concatenate([ladder.scored for ladder in ladders])
        assert scored.tolist() == [False] * 7 + [True]

    def test_of_a_single_environment_is_the_base(self):
        ladder = LadderOfEpsilons(0.4, 7.0, 1, 1, 1)
        assert ladder(0).tolist() == [0.4]
        assert ladder.scored.tolist() == [True]

    def test_the_lowest_tenth_counts(self):
        assert LadderOfEpsilons(0.4, 7.0, 1, 1, 40).scored.tolist() == [False] * 36 + [True] * 4


def make_actor(first_errors=None):
    environment = make_vec(
        "tests.fakes:Counting-v0", num_envs=E, seeds=[0, 1], kwargs={"lengths": (2, 4)}
    )
    table = Table(1, 2)
    check_policy(table, "table", "none")
    actor = QActor(table, environment, T, np.random.default_rng(3))
    actor.explore(LinearEpsilon(1.0, 0.0, 100), np.array([False, True]))
    actor.first_errors = first_errors
    return actor


def play(actor, steps_of_all=0, weight=(1.0, 2.0)):
    recorded = {"scored": ((E,), np.dtype(np.bool_)), "error": ((T, E), np.dtype(np.float32))}
    spec = TrajectorySpec(
        unroll_length=T,
        num_envs=E,
        observation={"": ((1,), np.float32)},
        action_shape=(),
        action_dtype=np.int32,
        policy_parameters=0,
        recorded=recorded,
    )
    _, unroll = spec.empty()
    actor.set_weights(3, np.float32([*weight, 0.0, 0.0]), steps_of_all)
    actor.play(unroll)
    return unroll


def test_exploration_follows_the_steps_of_all_actors():
    actor = make_actor()
    begin = np.concatenate([play(actor, 0)["action"] for _ in range(20)])
    assert 0.3 < begin.mean() < 0.7
    later = play(actor, 100)
    observed = later["observation"][:-1, :, 0]
    assert later["action"][observed > 0].tolist() == [1] * int((observed > 0).sum())
    assert later["scored"].tolist() == [False, True]


def test_first_errors_are_those_of_the_weights_that_played():
    rewards = Rewards("none", 0.5)
    actor = make_actor(FirstErrors(2, 0.9, rewards))
    for _ in range(3):
        unroll = play(actor, 50, weight=(0.5, -0.3))
        values = unroll["observation"] * np.float32([0.5, -0.3])
        made = n_step(rewards(unroll["reward"]), unroll["terminated"], unroll["first"], 2, 0.9)
        for t in range(T):
            for env in range(E):
                steps = made.steps[t, env]
                after = values[t + steps, env].max() * made.discounts[t, env]
                taken = values[t, env, unroll["action"][t, env]]
                wanted = abs(made.returns[t, env] + after - taken) if steps else 0.0
                assert unroll["error"][t, env] == pytest.approx(wanted, abs=1e-5)
    assert (unroll["error"] > 0).any()
