"""The actor on an environment and a network that count: all rows are known exactly."""

from types import SimpleNamespace

import numpy as np
import pytest

from impala_ms import compat, seeds
from impala_ms.agents import actor as module
from impala_ms.agents import build
from impala_ms.agents.actor import PolicyActor
from impala_ms.agents.evaluation import evaluate
from impala_ms.agents.network import ActorCriticPolicy
from impala_ms.envs.make import make_vec
from impala_ms.ops.distributions import Categorical
from impala_ms.seeds import episode_seeds
from impala_ms.trajectory import ALIGNMENT_BYTES, TrajectorySpec
from tests import compiled, fakes  # noqa: F401  compiled sets graph mode

T, E = 4, 3
LENGTHS = (2, 3, 5)  # environment e begins with the e-th of these
REWARDS = (1.0, 10.0, 100.0)
ABSURD = 0xA5


def counting(ends="terminated", lengths=LENGTHS, envs=E):
    return make_vec(
        "tests.fakes:Counting-v0",
        num_envs=envs,
        seeds=list(range(envs)),
        kwargs={"lengths": lengths, "ends": ends, "rewards": REWARDS},
    )


def make_actor(environment, seed=0):
    return PolicyActor(fakes.linear_net((1,), 2), environment, T, np.random.default_rng((seed, 99)))


def weights(slope=0.0, bias=0.0):
    """Weights that give action 1 the logit ``slope * count + bias`` and action 0 the logit 0."""
    return np.float32([0, slope, 0, bias, 0])


def unroll_buffer(environment):
    """Views of an unroll filled with absurd values."""
    spec = TrajectorySpec(
        unroll_length=T,
        num_envs=environment.num_envs,
        observation={"": ((1,), np.float32)},
        action_shape=(),
        action_dtype=np.int32,
        policy_parameters=2,
    )
    buffer, unroll = spec.empty()
    buffer[ALIGNMENT_BYTES:] = ABSURD
    return unroll


def showing(observation):
    """A stream whose present observation is this."""
    stream = module.Stream(counting(envs=len(observation)), fakes.linear_net((1,), 2))
    stream.observation = [observation]
    return stream


def play(actor, unrolls):
    """Play so many unrolls, with the versions 0, 1, 2 …, each in a buffer of its own."""
    played = []
    for version in range(unrolls):
        actor.set_weights(version, weights(slope=2.0, bias=version))
        unroll = unroll_buffer(actor.environment)
        assert actor.act(compat.COLLECT, unroll) is unroll
        played.append(unroll)
    return played


def timeline(env, rows, lengths=LENGTHS):
    """The rows of one environment as lists of ``rows`` values; ``rows + 1`` observations."""
    observation, first = [0], [True]
    reward, over, returns, counts = [], [], [], []
    episode, step, total = env, 0, 0.0
    for _ in range(rows):
        length = lengths[episode % len(lengths)]
        if step == length:  # the reset row
            episode, step, total = episode + 1, 0, 0.0
            reward.append(0.0)
        else:
            reward.append(REWARDS[step % 3])
            total += reward[-1]
            step += 1
        ends = step == length
        over.append(ends)
        returns.append(total if ends else 0.0)
        counts.append(length if ends else 0)
        observation.append(step)
        first.append(step == 0)
    return observation, first, reward, over, returns, counts


def expected(rows, lengths=LENGTHS, envs=E):
    """``timeline`` of all environments as arrays ``[rows, E]``."""
    columns = zip(*(timeline(env, rows, lengths) for env in range(envs)), strict=True)
    return [np.array(column).T for column in columns]


UNROLLS = 5


@pytest.fixture(scope="module", params=["terminated", "truncated"])
def played(request):
    """``(how episodes end, consecutive unrolls)``."""
    return request.param, play(make_actor(counting(request.param)), UNROLLS)


class TestUnrolls:
    def rows(self, played, name):
        """A field of all unrolls, concatenated."""
        values = [unroll[name][:T] for unroll in played[1]]
        return np.concatenate(values)

    def test_rows_hold_observations_and_first(self, played):
        observation, first, *_ = expected(T * UNROLLS)
        assert observation.max() == 5
        for number, unroll in enumerate(played[1]):
            rows = slice(number * T, (number + 1) * T + 1)
            np.testing.assert_array_equal(unroll["observation"][..., 0], observation[rows])
            np.testing.assert_array_equal(unroll["first"], first[rows])

    def test_unrolls_overlap_by_one_observation(self, played):
        for before, after in zip(played[1][:-1], played[1][1:], strict=True):
            np.testing.assert_array_equal(before["observation"][T], after["observation"][0])
            np.testing.assert_array_equal(before["first"][T], after["first"][0])

    def test_rewards_are_raw_and_truncation_is_not_terminated(self, played):
        _, first, reward, over, *_ = expected(T * UNROLLS)
        assert reward.max() == 100
        assert 5 < over.sum() < 20
        np.testing.assert_array_equal(self.rows(played, "reward"), reward)
        terminated = over if played[0] == "terminated" else np.zeros_like(over)
        np.testing.assert_array_equal(self.rows(played, "terminated"), terminated)
        # the row after the end of an episode is a reset row
        np.testing.assert_array_equal(first[2:], over[:-1])

    def test_unroll_holds_returns_and_lengths_of_finished_episodes(self, played):
        *_, returns, counts = expected(T * UNROLLS)
        lengths = self.rows(played, "episode_length")
        np.testing.assert_array_equal(lengths, counts)
        ended = lengths > 0
        assert set(counts[ended]) == set(LENGTHS)
        np.testing.assert_array_equal(self.rows(played, "episode_return")[ended], returns[ended])

    def test_unroll_holds_version_steps_and_wait(self, played):
        _, first, *_ = expected(T * UNROLLS)
        for number, unroll in enumerate(played[1]):
            assert unroll["behaviour_version"] == number
            assert unroll["env_steps"] == (~first[1 : (number + 1) * T + 1]).sum()
            assert unroll["wait_fraction"] == 0.0

    def test_logits_are_those_of_the_weights_set_last(self, played):
        for version, unroll in enumerate(played[1]):
            count = unroll["observation"][:T, :, 0]
            wanted = np.stack([np.zeros_like(count), 2.0 * count + version], -1)
            np.testing.assert_array_equal(unroll["behaviour_logits"], wanted)

    def test_actions_are_sampled_with_the_generator_of_the_actor(self, played):
        rng = np.random.default_rng((0, 99))
        for unroll in played[1]:
            exponential = rng.standard_exponential((T, E, 2), dtype=np.float32)
            noise = -np.log(exponential)
            wanted = (unroll["behaviour_logits"] + noise).argmax(-1)
            np.testing.assert_array_equal(unroll["action"], wanted)
        assert set(np.unique(self.rows(played, "action"))) == {0, 1}


def test_equal_seeds_give_equal_actions_and_other_seeds_others():
    streams = [
        np.stack([unroll["action"] for unroll in play(make_actor(counting(), seed), 4)])
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(streams[0], streams[1])
    assert (streams[0] != streams[2]).any()


def test_wait_fraction_is_the_share_since_the_last_unroll(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    actor, fractions = make_actor(counting()), []
    actor.set_weights(0, weights())
    for seconds, waited in [(10.0, 2.5), (4.0, 3.0), (8.0, 0.0)]:
        clock.now += seconds
        actor.wait_s += waited
        unroll = actor.act(compat.COLLECT, unroll_buffer(actor.environment))
        fractions.append(float(unroll["wait_fraction"]))
    assert fractions == [0.25, 0.75, 0.0]


class TestWeights:
    def test_compiled_policy_uses_new_weights(self):
        actor = make_actor(counting())
        assert actor.version == -1
        actor.begin()  # compiles without playing
        for version, (slope, bias, action) in enumerate([(0, 500, 1), (0, -500, 0), (0, 500, 1)]):
            flat = weights(slope, bias)
            actor.set_weights(version, flat)
            flat[:] = np.nan  # must not matter: the weights are copied
            unroll = actor.act(compat.COLLECT, unroll_buffer(actor.environment))
            assert (unroll["behaviour_logits"][..., 1] == bias).all()
            assert (unroll["action"] == action).all()
            assert unroll["behaviour_version"] == version

    def test_compiled_network_computes_the_logits_of_its_weights(self):
        policy = ActorCriticPolicy(
            fakes.box(1), Categorical(2), hidden_sizes=[8], activation="relu"
        )
        actor = PolicyActor(policy, counting(), T, np.random.default_rng(0))
        actor.begin()
        rng = np.random.default_rng(1)
        for _ in range(2):
            flat = rng.normal(size=actor.weights.size).astype(np.float32)
            actor.set_weights(0, flat)
            count = np.float32([[0.0], [1.0], [7.0]])
            _, logits, _ = actor.get_action(compat.EVAL, showing(count))
            w1, b1, w2, b2 = np.split(flat[: 8 + 8 + 16 + 2].astype(np.float64), [8, 16, 32])
            hidden = np.maximum(count @ w1.reshape(1, 8) + b1, 0)
            np.testing.assert_allclose(logits, hidden @ w2.reshape(2, 8).T + b2, rtol=1e-4)


class TestGetAction:
    def test_eval_phase_gives_the_mode_and_collect_phase_a_sample(self):
        actor = make_actor(counting())
        actor.set_weights(0, weights(slope=1.0, bias=-2.0))
        observation = np.float32([[0], [1.9], [2.1]])
        for _ in range(5):
            action, logits, state = actor.get_action(compat.EVAL, showing(observation))
            assert state is None
            np.testing.assert_array_equal(action, [0, 0, 1])
        np.testing.assert_allclose(logits[:, 1], [-2.0, -0.1, 0.1], atol=1e-6)
        sampled = np.stack(
            [actor.get_action(compat.COLLECT, showing(observation))[0] for _ in range(60)]
        )
        assert (sampled.mean(0) > 0).all()
        assert (sampled.mean(0) < 1).all()


@pytest.fixture(scope="module")
def balancer():
    """An actor that plays CartPole well when greedy."""
    actor = PolicyActor(fakes.linear_net((4,), 2), None, T, np.random.default_rng(7))
    flat = np.zeros(actor.weights.size, np.float32)
    flat[4:8] = [0.1, 0.5, 2.0, 2.0]  # push to the side to which the pole falls
    actor.set_weights(0, flat)
    return actor


class TestEvaluate:
    def test_each_environment_plays_its_share_of_episodes(self):
        # 7 episodes: 3 of environment 0, 2 of each other, however long they are
        actor = make_actor(None)
        actor.set_weights(0, weights())
        environment = counting(lengths=(2, 11, 30))
        returns = evaluate(actor, environment, 7, greedy=True, seed=0)
        of = {2: 11.0, 11: 3 * 111 + 11.0, 30: 10 * 111.0}
        wanted = [of[2], of[11], of[30], of[11], of[30], of[30], of[2]]
        assert returns.dtype == np.float64
        np.testing.assert_array_equal(returns, wanted)

    @staticmethod
    def cartpole(actor, seed, greedy=False, stop=None):
        environment = make_vec("CartPole-v1", num_envs=3, seeds=[4, 5, 6])
        try:
            return evaluate(actor, environment, 6, greedy=greedy, seed=seed, stop=stop)
        finally:
            environment.close()

    def test_equal_seeds_give_equal_returns(self, balancer):
        returns = [self.cartpole(balancer, seed) for seed in (1, 1, 2)]
        assert returns[0].shape == (6,)
        np.testing.assert_array_equal(returns[0], returns[1])
        assert (returns[0] != returns[2]).any()

    def test_ended_is_called_after_each_step_with_the_number_of_episodes(self):
        actor, told = make_actor(None), []
        actor.set_weights(0, weights())
        environment = counting(lengths=(2, 11), envs=2)  # episodes of 2, 11, … and 11, 2, … steps
        evaluate(actor, environment, 3, greedy=True, seed=0, ended=told.append)
        ends = [told.count(n) for n in range(4)]
        assert told == sorted(told)
        assert ends[3] == 1  # the last step
        assert (ends[0], sum(ends)) == (1, 14)

    def test_greedy_returns_do_not_depend_on_the_seed(self, balancer):
        greedy = [self.cartpole(balancer, seed, greedy=True) for seed in (1, 2)]
        np.testing.assert_array_equal(*greedy)
        assert greedy[0].mean() > 2 * self.cartpole(balancer, 1).mean()

    def test_evaluations_and_ranks_have_different_seeds(self):
        numbers = 0, 1, 2, 99, seeds.FOR_EVALUATION, seeds.FOR_SNAPSHOTS
        of_environments = [episode_seeds(1, 0, number, 0, 8) for number in numbers]
        assert len(set(np.ravel(of_environments))) == 6 * 8
        actions = [seeds.of_actions(1, 0, number, 0) for number in numbers]
        assert len({np.random.default_rng(seed).random() for seed in actions}) == 6

    def test_seeds_of_episodes_and_actions_are_those_of_the_evaluation(self, monkeypatch):
        given = []
        environment = SimpleNamespace(close=lambda: None)
        monkeypatch.setattr(
            build, "make_environment", lambda *arguments: given.append(arguments[3]) or environment
        )
        monkeypatch.setattr(build, "evaluate", lambda *_, **options: given.append(options["seed"]))
        config = SimpleNamespace(
            eval_env_params={"num_envs": 10}, trainer_params={"seed": 3, "eval_max_steps": 9}
        )
        for number in (seeds.FOR_EVALUATION, seeds.FOR_SNAPSHOTS):
            build.evaluate_policy(config, None, episodes=4, greedy=False, number=number)
            wanted = [episode_seeds(3, 0, number, 0, 4), seeds.of_actions(3, 0, number, 0)]
            assert given[-2:] == wanted

    def test_evaluation_does_not_change_the_training(self):
        streams = []
        for evaluates in (False, True):
            actor = make_actor(counting(), seed=3)
            actor.set_weights(0, weights())
            unrolls = [actor.act(compat.COLLECT, unroll_buffer(actor.environment))]
            if evaluates:
                evaluate(actor, counting(), 4, greedy=False, seed=0)
            unrolls.append(actor.act(compat.COLLECT, unroll_buffer(actor.environment)))
            streams.append(unrolls)
        for without, with_one in zip(*streams, strict=True):
            for name in ("observation", "first", "action", "env_steps"):
                np.testing.assert_array_equal(without[name], with_one[name])

    def test_stopped_evaluation_returns_none_and_restores_the_generator(self, balancer):
        rng, calls = balancer.rng, []

        def stop():
            calls.append(True)
            return len(calls) == 4

        assert self.cartpole(balancer, 1, stop=stop) is None
        assert len(calls) == 4
        assert balancer.rng is rng

    def test_failed_evaluation_restores_the_generator(self, balancer):
        rng = balancer.rng
        environment = make_vec("CartPole-v1", num_envs=3, seeds=[4, 5, 6])
        environment.step = None
        with pytest.raises(TypeError):
            evaluate(balancer, environment, 3, greedy=False, seed=1)
        environment.close()
        assert balancer.rng is rng

    def test_endless_episode_is_cut_off_and_counts_with_its_return_so_far(self, caplog):
        actor = make_actor(None)
        actor.set_weights(0, weights())
        environment = counting(ends="never", envs=2)
        assert environment.step_limit is None
        returns = evaluate(actor, environment, 6, greedy=True, seed=0, max_steps=5)
        np.testing.assert_array_equal(returns, [111.0 + 11.0] * 2)
        assert "2 of 2 evaluation episodes were cut off after 5 steps" in caplog.text
        assert "has no time limit (eval_env.max_episode_steps sets one)" in caplog.text

    def test_episode_below_max_steps_is_not_cut_off(self, caplog):
        actor = make_actor(None)
        actor.set_weights(0, weights())
        environment = counting(
            lengths=(2, 11), envs=2
        )  # environment 1 has episodes of 11, 2, 11, … steps
        returns = evaluate(actor, environment, 4, greedy=True, seed=0, max_steps=8)
        np.testing.assert_array_equal(returns, [11.0, 2 * 111 + 11.0, 2 * 111 + 11.0])
        assert "2 of 3 evaluation episodes" in caplog.text

    def test_time_limit_of_the_environment_overrides_max_steps(self, caplog):
        actor = make_actor(None)
        actor.set_weights(0, weights())
        environment = make_vec(
            "tests.fakes:Counting-v0",
            num_envs=1,
            seeds=[0],
            kwargs={"ends": "never"},
            max_episode_steps=9,
        )
        returns = evaluate(actor, environment, 2, greedy=True, seed=0, max_steps=4)
        np.testing.assert_array_equal(returns, [9.0, 9.0])
        assert not caplog.records


def test_unroll_does_not_change_while_the_next_is_played():
    # observations are passed to compiled code without a copy
    actor = make_actor(counting())
    actor.set_weights(0, weights(slope=1.0))
    first = actor.act(compat.COLLECT, unroll_buffer(actor.environment))
    kept = {name: values.copy() for name, values in first.items()}
    actor.act(compat.COLLECT, unroll_buffer(actor.environment))
    for name, values in kept.items():
        np.testing.assert_array_equal(first[name], values, err_msg=name)
