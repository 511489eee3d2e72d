"""Tests for every vector environment; a subclass makes the environment to test."""

import json

import numpy as np
import pytest

from impala_ms.seeds import episode_seeds


def play(env, steps, action=0):
    """Rows of ``steps`` steps with one action; the arrays are copied, as an actor does."""
    rows = [tuple(np.copy(part) for part in env.step(actions(env, action))) for _ in range(steps)]
    return [np.stack(column) for column in zip(*rows, strict=True)]


def actions(env, action):
    return np.full(env.num_envs, action, np.int32)


class EnvironmentContract:
    """Tests for every vector environment; a subclass makes the environment to test."""

    STEPS = 120
    PAYS_ALWAYS = True

    def make(self, num_envs, seeds):
        raise NotImplementedError

    @pytest.fixture
    def env(self):
        env = self.make(4, episode_seeds(1, 0, 1, 0, 4))
        yield env
        env.close()

    def stream(self, seeds):
        env = self.make(len(seeds), seeds)
        first_observation = np.copy(env.reset())
        chosen = np.random.default_rng(0).integers(0, env.num_actions, (self.STEPS, len(seeds)))
        rows = []
        for action in chosen:
            rows.append([np.copy(part) for part in env.step(action)])
            rows[-1].append(tuple(np.copy(part) for part in env.finished))
        env.close()
        return first_observation, rows

    def test_arrays_have_the_shapes_and_types_of_the_spaces(self, env):
        observation = env.reset()
        assert observation.shape == (4, *env.observation_shape)
        assert observation.dtype == env.observation_dtype
        observation, reward, terminated, truncated, first = env.step(actions(env, 1))
        assert observation.shape == (4, *env.observation_shape)
        assert observation.dtype == env.observation_dtype
        assert observation.flags.c_contiguous
        assert reward.shape == (4,)
        assert reward.dtype == np.float32
        for flag in (terminated, truncated, first):
            assert flag.shape == (4,)
            assert flag.dtype == np.bool_

    def test_step_after_an_episode_end_is_a_reset_row(self):
        _, rows = self.stream(episode_seeds(1, 0, 1, 0, 4))
        over = np.stack([row[2] | row[3] for row in rows])
        first = np.stack([row[4] for row in rows])
        assert over.sum() > 8
        np.testing.assert_array_equal(first[0], False)
        np.testing.assert_array_equal(first[1:], over[:-1])
        assert not (first & over).any()

    def test_reset_row_has_reward_0(self):
        _, rows = self.stream(episode_seeds(1, 0, 1, 0, 4))
        reward, first = np.stack([row[1] for row in rows]), np.stack([row[4] for row in rows])
        np.testing.assert_array_equal(reward[first], 0)
        if self.PAYS_ALWAYS:
            assert (reward[~first] != 0).all()

    def test_finished_returns_and_lengths_equal_sums_over_the_rows(self):
        _, rows = self.stream(episode_seeds(1, 0, 1, 0, 4))
        returns, lengths, episodes = [0.0] * 4, [0] * 4, 0
        for _, reward, terminated, truncated, first, (index, ended_returns, ended_lengths) in rows:
            expected = []
            for e in range(4):
                if not first[e]:
                    returns[e] += float(reward[e])
                    lengths[e] += 1
                if terminated[e] or truncated[e]:
                    expected.append((e, returns[e], lengths[e]))
                    returns[e], lengths[e] = 0.0, 0
            assert list(zip(index, ended_returns, ended_lengths, strict=True)) == expected
            assert ended_returns.dtype == np.float64
            episodes += len(expected)
        assert episodes > 8

    def test_equal_seeds_give_equal_episodes(self):
        seeds = episode_seeds(1, 0, 1, 0, 4)
        first_a, rows_a = self.stream(seeds)
        first_b, rows_b = self.stream(seeds)
        np.testing.assert_array_equal(first_a, first_b)
        for row_a, row_b in zip(rows_a, rows_b, strict=True):
            for a, b in zip(row_a[:5], row_b[:5], strict=True):
                np.testing.assert_array_equal(a, b)

    def test_another_rank_has_other_episodes(self):
        _, rows_a = self.stream(episode_seeds(1, 0, 1, 0, 4))
        _, rows_b = self.stream(episode_seeds(1, 0, 2, 0, 4))
        assert any((a[0] != b[0]).any() for a, b in zip(rows_a, rows_b, strict=True))

    def test_environments_of_one_actor_have_different_episodes(self):
        _, rows = self.stream(episode_seeds(1, 0, 1, 0, 4))
        observations = np.stack([row[0] for row in rows], axis=1)
        for e in range(1, 4):
            assert (observations[e] != observations[0]).any()

    def test_only_the_first_reset_uses_the_seeds(self, env):
        first = np.copy(env.reset())
        second = np.copy(env.reset())
        again = np.copy(env.reset(episode_seeds(1, 0, 1, 0, 4)))
        np.testing.assert_array_equal(first, again)
        self.check_second_reset(first, second)

    def check_second_reset(self, first, second):
        assert (first != second).any()

    def test_step_before_reset_is_refused(self, env):
        with pytest.raises(RuntimeError, match=r"reset\(\) comes before"):
            env.step(actions(env, 0))

    def test_spaces_are_json_values(self, env):
        assert json.loads(json.dumps(env.spaces(), allow_nan=False)) == env.spaces()

    def test_fewer_seeds_than_environments_are_refused(self):
        with pytest.raises(ValueError, match="4 environments"):
            self.make(4, [1, 2, 3])
